"""Corpora of the hub, as typed: listed at a commit, fetched, tokenized, published; the shipped YAMLs among them."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import dataprep
from dataprep import fetching, planning, runner, watcher
from dataprep.catalog import names
from dataprep.errors import OutputError, SourceError, SpecError
from dataprep.specs import load_yaml
from dataprep.stages import merge


def texts(number, seed=0):
    draw = np.random.default_rng(seed)
    words = ["".join(chr(97 + c) for c in draw.integers(0, 26, draw.integers(1, 9))) for _ in range(300)]
    return [f"{seed}.{i} " + " ".join(draw.choice(words, draw.integers(1, 60))) for i in range(number)]


def lines(values, field="text"):
    return "".join(json.dumps({"id": i, field: value}) + "\n" for i, value in enumerate(values)).encode()


def parquet(values, field="text"):
    sink = io.BytesIO()
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), field: values})
    pq.write_table(table, sink, row_group_size=20)
    return sink.getvalue()


def arrow(values, field="text"):
    sink = io.BytesIO()
    table = pa.table({field: values})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, 30)
    return sink.getvalue()


PACK = {
    "parquet": parquet,
    "arrow": arrow,
    "jsonl": lines,
    "jsonl.gz": lambda values, field="text": gzip.compress(lines(values, field)),
    "json.gz": lambda values, field="text": gzip.compress(lines(values, field)),
    "jsonl.zst": lambda values, field="text": zstandard.compress(lines(values, field)),
    "jsonl.xz": lambda values, field="text": lzma.compress(lines(values, field)),
    "jsonl.bz2": lambda values, field="text": bz2.compress(lines(values, field)),
}

# Shipped corpus -> files as the repository has them, in the order in which they are read.
LAYOUTS = {
    "bookcorpus": ["plain_text/train/0000.parquet", "plain_text/train/0001.parquet"],
    "c4": ["realnewslike/c4-train.00000-of-00512.json.gz", "realnewslike/c4-train.00001-of-00512.json.gz"],
    "dclm": ["global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst"],
    "finemath": ["finemath-3plus/train-00000-of-00128.parquet"],
    "fineweb": ["sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"],
    "fineweb:CC-MAIN-2024-10": ["data/CC-MAIN-2024-10/000_00000.parquet"],
    "fineweb:all": ["data/CC-MAIN-2013-20/000_00000.parquet", "data/CC-MAIN-2024-10/000_00000.parquet"],
    "fineweb-edu": ["sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"],
    "fineweb-edu:amd-sample": ["sample/10BT/000_00000.parquet"],
    "openwebmath": ["data/train-00000-of-00114-5ff2eb6d3d5ab4b9.parquet"],
    "oscar": ["en_meta/en_meta_part_1.jsonl.zst", "en_meta/en_meta_part_2.jsonl.zst"],
    "oscar:yo": ["yo_meta/yo_meta.jsonl.zst"],
    "oscar-1gb": ["stas/oscar-1GB.jsonl.xz"],
    "wikipedia": ["20231101.en/train-00000-of-00041.parquet"],
    "wiki:de": ["20231101.de/train-00000-of-00020.parquet"],
    "wiki:20231101.de": ["20231101.de/train-00000-of-00020.parquet"],
    "zyda2": [
        "sample/100BT/dclm_crossdeduped/part.0.parquet",
        "sample/100BT/zyda_crossdeduped-filtered/part.0.parquet",
    ],
    "Zyda-2:zyda_crossdeduped-filtered": ["data/zyda_crossdeduped-filtered /00/part.0.parquet"],
    "zyda2:dclm_crossdeduped": ["data/dclm_crossdeduped/global-shard_01_of_10/part.0.parquet"],
    "zyda2:fwe3": ["data/fwe3/CC-MAIN-2013-20/part.0.parquet"],
    "zyda2:dolma-cc_crossdeduped-filtered": ["data/dolma-cc_crossdeduped-filtered/part.0.parquet"],
    "zyda2:all": ["data/dolma-cc_crossdeduped-filtered/part.0.parquet", "data/fwe3/CC-MAIN-2013-20/part.0.parquet"],
}
ELSEWHERE = {
    "README.md": b"# Card\n",
    "data/CC-MAIN-2099-01/README.md": b"",
    "other/of/it.parquet": b"not read",
    "sample/350BT/000_00000.parquet": b"not read",
    "realnewslike/c4-validation.00000-of-00001.json.gz": b"not read",
    "20231101.fr/train-00000-of-00017.parquet": b"not read",
    "fr_meta/fr_meta_part_1.jsonl.zst": b"not read",
}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def yaml_of(argument):
    name = argument.partition(":")[0]
    paths = names("pipelines").values()
    return next(v for v in map(load_yaml, paths) if name == v["name"] or name in v.get("aliases", ()))


def put(hub, argument, **options):
    """Fill the repository of a shipped corpus; returns it and the files' texts."""
    value = yaml_of(argument)
    source, field = value["source"], value.get("reader", {}).get("text", "text")
    paths = LAYOUTS[argument]
    content = {path: texts(40, seed) for seed, path in enumerate(paths)}
    files = {}
    for path in paths:
        suffix = next(s for s in sorted(PACK, key=len, reverse=True) if path.endswith("." + s))
        files[path] = PACK[suffix](content[path], field)
    branch = source["revision"]
    repo = hub.add(
        f"{source.get('type', 'dataset')}s", source["repo"], {**ELSEWHERE, **files}, branch=branch, **options
    )
    return repo, [text for path in paths for text in content[path]]


def fetched(argument, output):
    """The content of a corpus of one file."""
    (file,) = fetching.download(argument, output).files
    return Path(file.path).read_bytes()


def decoded(result):
    pair = dataprep.open_dataset(result.prefix)
    return [dataprep.decode(result.prefix, i).removesuffix("<|endoftext|>") for i in range(len(pair))]


@pytest.mark.parametrize("argument", LAYOUTS)
def test_every_shipped_corpus_of_the_hub_is_fetched_by_its_name(here, tmp_path, argument):
    repo, _ = put(here, argument)

    listing = fetching.download(argument, tmp_path / "out")

    assert [file.name for file in listing.files] == LAYOUTS[argument]
    stored = repo.commits[next(iter(repo.branches.values()))]
    assert [sha256(Path(file.path)) for file in listing.files] == [stored[name].sha256 for name in LAYOUTS[argument]]
    assert {request.file for request in here.requests if request.body_bytes and request.data} == set(LAYOUTS[argument])


FEW = ["Zyda-2:zyda_crossdeduped-filtered"]


@pytest.mark.parametrize(
    "argument", [*FEW, *(pytest.param(a, marks=pytest.mark.slow) for a in LAYOUTS if a not in FEW)]
)
def test_every_shipped_corpus_of_the_hub_runs_as_typed(here, tmp_path, argument):
    repo, expected = put(here, argument)
    commit = next(iter(repo.branches.values()))

    result = dataprep.run(argument, "sample", tmp_path / "out")

    recipe = result.manifest.recipe
    assert decoded(result) == expected
    assert [file.name for file in recipe.files] == LAYOUTS[argument]
    assert recipe.origin.endswith(f"{repo.id}@{commit}")
    assert recipe.license == yaml_of(argument)["license"]
    assert all(file.checksum == f"sha256:{repo.commits[commit][file.name].sha256}" for file in recipe.files)
    assert dataprep.verify(result.prefix, "source").problems == []


def test_every_shipped_corpus_of_the_hub_has_a_layout_here():
    hub = {name for name, path in names("pipelines").items() if load_yaml(path).get("source", {}).get("kind") == "hub"}
    assert hub - {"python-edu"} == {argument.partition(":")[0] for argument in LAYOUTS} & hub


def test_an_unknown_subset_says_which_there_are_before_anything_is_asked(here, tmp_path):
    with pytest.raises(SpecError, match=r"no subset 'sample-1BT'; there are sample-10BT, sample-100BT, .*CC-MAIN-\*"):
        dataprep.run("fineweb:sample-1BT", "sample", tmp_path)
    with pytest.raises(SpecError, match="openwebmath has no subsets, so no 'x'"):
        dataprep.run("openwebmath:x", "sample", tmp_path)
    assert not here.requests


def test_a_subset_that_the_repository_lacks_is_said(here, tmp_path):
    put(here, "fineweb")
    with pytest.raises(SpecError, match=r"holds no file of data/CC-MAIN-1999-01/\*.parquet; see http"):
        dataprep.run("fineweb:CC-MAIN-1999-01", "sample", tmp_path)


def test_a_second_run_and_a_second_tokenizer_fetch_nothing(here, tmp_path, bpe):
    put(here, "fineweb")
    first = dataprep.run("fineweb", "sample", tmp_path / "out")
    served = here.served()

    assert dataprep.run("fineweb", "sample", tmp_path / "out").fresh is False
    other = dataprep.run("fineweb", str(bpe.path), tmp_path / "out")
    assert decoded(other) == decoded(first)
    assert here.served() == served == sum(file.num_bytes for file in first.manifest.recipe.files)


def test_the_branch_is_resolved_once_and_a_new_commit_is_a_new_dataset_only_if_its_data_differ(here, tmp_path):
    repo, _ = put(here, "fineweb")
    first = dataprep.run("fineweb", "sample", tmp_path / "out")
    repo.commit({**repo.files, "README.md": b"# Mended\n"})
    assert dataprep.run("fineweb", "sample", tmp_path / "out").fresh is False
    repo.commit({**repo.files, LAYOUTS["fineweb"][0]: parquet(texts(40, 9))})

    second = dataprep.run("fineweb", "sample", tmp_path / "out")

    assert second.prefix != first.prefix
    assert decoded(second)[:40] == texts(40, 9)


def test_a_branch_that_moves_between_listing_and_download_changes_nothing(here, tmp_path):
    repo, expected = put(here, "fineweb")
    request = planning.resolve("fineweb", "sample", tmp_path / "out")
    repo.commit({**ELSEWHERE, **{name: parquet(texts(40, 9)) for name in LAYOUTS["fineweb"]}})

    assert decoded(runner.execute(request, watcher.Silent())) == expected


def test_offline_runs_go_by_what_was_fetched_and_say_what_is_missing(here, tmp_path, monkeypatch, bpe):
    from huggingface_hub import constants

    put(here, "fineweb")
    first = dataprep.run("fineweb", "sample", tmp_path / "out")
    asked = len(here.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    assert dataprep.run("fineweb", "sample", tmp_path / "out").fresh is False
    assert decoded(dataprep.run("fineweb", str(bpe.path), tmp_path / "out")) == decoded(first)
    with pytest.raises(SourceError, match=r"offline, and .* holds no listing of wikimedia/wikipedia"):
        dataprep.run("wikipedia", "sample", tmp_path / "out")
    Path(first.manifest.recipe.files[1].path).unlink()
    with pytest.raises(SourceError, match=r"offline, and hf://datasets/HuggingFaceFW/fineweb@.*001_00000.parquet"):
        dataprep.run("fineweb", "sample", tmp_path / "out", settings=["policy.eod=none"])
    assert len(here.requests) == asked


def test_a_fetched_file_that_was_changed_or_lost_is_fetched_again(here, tmp_path):
    put(here, "fineweb")
    first = dataprep.run("fineweb", "sample", tmp_path / "out")
    changed, lost = (Path(file.path) for file in first.manifest.recipe.files)
    data = changed.read_bytes()
    changed.write_bytes(bytes(len(data)))
    lost.unlink()

    again = dataprep.run("fineweb", "sample", tmp_path / "out", settings=["policy.eod=none"])

    assert decoded(again) == decoded(first)
    assert changed.read_bytes() == data


def test_raw_files_that_are_not_kept_go_and_the_dataset_is_the_same(here, tmp_path):
    put(here, "fineweb")
    kept = dataprep.run("fineweb", "sample", tmp_path / "kept")

    result = dataprep.run("fineweb", "sample", tmp_path / "out", settings=["runtime.keep_raw=false"])

    assert Path(result.prefix + ".bin").read_bytes() == Path(kept.prefix + ".bin").read_bytes()
    assert Path(result.prefix + ".idx").read_bytes() == Path(kept.prefix + ".idx").read_bytes()
    assert not list(tmp_path.glob("out/raw/*/files/**/*.parquet"))
    assert result.manifest.recipe.files[0].checksum == kept.manifest.recipe.files[0].checksum
    report = dataprep.verify(result.prefix, "source")
    assert "dataprep download" in report.problems[0].message


def test_raw_files_are_fetched_again_only_for_what_the_merged_file_lost(here, tmp_path):
    """A run that keeps neither raw files nor shards dies; of what it had merged, the end is damaged."""
    put(here, "fineweb")
    kept = dataprep.run("fineweb", "sample", tmp_path / "kept")
    settings, output = ["runtime.keep_raw=false", "runtime.unit_bytes=1000"], tmp_path / "out"

    def die(self: merge.Merger) -> None:
        raise OutputError("power failure")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge.Merger, "finish", die)
        with pytest.raises(OutputError, match="power failure"):
            dataprep.run("fineweb", "sample", output, settings=settings)
    assert not list(output.glob("work/*/shards/*.bin"))
    assert not list(output.glob("raw/*/files/**/*.parquet"))
    (merged,) = output.glob("work/*/merged-*/dataset/*.bin")
    merged.write_bytes(merged.read_bytes()[:-1] + b"?")
    first, second = ([request.file for request in here.requests].count(name) for name in LAYOUTS["fineweb"])

    result = dataprep.run("fineweb", "sample", output, settings=settings)

    assert Path(result.prefix + ".bin").read_bytes() == Path(kept.prefix + ".bin").read_bytes()
    again = [request.file for request in here.requests]
    assert again.count(LAYOUTS["fineweb"][0]) == first
    assert again.count(LAYOUTS["fineweb"][1]) > second


def test_a_limit_fetches_only_the_files_it_needs(here, tmp_path):
    put(here, "fineweb")
    result = dataprep.run("fineweb", "sample", tmp_path / "out", limit=7, settings=["runtime.unit_bytes=1000"])

    assert len(decoded(result)) == 7
    assert here.served(LAYOUTS["fineweb"][1]) == 0


# --- hf:org/name


FORMATS = ("arrow", "jsonl.zst")


def card(configs):
    return b"---\nlicense: mit\nconfigs: " + json.dumps(configs).encode() + b"\n---\n# A card\n"


@pytest.mark.parametrize(
    "kind",
    [k if k in FORMATS else pytest.param(k, marks=pytest.mark.slow) for k in PACK],
)
def test_any_data_set_of_a_known_format_can_be_named(here, tmp_path, kind):
    field = "body"
    files = {f"data/train-{i}.{kind}": PACK[kind](texts(30, i), field) for i in range(2)}
    files |= {f"data/test-0.{kind}": PACK[kind](texts(30, 7), field), "README.md": b"# no front matter\n"}
    here.add("datasets", "org/name", files)
    settings = ["reader.text=body"] if kind == "arrow" else []

    result = dataprep.run("hf:org/name", "sample", tmp_path / "out", settings=settings)

    assert decoded(result) == texts(30, 0) + texts(30, 1)
    assert result.manifest.recipe.reader.text == field
    assert Path(result.prefix).name == "name_text_document"


@pytest.mark.parametrize(
    "data_files",
    [
        "a/*.jsonl",
        ["a/0.jsonl", "a/1.jsonl"],
        [{"split": "train", "path": "a/*.jsonl"}, {"split": "test", "path": "b/*.jsonl"}],
        [{"split": "train", "path": ["a/0.jsonl", "a/1.jsonl"]}],
        {"train": "a/*.jsonl", "test": "b/*.jsonl"},
        {"only": ["a/*"]},
        "a",
    ],
)
def test_the_card_says_which_files(here, tmp_path, data_files):
    configs = [{"config_name": "x", "data_files": data_files}]
    files = {f"{folder}/{i}.jsonl": lines(texts(5, i)) for folder in "ab" for i in range(2)}
    here.add("datasets", "org/name", {**files, "README.md": card(configs)})

    listing = fetching.download("hf:org/name", tmp_path / "out")
    assert [file.name for file in listing.files] == ["a/0.jsonl", "a/1.jsonl"]


def test_a_configuration_is_chosen_by_name_or_the_card_says_which(here, tmp_path):
    files = {f"{name}/0.jsonl": lines(texts(5, i)) for i, name in enumerate(("en", "de", "fr"))}
    configs = [{"config_name": name, "data_files": f"{name}/*"} for name in ("en", "de")]
    repo = here.add("datasets", "org/name", {**files, "README.md": card(configs)})

    with pytest.raises(SpecError, match="several configurations; choose one with hf:org/name:NAME of en, de"):
        dataprep.run("hf:org/name", "sample", tmp_path / "out")
    with pytest.raises(SpecError, match="no configuration 'fr'; there are en, de"):
        dataprep.run("hf:org/name:fr", "sample", tmp_path / "out")
    assert fetched("hf:org/name:de", tmp_path) == lines(texts(5, 1))
    assert Path(planning.resolve("hf:org/name:de", "sample", tmp_path).layout.prefix).name == "name-de_text_document"
    repo.commit({**repo.files, "README.md": card([{**configs[0], "default": True}, configs[1]])})
    assert fetched("hf:org/name", tmp_path) == lines(texts(5, 0))


def test_a_revision_may_be_a_branch_with_a_slash_or_a_commit(here, tmp_path):
    repo = here.add("datasets", "org/name", {"a.jsonl": lines(texts(3, 1))})
    old = repo.branches["main"]
    repo.commit({"a.jsonl": lines(texts(3, 2))}, branch="refs/convert/parquet")
    repo.commit({"a.jsonl": lines(texts(3, 3))})

    assert fetched(f"hf:org/name@{old}", tmp_path) == lines(texts(3, 1))
    assert fetched("hf:org/name@refs/convert/parquet", tmp_path) == lines(texts(3, 2))
    with pytest.raises(SourceError, match="org/name has no revision 'nope'"):
        dataprep.run("hf:org/name@nope", "sample", tmp_path / "c")


def test_columns_are_listed_where_several_may_be_the_text(here, tmp_path):
    sink = io.BytesIO()
    pq.write_table(pa.table({"title": ["a"], "body": ["b"], "n": [1]}), sink)
    here.add("datasets", "org/name", {"a.parquet": sink.getvalue()})

    with pytest.raises(
        SpecError, match=r"no column 'text'; .*reader.text=NAME. Columns of text: title, body; others: n"
    ):
        dataprep.run("hf:org/name", "sample", tmp_path)
    assert decoded(dataprep.run("hf:org/name", "sample", tmp_path, settings=["reader.text=body"])) == ["b"]


def test_names_that_would_leave_the_folder_are_refused(here, tmp_path):
    here.add("datasets", "org/name", {"a/../../../evil.jsonl": lines(["x"]), "b.jsonl": lines(["y"])})
    with pytest.raises(SourceError, match="cannot be stored safely"):
        dataprep.run("hf:org/name", "sample", tmp_path / "out")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("hf:name", "expected hf:org/name"),
        ("hf://datasets/org/name", "expected hf:org/name|say hf:org/name"),
        ("hf:org/name:", "expected hf:org/name"),
    ],
)
def test_a_misspelt_hub_name_says_how_it_is_written(here, tmp_path, argument, message):
    with pytest.raises(SpecError, match=message):
        dataprep.run(argument, "sample", tmp_path)
    assert not here.requests


def test_pages_of_the_listing_are_followed_and_only_the_folder_wanted_is_listed(here, tmp_path):
    here.page_size = 3
    repo, expected = put(here, "fineweb")
    extra = {f"sample/10BT/{i:03d}_00000.parquet": parquet(texts(2, i)) for i in range(2, 12)}
    repo.commit({**repo.files, **extra})

    result = dataprep.run("fineweb", "sample", tmp_path / "out")

    assert len(result.manifest.recipe.files) == 12
    assert decoded(result)[: len(expected)] == expected
    trees = [request.path for request in here.requests if "/tree/" in request.path]
    assert trees
    assert all(path.endswith("sample/10BT") for path in trees)
