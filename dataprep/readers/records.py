"""A stream of bytes as blocks of whole records.

    stream --Splitter--> Block, Block, LongRecord, Block, ...

A record is what lies between two separators; what it means (a JSON line, a piece of text) is not known here.
Every byte of the stream but a byte order mark is in exactly one of the items, and so is every newline.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.batches import RECORD_BYTES
from dataprep.readers.streams import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Bytes, Offsets
    from dataprep.readers.streams import ByteStream

BOM = b"\xef\xbb\xbf"
BLANKS = b" \t\r"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records that lie side by side.

    Attributes:
        offset: of ``data[0]`` in the (decompressed) file.
        line: newlines in the stream before ``data[0]``.
        num_lines: newlines in `data`.
        data: uint8[...], separators among them; a view of a buffer that the next block overwrites.
        starts, stops: int64[num_records], ``data[starts[i]:stops[i]]`` is record i without its separator.
    """

    offset: int
    line: int
    num_lines: int
    data: Bytes
    starts: Offsets
    stops: Offsets


@dataclass(frozen=True, slots=True)
class LongRecord:
    """A record that is longer than the bound, and was not kept.

    Attributes:
        offset: of the record in the (decompressed) file.
        line: newlines in the stream before it.
        num_lines: newlines in it and its separator.
        head: its first `RECORD_BYTES` bytes.
        num_bytes: its length without the separator.
        last: its last byte.
        blank: whether it is nothing but spaces, tabs and carriage returns.
    """

    offset: int
    line: int
    num_lines: int
    head: bytes
    num_bytes: int
    last: int
    blank: bool


def is_splittable(separator: bytes) -> bool:
    """Whether all places where `separator` is found are the same wherever the search starts.

    They are unless two of them can overlap: unless the separator ends as it begins.
    """
    return not any(separator.startswith(separator[i:]) for i in range(1, len(separator)))


def find(data: Bytes, separator: bytes, begin: int = 0) -> Offsets:
    """Where `separator` is found from `begin` on, left to right, without overlaps: int64[num_found]."""
    hits = np.flatnonzero(data[begin:] == separator[0]) + begin
    if len(separator) > 1:
        hits = hits[hits <= len(data) - len(separator)]
        for i in range(1, len(separator)):
            hits = hits[data[hits + i] == separator[i]]
        if not is_splittable(separator):
            hits = _without_overlaps(hits, len(separator))
    return hits


def _without_overlaps(hits: Offsets, length: int) -> Offsets:
    if len(hits) < 2 or int(np.diff(hits).min()) >= length:
        return hits
    kept, free = [], 0
    for hit in hits.tolist():
        if hit >= free:
            kept.append(hit)
            free = hit + length
    return np.array(kept, dtype=np.int64)


class Splitter:
    """Cuts a stream into blocks of whole records; see `split`.

    Args:
        stream: what to cut.
        separator: between two records; None: all is one record.
        block_bytes: of data in a block, about; a longer record makes a longer block.
        max_bytes: a longer record is not kept, but where it ends in the same block.
        offset: where in the file the stream starts; at 0 a UTF-8 byte order mark is left out.

    Attributes:
        offset: of what follows the item that was yielded last.
        line: newlines in the stream before that; may be set before the first item.
        stop_at: a block ends with the first record that ends here or behind.
        most_records: in a block; takes the place of `stop_at`. Both may be set between two items.
    """

    def __init__(
        self, stream: ByteStream, separator: bytes | None, block_bytes: int, max_bytes: int, offset: int
    ) -> None:
        self._stream = stream
        self._separator = separator
        self._gap = len(separator or b"")
        self._block_bytes = max(block_bytes, 16, 2 * self._gap)
        # One more than any record, its separator but for its last byte, and a carriage return.
        self._limit = max_bytes + self._gap + 1
        self._buffer = np.empty(self._block_bytes, np.uint8)  # not zeroed: 2 ms of a unit of one line
        self._filled = 0
        self._ended = False
        self.offset, self.line = offset, 0
        self.stop_at = sys.maxsize
        self.most_records: int | None = None

    def split(self) -> Iterator[Block | LongRecord]:
        """Yield all records in order, once.

        Memory is about one block, or the longest record allowed and one block.
        """
        searched = 0
        if self.offset == 0:
            self._drop_bom()
        while not self._ended:
            self._read_more()
            cuts = self._find(searched)
            if len(cuts):
                end = int(cuts[-1]) + self._gap
                yield from self._blocks(end, cuts)
                self._drop(end)
            elif self._filled >= self._limit and not self._ended:
                yield self._skip_record()
                searched = 0  # what follows it was read, but not looked at
                continue
            searched = max(0, self._filled - self._gap + 1)
        if self._filled:
            # A long record's skip may have met the end with records behind it.
            stops = self._find(0)
            if not len(stops) or stops[-1] + self._gap < self._filled:
                stops = np.append(stops, self._filled)
            yield from self._blocks(self._filled, stops)

    def _blocks(self, end: int, stops: Offsets) -> Iterator[Block]:
        """The first `end` bytes, which hold whole records that end at `stops`; one block unless it is to end before."""
        base, begin, first = self.offset, 0, 0
        ends = np.minimum(stops + self._gap, end)
        while first < len(stops):
            if self.most_records is not None:
                last = first + self.most_records - 1
            else:
                last = max(first, int(np.searchsorted(ends, self.stop_at - base)))
            last = min(last, len(stops) - 1)
            yield self._block(begin, int(ends[last]), stops[first : last + 1])
            begin, first = int(ends[last]), last + 1

    def _block(self, begin: int, end: int, stops: Offsets) -> Block:
        """Bytes [begin, end) of the buffer, which hold whole records that end at `stops`."""
        data = self._buffer[begin:end]
        stops, end = stops - begin, end - begin
        starts = np.concatenate((np.zeros(1, np.int64), stops[:-1] + self._gap))
        if self._separator == b"\n":
            num_lines = len(stops) - int(stops[-1] == end)
        else:
            num_lines = int(np.count_nonzero(data == ord("\n")))
        block = Block(self.offset, self.line, num_lines, data, starts, stops)
        self.offset += end
        self.line += num_lines
        return block

    def _skip_record(self) -> LongRecord:
        offset, line = self.offset, self.line
        head, num_bytes, last, blank = b"", 0, 0, True
        while True:
            cuts = self._find(0)
            # Behind `end` a separator may have begun.
            end = int(cuts[0]) if len(cuts) else self._filled - (0 if self._ended else self._gap)
            view = self._buffer.data[:end]
            head += view[: RECORD_BYTES - len(head)]
            blank = blank and not head.strip(BLANKS) and not bytes(view).strip(BLANKS)
            last = view[-1] if end else last
            num_bytes += end
            taken = end + (self._gap if len(cuts) else 0)
            self.line += int(np.count_nonzero(self._buffer[:taken] == ord("\n")))
            self._drop(taken)
            if len(cuts) or self._ended:
                self.offset += num_bytes + (self._gap if len(cuts) else 0)
                return LongRecord(offset, line, self.line - line, head, num_bytes, last, blank)
            self._fill_to(self._block_bytes)

    def _find(self, begin: int) -> Offsets:
        if self._separator is None:
            return np.empty(0, np.int64)
        return find(self._buffer[: self._filled], self._separator, begin)

    def _drop_bom(self) -> None:
        self._fill_to(len(BOM))
        if self._filled == len(BOM) and self._buffer[: len(BOM)].tobytes() == BOM:
            self._drop(len(BOM))
            self.offset = len(BOM)

    def _read_more(self) -> None:
        target = self._block_bytes if self._filled < self._block_bytes else self._filled + self._block_bytes
        if len(self._buffer) < target:
            self._resize(max(target, min(2 * len(self._buffer), self._limit + self._block_bytes)))
        elif len(self._buffer) > 4 * target:  # a long record made it grow
            self._resize(target)
        self._fill_to(target)

    def _fill_to(self, target: int) -> None:
        wanted = target - self._filled
        count = fill(self._stream, self._buffer.data[self._filled : target])
        self._filled += count
        self._ended = count < wanted

    def _resize(self, num_bytes: int) -> None:
        # A new one: the old one's memory is exported as views and must not move.
        buffer = np.empty(num_bytes, np.uint8)
        buffer[: self._filled] = self._buffer[: self._filled]
        self._buffer = buffer

    def _drop(self, num_bytes: int) -> None:
        kept = self._filled - num_bytes
        view = self._buffer.data
        view[:kept] = view[num_bytes : self._filled]
        self._filled = kept
