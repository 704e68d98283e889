"""One pass over a ``.bin``, read in one way: which ids there are, and how documents end.

Every pass reads through one buffer and holds nothing else, whatever the size.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dataprep.errors import FormatError
from dataprep.repairs.sequences import Rising, document_lengths, ends
from dataprep.storage import COPY_BYTES
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.repairs.readings import Reading
    from dataprep.watcher import Watcher

SAMPLE = 1000
"""Documents by whose last ids the EOD is guessed, each by a read."""

FEW = 8
"""Documents that have to end alike before that means anything, where the EOD is not known."""

ENOUGH = 16
"""Tokens, or documents, from which on it is no accident that all are alike."""

MAX_VOCABULARY = 1 << 24
"""No vocabulary is as large: an id above it is no id. The largest in use have about a million."""


@dataclass
class Ids:
    """What is seen of all ids.

    Attributes:
        smallest, largest: of them; 0 and -1 before the first.
        largest_second: of those at odd places: the upper halves, if these are int32 taken for uint16.
    """

    smallest: int = 0
    largest: int = -1
    largest_second: int = -1

    def __post_init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._count, self._size = 0, 1

    @property
    def checksum(self) -> str:
        """``xxh3_128:<hex>`` of them as little-endian bytes."""
        return f"xxh3_128:{self._hash.hexdigest()}"

    def add(self, ids: npt.NDArray[Any]) -> None:
        """The next ones."""
        if not len(ids):
            return
        self._hash.update(ids.data)
        self._size = ids.dtype.itemsize
        self.largest = max(self.largest, int(ids.max()))
        self.smallest = min(self.smallest, int(ids.min()))
        if ids.dtype.itemsize == 2:
            self.largest_second = max(self.largest_second, int(ids[1 - self._count % 2 :: 2].max(initial=0)))
        self._count += len(ids)

    @property
    def are_halves(self) -> bool:
        """Whether every second one of two bytes is nearly 0: these are int32, read as uint16."""
        few = self._count < ENOUGH or self.largest_second < 0
        return not few and self.largest_second < (256 if self.largest > 255 else 1)

    @property
    def are_no_numbers(self) -> bool:
        """Whether they are neither ids nor floats: ids as floats lie below 2**24, whose first byte is 0x4b, or 0x41."""
        size = self._size
        return not self.are_ids and (self.smallest < 0 or self.largest >> 8 * (size - 1) > 0x4B)

    @property
    def are_ids(self) -> bool:
        """Whether they can be ids at all."""
        return self.smallest >= 0 and self.largest < MAX_VOCABULARY and not self.are_halves


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a pass found for one reading.

    Attributes:
        ids: of the tokens that belong to it.
        eod: the id that ends documents, known or guessed; None: none does.
        is_known: it was not guessed.
        num_ends: documents with a token.
        num_with_eod: of them, those that end with it.
        ends_with_eod: whether the last one does.
        num_eods: how often it stands among the tokens that belong to the reading.
        tail_eods: how often it stands behind them.
        tail_is_zero: whether there is nothing but zeros behind them.
    """

    ids: Ids
    eod: int | None
    is_known: bool
    num_ends: int
    num_with_eod: int
    ends_with_eod: bool
    num_eods: int
    tail_eods: int
    tail_is_zero: bool

    @property
    def is_supported(self) -> bool:
        """Most documents end with the EOD; and if it is a guess, it seldom stands elsewhere."""
        told = self.is_known or (self.num_ends >= FEW and self.num_with_eod * 2 > self.num_eods)
        return self.eod is not None and told and self.num_with_eod * 2 > self.num_ends

    @property
    def is_alike(self) -> bool:
        """All documents end with the same id; of a few, that is enough to doubt another reading, not to prove one."""
        return self.eod is not None and self.num_with_eod == self.num_ends

    @property
    def is_proof(self) -> bool:
        """All documents end with the EOD."""
        return self.is_supported and self.is_alike


def scan(path: Path, dtype: np.dtype[Any], watcher: Watcher) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The tokens of a ``.bin`` in order: number of the first, and ids in this machine's order, valid until the next.

    Raises:
        FormatError: it cannot be read.
    """
    buffer = bytearray(COPY_BYTES)
    view = memoryview(buffer)
    native = dtype.newbyteorder("=")
    first = held = 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(view[held:]):
                watcher(Progress(source_bytes=count))
                whole = (held + count) // dtype.itemsize
                yield first, np.frombuffer(buffer, dtype, whole).astype(native, copy=False)
                first += whole
                held = (held + count) - whole * dtype.itemsize
                view[:held] = bytes(view[whole * dtype.itemsize : whole * dtype.itemsize + held])
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error


def examine(
    path: Path,
    reading: Reading,
    eod: int | None,
    watcher: Watcher,
    each: Callable[[npt.NDArray[np.bool_]], None] | None = None,
) -> Evidence:
    """Read a ``.bin`` once, in one way.

    Args:
        path: of the ``.bin``.
        reading: how.
        eod: the id that ends documents; None: it is guessed by the first of them.
        watcher: told of the bytes read.
        each: given, for the documents that have a token, in order, whether they end with the EOD.
    """
    end = guess_eod(path, reading) if eod is None else eod
    ids, tail = Ids(), _Tail(end)
    num_ends = num_with_eod = num_eods = 0
    ends_with_eod = False
    numbers = Rising(ends(document_lengths(reading.sequences)))
    for first, piece in scan(path, reading.dtype, watcher):
        ours = piece[: max(0, reading.num_tokens - first)]
        ids.add(ours)
        are_ends = ours[numbers.take(first + len(ours)) - first] == end
        num_ends += len(are_ends)
        num_with_eod += int(np.count_nonzero(are_ends))
        num_eods += int(np.count_nonzero(ours == end))
        ends_with_eod = bool(are_ends[-1]) if len(are_ends) else ends_with_eod
        if each is not None:
            each(are_ends)
        tail.add(piece[len(ours) :])
    return Evidence(ids, end, eod is not None, num_ends, num_with_eod, ends_with_eod, num_eods, tail.eods, tail.is_zero)


def guess_eod(path: Path, reading: Reading) -> int | None:
    """The id that ends more than half of the first documents, if there is one.

    Raises:
        FormatError: the file cannot be read.
    """
    size = reading.dtype.itemsize
    some = next((piece for piece in ends(document_lengths(reading.sequences)) if len(piece)), np.empty(0, np.int64))
    try:
        with path.open("rb", buffering=0) as file:
            found = b"".join(os.pread(file.fileno(), size, number * size) for number in some[:SAMPLE].tolist())
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    ids, counts = np.unique(np.frombuffer(found, reading.dtype), return_counts=True)
    return int(ids[counts.argmax()]) if len(ids) and int(counts.max()) * 2 > counts.sum() else None


class _Tail:
    """What stands behind the tokens that belong to a reading."""

    def __init__(self, eod: int | None) -> None:
        self._eod = eod
        self.eods = 0
        self.is_zero = True

    def add(self, ids: npt.NDArray[Any]) -> None:
        self.eods += int(np.count_nonzero(ids == self._eod)) if self._eod is not None else 0
        self.is_zero = self.is_zero and not ids.any()
