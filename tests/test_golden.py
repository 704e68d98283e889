"""The very bytes of Megatron-LM's tools/preprocess_data.py for 40 nasty documents (the golden/ folder of the assets).

By the flags of that script, see test_preprocess.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import dataprep

CASES = {
    "gpt2-hf-eod": ["gpt2", "gpt2/tokenizer.json", "gpt2/vocab.json"],
    "llama3-hf-eod": ["llama3", "llama3/tokenizer.json"],
    "llama2-sp-eod": ["llama2/tokenizer.model"],
}
# The Megatron-LM that wrote the golden files puts no BOS before what its Llama2Tokenizer gives (core 0.14 and before
# did, and `bos=auto` follows those): `dataprep preprocess` has to say so too.
MORE = {"llama2-sp-eod": ["policy.bos=never"]}


@pytest.mark.parametrize("engine", ["gigatoken", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("golden", "tokenizer"), [(golden, path) for golden, paths in CASES.items() for path in paths])
def test_same_bytes_as_megatron_preprocess_data(assets, tmp_path, golden, tokenizer, engine):
    settings = ["policy.empty=keep", *MORE.get(golden, []), f"runtime.engine={engine}"]
    result = dataprep.run(
        str(assets / "golden" / "nasty.jsonl"), str(assets / "tokenizers" / tokenizer), tmp_path, settings=settings
    )
    for suffix in (".bin", ".idx"):
        expected = assets / "golden" / f"{golden}_text_document{suffix}"
        assert Path(f"{result.prefix}{suffix}").read_bytes() == expected.read_bytes(), suffix


@pytest.mark.slow
def test_other_policies_give_other_bytes(assets, tmp_path):
    """What makes the comparison above able to fail: the empty document and the BOS are really in the golden bytes."""
    corpus, tokenizers = str(assets / "golden" / "nasty.jsonl"), assets / "tokenizers"
    for golden, tokenizer, setting in (
        ("gpt2-hf-eod", "gpt2", "policy.empty=drop"),
        ("llama3-hf-eod", "llama3", "policy.bos=never"),
        ("llama2-sp-eod", "llama2/tokenizer.model", "policy.bos=auto"),
    ):
        settings = ["policy.empty=keep", setting]  # of two, the last one wins
        result = dataprep.run(corpus, str(tokenizers / tokenizer), tmp_path, settings=settings)
        expected = (assets / "golden" / f"{golden}_text_document.idx").read_bytes()
        assert Path(f"{result.prefix}.idx").read_bytes() != expected
