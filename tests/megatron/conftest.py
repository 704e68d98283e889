"""Megatron's own classes, and what every test of tests/megatron asks of a pair.

Needs `pip install torch==2.13.0 packaging` and `pip install --no-deps megatron-core==0.16.1` (its wheel holds the
compiled helpers, and neither reading data nor a small model on a CPU needs anything else of it).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
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
    """Read a pair whole by Megatron's reader in each of its ways; it has to hold `documents`, in `dtype`.

    A document is its ids, or, where it is cut into sequences, a list of theirs; without ids it has no sequence.
    """

    def read(prefix: str | Path, documents: list[list], dtype: str) -> None:
        cut = [ids if ids and isinstance(ids[0], list) else [ids] if ids else [] for ids in documents]
        sequences = [ids for document in cut for ids in document]
        ends = np.cumsum([0, *map(len, sequences)])
        for mmap in (True, False):
            theirs = megatron.IndexedDataset(str(prefix), mmap=mmap)
            assert len(theirs) == len(sequences)
            assert theirs.index.dtype == np.dtype(dtype)
            assert theirs.sequence_lengths.tolist() == np.diff(ends).tolist()
            assert theirs.index.sequence_pointers.tolist() == (ends[:-1] * np.dtype(dtype).itemsize).tolist()
            assert theirs.document_indices.tolist() == np.cumsum([0, *map(len, cut)]).tolist()
            for i, ids in enumerate(sequences):
                assert theirs[i].dtype == np.dtype(dtype)
                assert theirs[i].tolist() == ids, f"sequence {i}, mmap={mmap}"
                assert theirs.get(i, len(ids) // 2, 1).tolist() == ids[len(ids) // 2 :][:1]
            assert [ids.tolist() for ids in theirs[:]] == sequences
        ours = dataprep.open_dataset(prefix)
        assert [[ids.tolist() for ids in ours[int(a) : int(b)]] for a, b in pairwise(ours.document_indices)] == cut

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
