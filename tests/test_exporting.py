"""Pairs back to text: what was tokenized comes back, and the same ids of it again."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataprep import exporting
from dataprep.errors import BusyError, FormatError, OutputError, SpecError
from dataprep.exporting import RECORD, export
from dataprep.indexed import IndexedDataset
from dataprep.locks import hold
from dataprep.parity import NASTY
from dataprep.reshaping.making import LOCK
from dataprep.runner import run
from dataprep.storage import AtomicFile

TEXTS = [text for text in NASTY if text and "\u2581" not in text and "<|" not in text and "</s>" not in text]


def rows(folder: Path) -> list[str]:
    return [text for file in sorted(folder.glob("*.jsonl")) for text in texts_of(file)]


def texts_of(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_bytes().splitlines()]


@pytest.fixture
def dataset(inline_cluster, trained, write_texts, tmp_path) -> Path:
    """The prefix of TEXTS, by each kind of tokenizer."""
    result = run([str(write_texts(TEXTS))], str(trained.path), tmp_path / "out", settings=["runtime.workers=1"])
    return Path(result.prefix)


def test_text_comes_back_without_bos_and_eod(dataset, tmp_path):
    result = export([dataset], tmp_path / "text", files=3)

    assert rows(tmp_path / "text") == TEXTS
    assert result.num_documents == len(TEXTS)
    assert result.num_tokens == IndexedDataset(dataset).num_tokens
    assert result.num_text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert result.num_audited == len(TEXTS)
    assert result.num_different == 0
    assert result.files == sorted(path.name for path in (tmp_path / "text").glob("*.jsonl"))


def test_the_same_ids_of_it_again(dataset, trained, tmp_path):
    export([dataset], tmp_path / "text", files=2)
    files = [str(path) for path in sorted((tmp_path / "text").glob("*.jsonl"))]
    again = run(files, str(trained.path), tmp_path / "again", settings=["runtime.workers=1"])

    assert Path(f"{again.prefix}.bin").read_bytes() == Path(f"{dataset}.bin").read_bytes()
    assert Path(f"{again.prefix}.idx").read_bytes() == Path(f"{dataset}.idx").read_bytes()


def test_parquet_has_one_column_of_the_same_text(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "BATCH_TOKENS", 64)
    monkeypatch.setattr(exporting, "BATCH_DOCUMENTS", 3)
    export([dataset], tmp_path / "text", "parquet")

    file = pq.ParquetFile(tmp_path / "text" / f"{dataset.name}-00000-of-00001.parquet")
    assert file.schema_arrow.names == ["text"]
    assert file.num_row_groups > 3
    assert file.read().column("text").to_pylist() == TEXTS


@pytest.fixture
def bytes_pair(make_pair, make_tokenizer):
    """Makes a pair of documents in bytes, and the tokenizer's folder: BOS 256, EOD 257, and `<tool>` 259 no special."""

    def make(documents, **options):
        prefix = make_pair(documents, **options)
        return prefix, str(make_tokenizer())

    return make


def test_only_what_stands_around_a_document_is_left_out(bytes_pair, tmp_path):
    prefix, tokenizer = bytes_pair([[256, 97, 256, 257, 98, 257], [97], [257], [256, 257], [257, 257]])

    result = export([prefix], tmp_path / "text", tokenizer=tokenizer)

    assert rows(tmp_path / "text") == ["a<bos><eod>b", "a", "", "", "<eod>"]
    assert result.num_different == 0


def test_documents_of_several_sequences_and_of_none(bytes_pair, tmp_path):
    prefix, tokenizer = bytes_pair([[97], [98], [99]], boundaries=[0, 2, 2, 3])

    export([prefix], tmp_path / "text", tokenizer=tokenizer, files=3)

    assert rows(tmp_path / "text") == ["ab", "", "c"]


def test_what_does_not_come_back_is_said(bytes_pair, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "dataprep")
    prefix, tokenizer = bytes_pair([[0xC3, 0xA9], [0xC3]])

    result = export([prefix], tmp_path / "text", tokenizer=tokenizer)

    assert rows(tmp_path / "text") == ["\u00e9", "\ufffd"]
    assert (result.num_audited, result.num_different) == (2, 1)
    assert "1 of 2 documents" in caplog.text


def test_documents_with_lost_characters_are_looked_at_wherever_they_are(bytes_pair, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "AUDITED_FIRST", 1)
    prefix, tokenizer = bytes_pair([[97], [98], [0xC3], [99]])

    result = export([prefix], tmp_path / "text", tokenizer=tokenizer)

    assert (result.num_audited, result.num_different) == (2, 1)


def test_another_tokenizers_ids_are_refused_and_nothing_stays(bytes_pair, tmp_path):
    prefix, tokenizer = bytes_pair([[97], [98, 300]])

    with pytest.raises(FormatError, match="document 1 "):
        export([prefix], tmp_path / "text", tokenizer=tokenizer)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("text")]


@pytest.mark.parametrize("files", [1, 2, 3, 5, 6])
def test_files_are_of_about_as_many_tokens_and_none_is_empty(files, bytes_pair, tmp_path):
    documents = [[97] * length for length in (1, 1, 1, 50, 1, 1)]
    prefix, tokenizer = bytes_pair(documents)

    result = export([prefix], tmp_path / "text", tokenizer=tokenizer, files=files)

    counts = [len((tmp_path / "text" / name).read_bytes().splitlines()) for name in result.files]
    assert len(counts) == files
    assert min(counts) >= 1
    assert rows(tmp_path / "text") == ["a" * len(ids) for ids in documents]


def test_files_are_cut_evenly(bytes_pair, tmp_path):
    draw = np.random.default_rng(0)
    prefix, tokenizer = bytes_pair([[97] * int(length) for length in draw.integers(1, 20, 4000)])

    export([prefix], tmp_path / "text", tokenizer=tokenizer, files=8)

    sizes = [sum(map(len, rows_of)) for rows_of in map(texts_of, sorted((tmp_path / "text").glob("*.jsonl")))]
    assert max(sizes) - min(sizes) <= 40


def test_what_it_was_made_of_is_written_where_no_reader_takes_it_for_data(dataset, tmp_path):
    result = export([dataset], tmp_path / "text")

    assert json.loads((tmp_path / "text" / RECORD).read_text()) == {**result.to_json(), "prefixes": [str(dataset)]}
    assert RECORD.startswith(".")


def test_a_file_system_that_refuses_leaves_nothing(dataset, tmp_path, monkeypatch):
    def full(self, data):
        raise OutputError("no space left")

    monkeypatch.setattr(AtomicFile, "write", full)
    with pytest.raises(OutputError):
        export([dataset], tmp_path / "text")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("text")]


def test_what_a_killed_export_left_goes_with_the_next(dataset, tmp_path):
    left = tmp_path / "text.tmp-4000-0123abcd"
    left.mkdir()
    (left / LOCK).touch()
    (left / "rest.jsonl.tmp-1").touch()
    persons = tmp_path / "text.tmp-old"
    persons.mkdir()

    with hold(left / LOCK), pytest.raises(BusyError, match="held by process"):
        export([dataset], tmp_path / "text")
    assert left.exists()
    export([dataset], tmp_path / "text")
    assert sorted(path.name for path in tmp_path.glob("text*")) == ["text", "text.tmp-old"]
    assert LOCK not in os.listdir(tmp_path / "text")


def test_paths_that_its_record_cannot_name(bytes_pair, tmp_path):
    prefix, tokenizer = bytes_pair([[97]])
    with pytest.raises(SpecError, match="is not UTF-8"):
        export([prefix], os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), tokenizer=tokenizer)


def test_bad_requests(bytes_pair, make_pair, tmp_path):
    prefix, tokenizer = bytes_pair([[97], [98]])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "empty").mkdir()
    other = tmp_path / prefix.name
    for suffix in (".bin", ".idx"):
        os.link(f"{prefix}{suffix}", f"{other}{suffix}")

    for said, arguments, options in (
        ("--format", [[prefix], tmp_path / "x", "txt", tokenizer], {}),
        ("--files 0", [[prefix], tmp_path / "x"], {"tokenizer": tokenizer, "files": 0}),
        ("too few", [[prefix], tmp_path / "x"], {"tokenizer": tokenizer, "files": 3}),
        ("is there already", [[prefix], tmp_path / "used"], {"tokenizer": tokenizer}),
        ("give it with --tokenizer", [[prefix], tmp_path / "x"], {}),
        ("two prefixes", [[prefix, other], tmp_path / "x"], {"tokenizer": tokenizer}),
    ):
        with pytest.raises(SpecError, match=said):
            export(*arguments, **options)
    assert not (tmp_path / "x").exists()
    export([prefix], tmp_path / "empty", tokenizer=tokenizer)
    assert rows(tmp_path / "empty") == ["a", "b"]


def test_broken_pairs_are_refused(bytes_pair, tmp_path):
    prefix, tokenizer = bytes_pair([[97], [98]])
    with open(f"{prefix}.bin", "ab") as file:
        file.write(b"\0\0")

    with pytest.raises(FormatError, match="broken"):
        export([prefix], tmp_path / "text", tokenizer=tokenizer)


def test_another_tokenizer_than_that_of_the_manifest_is_refused(bpe, tmp_path):
    prefix = run("sample", "sample", tmp_path, limit=20).prefix
    with pytest.raises(SpecError, match="was made with sample, not with"):
        export([prefix], tmp_path / "text", tokenizer=str(bpe.path))
    assert not (tmp_path / "text").exists()
