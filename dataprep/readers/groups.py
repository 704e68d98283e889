r"""`reader.group_rows`: consecutive records of a file as one document, a newline between two.

    rows       0 1 2 | 3 4 5 | 6 7        group_rows: 3; `readers.cut` cuts only where a group begins
    text       a b c | d - - | - -        -: rejected or empty: left out of its group, and counted all the same
    documents  a\nb\nc   d                   a group of which nothing is left gives none

One batch goes in, one comes out, and one more at the end if a group is left open. A batch accounts for its own
records and rejects at once, but for a document only when its group has ended: it may have begun batches before.

Arrow joins the texts of all groups of a batch in one call: nothing here is done record by record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.batches import TextBatch
from dataprep.readers.columns import buffers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Bytes, Offsets

NEWLINE = np.frombuffer(b"\n", np.uint8)


@dataclass(frozen=True, slots=True)
class _Open:
    """A document whose group has not ended: its first record, how many more it holds, and its text so far."""

    row: int
    joined: int
    parts: tuple[Bytes, ...]

    def text(self) -> Bytes:
        return np.concatenate([piece for part in self.parts for piece in (NEWLINE, part)][1:])


@dataclass(frozen=True, slots=True)
class _Joined:
    """Documents; all arrays are of their number, `offsets` of one more. See `TextBatch`."""

    values: Bytes
    offsets: Offsets
    rows: Offsets
    joined: Offsets

    def __len__(self) -> int:
        return len(self.rows)

    def open(self, i: int, before: _Open | None) -> _Open:
        """Document i as one that goes on; its text is copied, for the batch it comes from is not to be kept."""
        text = self.values[self.offsets[i] : self.offsets[i + 1]].copy()
        joined = int(self.joined[i])
        if before is None:
            return _Open(int(self.rows[i]), joined, (text,))
        return _Open(before.row, before.joined + joined + 1, (*before.parts, text))

    def between(self, start: int, stop: int, first: _Open | None) -> _Joined:
        """Documents `start` to `stop`, after the document `first` if there is one."""
        offsets, rows, joined = self.offsets[start : stop + 1], self.rows[start:stop], self.joined[start:stop]
        if first is None:
            return _Joined(self.values, offsets, rows, joined)
        text = first.text()
        return _Joined(
            np.concatenate([text, self.values[offsets[0] : offsets[-1]]]),
            np.concatenate([[0], offsets - offsets[0] + len(text)]),
            np.concatenate([[first.row], rows]),
            np.concatenate([[first.joined], joined]),
        )


def group(batches: Iterator[TextBatch], group_rows: int) -> Iterator[TextBatch]:
    """The batches of a slice, with the texts of each `group_rows` records joined.

    Args:
        batches: of one slice, which begins where a group does.
        group_rows: at least 2.

    Yields:
        A batch for each that came in, with its flags: what a corrupt row group had added to an open document is taken
        back by `undo` as well. Then the last document, if the slice ends within its group.
    """
    held: _Open | None = None
    began: _Open | None = None
    end = 0
    for batch in batches:
        if batch.restart:
            began = held
        if batch.undo:
            held = began
        end = batch.first_row + batch.num_rows
        out, held = _step(batch, held, end, group_rows)
        yield out
    if held is not None:
        last = _join(TextBatch.of([]), group_rows).between(0, 0, held)
        yield _batch(TextBatch.of([], end), last, group_rows)


def _step(batch: TextBatch, held: _Open | None, end: int, group_rows: int) -> tuple[TextBatch, _Open | None]:
    """One batch, and the document that is open behind it; record `end` is the next one."""
    filled = batch.lengths > 0
    empty_rows = None
    if not filled.all():
        empty_rows = batch.row_numbers()[~filled]
        batch = batch.select(filled)
    found = _join(batch, group_rows)
    start, stop = 0, len(found)
    if stop and held is not None and found.rows[0] // group_rows == held.row // group_rows:
        held = found.open(0, held)
        start = 1
    done = held
    if held is not None and _is_open(held.row, end, group_rows):
        done = None
    elif stop > start and _is_open(int(found.rows[-1]), end, group_rows):
        stop -= 1
        held = found.open(stop, None)
    else:
        held = None
    return replace(_batch(batch, found.between(start, stop, done), group_rows), empty_rows=empty_rows), held


def _is_open(row: int, end: int, group_rows: int) -> bool:
    """Whether records of the group of `row` are still to come once those before `end` have been read."""
    return end < (row // group_rows + 1) * group_rows


def _join(batch: TextBatch, group_rows: int) -> _Joined:
    """The texts of a batch, none of them empty, joined within their groups, ended or not."""
    rows = batch.row_numbers()
    numbers = rows // group_rows
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    records = np.append(starts, len(rows))
    lists = pa.LargeListArray.from_arrays(pa.array(records), batch.to_arrow().view(pa.large_binary()))
    values, offsets = buffers(pc.binary_join(lists, pa.scalar(NEWLINE.tobytes(), pa.large_binary())))
    return _Joined(values, offsets, rows[starts], np.diff(records) - 1)


def _batch(batch: TextBatch, found: _Joined, group_rows: int) -> TextBatch:
    """The records of `batch`, the documents found."""
    return replace(
        batch,
        values=found.values,
        offsets=found.offsets,
        rows=found.rows,
        joined=found.joined,
        group_rows=group_rows,
    )
