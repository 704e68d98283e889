"""Promise 4: Megatron's own reader reads everything we publish, and gets the documents that went in."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataprep

pytestmark = pytest.mark.megatron

TEXTS = [
    "a plain document",
    "",
    "e\u0301 \U0001f44d\U0001f3fd \u65e5\u672c\u8a9e  \n\n\t end",
    "don't <|endoftext|> </s> <|end_of_text|> <tool>",
    " ",
    "",
    "word " * 700,
    "x",
]
BOS = {"bos_bpe": "<|begin_of_text|>", "spm": "<s>"}
EOD = {"bpe": "<|endoftext|>", "pair": "<|endoftext|>", "bos_bpe": "<|end_of_text|>", "spm": "</s>"}


def _id(tokenizer: Path, text: str) -> int:
    """A special token's id, as the tokenizer's own files give it."""
    if (tokenizer / "tokenizer.model").exists():
        return {"<s>": 1, "</s>": 2}[text]
    if (tokenizer / "tokenizer.json").exists():
        added = json.loads((tokenizer / "tokenizer.json").read_text())["added_tokens"]
        return next(token["id"] for token in added if token["content"] == text)
    return json.loads((tokenizer / "vocab.json").read_text())[text]


def _settings(**policy: str) -> list[str]:
    return [f"policy.{key}={value}" for key, value in policy.items()] + ["runtime.max_rejects=1"]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("empty", ["drop", "keep"])
@pytest.mark.parametrize("name", ["bpe", "bos_bpe", "pair", "spm"])
def test_every_policy_of_every_type_of_tokenizer(request, read_by_megatron, write_texts, tmp_path, name, empty, dtype):
    trained, corpus = request.getfixturevalue(name), write_texts(TEXTS)
    ids = dict(zip(TEXTS, trained.ids(TEXTS), strict=True))
    for bos, eod in itertools.product(("auto", "always", "never") if name in BOS else ("auto",), ("append", "none")):
        settings = _settings(bos=bos, eod=eod, empty=empty, dtype=dtype)
        result = dataprep.run(str(corpus), str(trained.path), tmp_path / f"{bos}-{eod}", settings=settings)

        before = [_id(trained.path, BOS[name])] if name in BOS and bos != "never" else []
        after = [_id(trained.path, EOD[name])] if eod == "append" else []
        # A text that is empty, and kept: BOS and EOD where a BOS is written, else a boundary without a sequence.
        expected = [before + ids[text] + after if text or before else [] for text in TEXTS if text or empty == "keep"]
        read_by_megatron(result.prefix, expected, dtype)


@pytest.mark.parametrize("special_text", ["encode", "plain", "reject"])
def test_special_strings(read_by_megatron, bpe, write_texts, tmp_path, special_text):
    result = dataprep.run(
        str(write_texts(TEXTS)), str(bpe.path), tmp_path / "out", settings=_settings(special_text=special_text)
    )
    texts = [text for text in TEXTS if text and not (special_text == "reject" and "<|endoftext|>" in text)]
    eod = _id(bpe.path, EOD["bpe"])
    expected = [[*ids, eod] for ids in bpe.ids(texts, plain=special_text == "plain")]
    assert (eod in expected[2][:-1]) == (special_text == "encode")
    read_by_megatron(result.prefix, expected, "uint16")


def test_a_real_tokenizer_has_the_width_that_its_vocabulary_asks_for(real, read_by_megatron, assets, tmp_path):
    """On the nasty documents; 128,256 ids do not fit into uint16."""
    corpus = assets / "golden" / "nasty.jsonl"
    result = dataprep.run(str(corpus), str(real.path), tmp_path / "out", settings=_settings(bos="never", eod="none"))
    texts = [json.loads(line)["text"] for line in corpus.read_bytes().splitlines()]
    assert len(texts) == 40
    wide = result.manifest.recipe.tokenizer.vocab_size > 65500
    read_by_megatron(result.prefix, [ids for ids in real.ids(texts) if ids], "int32" if wide else "uint16")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "txt"])
@pytest.mark.parametrize("limit", [None, 1, 137])
def test_many_units_of_every_format_and_a_limit(read_by_megatron, bpe, tmp_path, suffix, limit):
    """A dataset that is merged from many shards, over several batches; of plain text, a file is a document."""
    texts = [f"row {i} " + "some words " * (i * 7919 % 90) for i in range(600 if suffix != "txt" else 150)]
    table = pa.table({"text": texts})
    corpus = tmp_path / f"corpus.{suffix}"
    if suffix == "jsonl":
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif suffix == "parquet":
        pq.write_table(table, corpus, row_group_size=50)
    elif suffix == "arrow":
        with pa.OSFile(str(corpus), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    else:
        corpus.mkdir()
        for i, text in enumerate(texts):
            (corpus / f"{i:04d}.txt").write_text(text)
    settings = ["runtime.unit_bytes=20000", "runtime.batch_bytes=1024", "runtime.workers=2"]
    result = dataprep.run(str(corpus), str(bpe.path), tmp_path / "out", limit=limit, settings=settings)
    eod = _id(bpe.path, EOD["bpe"])
    read_by_megatron(result.prefix, [[*ids, eod] for ids in bpe.ids(texts[:limit])], "uint16")


@pytest.mark.parametrize("rows", [7, 1000])
def test_rows_joined_into_documents(read_by_megatron, bpe, write_texts, tmp_path, rows):
    texts = [f"row {i} " + "of a group " * (i % 30) for i in range(500)]
    settings = [f"reader.group_rows={rows}"]
    result = dataprep.run(str(write_texts(texts)), str(bpe.path), tmp_path / "out", settings=settings)
    groups = ["\n".join(texts[i : i + rows]) for i in range(0, len(texts), rows)]
    eod = _id(bpe.path, EOD["bpe"])
    read_by_megatron(result.prefix, [[*ids, eod] for ids in bpe.ids(groups)], "uint16")


def test_documents_of_one_token_and_of_very_many(read_by_megatron, bpe, write_texts, tmp_path):
    texts = ["x", "".join(f"{i} " for i in range(200_000)), "y"]
    result = dataprep.run(str(write_texts(texts)), str(bpe.path), tmp_path / "out", settings=_settings(eod="none"))
    expected = bpe.ids(texts)
    assert [len(ids) for ids in expected][::2] == [1, 1]
    assert len(expected[1]) > 400_000
    read_by_megatron(result.prefix, expected, "uint16")


def test_a_hostile_folder_name(read_by_megatron, bpe, workspace):
    (workspace / "in.jsonl").write_text('{"text": "x"}\n')
    result = dataprep.run(str(workspace / "in.jsonl"), str(bpe.path), workspace / "out", settings=_settings(eod="none"))
    read_by_megatron(result.prefix, bpe.ids(["x"]), "uint16")
