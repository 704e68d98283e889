"""`dataprep cache`: what is built, what is kept, and that no crash leaves a cache that is half old and half new.

Against Megatron itself: tests/megatron/test_caches.py.
"""

import contextlib
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.caching import CacheSpec, cache
from dataprep.caching.arrays import PairArrays
from dataprep.caching.blends import parse_prefixes, read_data_args
from dataprep.caching.identifiers import choose_identifiers, derive_identifiers, read_identifiers
from dataprep.checks.report import Expected
from dataprep.errors import FormatError, OutputError, SpecError
from dataprep.indexed import CODES, Header, Index, bin_path, idx_path, write_index
from dataprep.mixing import BlendOrder
from dataprep.repairs import clear_caches
from dataprep.samples import SampleOrder, Sampling
from dataprep.stages.verify import verify
from dataprep.storage import AtomicFile

LENGTHS = [3, 40, 1, 17, 16, 5, 90, 2, 33, 8] * 10
TOKENIZER = {"class": "sample"}


def write(prefix, lengths, token=1):
    array = np.array(lengths, np.int32)
    ids = np.full(array.sum(), token, np.uint16)
    ids[np.cumsum(array)[array > 0] - 1] = 7
    bin_path(prefix).write_bytes(ids.tobytes())
    with AtomicFile(idx_path(prefix), durable=False) as file:
        write_index(
            file, Header(CODES["uint16"], len(array), len(array) + 1), lambda: [array], [np.arange(len(array) + 1)]
        )


def spec(prefixes, samples=(300,), weights=None, path=None, **more):
    prefixes = [prefixes] if isinstance(prefixes, str | Path) else prefixes
    return CacheSpec(
        prefixes=tuple(map(str, prefixes)),
        weights=weights,
        seq_length=16,
        num_samples=dict(zip(("train", "valid", "test"), samples, strict=False)),
        tokenizer=TOKENIZER,
        data_cache_path=None if path is None else str(path),
        **{"split": "90,10", **more},
    )


def arrays_of(description):
    base = str(description).removesuffix("description.txt")
    return {path.removeprefix(base): np.load(path) for path in sorted(map(str, Path(description).parent.glob("*.npy")))
            if path.startswith(base)}  # fmt: skip


def codes(prefix, cache=None):
    return verify(prefix, "index", Expected(cache=cache)).codes


@pytest.fixture
def pair(workspace):
    write(workspace / "a", LENGTHS)
    return workspace / "a"


def test_a_cache_holds_the_order_of_samples_under_the_name_that_megatron_looks_for(pair, monkeypatch):
    monkeypatch.chdir(pair.parent)
    (result,) = cache(spec("a"))
    # the name is what megatron-core 0.16.1 makes of this
    assert result.path == "a/cache/GPTDataset_indices/37fefe3c912113506fbf8a8982a51eea-GPTDataset-train-description.txt"
    assert (result.state, result.num_samples, result.num_epochs) == ("built", 362, 3)
    order, found = SampleOrder(Index(idx_path(pair)), Sampling(16, 1234, "90,10", "train", 300)), arrays_of(result.path)
    assert np.array_equal(found["document_index.npy"], order.document_index)
    assert np.array_equal(found["sample_index.npy"], order.sample_index)
    assert np.array_equal(found["shuffle_index.npy"], order.shuffle_index)
    assert [found[f"{name}_index.npy"].dtype for name in ("document", "sample", "shuffle")] == ["i4", "i4", "u4"]
    assert codes("a") == set()


def test_a_blend_and_its_prefixes(pair, workspace):
    write(workspace / "b", LENGTHS * 3)
    results = cache(spec([pair, workspace / "b"], (500, 20), (0.3, 0.7), workspace / "shared"))
    assert [(r.part, r.prefix and Path(r.prefix).name, r.num_samples) for r in results] == [
        ("train", "a", 241),
        ("train", "b", 362),
        ("train", None, 500),
        ("valid", "a", 13),
        ("valid", "b", 40),
        ("valid", None, 20),
    ]
    order, found = BlendOrder.of_weights((0.3, 0.7), 500), arrays_of(results[2].path)
    assert np.array_equal(found["dataset_index.npy"], order.dataset_index)
    assert np.array_equal(found["dataset_sample_index.npy"], order.dataset_sample_index)
    assert codes(pair, workspace / "shared") == set()


def test_what_is_there_and_right_is_kept_without_being_computed_again(pair, monkeypatch):
    (built,) = cache(spec(pair))
    before = {path: path.stat().st_mtime_ns for path in Path(built.path).parent.iterdir()}
    monkeypatch.setattr("dataprep.caching.arrays.PairArrays.write", lambda *_: pytest.fail("was computed again"))
    assert cache(spec(pair))[0].state == "kept"
    assert {path: path.stat().st_mtime_ns for path in Path(built.path).parent.iterdir()} == before


def test_a_cache_without_a_stamp_is_computed_compared_and_kept(pair):
    """As Megatron leaves one; also of one whose stamp is damaged."""
    folder = Path(cache(spec(pair))[0].path).parent
    (stamp,) = folder.glob("*-dataprep.json")
    whole = json.loads(stamp.read_text())
    for damage in (stamp.unlink, lambda: stamp.write_text("{"), lambda: stamp.write_text("[]")):
        damage()
        before = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
        assert cache(spec(pair))[0].state == "kept"
        assert {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")} == before
        assert json.loads(stamp.read_text()) == whole


@pytest.mark.parametrize("damage", ["array", "short", "description", "lengths"])
def test_what_is_there_and_wrong_is_replaced(pair, damage):
    first = cache(spec(pair))[0]
    good = arrays_of(first.path)
    array = Path(first.path.replace("description.txt", "shuffle_index.npy"))
    if damage == "array":
        np.save(array, np.load(array)[::-1])
    elif damage == "short":
        array.write_bytes(array.read_bytes()[:-1])
    elif damage == "description":
        Path(first.path).write_text("{}")
    else:
        write(pair, LENGTHS[::-1])
        good = None
    second = cache(spec(pair))[0]
    assert (second.state, second.path) == ("replaced", first.path)
    if good:
        assert all(np.array_equal(array, good[name]) for name, array in arrays_of(first.path).items())
    assert codes(pair) == set()


@pytest.mark.parametrize("name", ["document_index.npy", "description.txt"])
def test_what_lacks_a_file_is_built(pair, name):
    first = cache(spec(pair))[0]
    Path(first.path.replace("description.txt", name)).unlink()
    assert cache(spec(pair))[0].state == "built"
    assert codes(pair) == set()


def test_new_tokens_of_the_same_lengths_are_found_by_the_date_where_no_manifest_speaks(pair):
    cache(spec(pair))
    write(pair, LENGTHS, token=2)
    os.utime(idx_path(pair), (1, 1))
    assert codes(pair) == {"cache-stale"}
    (problem,) = verify(pair, "index").problems
    assert "the .bin was written again, with as many bytes" in problem.message
    assert cache(spec(pair))[0].state == "kept", "the arrays are right for both; the stamp is new"
    assert codes(pair) == set()


def test_new_tokens_of_the_same_lengths_are_found_by_the_manifest(pair, workspace):
    dataprep.merge([str(pair)], str(workspace / "m"))
    cache(spec(workspace / "m"))
    os.utime(bin_path(workspace / "m"), (5, 5))
    assert codes(workspace / "m") == set(), "the manifest says that it is the same"

    write(pair, LENGTHS, token=2)
    dataprep.merge([str(pair)], str(workspace / "n"))
    for path in workspace.glob("n.*"):  # as who copies it over the old one
        path.replace(workspace / path.name.replace("n", "m", 1))
    os.utime(bin_path(workspace / "m"), (5, 5))
    (problem,) = verify(workspace / "m", "index").problems
    assert problem.code == "cache-stale"
    assert "it is of a .bin of as many bytes and other content" in problem.message


def test_repair_takes_the_stamp_with_the_cache(pair):
    folder = Path(cache(spec(pair))[0].path).parent
    write(pair, LENGTHS[:-1])
    clear_caches(pair, folder)
    assert list(folder.iterdir()) == []


def test_what_a_run_that_was_killed_left_goes_with_the_next(pair):
    folder = pair / "cache" / "GPTDataset_indices"
    (result,) = cache(spec(pair))
    base = Path(result.path).name.removesuffix("description.txt")
    for path in folder.iterdir():
        path.unlink()
    (folder / f"{base}sample_index.npy.tmp-1-ab").write_text("half")
    (folder / f"{base}dataprep.lock").write_text("")
    (folder / "0123-GPTDataset-train-sample_index.npy.tmp-1-ab").write_text("of another cache")
    cache(spec(pair))
    left = {path.name.removeprefix(base) for path in folder.iterdir()}
    arrays = {"document_index.npy", "sample_index.npy", "shuffle_index.npy"}
    others = {"0123-GPTDataset-train-sample_index.npy.tmp-1-ab"}
    assert left == {"description.txt", "dataprep.json"} | arrays | others


def test_a_pair_that_is_written_meanwhile(pair, monkeypatch):
    real = PairArrays.write

    def write_both(self, files, watcher):
        real(self, files, watcher)
        write(pair, LENGTHS[::-1])

    monkeypatch.setattr(PairArrays, "write", write_both)
    with pytest.raises(FormatError, match="was written while its caches were built"):
        cache(spec(pair))
    assert not list((pair / "cache" / "GPTDataset_indices").glob("*.npy*"))


TEXT = "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText"


@pytest.mark.parametrize(
    ("profile", "kind", "expected"),
    [
        ("legacy", "HuggingFaceTokenizer", {"class": "_HuggingFaceTokenizer", "tokenizer_path": ["m"]}),
        ("core-0.12", "HuggingFaceTokenizer", {"class": "_HuggingFaceTokenizer", "tokenizer_path": ["m"]}),
        (
            "core-0.11",
            "Llama2Tokenizer",
            {"class": "_Llama2Tokenizer", "tokenizer_path": ["m"], "vocab_extra_ids": "0"},
        ),
        ("legacy", "GPT2BPETokenizer", {"class": "_GPT2BPETokenizer", "tokenizer_path": ["v", "w"]}),
        (
            "core-0.15",
            "HuggingFaceTokenizer",
            {"class": TEXT, "tokenizer_path": "m", "vocab_file": "None", "merges_file": "None"},
        ),
        ("core-0.15", "Llama2Tokenizer", {"class": TEXT, "tokenizer_path": "m"}),
        (
            "core-0.15",
            "GPT2BPETokenizer",
            {"class": TEXT, "tokenizer_path": "GPT2BPETokenizer", "vocab_file": "v", "merges_file": "w"},
        ),
        (
            "core-0.17",
            "HuggingFaceTokenizer",
            {
                "class": TEXT,
                "tokenizer_path": "m",
                "vocab_file": "None",
                "merges_file": "None",
                "additional_special_tokens": "[]",
                "use_fast": "True",
                "trust_remote_code": "False",
                "include_special_tokens": "True",
            },
        ),
        (
            "core-0.19",
            "HuggingFaceTokenizer",
            {
                "class": TEXT,
                "tokenizer_path": "m",
                "chat_template": "None",
                "vocab_file": "None",
                "merges_file": "None",
                "additional_special_tokens": "[]",
                "use_fast": "True",
                "trust_remote_code": "False",
                "include_special_tokens": "True",
            },
        ),
        (
            "core-0.18",
            "Llama2Tokenizer",
            {
                "class": TEXT,
                "tokenizer_path": "m",
                "chat_template": "None",
                "ignore_extra_whitespaces": "True",
                "legacy": "False",
                "special_tokens": "None",
            },
        ),
        (
            "core-0.16",
            "Llama2Tokenizer",
            {"class": TEXT, "tokenizer_path": "m", "legacy": "False", "special_tokens": "None"},
        ),
    ],
)
def test_identifiers_of_each_version(profile, kind, expected):
    files = ("v", "w") if kind == "GPT2BPETokenizer" else None
    assert list(derive_identifiers(profile, kind, "m", files).items()) == list(expected.items())


class Died(BaseException):
    """What ends the process."""


@pytest.mark.parametrize("error", [Died, OSError])
@pytest.mark.parametrize("stale", [False, True])
def test_a_crash_at_any_step_leaves_no_cache_of_old_arrays_and_new_ones(workspace, monkeypatch, stale, error):
    """One step in three where nothing was there before."""
    write(workspace / "a", LENGTHS)
    expected = arrays_of(cache(spec(workspace / "a"))[0].path)
    for step in range(0, 1000, 1 if stale else 3):
        folder = workspace / str(step)
        folder.mkdir()
        monkeypatch.chdir(folder)
        write(Path("a"), LENGTHS[::-1])
        old = arrays_of(cache(spec("a"))[0].path) if stale else None
        write(Path("a"), LENGTHS)
        calls = []

        def dying(name, call=calls, step=step):
            real = getattr(os, name)

            def act(*args, **options):
                call.append(name)
                if len(call) - 1 == step:
                    raise error(5, f"at {name}")
                return real(*args, **options)

            return act

        with monkeypatch.context() as patch:
            for name in ("open", "write", "fsync", "close", "replace", "unlink", "mkdir"):
                patch.setattr(os, name, dying(name))
            with contextlib.suppress(Died, OutputError, OSError):
                cache(spec("a"))
        described = list(Path("a/cache/GPTDataset_indices").glob("*-description.txt"))
        found = arrays_of(described[0]) if described else {}
        if len(found) == 3:  # Megatron would find it
            known = [expected] if old is None else [expected, old]
            assert any(all(np.array_equal(found[name], each[name]) for name in each) for each in known), calls[-1]
        done = cache(spec("a"))[0]
        found = arrays_of(done.path)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        assert codes("a") == set()
        if len(calls) <= step:
            assert step > 20
            return
    pytest.fail("it never came to an end")


def test_a_folder_that_refuses(pair, workspace):
    (workspace / "file").write_text("")
    with pytest.raises(OutputError, match="not a folder"):
        cache(spec(pair, path=workspace / "file" / "shared"))


def test_broken_pairs(pair, workspace):
    with pytest.raises(SpecError, match="there is no such file"):
        cache(spec(workspace / "b"))
    write(pair, [5] * 100)
    with pytest.raises(SpecError, match="leaves no tokens to valid"):
        cache(spec(pair, split="998,1,1"))
    raw = bytearray(idx_path(pair).read_bytes())
    raw[34:38] = np.int32(-3).tobytes()
    idx_path(pair).write_bytes(raw)
    with pytest.raises(FormatError, match="a length of -3"):
        cache(spec(pair))
    idx_path(pair).write_bytes(raw[:40])
    with pytest.raises(FormatError):
        cache(spec(pair))


@pytest.mark.parametrize(
    "more",
    [
        {"samples": (-1,)},
        {"samples": (None,), "weights": (1.0,)},
        {"weights": (0.0,)},
        {"weights": (1.0, 2.0)},
        {"split": "no"},
        {"split": None, "samples": (1, 2)},
        {"seed": -1},
        {"prefixes": []},
        {"prefixes": [""]},
    ],
    ids=str,
)
def test_what_megatron_does_not_take(more):
    with pytest.raises(SpecError):
        spec(**{"prefixes": "a", **more})


def test_too_much_for_the_memory_is_said_before_it_is_tried(pair):
    with pytest.raises(SpecError, match=r"GB of memory to shuffle"):
        cache(spec(pair, (10**12,)))


def test_prefixes_and_their_weights(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    write(Path("x=2"), [3])
    assert parse_prefixes(["a/../b", "./c"]) == (("a/../b", "./c"), None)
    assert parse_prefixes(["a=.3", "b=7e-1"]) == (("a", "b"), (0.3, 0.7))
    assert parse_prefixes(["x=2"]) == (("x=2",), None)
    assert parse_prefixes(["x=2=3", "k=v/d=1"]) == (("x=2", "k=v/d"), (3.0, 1.0))
    with pytest.raises(SpecError, match="b has no weight"):
        parse_prefixes(["a=1", "b"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.3 a\n0.7 b\n", (("a", "b"), (0.3, 0.7))),
        ("a b", (("a", "b"), None)),
        ("a", (("a",), None)),
        ("1 a 2", (("1", "a", "2"), None)),
    ],
)
def test_the_file_of_data_args(workspace, text, expected):
    (workspace / "args").write_text(text)
    assert read_data_args(workspace / "args") == expected


@pytest.mark.parametrize("text", ["", "1 a b c", None])
def test_a_file_of_data_args_that_is_none(workspace, text):
    if text is not None:
        (workspace / "args").write_text(text)
    with pytest.raises(SpecError):
        read_data_args(workspace / "args")


def test_identifiers_are_given_as_json_as_a_file_or_as_a_description(pair, workspace):
    expected = {"class": "T", "tokenizer_path": ["z", "a"], "b": "1", "a": "2"}
    (workspace / "ids.json").write_text(json.dumps(expected))
    for text in (json.dumps(expected), str(workspace / "ids.json")):
        found = read_identifiers(text)
        assert (found, list(found)) == (expected, list(expected)), "the order is part of the name"
    assert read_identifiers(cache(spec(pair))[0].path) == TOKENIZER


@pytest.mark.parametrize("text", ["{", "nothing", "{}", '{"dataset_path": 1}', '{"dataset_path": 1, "tokenizer": 3}'])
def test_identifiers_that_are_none(text):
    with pytest.raises(SpecError, match="--tokenizer-identifiers"):
        read_identifiers(text)


def test_what_cannot_be_derived_says_how_to_get_it():
    for profile, kind in (
        ("core-head", "HuggingFaceTokenizer"),
        ("core-0.10", "Llama2Tokenizer"),
        ("core-0.16", "TikTokenizer"),
    ):
        with pytest.raises(SpecError, match=r"(?s)unique_identifiers.*megatron\.core\.tokenizers\.utils"):
            derive_identifiers(profile, kind, "m", None)
    nothing = (None, None, None)
    with pytest.raises(SpecError, match="python -c"):
        choose_identifiers(None, "core-0.16", None, nothing, ("a",))
    with pytest.raises(SpecError, match="leave out its type"):
        choose_identifiers('{"class": "x"}', "core-0.16", "GPT2BPETokenizer", nothing, ("a",))
    with pytest.raises(SpecError, match="no manifest says"):
        choose_identifiers(None, "core-0.16", None, ("m", None, None), ("a",))
    with pytest.raises(SpecError, match="--vocab-file and --merge-file"):
        derive_identifiers("legacy", "GPT2BPETokenizer", "m", None)
    with pytest.raises(SpecError, match="--tokenizer-model"):
        derive_identifiers("legacy", "Llama2Tokenizer", None, ("v", "m"))


def test_the_type_of_the_tokenizer_comes_from_the_manifest(workspace):
    (workspace / "in.jsonl").write_text('{"text": "a b"}\n')
    prefix = dataprep.run(str(workspace / "in.jsonl"), "sample", workspace / "out").prefix
    found = choose_identifiers(None, "legacy", None, ("m", "v", "w"), (prefix,))
    assert found["class"] in ("_HuggingFaceTokenizer", "_GPT2BPETokenizer")


@pytest.mark.slow
def test_memory_is_that_of_the_shuffled_arrays(workspace):
    sequences, epochs = 1_000_000, 16
    write(workspace / "a", [16] * sequences)
    cache(spec(workspace / "a", (1000,), split="1"))
    tracemalloc.start()
    try:
        (result,) = cache(spec(workspace / "a", (sequences * epochs - 1,), split="1"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.num_epochs == epochs
    assert peak < 4 * sequences * (epochs + 2) + 100e6


def test_the_command(pair, workspace):
    write(workspace / "b", LENGTHS * 3)
    (workspace / "args").write_text("0.3 a 0.7 b")
    common = ["--seq-length", "16", "--samples", "500,none", "--split", "90,10", "--tokenizer-identifiers"]

    def run(*arguments):
        command = [sys.executable, "-m", "dataprep", "-q", "cache", *arguments]
        return subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=60, check=False)

    done = run("a", "b", *common, '{"class": "sample"}', "--cache", "shared", "--json")
    values = json.loads(done.stdout)
    assert [(v["part"], v["prefix"], v["state"]) for v in values] == [
        (part, prefix, "built") for part in ("train", "valid") for prefix in ("a", "b", None)
    ]
    assert all((workspace / value["path"]).exists() for value in values)

    done = run("--data-args-path", "args", *common[:2], "--samples", "500", *common[4:], values[0]["path"])
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[::2]] == [
        ["built", "train", "241"],
        ["built", "train", "362"],
    ]

    for wrong in (["a", "--data-args-path", "args"], ["a", "--only", "train"]):
        done = run(*wrong, *common, '{"class": "sample"}')
        assert (done.returncode, done.stdout, done.stderr[:7]) == (2, "", "error: ")


def test_a_blend_that_draws_more_than_a_prefix_has(pair, workspace, monkeypatch):
    """Megatron raises an IndexError there."""
    write(workspace / "b", LENGTHS)
    blend = spec([pair, workspace / "b"], (120,), (0.5, 0.5), workspace / "shared")
    monkeypatch.setattr(CacheSpec, "asked", lambda *_: [None, None])
    monkeypatch.setattr(CacheSpec, "order", lambda *_: BlendOrder([0.99, 0.01], 300))
    with pytest.raises(SpecError, match="draws 297 samples from its prefix 0, which makes 120"):
        cache(blend)
    assert not list((workspace / "shared").glob("*Blended*"))
