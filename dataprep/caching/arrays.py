"""The arrays of one index cache, streamed into files: a part of a pair, or of a blend.

What Megatron shuffles has to be whole in memory, or nearly: the document index (4 bytes for each sequence and epoch,
with 4 for the length of each sequence), then the shuffle index (4 bytes for each sample), one after the other.
The rest passes by. A shuffle in a mapped file would take no less and ask the file system for every element.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dataprep.errors import SpecError
from dataprep.indexed import CHUNK
from dataprep.samples import INT32, plan_samples, read_lengths, sample_starts, shuffled_samples, shuffled_sequences
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from dataprep.indexed import Index
    from dataprep.mixing import BlendOrder
    from dataprep.storage import AtomicFile
    from dataprep.watcher import Watcher


class Arrays(Protocol):
    """What a cache holds."""

    num_samples: int

    @property
    def work(self) -> int:
        """Elements, for a watcher."""

    def write(self, files: Mapping[str, AtomicFile], watcher: Watcher) -> None:
        """Write each array, as ``numpy.save`` does, into the file of its name."""


class PairArrays:
    """Document, sample and shuffle index of a part of a pair.

    Args:
        index: of the pair.
        part: its sequences [start, stop).
        seq_length: tokens that a sample trains on.
        seed: of the shuffles.
        wanted: samples that the training asks for; None: one epoch.

    Attributes:
        plan: how large they become.

    Raises:
        SpecError: Megatron would hang, or they do not fit into memory.
        FormatError: the index is broken.
    """

    def __init__(self, index: Index, part: tuple[int, int], seq_length: int, seed: int, wanted: int | None) -> None:
        self._index, self._size, self._seed = index, seq_length, seed
        self._name = index.path.with_suffix("")
        tokens = 0
        for first in range(*part, CHUNK):
            tokens += int(read_lengths(index, first, min(first + CHUNK, part[1])).sum(dtype=np.int64))
        if not tokens:
            raise SpecError(f"{self._name}: no tokens in sequences {part[0]} to {part[1]}, and Megatron hangs on that")
        self.plan = plan_samples(part, tokens, seq_length, wanted)
        self.num_samples = self.plan.num_samples
        self._check()

    def _check(self) -> None:
        plan, memory = self.plan, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        needed = max(4 * (plan.num_places + plan.stop - plan.start), 4 * plan.num_samples)
        if needed > memory or plan.num_epochs > INT32:
            raise SpecError(
                f"{self._name}: {plan.num_epochs} epochs of {plan.stop - plan.start} sequences take "
                f"{needed / 1e9:,.0f} GB of memory to shuffle (here are {memory / 1e9:,.0f}), and Megatron takes more; "
                "ask for fewer samples"
            )

    @property
    def work(self) -> int:
        return 3 * self.plan.num_places + 3 * self.plan.num_samples

    def write(self, files: Mapping[str, AtomicFile], watcher: Watcher) -> None:
        plan, state = self.plan, np.random.RandomState(self._seed)
        documents = shuffled_sequences(plan, state)
        watcher(Progress(source_bytes=2 * plan.num_places))
        _write_header(files["document_index"], documents.dtype, (len(documents),))
        # Megatron asks for the longest sequence, too, which is int32 anyway (helpers.py, `build_sample_idx`).
        dtype = np.dtype(np.int32 if len(documents) <= INT32 else np.int64)
        _write_header(files["sample_index"], dtype, (plan.num_samples + 1, 2))
        ordered = self._ordered(documents, files["document_index"], watcher)
        for rows in sample_starts(ordered, self._size, plan.num_samples):
            files["sample_index"].write(rows.astype(dtype))
            watcher(Progress(source_bytes=len(rows)))
        del documents
        samples = shuffled_samples(plan, state)
        _write_header(files["shuffle_index"], samples.dtype, (len(samples),))
        files["shuffle_index"].write(samples)
        watcher(Progress(source_bytes=2 * plan.num_samples))

    def _ordered(
        self, documents: npt.NDArray[np.int32], file: AtomicFile, watcher: Watcher
    ) -> Iterator[npt.NDArray[np.int32]]:
        """The lengths in the order of the document index, which is written on the way."""
        lengths = read_lengths(self._index, self.plan.start, self.plan.stop)
        for place in range(0, len(documents), CHUNK):
            piece = documents[place : place + CHUNK]
            file.write(piece)
            yield lengths[piece - self.plan.start]
            watcher(Progress(source_bytes=len(piece)))


class BlendArrays:
    """The two indices of a blend.

    Args:
        order: of the blend.
        held: samples that each prefix makes.

    Raises:
        SpecError: it draws more samples from a prefix than that has; Megatron stops there.
    """

    def __init__(self, order: BlendOrder, held: list[int]) -> None:
        self._order, self._held = order, held
        self.num_samples = len(order)

    @property
    def work(self) -> int:
        return self.num_samples

    def write(self, files: Mapping[str, AtomicFile], watcher: Watcher) -> None:
        drawn = np.zeros(len(self._held), np.int64)
        _write_header(files["dataset_index"], np.dtype(np.int16), (self.num_samples,))
        _write_header(files["dataset_sample_index"], np.dtype(np.int64), (self.num_samples,))
        for prefixes, numbers in self._order.pieces():
            files["dataset_index"].write(prefixes)
            files["dataset_sample_index"].write(numbers)
            drawn += np.bincount(prefixes, minlength=len(drawn))
            watcher(Progress(source_bytes=len(prefixes)))
        for number, (taken, held) in enumerate(zip(drawn.tolist(), self._held, strict=True)):
            if taken > held:
                raise SpecError(
                    f"the blend draws {taken} samples from its prefix {number}, which makes {held}; Megatron stops "
                    "there, too: ask for a few more samples, or for other weights"
                )


def _write_header(file: AtomicFile, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Begin an array as ``numpy.save`` does."""
    header = io.BytesIO()
    value = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, value)
    file.write(header.getvalue())
