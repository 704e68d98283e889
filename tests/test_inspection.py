"""Counts, quantiles and decoded documents."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataprep
from dataprep.batches import TokenBatch
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import IndexedDataset, IndexedWriter
from dataprep.inspection import QUANTILES, document, document_lengths, length_summary, open_pair


def write(prefix, lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    with IndexedWriter(prefix, "uint16") as writer:
        writer.append(TokenBatch(np.arange(offsets[-1], dtype=np.uint16), offsets))
        writer.commit()
    return IndexedDataset(prefix)


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_quantiles_are_exact_by_nearest_rank(tmp_path_factory, lengths):
    summary = length_summary(document_lengths(write(tmp_path_factory.mktemp("q") / "p", lengths)))

    assert (summary.min, summary.max) == (min(lengths), max(lengths))
    assert summary.mean == pytest.approx(sum(lengths) / len(lengths))
    for name, share in QUANTILES.items():
        assert summary.quantiles[name] == int(np.quantile(lengths, share, method="inverted_cdf"))


def test_quantiles_do_not_depend_on_the_chunk(tmp_path, monkeypatch):
    lengths = [(7 * i) % 31 for i in range(500)]
    pair = write(tmp_path / "p", lengths)
    whole = length_summary(document_lengths(pair))
    monkeypatch.setattr("dataprep.inspection.CHUNK", 7)

    assert length_summary(document_lengths(pair)) == whole


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    lines = ["", json.dumps({"text": "first"}), "not json", json.dumps({"text": ""}), json.dumps({"text": "second"})]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    settings = ["runtime.max_rejects=0.5"]
    return folder, dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out", settings=settings)


def test_a_document_is_decoded_and_led_back_to_its_source(made):
    folder, result = made
    value = document(result.prefix, 1)

    assert value["text"] == "second<|endoftext|>"
    assert value["source"]["file"] == str(folder / "in.jsonl")
    assert (value["source"]["first_row"], value["source"]["last_row"]) == (0, 3)
    assert dataprep.decode(result.prefix, 0) == "first<|endoftext|>"


def test_a_document_that_is_not_there_is_a_bad_request(made):
    with pytest.raises(SpecError, match="documents 0 to 1"):
        document(made[1].prefix, 2)


def test_without_a_manifest_a_tokenizer_has_to_be_named(tmp_path):
    write(tmp_path / "p", [2, 3])

    with pytest.raises(SpecError, match="--tokenizer"):
        document(tmp_path / "p", 0)
    assert document(tmp_path / "p", 0, "sample")["ids"] == [0, 1]


def test_inspect_reports_counts_and_policy(made):
    value = dataprep.inspect(made[1].prefix)

    assert (value["num_documents"], value["counts"]["num_empty"], value["counts"]["rejects"]) == (2, 1, {"not-json": 1})
    assert value["policy"]["eod"] == "append"


def test_a_folder_stands_for_its_only_prefix(made):
    assert open_pair(made[1].prefix.rpartition("/")[0]).num_documents == 2


def test_what_is_no_pair_is_said(tmp_path):
    with pytest.raises(SpecError, match="no such prefix"):
        open_pair(tmp_path / "nothing")
    with pytest.raises(SpecError, match="0 indexed pairs"):
        open_pair(tmp_path)
    (tmp_path / "x.idx").write_bytes(b"nonsense")
    with pytest.raises(FormatError, match="header of 34 bytes"):
        open_pair(tmp_path / "x")
