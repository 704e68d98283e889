"""Megatron's own classes, and what every test of tests/megatron asks of a pair.

Needs `pip install torch==2.13.0 packaging` and `pip install --no-deps megatron-core==0.16.1` (its wheel holds the
compiled helpers, and neither reading data nor a small model on a CPU needs anything else of it).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dataprep


@pytest.fixture(scope="session")
def megatron() -> SimpleNamespace:
    """The classes of megatron.core.datasets of the installed release."""
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does without Apex and Transformer Engine
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
        from megatron.core.datasets.utils import get_blend_from_list
    return SimpleNamespace(
        BlendedMegatronDatasetBuilder=BlendedMegatronDatasetBuilder,
        GPTDataset=GPTDataset,
        GPTDatasetConfig=GPTDatasetConfig,
        IndexedDataset=IndexedDataset,
        IndexedDatasetBuilder=IndexedDatasetBuilder,
        get_blend_from_list=get_blend_from_list,
    )


@pytest.fixture(scope="session")
def process_group(megatron: SimpleNamespace) -> Iterator[None]:
    """A torch.distributed of one: megatron-core 0.16.1 asks for the rank when it is to cache a blend."""
    import torch.distributed as dist

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def read_by_megatron(megatron: SimpleNamespace) -> Callable[..., None]:
    """Read a pair whole by Megatron's reader in each of its ways; it has to be `documents` (lists of ids), of `dtype`.

    An empty document is a boundary without a sequence.
    """

    def read(prefix: str | Path, documents: list[list[int]], dtype: str) -> None:
        sequences = [np.array(ids, dtype) for ids in documents if ids]
        lengths = [len(ids) for ids in sequences]
        boundaries = np.cumsum([0, *(1 if ids else 0 for ids in documents)])
        for mmap in (True, False):
            theirs = megatron.IndexedDataset(str(prefix), mmap=mmap)
            assert len(theirs) == len(sequences)
            assert theirs.index.dtype == np.dtype(dtype)
            assert theirs.sequence_lengths.tolist() == lengths
            assert theirs.document_indices.tolist() == boundaries.tolist()
            assert theirs.index.sequence_pointers.tolist() == [
                end * np.dtype(dtype).itemsize for end in np.cumsum([0, *lengths])[:-1].tolist()
            ]
            for i, expected in enumerate(sequences):
                for found in (theirs[i], theirs.get(i), theirs.get(i, len(expected) // 2, 1)):
                    assert found.dtype == expected.dtype
                    wanted = expected if len(found) == len(expected) else expected[len(expected) // 2 :][:1]
                    assert np.array_equal(found, wanted), f"sequence {i}, mmap={mmap}"
            whole = theirs[: len(sequences)] if sequences else []
            assert [part.tolist() for part in whole] == [ids.tolist() for ids in sequences]
        ours = dataprep.open_dataset(prefix)
        assert [ours.document(i).tolist() for i in range(ours.num_documents)] == documents

    return read


@pytest.fixture
def gpt_config(megatron: SimpleNamespace) -> Callable[..., object]:
    """A GPTDatasetConfig for prefixes; no document is cut by its masks."""

    def config(blend: tuple[list[str], list[float] | None], length: int, split: str, **more: object) -> object:
        tokenizer = SimpleNamespace(vocab_size=8192, eod=0, pad=-1, unique_identifiers={"class": "sample"})
        switches = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
        return megatron.GPTDatasetConfig(
            random_seed=1, sequence_length=length, blend=blend, split=split, tokenizer=tokenizer, **switches, **more
        )

    return config
