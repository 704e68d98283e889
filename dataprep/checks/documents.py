"""Where documents begin, token by token, without holding the index of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.indexed import Index

PIECE = 1 << 17
"""Elements of an index looked at in one go: 50 million documents take 0.25 s, and 0.4 s with pieces of `indexed.CHUNK`,
which do not fit the processor's cache."""


class Documents:
    """The first tokens of all documents that hold tokens, in order; int64 token numbers, each once.

    Args:
        index: its lengths are not negative.
        by_sequence: every sequence is a document; where the boundaries say otherwise, or say nothing that can be
            believed, the caller decides.
    """

    def __init__(self, index: Index, by_sequence: bool) -> None:
        self._index = index
        self._by_sequence = by_sequence
        self._sequence = self._boundary = self._token = 0
        self._last = -1
        self._starts = np.empty(0, np.int64)
        self._bounds = np.empty(0, np.int64)

    def take(self, stop: int) -> Offsets:
        """All that are left and smaller than `stop`; int64."""
        return np.concatenate([*self._pieces(stop), np.empty(0, np.int64)])

    def take_near(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """The same, counted from `start`, which none lies before and none 2**31 behind; int32: there may be many."""
        pieces = [(piece - start).astype(np.int32) for piece in self._pieces(stop)]
        return np.concatenate([*pieces, np.empty(0, np.int32)])

    def _pieces(self, stop: int) -> Iterator[Offsets]:
        while True:
            cut = int(np.searchsorted(self._starts, stop))
            yield self._starts[:cut]
            self._starts = self._starts[cut:]
            if len(self._starts) or self._sequence >= len(self._index.sequence_lengths):
                return
            self._starts = self._next()

    def _next(self) -> Offsets:
        """The starts among the next sequences."""
        lengths = self._index.read("sequence_lengths", self._sequence, self._sequence + PIECE)
        starts = np.empty(len(lengths) + 1, np.int64)
        starts[0] = 0
        np.cumsum(lengths, dtype=np.int64, out=starts[1:])
        starts += self._token
        first, self._sequence = self._sequence, self._sequence + len(lengths)
        self._token, last = int(starts[-1]), self._last
        chosen: Offsets = starts[:-1] if self._by_sequence else starts[self._firsts(first, self._sequence) - first]
        if len(chosen):
            self._last = int(chosen[-1])
        # a start that comes twice is first that of an empty document
        return chosen[np.diff(chosen, prepend=last) > 0]

    def _firsts(self, first: int, stop: int) -> Offsets:
        """The sequences in [first, stop) that a document begins with."""
        found = []
        while True:
            cut = int(np.searchsorted(self._bounds, stop))
            found.append(self._bounds[:cut])
            self._bounds = self._bounds[cut:]
            if len(self._bounds) or self._boundary >= len(self._index.document_indices):
                break
            bounds = self._index.read("document_indices", self._boundary, self._boundary + PIECE)
            self._boundary += len(bounds)
            self._bounds = bounds[np.diff(bounds, prepend=-1) > 0]  # of empty documents only one
        return np.unique(np.concatenate(found))
