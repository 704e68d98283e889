"""Promise 4: Megatron's own reader reads everything we publish, and gets the documents that went in.

Needs `pip install torch==2.13.0 packaging` and `pip install --no-deps megatron-core==0.16.1` (its wheel holds the
compiled helpers, and reading data needs nothing else of it).
"""

import json
import types

import numpy as np
import pytest

import dataprep

pytestmark = pytest.mark.megatron


@pytest.fixture(scope="module")
def megatron():
    """megatron.core.datasets.indexed_dataset of the installed release."""
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets import indexed_dataset

    return indexed_dataset


@pytest.fixture(scope="module", params=["uint16", "int32"])
def made(request, tmp_path_factory):
    """A dataset of 600 documents (more than Megatron's default split needs), some empty, and what went in."""
    folder = tmp_path_factory.mktemp("megatron")
    texts = [f"document {i}: " + "some words " * (i % 23) if i % 50 else "" for i in range(600)]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = [f"policy.dtype={request.param}", "policy.empty=keep"]
    return dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out", settings=settings), texts


@pytest.mark.parametrize("mmap", [True, False])
def test_megatrons_reader_gets_the_documents_that_went_in(megatron, made, mmap):
    result, texts = made
    theirs, ours = megatron.IndexedDataset(result.prefix, mmap=mmap), dataprep.open_dataset(result.prefix)

    assert len(theirs) == len(ours) == sum(1 for text in texts if text)
    assert np.array_equal(theirs.sequence_lengths, ours.sequence_lengths)
    assert np.array_equal(theirs.document_indices, ours.document_indices)
    assert len(theirs.document_indices) == len(texts) + 1
    for i in range(len(ours)):
        assert np.array_equal(theirs[i], ours[i])
    written = [text for text in texts if text]
    assert dataprep.decode(result.prefix, 1) == written[0] + "<|endoftext|>"


def test_megatrons_builder_writes_the_same_bytes(megatron, made, tmp_path):
    import torch

    result, _ = made
    ours = dataprep.open_dataset(result.prefix)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=ours.dtype.type)
    for i in range(ours.num_documents):
        document = ours.document(i)
        if len(document):
            builder.add_item(torch.from_numpy(document.astype(np.int64)))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))

    for suffix in (".bin", ".idx"):
        with open(result.prefix + suffix, "rb") as file:
            assert file.read() == (tmp_path / f"theirs{suffix}").read_bytes()
    assert dataprep.verify(tmp_path / "theirs").ok


def test_gpt_dataset_draws_its_samples_from_it(megatron, made):
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    result, _ = made
    tokenizer = types.SimpleNamespace(vocab_size=8192, eod=0, pad=-1, unique_identifiers={"class": "sample"})
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=128,
        blend=([result.prefix], None),
        split="90,5,5",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        tokenizer=tokenizer,
    )
    train, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, [100, 5, 5], lambda: True, config).build()

    assert len(train) >= 100
    assert int(train[0]["tokens"].max()) < 8192
