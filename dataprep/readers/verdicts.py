"""Which records become documents: the checks that all formats share, and the records that fail them.

A fast reader checks a whole block at once. A block that fails goes through `judge`, one record after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from dataprep.batches import RECORD_BYTES, Reject, TextBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.batches import Bytes, Offsets
    from dataprep.readers.records import Block, LongRecord
    from dataprep.specs import ReaderSpec


class Problem(NamedTuple):
    """Why a record is no document; as in `Reject`."""

    reason: str
    detail: str


def too_long(num_bytes: int, reader: ReaderSpec) -> Problem:
    """A record of this many bytes is longer than `reader` allows."""
    return Problem("too-long", f"{num_bytes} bytes; reader.max_document_bytes is {int(reader.max_document_bytes)}")


def bad_byte(data: bytes) -> Problem | None:
    """The first byte that makes `data` no UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return Problem("invalid-utf8", f"{error.reason}: 0x{data[error.start]:02x} at byte {error.start}")
    return None


def is_utf8(data: Bytes) -> bool:
    """Whether `data`, uint8[...], is UTF-8.

    Arrow's check, without the GIL: 28 GB/s where all is ASCII, 4 GB/s where it is not (PyArrow 25).
    """
    offsets = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    return is_valid(pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data)))


def is_valid(array: pa.Array) -> bool:
    """Whether offsets, indices and, in a column of strings, UTF-8 are right."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def judge(
    block: Block, starts: Offsets, stops: Offsets, row: int, name: str, parse: Callable[[bytes], bytes | Problem | None]
) -> TextBatch:
    """Read the records of a block one by one.

    Args:
        block: where they lie.
        starts, stops: of the records in `block.data`.
        row: number of the first one.
        name: of the file.
        parse: record -> text, or what is wrong with it, or None where it is no record at all.
    """
    newlines = np.flatnonzero(block.data == ord("\n"))
    texts, rows, rejects, end = [], [], [], row
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        record = block.data[start:stop].tobytes()
        text = parse(record)
        if text is None:
            continue
        if isinstance(text, bytes):
            texts.append(text)
            rows.append(end)
        else:
            line = block.line + int(np.searchsorted(newlines, start))
            rejects.append(
                Reject(
                    name, text.reason, end, block.offset + start, line, detail=text.detail, record=record[:RECORD_BYTES]
                )
            )
        end += 1
    return TextBatch.of(texts, row, end - row, rows=rows, rejects=rejects)


def refuse(record: LongRecord, num_bytes: int, row: int, name: str, reader: ReaderSpec) -> TextBatch:
    """The batch for record `row` of the file `name`, which has `num_bytes` bytes: too long."""
    reason, detail = too_long(num_bytes, reader)
    head = record.head[:num_bytes]
    reject = Reject(name, reason, row, record.offset, record.line, detail=detail, record=head)
    return TextBatch.of([], row, 1, rejects=[reject])
