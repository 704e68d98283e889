"""How long documents are: exact quantiles, a histogram, and what a training's sequence length makes of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dataprep.errors import FormatError
from dataprep.manifest import Lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.indexed import IndexedDataset

QUANTILES = {"p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}

TABLE = 1 << 20
"""Up to here lengths are counted in a table, which is ten times faster than sorting them."""


def document_ends(pair: IndexedDataset) -> Iterator[Offsets]:
    """The token numbers at which documents end, int64, in order, some at a time; the first document begins at 0.

    Reads the whole index, and sees that it is sound: documents lie end to end, and fill the ``.bin``.

    Raises:
        FormatError: it is not, or there are no documents.
    """
    index, size = pair.index, pair.dtype.itemsize
    if not pair.num_documents:
        raise FormatError(f"{pair.prefix} holds no documents; run: dataprep verify {pair.prefix}")
    broken = FormatError(f"{pair.prefix}: the index is broken, or of another .bin; run: dataprep verify {pair.prefix}")
    if pair.document_indices[0] or pair.document_indices[-1] != len(pair):
        raise broken
    boundaries = index.chunks("document_indices")
    bounds = next(boundaries)[1:]
    sequence = position = last = 0
    nothing = (np.zeros(0, np.int32), np.zeros(0, np.int64))  # before the first sequence there may be documents
    pieces = zip(index.chunks("sequence_lengths"), index.chunks("sequence_pointers"), strict=True)
    for lengths, pointers in itertools.chain([nothing], pieces):
        starts = np.full(len(lengths) + 1, position, np.int64)
        starts[1:] += np.cumsum(lengths, dtype=np.int64)
        position = int(starts[-1])
        if (
            int(lengths.min(initial=0)) < 0
            or position > pair.num_tokens
            or not np.array_equal(starts[:-1] * size, pointers)
        ):
            raise broken
        while len(bounds) or len(bounds := next(boundaries, bounds)):
            if bounds[0] < last or (bounds[1:] < bounds[:-1]).any():
                raise broken
            cut = int(np.searchsorted(bounds, sequence + len(lengths), side="right"))
            if not cut:
                break
            yield starts[bounds[:cut] - sequence]
            last, bounds = int(bounds[cut - 1]), bounds[cut:]
        sequence += len(lengths)
    if position != pair.num_tokens:
        raise broken


@dataclass(frozen=True, slots=True)
class LengthCounts:
    """How many documents have each length, in memory bounded by the distinct lengths.

    Attributes:
        values: int64[k], ascending: the lengths that occur, in tokens.
        counts: int64[k], documents of each.
    """

    values: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, chunks: Iterable[npt.NDArray[Any]]) -> Self:
        """Count lengths that come some at a time."""
        values, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for lengths in chunks:
            more, times = _distinct(lengths)
            values, inverse = np.unique(np.concatenate([values, more]), return_inverse=True)
            merged = np.zeros(len(values), np.int64)
            np.add.at(merged, inverse, np.concatenate([counts, times]))
            counts = merged
        return cls(values, counts)

    @property
    def num_tokens(self) -> int:
        return int((self.values * self.counts).sum())

    def summary(self) -> Lengths:
        """Quantiles by the nearest-rank rule; there has to be a document."""
        ends = np.cumsum(self.counts)
        total = int(ends[-1])
        ranks = {name: max(1, int(np.ceil(share * total))) for name, share in QUANTILES.items()}
        return Lengths(
            min=int(self.values[0]),
            max=int(self.values[-1]),
            mean=self.num_tokens / total,
            quantiles={name: int(self.values[np.searchsorted(ends, rank)]) for name, rank in ranks.items()},
        )

    def bins(self) -> list[dict[str, int]]:
        """Documents and tokens by powers of two of the length: 0, 1, 2 to 3, 4 to 7, up to the longest."""
        powers = np.frexp(self.values.astype(np.float64))[1]  # of 0: 0, of 1: 1, of 2 and 3: 2, of 4 to 7: 3
        found = []
        for power in range(int(powers[0]), int(powers[-1]) + 1):
            here = powers == power
            found.append(
                {
                    "from": (1 << power) >> 1,
                    "to": (1 << power) - 1,
                    "num_documents": int(self.counts[here].sum()),
                    "num_tokens": int((self.values * self.counts)[here].sum()),
                }
            )
        return found

    def cuts(self, seq_length: int) -> dict[str, Any]:
        """What becomes of the documents at a sequence length, as plain JSON values.

        Megatron lays all documents end to end and cuts: sample i is tokens [i * seq_length, (i + 1) * seq_length], so
        that neighbours share one. A document whose place is random is cut with the probability
        (length - 2) / seq_length. Documents without tokens are left out.

        Returns:
            num_samples: of one epoch; num_tokens_dropped: behind the last of them; share_cut: of the documents, that
            are expected to be parted between samples; num_longer: documents longer than seq_length;
            num_tokens_truncated: lost if documents were truncated at seq_length; share_padding: of all positions, if
            each document had a sample of its own as well.
        """
        values, counts = self.values[self.values > 0], self.counts[self.values > 0]
        documents, tokens = int(counts.sum()), self.num_tokens
        samples = max(0, (tokens - 1) // seq_length)
        longer = np.maximum(0, values - seq_length)
        room = np.maximum(0, seq_length - values)
        return {
            "seq_length": seq_length,
            "num_samples": samples,
            "num_tokens_dropped": tokens - (samples * seq_length + 1 if samples else 0),
            "share_cut": float((counts * np.clip((values - 2) / seq_length, 0, 1)).sum() / max(1, documents)),
            "num_longer": int(counts[longer > 0].sum()),
            "num_tokens_truncated": int((counts * longer).sum()),
            "share_padding": float((counts * room).sum() / max(1, documents * seq_length)),
        }


def _distinct(lengths: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The lengths that occur, ascending, and how often each does."""
    if int(lengths.max(initial=0)) >= TABLE:
        return np.unique(lengths, return_counts=True)
    table = np.bincount(lengths)
    values = np.flatnonzero(table)
    return values, table[values]
