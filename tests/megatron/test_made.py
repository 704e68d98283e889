"""Pairs made of pairs, and pairs made by other tools' flags, as Megatron's own reader finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dataprep
from dataprep.compat.preprocess import preprocess
from dataprep.repairs import Wanted

pytestmark = pytest.mark.megatron

GOLDEN = Path(__file__).parent.parent / "golden"


def _documents(prefix: str | Path) -> list[list[int]]:
    pair = dataprep.open_dataset(prefix)
    return [pair.document(i).tolist() for i in range(pair.num_documents)]


@pytest.fixture(scope="module", params=["uint16", "int32"])
def dtype(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def pairs(dtype, tmp_path_factory) -> list[str]:
    """Two datasets, of 90 documents and of 40, every tenth a boundary without a sequence."""
    folder = tmp_path_factory.mktemp("pairs")
    prefixes = []
    for name, number in (("a", 90), ("b", 40)):
        texts = [f"{name} {i} " + "some words " * (i % 23) if i % 10 else "" for i in range(number)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        settings = [f"policy.dtype={dtype}", "policy.empty=keep"]
        prefixes.append(dataprep.run(str(folder / f"{name}.jsonl"), "sample", folder / name, settings=settings).prefix)
    return prefixes


def test_several_prefixes(read_by_megatron, dtype, tmp_path):
    texts = [f"{i} " + "some words " * (i % 23) if i % 10 else "" for i in range(90)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    policy = [f"policy.dtype={dtype}", "policy.empty=keep"]
    whole = _documents(dataprep.run(str(tmp_path / "c.jsonl"), "sample", tmp_path / "one", settings=policy).prefix)
    limit = [*policy, "output.max_prefix_bytes=700"]
    made, start = dataprep.run(str(tmp_path / "c.jsonl"), "sample", tmp_path / "several", settings=limit), 0
    assert len(made.prefixes) > 3
    for prefix in made.prefixes:
        stop = start + dataprep.open_dataset(prefix).num_documents
        read_by_megatron(prefix, whole[start:stop], dtype)
        start = stop
    assert start == len(whole)


def test_merged(read_by_megatron, pairs, dtype, tmp_path):
    made = dataprep.merge(pairs, tmp_path / "new")
    read_by_megatron(made.prefix, _documents(pairs[0]) + _documents(pairs[1]), dtype)


@pytest.mark.parametrize("way", [{"documents": 33}, {"tokens": 500}, {"fractions": "0.9,0.1"}])
def test_split(read_by_megatron, pairs, dtype, tmp_path, way):
    whole, start = _documents(pairs[0]), 0
    parts = dataprep.split(pairs[0], tmp_path / "new", **way)
    assert len(parts) > 1
    for part in parts:
        stop = start + dataprep.open_dataset(part.prefix).num_documents
        read_by_megatron(part.prefix, whole[start:stop], dtype)
        start = stop
    assert start == len(whole)


def test_sampled(read_by_megatron, pairs, dtype, tmp_path):
    made = dataprep.sample(pairs[0], tmp_path / "new", documents=30, seed=5)
    found = _documents(made.prefix)
    assert len(found) == 30
    left = iter(_documents(pairs[0]))
    assert all(document in left for document in found), "in their order"
    read_by_megatron(made.prefix, found, dtype)


def test_narrowed(read_by_megatron, pairs, tmp_path):
    repaired = dataprep.repair(pairs[0], tmp_path / "new", Wanted(dtype="uint16"))
    read_by_megatron(repaired.prefixes[0], _documents(pairs[0]), "uint16")


@pytest.mark.parametrize("append", [[], ["--append-eod"]])
@pytest.mark.parametrize("source", ["texts", "sentences"])
def test_by_the_flags_of_preprocess_data(read_by_megatron, bpe, tmp_path, source, append):
    """A text that is a list of sentences becomes a document of as many sequences; `repair` joins them."""
    chosen = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(bpe.path), "--workers", "2", *append]
    (made,) = preprocess(["--input", str(GOLDEN / f"{source}.jsonl"), "--output-prefix", str(tmp_path / "my"), *chosen])

    eod = bpe.ids(["<|endoftext|>"])[0]
    expected = []
    for line in (GOLDEN / f"{source}.jsonl").read_bytes().splitlines():
        text = json.loads(line)["text"]
        document = [ids for ids in bpe.ids([text] if isinstance(text, str) else text) if ids]
        if document and append:
            document[-1] = [*document[-1], *eod]
        expected.append(document)
    assert any(len(document) > 1 for document in expected) == (source == "sentences")
    read_by_megatron(made.prefix, expected, "uint16")
    if source == "sentences":
        repaired = dataprep.repair(made.prefix, tmp_path / "joined", Wanted(documents=True))
        joined = [[token for ids in document for token in ids] for document in expected]
        read_by_megatron(repaired.prefixes[0], joined, "uint16")
