"""What is inside a pair, by whomever written: counts, quantiles, tokens, BOS and EOD, repeated documents."""

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataprep
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import IndexedDataset, bin_path, idx_path
from dataprep.inspection import document_lengths, inspect, length_summary, open_pair
from dataprep.inspection.lengths import QUANTILES


@pytest.fixture
def made(tmp_path, inline_cluster):
    """A dataset of four documents, two of them the same, and one record without text."""
    texts = ["first text", "", "second", "first text", "third<|endoftext|>x"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return dataprep.run(str(tmp_path / "in.jsonl"), "sample", tmp_path / "out").prefix


# --- lengths


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_quantiles_are_exact_by_nearest_rank(make_pair, lengths):
    summary = length_summary(document_lengths(IndexedDataset(make_pair([[1] * length for length in lengths]))))

    assert (summary.min, summary.max) == (min(lengths), max(lengths))
    assert summary.mean == pytest.approx(sum(lengths) / len(lengths))
    for name, share in QUANTILES.items():
        assert summary.quantiles[name] == int(np.quantile(lengths, share, method="inverted_cdf"))


# --- pairs of others


def test_a_foreign_pair_is_counted_and_its_marks_are_found(make_pair):
    documents = [[7, 1, 2, 9], [7, 1, 9], [7, 9], [9], [7, 1, 2, 9], [], [7, 9, 1, 2]]
    value = inspect(make_pair(documents, dtype="int32"))

    assert (value["num_documents"], value["num_sequences"], value["num_tokens"]) == (7, 7, 18)
    assert (value["dtype"], value["num_bytes"], value["num_distinct"], value["num_unknown"]) == ("int32", 72, 4, 0)
    assert value["most_frequent"][0] == {"id": 9, "text": None, "count": 6, "share": 6 / 18}
    assert [entry["id"] for entry in value["most_frequent"]] == [9, 7, 1, 2]
    assert value["bos"] == {
        "id": 7, "text": None, "num_documents": 5, "share": 5 / 6, "num_lone": 0, "num_inside": 0
    }  # fmt: skip
    assert value["eod"] == {
        "id": 9, "text": None, "num_documents": 5, "share": 5 / 6, "num_lone": 1, "num_inside": 1
    }  # fmt: skip
    assert value["repeats"]["most"] == [{"document": 0, "num_copies": 2, "num_tokens": 4, "beginning": None}]
    assert (value["repeats"]["num_documents"], value["repeats"]["share_tokens"]) == (1, 4 / 18)
    assert value["histogram"][0] == {"from": 0, "to": 0, "num_documents": 1, "num_tokens": 0}
    assert value["notes"] == []
    assert "cuts" not in value
    assert json.loads(json.dumps(value)) == value


def test_what_begins_or_ends_no_more_than_half_is_no_mark(make_pair):
    value = inspect(make_pair([[1, 2], [1, 3], [4, 2], [5, 6]]))

    assert (value["bos"], value["eod"]) == (None, None)


def test_one_id_at_both_ends_is_not_inside(make_pair):
    value = inspect(make_pair([[9, 1, 9], [9, 9], [9], [9, 2, 9, 3, 9]]))

    assert (value["bos"]["num_inside"], value["eod"]["num_inside"]) == (1, 1)
    assert value["bos"]["num_lone"] == 1


def test_a_named_tokenizer_decodes_a_foreign_pair(make_pair):
    prefix = make_pair([[105, 108, 0], [105, 108, 0], [60_000, 0]])
    value = inspect(prefix, tokenizer="sample")

    texts = {entry["id"]: entry["text"] for entry in value["most_frequent"]}
    assert texts[0] == value["eod"]["text"] == "<|endoftext|>"
    assert texts[60_000] == "<60000>"
    assert value["num_unknown"] == 1
    assert value["repeats"]["most"][0]["beginning"] == texts[105] + texts[108] + "<|endoftext|>"
    assert value["specials"] == []


def test_special_tokens_are_counted(make_pair, make_tokenizer):
    value = inspect(make_pair([[256, 104, 258, 257], [256, 105, 258, 258, 257]]), tokenizer=str(make_tokenizer()))

    assert (value["bos"]["text"], value["eod"]["text"]) == ("<bos>", "<eod>")
    assert value["specials"] == [{"id": 258, "text": "<pad>", "count": 3, "share": 3 / 9}]


def test_sentences_are_noted(make_pair):
    value = inspect(make_pair([[1], [2], [3]], boundaries=[0, 2, 3]), level="index")

    assert (value["num_documents"], value["num_sequences"]) == (2, 3)
    assert "sentence-level: 3 sequences in 2 documents" in value["notes"][0]


def test_level_index_reads_no_tokens(make_pair):
    prefix = make_pair([[1, 2, 3], [4]])
    value = inspect(prefix, seq_length=2, level="index")

    assert value["lengths"]["max"] == 3
    assert (value["cuts"]["num_samples"], value["cuts"]["num_tokens_truncated"]) == (1, 1)
    assert "most_frequent" not in value


def test_only_the_first_documents_are_compared_and_it_says_so(make_pair, monkeypatch):
    monkeypatch.setattr("dataprep.inspection.census.MOST_DOCUMENTS", 2)

    assert "among the first 2" in inspect(make_pair([[1], [1], [1]]))["notes"][0]


# --- pairs with a manifest


def test_the_manifest_says_what_it_was_made_of(made):
    value = inspect(made)

    assert (value["num_documents"], value["counts"]["num_empty"], value["corpus"]) == (4, 1, "in")
    assert (value["policy"]["eod"], value["tokenizer"]["eod_text"]) == ("append", "<|endoftext|>")
    assert "files" not in value["tokenizer"]
    assert (value["eod"]["text"], value["eod"]["num_documents"]) == ("<|endoftext|>", 4)
    assert value["eod"]["num_inside"] == 1
    assert value["repeats"]["most"][0]["beginning"] == "first text<|endoftext|>"
    assert value["notes"] == []


def test_a_manifest_of_other_files_is_noted(made, make_pair):
    make_pair([[1, 2]], prefix=Path(made))

    assert "is of other files; run: dataprep verify" in inspect(made)["notes"][0]


@pytest.mark.parametrize("content", ["[]", "{", '{"schema_version": 1}'])
def test_a_manifest_that_cannot_be_read_is_no_obstacle(make_pair, content):
    prefix = make_pair([[1, 2]])
    (prefix.parent / "manifest.json").write_text(content)

    value = inspect(prefix)
    assert value["num_tokens"] == 2
    assert "manifest" in value["notes"][0]


def test_a_tokenizer_that_is_gone_is_no_obstacle(made, tmp_path):
    manifest = Path(made).parent / "manifest.json"
    text = manifest.read_text()
    place = json.loads(text)["recipe"]["tokenizer"]["path"]
    manifest.write_text(text.replace(json.dumps(place), json.dumps(str(tmp_path / "gone"))))

    value = inspect(made)
    assert "cannot read the HuggingFaceTokenizer" in value["notes"][0]
    assert value["most_frequent"][0]["text"] is None
    assert value["eod"]["id"] == 0


def test_a_pair_made_of_others_says_of_which(made, tmp_path):
    value = json.loads((Path(made).parent / "manifest.json").read_text())
    for path in (bin_path(Path(made)), idx_path(Path(made))):
        shutil.copy(path, tmp_path / f"new{path.suffix}")
    shared = {key: value[key] for key in ("schema_version", "dataprep_version", "lengths", "verification", "created")}
    part = {"prefix": "/old", "start": 0, "num_documents": 4, "recipe": 0, "provenance": value["provenance"]}
    pair = {
        **shared,
        "kind": "pair",
        "command": "merge",
        "options": {},
        "recipes": [value["recipe"]],
        "parts": [part],
        "prefixes": [{**value["prefixes"][0], "name": "new"}],
    }
    (tmp_path / "new.manifest.json").write_text(json.dumps(pair))

    found = inspect(tmp_path / "new")
    assert (found["command"], found["inputs"], found["policy"]["eod"]) == ("merge", ["/old"], "append")
    assert found["repeats"]["most"][0]["beginning"] == "first text<|endoftext|>"


# --- what is no pair


def test_a_folder_stands_for_its_only_prefix(made):
    assert open_pair(made.rpartition("/")[0]).num_documents == 4


def test_what_is_no_pair_is_said(tmp_path):
    with pytest.raises(SpecError, match="no such prefix"):
        open_pair(tmp_path / "nothing")
    with pytest.raises(SpecError, match="without indexed pairs"):
        open_pair(tmp_path)
    (tmp_path / "x.idx").write_bytes(b"nonsense")
    with pytest.raises(FormatError, match=r"header of 34 bytes.*run: dataprep verify"):
        open_pair(tmp_path / "x")


def test_unknown_levels_are_said(make_pair):
    with pytest.raises(SpecError, match="unknown level 'source'; expected one of index, tokens"):
        inspect(make_pair([[1]]), level="source")


@pytest.mark.parametrize("make", [lambda m: m([[1.5]], dtype="float32"), lambda m: m([[], []]), lambda m: m([], [0])])
def test_what_cannot_be_counted_leads_to_verify(make_pair, make):
    with pytest.raises(FormatError, match="run: dataprep verify"):
        inspect(make(make_pair))


def test_a_missing_bin_leads_to_verify(make_pair):
    prefix = make_pair([[1]])
    bin_path(prefix).unlink()

    with pytest.raises(FormatError, match=r"cannot read .*\.bin.*run: dataprep verify"):
        inspect(prefix)


def test_an_index_that_is_mostly_a_hole_takes_no_memory(make_pair, monkeypatch):
    """Five million sequences by its header and its size, 100 MB, of which next to nothing was written."""
    prefix, count = make_pair([[1, 2]]), 5_000_000
    with idx_path(prefix).open("r+b") as file:
        file.seek(18)
        file.write(np.array([count, count + 1], "<u8").tobytes())
        file.truncate(34 + 12 * count + 8 * (count + 1))
        file.seek(-8, 2)
        file.write(np.array([count], "<i8").tobytes())
    monkeypatch.setattr("dataprep.indexed.reader.CHUNK", 1 << 16)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="run: dataprep verify"):
            inspect(prefix)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
