"""Sequences and documents of a pair as streams of numbers, and what is made of them; no array is ever whole.

    lengths     5 3 0 4 2        tokens of each sequence
    boundaries  0 2 2 5          the sequence each document begins at; one more than documents

A stream is read as often as it is asked for, each time from the start, in pieces of about `CHUNK`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dataprep.errors import FormatError
from dataprep.indexed import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dataprep.batches import Offsets


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences of a pair, and how documents are made of them.

    Attributes:
        num_sequences, num_documents: how many.
        lengths: gives int64 pieces, never negative.
        boundaries: gives int64 pieces: from 0 to the number of sequences, never falling, one more than documents.
    """

    num_sequences: int
    num_documents: int
    lengths: Callable[[], Iterator[Offsets]]
    boundaries: Callable[[], Iterator[Offsets]]


def numbered(count: int) -> Iterator[Offsets]:
    """The boundaries of as many documents of one sequence each."""
    for start in range(0, count + 1, CHUNK):
        yield np.arange(start, min(start + CHUNK, count + 1), dtype=np.int64)


def single(num_sequences: int, lengths: Callable[[], Iterator[Offsets]]) -> Sequences:
    """Sequences that are a document each."""
    return Sequences(num_sequences, num_sequences, lengths, lambda: numbered(num_sequences))


def sums_before(values: Iterator[Offsets], positions: Iterable[Offsets]) -> Iterator[Offsets]:
    """For each position, the sum of the values before it; positions never fall, and end with the values."""
    start, sums = 0, np.zeros(1, np.int64)
    for wanted in positions:
        found = np.empty(len(wanted), np.int64)
        done = 0
        while True:
            upto = int(np.searchsorted(wanted, start + len(sums) - 1, side="right"))
            found[done:upto] = sums[wanted[done:upto] - start]
            done = upto
            if done == len(wanted):
                break
            start += len(sums) - 1
            sums = np.concatenate([[0], np.cumsum(next(values))]) + sums[-1]
        yield found


def document_lengths(sequences: Sequences) -> Iterator[Offsets]:
    """Tokens of each document."""
    last: Offsets | None = None
    for sums in sums_before(sequences.lengths(), sequences.boundaries()):
        yield np.diff(sums) if last is None else np.diff(sums, prepend=last)
        last = sums[-1:]


def ends(lengths: Iterable[Offsets]) -> Iterator[Offsets]:
    """The number of the last token of each that has one."""
    total = 0
    for piece in lengths:
        sums = np.cumsum(piece) + total
        yield sums[piece > 0] - 1
        total = int(sums[-1]) if len(sums) else total


class Rising:
    """Numbers that come in pieces, each larger than the one before, taken in order."""

    def __init__(self, pieces: Iterable[Offsets]) -> None:
        self._pieces = iter(pieces)
        self._left = np.empty(0, np.int64)

    def take(self, below: int) -> Offsets:
        """All that are left and smaller."""
        found = []
        while True:
            cut = int(np.searchsorted(self._left, below))
            found.append(self._left[:cut])
            self._left = self._left[cut:]
            if len(self._left):
                break
            more = next(self._pieces, None)
            if more is None:
                break
            self._left = more
        return np.concatenate(found)


def without_empty(sequences: Sequences) -> Sequences:
    """The same documents, without sequences of no tokens."""

    def lengths() -> Iterator[Offsets]:
        return (piece[piece > 0] for piece in sequences.lengths())

    def boundaries() -> Iterator[Offsets]:
        return sums_before(((piece > 0).astype(np.int64) for piece in sequences.lengths()), sequences.boundaries())

    return Sequences(sum(len(piece) for piece in lengths()), sequences.num_documents, lengths, boundaries)


def lasts(sequences: Sequences) -> Iterator[Offsets]:
    """The number of the last sequence of each document that has one."""
    before = 0
    for bounds in sequences.boundaries():
        yield bounds[np.diff(bounds, prepend=before) > 0] - 1
        before = int(bounds[-1])


def with_eod(sequences: Sequences) -> Sequences:
    """The same, the last sequence of each document that has one longer by a token."""

    def lengths() -> Iterator[Offsets]:
        numbers, start = Rising(lasts(sequences)), 0
        for piece in sequences.lengths():
            longer = piece.copy()
            longer[numbers.take(start + len(piece)) - start] += 1
            start += len(piece)
            yield longer

    return Sequences(sequences.num_sequences, sequences.num_documents, lengths, sequences.boundaries)


def joined(sequences: Sequences) -> Sequences:
    """The same documents of one sequence each; one without tokens is a boundary without a sequence."""

    def lengths() -> Iterator[Offsets]:
        return (piece[piece > 0] for piece in document_lengths(sequences))

    def boundaries() -> Iterator[Offsets]:
        yield np.zeros(1, np.int64)
        count = 0
        for piece in document_lengths(sequences):
            bounds: Offsets = np.cumsum(piece > 0, dtype=np.int64) + count
            yield bounds
            count = int(bounds[-1]) if len(bounds) else count

    return Sequences(sum(len(piece) for piece in lengths()), sequences.num_documents, lengths, boundaries)


def part(sequences: Sequences, first: int, stop: int, bounds: tuple[int, int]) -> Sequences:
    """Documents [first, stop), whose sequences are [bounds[0], bounds[1])."""
    low, high = bounds
    return Sequences(
        high - low,
        stop - first,
        lambda: _slice(sequences.lengths(), low, high),
        lambda: (piece - low for piece in _slice(sequences.boundaries(), first, stop + 1)),
    )


def _slice(pieces: Iterator[Offsets], start: int, stop: int) -> Iterator[Offsets]:
    for piece in pieces:
        if stop <= 0:
            return
        wanted = piece[max(0, start) : stop]
        if len(wanted):
            yield wanted
        start, stop = start - len(piece), stop - len(piece)


def cuts(sequences: Sequences, limit: int) -> list[tuple[int, int]]:
    """Where to cut so that no part has more sequences than the limit: (document, sequence) of each cut, ends included.

    The parts are about equal: a small one at the end would be too small to be split for validation.

    Raises:
        FormatError: a single document has more than half as many sequences.
    """
    least = -(-sequences.num_sequences // limit)
    for count in range(least, 2 * least + 2):
        found = _cuts(sequences, count)
        if all(high - low <= limit for (_, low), (_, high) in pairwise(found)):
            return found
    raise FormatError(f"a document has so many sequences that no prefix can hold it in less than {limit + 1}")


def _cuts(sequences: Sequences, count: int) -> list[tuple[int, int]]:
    """Cuts into parts of about as many sequences each: at the last boundary that does not exceed each target."""
    targets = [number * sequences.num_sequences // count for number in range(1, count)]
    found, seen, last = [(0, 0)], 0, (0, 0)
    for bounds in sequences.boundaries():
        while targets and int(bounds[-1]) > targets[0]:
            place = int(np.searchsorted(bounds, targets.pop(0), side="right")) - 1
            found.append((seen + place, int(bounds[place])) if place >= 0 else last)
        seen += len(bounds)
        last = (seen - 1, int(bounds[-1]))
    return sorted({*found, last})
