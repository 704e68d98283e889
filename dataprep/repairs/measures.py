"""What the arrays of an index say, and where they agree.

The pair says most things twice, which is what a repair lives on. The size of an item: by the dtype code, by the
pointers, and by the size of the ``.bin``. The lengths: as they are, and as the steps of the pointers. The counts of the
header: as they are, and by the size of the ``.idx``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.indexed import HEADER

if TYPE_CHECKING:
    from dataprep.batches import Offsets
    from dataprep.repairs.arrays import Arrays, RawHeader

ITEM_SIZES = (1, 2, 4, 8)
"""Bytes of an integer that the format knows."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What the arrays of an index say, and where they agree.

    Attributes:
        num_tokens: sum of the lengths; None where they are not all there, or one is negative.
        num_negative, first_negative: lengths below 0.
        num_empty: lengths of 0.
        pointer_items: item sizes by which the pointers that are there are what the lengths make of them.
        pointers_tell: they are all there, and one of them is more than 0: they allow no other item size.
        rising: the pointers are all there, begin at 0, always rise, and stay within the ``.bin``: one that stands still
            may be wrong like the length of 0 before it.
        pointer_bits: all pointers, or-ed: an item size divides all of them if it divides this.
        last_length, last_pointer: of the last sequence.
        num_agreeing: for each item size, how many lengths are the step to the next pointer.
        rises: the document boundaries that are there never fall.
        first_bound, last_bound: where they begin and end.
        shift: by how much they are too large, if all of them are by the same, and are all there; 0: they are right as
            far as they can be judged alone. None: more is wrong with them.
        num_bounds: boundaries there.
        num_own: of them, those that would be the same with a document for each sequence.
    """

    num_tokens: int | None
    num_negative: int
    first_negative: int
    num_empty: int
    pointer_items: frozenset[int]
    pointers_tell: bool
    rising: bool
    pointer_bits: int
    last_length: int
    last_pointer: int
    num_agreeing: dict[int, int]
    rises: bool
    first_bound: int
    last_bound: int
    shift: int | None
    num_bounds: int
    num_own: int

    def is_sound(self, bin_bytes: int) -> bool:
        """Whether all arrays and the size of the ``.bin`` agree."""
        total = self.num_tokens
        return self.shift == 0 and bool(total) and any(item * (total or 0) == bin_bytes for item in self.pointer_items)


def measure(arrays: Arrays, bin_bytes: int) -> Measures:
    """Read an index once.

    Args:
        arrays: the index.
        bin_bytes: size of the ``.bin``.
    """
    sums = _LengthSums(bin_bytes)
    pointers = arrays.pieces("sequence_pointers")
    for lengths in arrays.pieces("sequence_lengths"):
        sums.add(lengths, next(pointers, np.empty(0, np.int64)))
    whole = arrays.is_whole("sequence_pointers")
    first, rises, last, count, own = _measure_bounds(arrays)
    whole_bounds = rises and count == arrays.num_boundaries > 0 and last - first == arrays.num_sequences
    return Measures(
        num_tokens=sums.total if arrays.is_whole("sequence_lengths") and not sums.num_negative else None,
        num_negative=sums.num_negative,
        first_negative=sums.first_negative,
        num_empty=sums.num_empty,
        pointer_items=frozenset(sums.items),
        pointers_tell=whole and sums.bits != 0,
        rising=whole and sums.rising and not sums.num_still and arrays.num_sequences > 0,
        pointer_bits=sums.bits,
        last_length=sums.last_length,
        last_pointer=sums.last_pointer,
        num_agreeing=sums.agreeing,
        rises=rises,
        first_bound=first,
        last_bound=last,
        shift=first if whole_bounds else None,
        num_bounds=count,
        num_own=own,
    )


def choose(header: RawHeader, bin_bytes: int) -> tuple[Arrays, Measures]:
    """The arrays by the counts of the header, or by the counts that make sense of the file where those do not.

    Other counts than the header's are believed only where everything agrees: lengths, pointers, boundaries, both sizes.
    """
    n, d, size = header.num_sequences, header.num_boundaries, header.num_bytes
    own = header.arrays(n, d)
    if size in (own.end, own.end + n):
        return own, measure(own, bin_bytes)
    empty = HEADER.size + 8  # no sequence, one boundary
    by_size = [(n, (size - HEADER.size - 12 * n) // 8), ((size - HEADER.size - 8 * d) // 12, d)]
    by_size += [((size - empty) // 20, (size - empty) // 20 + 1)]
    for counts in [*by_size, (n, d)]:
        arrays = header.arrays(*counts)
        if min(counts) > 0 and (arrays.end == size or (arrays == own and arrays.end < size)):
            measures = measure(arrays, bin_bytes)
            if measures.is_sound(bin_bytes):
                return arrays, measures
    return own, measure(own, bin_bytes)


class _LengthSums:
    """Adds up lengths and pointers, a piece of both at a time; see `Measures`."""

    def __init__(self, bin_bytes: int) -> None:
        self._bin_bytes = bin_bytes
        self._seen = self.last_length = self.last_pointer = 0
        self.total = self.num_negative = self.num_empty = self.num_still = self.bits = 0
        self.first_negative = -1
        self.items = set(ITEM_SIZES)
        self.rising = True
        self.agreeing = dict.fromkeys(ITEM_SIZES, 0)

    def add(self, lengths: Offsets, pointers: Offsets) -> None:
        negative = np.flatnonzero(lengths < 0)
        if len(negative) and self.first_negative < 0:
            self.first_negative = self._seen + int(negative[0])
        self.num_negative += len(negative)
        self.num_empty += int(np.count_nonzero(lengths == 0))
        ends = np.cumsum(lengths) + self.total
        starts = (ends - lengths)[: len(pointers)]
        self.items = {item for item in self.items if np.array_equal(starts * item, pointers)}
        if len(pointers):
            self._walk(lengths[: len(pointers)], pointers)
        self.total = int(ends[-1])
        self._seen += len(lengths)

    def _walk(self, lengths: Offsets, pointers: Offsets) -> None:
        self.bits |= int(np.bitwise_or.reduce(pointers))
        steps = np.diff(pointers, prepend=self.last_pointer)
        before = np.concatenate([[self.last_length], lengths[:-1]])
        first = 0 if self._seen else 1
        for item in ITEM_SIZES:
            self.agreeing[item] += int(np.count_nonzero(steps[first:] == before[first:] * item))
        self.num_still += int(np.count_nonzero(steps[first:] == 0))
        started = self._seen > 0 or int(pointers[0]) == 0
        within = int(pointers[-1]) <= self._bin_bytes
        self.rising = self.rising and started and within and bool((steps >= 0).all())
        self.last_pointer, self.last_length = int(pointers[-1]), int(lengths[-1])


def _measure_bounds(arrays: Arrays) -> tuple[int, bool, int, int, int]:
    """The first document boundary, whether they never fall, the last one; how many; how many are their own number."""
    first, rises, last, count, own = 0, True, 0, 0, 0
    for bounds in arrays.pieces("document_indices"):
        steps = np.diff(bounds, prepend=last if count else bounds[:1])
        first = first if count else int(bounds[0])
        rises = rises and bool((steps >= 0).all())
        own += int(np.count_nonzero(bounds == np.arange(count, count + len(bounds))))
        last, count = int(bounds[-1]), count + len(bounds)
    return first, rises, last, count, own
