"""Where the record batches of an Arrow file or stream lie and how many rows each holds, without reading them.

    FF FF FF FF | size of metadata, int32 | metadata, a flatbuffer `Message` | body, Message.bodyLength bytes | ...
    FF FF FF FF 00 00 00 00                                                     the end

PyArrow tells neither without reading, and unpacking, the bodies. Fields by number: format/Message.fbs of Apache Arrow.
Streams from before Arrow 0.15, which have no FF FF FF FF, are not understood.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

CONTINUES = b"\xff\xff\xff\xff"
STREAM_END = CONTINUES + bytes(4)

HEADER_TYPE, HEADER, BODY_BYTES = 1, 2, 3  # fields of the table Message
LENGTH = 0  # field of the table RecordBatch
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # values of HEADER_TYPE


class Batches(NamedTuple):
    """What a walk found.

    Attributes:
        places: byte position of each record batch.
        rows: how many it holds.
        dictionaries: whether there are dictionaries among them, which later batches need.
        end: byte position behind the end marker.
    """

    places: list[int]
    rows: list[int]
    dictionaries: bool
    end: int


def walk(source: pa.NativeFile, begin: int) -> Batches | None:
    """The record batches from the message at `begin` to the end marker; None where it cannot be told.

    Reads a few hundred bytes of each.
    """
    places: list[int] = []
    rows: list[int] = []
    dictionaries, at = False, begin
    while at < source.size():
        source.seek(at)
        head = source.read(len(STREAM_END))
        if head == STREAM_END:
            return Batches(places, rows, dictionaries, at + len(head))
        try:
            _, size = struct.unpack("<4si", head)
            is_message = head.startswith(CONTINUES) and 0 < size < source.size() - at
            kind, length, body = _parse(source.read(size) if is_message else b"")
        except struct.error:
            return None
        dictionaries |= kind == DICTIONARY_BATCH
        if kind == RECORD_BATCH:
            places.append(at)
            rows.append(length)
        at += len(head) + size + body
    return None


def _parse(metadata: bytes) -> tuple[int, int, int]:
    """Kind of a message, rows if it is a record batch, bytes of its body.

    Raises:
        struct.error: it points nowhere.
    """
    (message,) = struct.unpack_from("<I", metadata)
    kind = _field(metadata, message, HEADER_TYPE, "<B")
    body = _field(metadata, message, BODY_BYTES, "<q")
    if kind != RECORD_BATCH:
        return kind, 0, body
    at = _at(metadata, message, HEADER)
    (header,) = struct.unpack_from("<I", metadata, at)
    return kind, _field(metadata, at + header, LENGTH, "<q"), body


def _field(data: bytes, table: int, number: int, kind: str) -> int:
    """The value of a scalar field of a flatbuffer table, which is no less than 0; 0 where it is left out."""
    at = _at(data, table, number)
    (value,) = struct.unpack_from(kind, data, at) if at else (0,)
    if value < 0:
        raise struct.error("a length below 0")
    return int(value)


def _at(data: bytes, table: int, number: int) -> int:
    """Where field `number` of the table at `table` lies, or 0 where it is left out."""
    (back,) = struct.unpack_from("<i", data, table)
    if not 0 <= table - back < len(data):
        raise struct.error("a table without its description")
    (size,) = struct.unpack_from("<H", data, table - back)
    place = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", data, table - back + place) if place < size else (0,)
    return table + offset if offset else 0
