"""Megatron's own writer, given the same documents, writes the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dataprep

pytestmark = pytest.mark.megatron


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatrons_builder_writes_the_same_bytes(megatron, write_texts, tmp_path, dtype):
    import torch

    texts = [f"document {i}: " + "some words " * (i % 23) if i % 50 else "" for i in range(600)]
    settings = [f"policy.dtype={dtype}", "policy.empty=keep"]
    result = dataprep.run(str(write_texts(texts)), "sample", tmp_path / "out", settings=settings)
    ours = dataprep.open_dataset(result.prefix)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=ours.dtype.type)
    for i in range(ours.num_documents):
        document = ours.document(i)
        if len(document):
            builder.add_item(torch.from_numpy(document.astype(np.int64)))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))

    assert ours.num_documents == 600 > len(ours)
    for suffix in (".bin", ".idx"):
        assert Path(result.prefix + suffix).read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    assert dataprep.verify(tmp_path / "theirs").ok
