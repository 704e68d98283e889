"""What is counted in a ``.bin``, a block at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

HEAD = 4096
"""Bytes of the block before that a block is looked at with: the token that ends the document before, and the first half
of a run of zeros."""

ZERO_BYTES = 4096
"""A run of that many zeros is a hole: the unit in which file systems and page caches lose data."""

SOME = 1 << 16
"""Documents looked at in one go: a block may hold a million of them, and arrays of as many would take the memory."""

NEVER = 2**63 - 1
"""Where the first of something is that was not met."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What to look for.

    Attributes:
        dtype: of the tokens.
        eod, bos: ids that end and begin documents.
        marks: ranges [lowest, highest] of ids to count one by one, `eod` among them.
        limit: what is not below it is no id.
        is_top: above the last of `marks` there seem to be no ids: then one comparison counts it, and says that none is
            larger, which saves the search for the largest.
    """

    dtype: np.dtype[Any]
    eod: int | None
    bos: int | None
    marks: tuple[tuple[int, int], ...]
    limit: int
    is_top: bool = False

    def known(self, ends: int, begins: int, low: int, high: int) -> Counter[int]:
        """How often ids of a range occur at the ends and beginnings of documents."""
        found = Counter[int]()
        for id_, number in ((self.eod, ends), (self.bos, begins)):
            if id_ is not None and low <= id_ <= high and number:
                found[id_] += number
        return found


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the ``.bin``.

    Attributes:
        data: uint8, `head` bytes of the block before and the block; `head` is `HEAD`, 0 for the first block.
        first: number of its first token.
        itemsize: bytes of a token.
        starts: int32, the first tokens of documents, counted from that.
        is_last: of the file.
    """

    data: npt.NDArray[np.uint8]
    head: int
    first: int
    itemsize: int
    starts: npt.NDArray[np.int32]
    is_last: bool


@dataclass
class Tally:
    """Counts of one or of all threads.

    Attributes:
        largest, smallest: ids; `smallest` is 0 without negative ones.
        num_documents: that hold tokens.
        num_ends, num_begins: documents that end with the EOD, and that begin with the BOS.
        counts: id -> how often, for the ids in `Looked.marks` that occur.
        num_negative, num_over: ids below 0, and not below the limit.
        num_zero_bytes: in runs of at least `ZERO_BYTES`.
        first_missing, first_inside, first_negative, first_over: token numbers: the end of a document without EOD, an
            EOD elsewhere, ...
        first_zero: a byte.
    """

    largest: int = 0
    smallest: int = 0
    num_documents: int = 0
    num_ends: int = 0
    num_begins: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    num_negative: int = 0
    num_over: int = 0
    num_zero_bytes: int = 0
    first_missing: int = NEVER
    first_inside: int = NEVER
    first_negative: int = NEVER
    first_over: int = NEVER
    first_zero: int = NEVER

    def __add__(self, other: Tally) -> Tally:
        values: dict[str, Any] = {}
        for name, mine in vars(self).items():
            theirs = getattr(other, name)
            if name.startswith("first") or name == "smallest":
                values[name] = min(mine, theirs)
            else:
                values[name] = max(mine, theirs) if name == "largest" else mine + theirs
        return Tally(**values)

    def look(self, block: Block, looked: Looked, mask: npt.NDArray[np.bool_]) -> None:
        """Count a block; `mask` is room for one value per token of it."""
        bits = 8 * looked.dtype.itemsize
        ids = block.data[block.head :].view(f"<u{looked.dtype.itemsize}")  # negative ids are large ones: one maximum
        mask = mask[: len(ids)]
        ceiling = 1 << (bits - 1) if looked.dtype.kind == "i" else 1 << bits
        self._zeros(block)
        self.num_documents += len(block.starts)
        ends, begins = self._documents(block, looked)
        if looked.is_top:
            *marks, (low, high) = looked.marks
            known = looked.known(ends, begins, low, high)
            if known and int(np.count_nonzero(np.greater_equal(ids, low, out=mask))) == known.total():
                self.counts.update(known)
                self.largest = max(self.largest, *known)
                looked = replace(looked, marks=tuple(marks))
                if not marks:
                    return
        largest = int(np.maximum.reduce(ids))
        if largest < min(ceiling, looked.limit):
            self.largest = max(self.largest, largest)
        else:
            self._outside(ids, block.first, ceiling, looked)
        for low, high in looked.marks:
            if low <= largest:
                known = looked.known(ends, begins, low, high)
                found = _within(ids, (low, high), largest, mask)
                if int(np.count_nonzero(found)) == known.total():  # as nearly always: nowhere else
                    self.counts.update(known)
                else:
                    self._marked(ids, found, block, looked.eod)

    def _outside(self, ids: npt.NDArray[Any], first: int, ceiling: int, looked: Looked) -> None:
        """Count negative ids, and those from the limit on."""
        negative = ids >= ceiling if ceiling <= np.iinfo(ids.dtype).max else np.zeros(len(ids), np.bool_)
        over = (ids >= min(looked.limit, ceiling)) & ~negative
        self.num_negative += int(np.count_nonzero(negative))
        self.num_over += int(np.count_nonzero(over))
        if negative.any():
            self.first_negative = min(self.first_negative, first + int(negative.argmax()))
            self.smallest = min(self.smallest, int(ids.view(looked.dtype).min()))
        if over.any():
            self.first_over = min(self.first_over, first + int(over.argmax()))
        self.largest = max(self.largest, int(ids[~negative].max(initial=0)))

    def _zeros(self, block: Block) -> None:
        """Count zeros in long runs, by words of 8 bytes."""
        words = block.data[: len(block.data) // 8 * 8].view("<u8")
        every = words[::64]  # a run of 4096 bytes covers 7 of these at least
        if len(every) - int(np.count_nonzero(every)) < 7:
            return
        others = np.concatenate([[-1], np.flatnonzero(words), [len(words)]])
        runs = np.flatnonzero(np.diff(others) - 1 >= ZERO_BYTES // 8 - 1)
        starts, stops = others[runs] * 8 + 8, others[runs + 1] * 8
        if len(starts):
            position = block.first * block.itemsize - block.head
            self.first_zero = min(self.first_zero, position + int(starts[0]))
            self.num_zero_bytes += int((stops - np.maximum(starts, block.head)).clip(0).sum())

    def _documents(self, block: Block, looked: Looked) -> tuple[int, int]:
        """Look at the tokens around where documents meet.

        A document is counted where the next one begins: its end may be the last token of the block before.

        Returns:
            How many EODs at ends, and BOSes at beginnings, lie in this block itself.
        """
        ids, lookback = block.data.view(looked.dtype), block.head // block.itemsize
        inside = begins = 0
        for i in range(0, len(block.starts), SOME):
            starts = block.starts[i : i + SOME] + lookback
            if looked.bos is not None:
                begins += int(np.count_nonzero(ids[starts] == looked.bos))
            if looked.eod is not None:
                inside += self._ends(ids, starts[starts > 0] - 1, block, looked.eod)  # nothing ends where a file begins
        if looked.eod is not None and block.is_last:
            inside += self._ends(ids, np.array([len(ids) - 1]), block, looked.eod)
        self.num_begins += begins
        return inside, begins

    def _ends(self, ids: npt.NDArray[Any], ends: npt.NDArray[Any], block: Block, eod: int) -> int:
        """Count the EODs at ends of documents; how many of them lie in this block itself."""
        good, lookback = ids[ends] == eod, block.head // block.itemsize
        self.num_ends += int(np.count_nonzero(good))
        if not good.all():
            self.first_missing = min(self.first_missing, block.first - lookback + int(ends[good.argmin()]))
        return int(np.count_nonzero(good[ends >= lookback]))

    def _marked(self, ids: npt.NDArray[Any], found: npt.NDArray[np.bool_], block: Block, eod: int | None) -> None:
        """Count marked ids one by one, and find the first EOD that ends no document."""
        values = ids[found]
        low = int(values.min()) if len(values) else 0
        for above, number in enumerate(np.bincount(values - low).tolist()):
            self.counts[low + above] += number
        if eod is not None and self.first_inside == NEVER:
            stray = ids == eod
            stray[block.starts[block.starts > 0] - 1] = False
            stray[-1] = False  # it may end a document, which the next block knows
            if stray.any():
                self.first_inside = block.first + int(stray.argmax())


def _within(
    ids: npt.NDArray[Any], span: tuple[int, int], largest: int, mask: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which ids lie in [lowest, highest]; one comparison where it can be."""
    low, high = span
    if low == high:
        np.equal(ids, low, out=mask)
    elif high >= largest:
        np.greater_equal(ids, low, out=mask)
    elif low == 0:
        np.less_equal(ids, high, out=mask)
    else:
        np.logical_and(np.greater_equal(ids, low), np.less_equal(ids, high), out=mask)
    return mask
