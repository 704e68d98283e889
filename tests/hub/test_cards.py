"""Which files of a repository are its data: by globs, by its card, by names."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataprep
from dataprep.errors import SpecError
from dataprep.planning import resolve

FOLDERS = "configs:\n- {config_name: en, data_dir: en}\n- {config_name: de, data_dir: de}"


def lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def parquet(texts):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), sink)
    return sink.getvalue().to_pybytes()


def test_plain_text_needs_no_column(here, tmp_path):
    here.add("datasets", "org/txt", {"a.txt": b"one\n\ntwo", "README.md": b"# no card"})
    url = here.plain("/p/book.txt", b"Hello.\n\nWorld.\n")

    assert documents(dataprep.run(url, "sample", tmp_path)) == ["Hello.\n\nWorld.\n"]
    settings = ["source.paths=['*.txt']", 'reader.separator="\\n\\n"']
    assert documents(dataprep.run("hf:org/txt", "sample", tmp_path, settings=settings)) == ["one", "two"]


def documents(result):
    numbers = range(len(dataprep.open_dataset(result.prefix)))
    return [dataprep.decode(result.prefix, i).removesuffix("<|endoftext|>") for i in numbers]


def card(front):
    return f"---\n{front}\n---\n# card".encode()


def names_of(corpus, tmp_path, *settings):
    return [file.name for file in resolve(corpus, "sample", tmp_path, settings=settings).listing.files]


def test_every_glob_has_to_match(here, tmp_path):
    files = {
        "a.jsonl": lines(["x"]),
        "b/c.jsonl": lines(["y"]),
        "README.md": card("configs:\n- data_files: [a.jsonl, moved.jsonl]"),
    }
    here.add("datasets", "org/name", files)
    with pytest.raises(SpecError, match=r"org/name holds no file of moved.jsonl; see http"):
        names_of("hf:org/name", tmp_path)
    for paths in ("['a.jsonl','moved/**/*.jsonl']", "['a.jsonl','moved']"):
        with pytest.raises(SpecError, match=r"org/name holds no file of moved.*; see http"):
            names_of("hf:org/name", tmp_path, f"source.paths={paths}")
    with pytest.raises(SpecError, match=r"'\*\*\.jsonl' is no glob"):
        names_of("hf:org/name", tmp_path, "source.paths=['**.jsonl']")
    assert names_of("hf:org/name", tmp_path, "source.paths=['b','a.jsonl']") == ["a.jsonl", "b/c.jsonl"]


@pytest.mark.parametrize(
    ("front", "corpus", "expected"),
    [
        (
            "configs:\n- {config_name: en, data_dir: en}\n- {config_name: de, data_dir: de}",
            "hf:org/name:en",
            ["en/a.jsonl"],
        ),
        (
            "configs:\n- {config_name: en, data_dir: en}\n- {config_name: de, data_dir: de}",
            "hf:org/name",
            "several configurations",
        ),
        ("configs:\n- data_files: '**'", "hf:org/name", ["de/a.jsonl", "en/a.jsonl"]),
        ("configs:\n- data_files: en", "hf:org/name", ["en/a.jsonl"]),
    ],
)
def test_cards(here, tmp_path, front, corpus, expected):
    files = {f"{lang}/a.jsonl": lines([lang]) for lang in ("en", "de")}
    here.add(
        "datasets", "org/name", {**files, "README.md": b"\xef\xbb\xbf" + card(front), "en/.hidden.jsonl": lines(["h"])}
    )
    if isinstance(expected, str):
        with pytest.raises(SpecError, match=expected):
            names_of(corpus, tmp_path)
    else:
        assert names_of(corpus, tmp_path) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["training/a.jsonl", "testing/b.jsonl"], ["training/a.jsonl"]),
        (["eval.jsonl", "test.jsonl"], "has no split 'train', but eval, test; choose with --set 'source.paths="),
        (["train.jsonl", "train.parquet"], "several formats, JSON lines, Parquet; choose"),
        (["train.json", "test.json", "config.json"], ["train.json"]),
        (["data.csv", "notes.txt"], "no data that dataprep knows by its name, but .csv, .txt; choose"),
    ],
)
def test_without_a_card_names_decide_or_nobody(here, tmp_path, names, expected):
    here.add("datasets", "org/name", {name: lines(["x"]) for name in names})
    if isinstance(expected, str):
        with pytest.raises(SpecError, match=re.escape(expected)):
            names_of("hf:org/name", tmp_path)
    else:
        assert names_of("hf:org/name", tmp_path) == expected


def test_the_branch_that_the_hub_converts_has_configurations(here, tmp_path):
    repo = here.add("datasets", "org/name", {"x.csv": b"a,b\n"})
    names = [f"{lang}/{split}/0000.parquet" for lang in ("de", "en") for split in ("train", "test")]
    repo.commit({name: parquet(["x"]) for name in names}, branch="refs/convert/parquet")
    assert names_of("hf:org/name@refs/convert/parquet:en", tmp_path) == ["en/train/0000.parquet"]
    with pytest.raises(SpecError, match="several configurations; choose one with hf:org/name:NAME of de, en"):
        names_of("hf:org/name@refs/convert/parquet", tmp_path)
