"""Files that are read as a stream, JSON lines and plain text: byte ranges, and the records that start in them.

A plain file can be cut anywhere: a slice owns the records that start in it, so that every record, and every
newline, belongs to one slice. A compressed file, one whose separator may overlap itself, and one whose records are
joined (where a group begins is known only by counting) are one slice.

A long slice is read in pieces, each a batch or more, which end where its content says so and nothing else:

    slice   |------------ PIECE_BYTES ------------|--------------------------- ...
    records |----|----|----| ....             |----:--|----|----| ....
    pieces  |-----------------------------------------|                 at the end of the first record, and of a group
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.batches import Cursor, TextBatch
from dataprep.errors import SourceError
from dataprep.manifest import Slice
from dataprep.readers.jsonl import Lines
from dataprep.readers.records import BOM, LongRecord, Splitter, is_splittable
from dataprep.readers.streams import fill, open_range, open_stream
from dataprep.readers.text import Texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.readers.streams import ByteStream
    from dataprep.specs import ReaderSpec, SourceFile

PIECE_BYTES = 96 << 20
"""What is done again at the most when work on a slice is interrupted, of decompressed bytes: one to two seconds with
gigatoken, less than a minute with a reference of 2 MB/s. Half again as much as the largest unit that is cut by default,
so that those are not taken to pieces."""

SKIP_BYTES = 1 << 20
"""Decompressed at once to get to where to read on: stays in cache."""


def cut(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    """Byte ranges of about equal size."""
    separator = _separator(file, reader)
    is_one = separator is None or not is_splittable(separator)
    if file.compression != "none" or is_one or reader.group_rows > 1:
        return [Slice(file=index, start=0, stop=file.num_bytes, num_bytes=file.num_bytes)]
    return even_slices(index, file.num_bytes, file.num_bytes, -(-file.num_bytes // unit_bytes))


def even_slices(index: int, num_places: int, num_bytes: int, num_slices: int) -> list[Slice]:
    """Places 0 to `num_places` and the file's bytes, spread evenly."""
    num_slices = max(1, min(num_slices, num_places))
    places = [num_places * i // num_slices for i in range(num_slices + 1)]
    sizes = [num_bytes * place // max(num_places, 1) for place in places]
    return [
        Slice(file=index, start=places[i], stop=places[i + 1], num_bytes=sizes[i + 1] - sizes[i])
        for i in range(num_slices)
    ]


def _separator(file: SourceFile, reader: ReaderSpec) -> bytes | None:
    if file.format == "jsonl":
        return b"\n"
    return None if reader.separator is None else reader.separator.encode()


def read(
    file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int, begin: Cursor | None = None
) -> Iterator[TextBatch]:
    """The records that start in a byte range, or those of them that a cursor of the same slice leaves."""
    parser = Lines(file.name, reader) if file.format == "jsonl" else Texts(file.name, reader)
    separator = _separator(file, reader)
    with _open_part(file, part, separator, begin) as (stream, first):
        reported = start = 0 if file.compression != "none" else part.start
        row = 0 if begin is None else begin.num_rows
        if begin is not None:
            for _ in _skip(stream, begin.offset - begin.place_offset if file.compression != "none" else 0, file):
                position = min(max(stream.position, start), part.stop)
                yield replace(TextBatch.of([], row), num_source_bytes=position - reported)
                reported = position
        begin = begin or Cursor(first, 0, 0)
        splitter = Splitter(stream, separator, batch_bytes, int(reader.max_document_bytes), begin.offset)
        splitter.line, splitter.stop_at = begin.num_lines, _end_of_piece(first, begin.offset)
        for item in splitter.split():
            batch = parser.long(item, row) if isinstance(item, LongRecord) else parser.block(item, row)
            row += batch.num_rows
            position = min(max(stream.position, start), part.stop)
            yield replace(
                batch,
                num_lines=item.num_lines,
                num_source_bytes=position - reported,
                cursor=_end_piece(splitter, stream, first, row, reader.group_rows),
            )
            reported = position
        if row == 0 and separator is None:
            yield TextBatch.of([b""])


def _end_of_piece(first: int, offset: int) -> int:
    """Where a piece that begins at `offset` ends at the earliest; `first` is the first byte of the slice."""
    return offset + PIECE_BYTES - (offset - first) % PIECE_BYTES


def _end_piece(splitter: Splitter, stream: ByteStream, first: int, row: int, group_rows: int) -> Cursor | None:
    """The cursor behind the item that was read last, if a piece ends there; else see that one ends soon."""
    if splitter.offset < splitter.stop_at:
        return None
    if row % group_rows:
        splitter.most_records = group_rows - row % group_rows  # blank lines are none, and make it a few blocks more
        return None
    splitter.most_records, splitter.stop_at = None, _end_of_piece(first, splitter.offset)
    return Cursor(splitter.offset, row, splitter.line, *stream.place_before(splitter.offset))


def _skip(stream: ByteStream, num_bytes: int, file: SourceFile) -> Iterator[None]:
    """Read so many bytes and drop them; pauses now and then, and at the end."""
    view = memoryview(bytearray(SKIP_BYTES))
    steps = 0
    while num_bytes:
        count = fill(stream, view[: min(num_bytes, SKIP_BYTES)])
        if not count:
            raise SourceError(f"{file.path} is shorter than when it was read before; run again with the file as it was")
        num_bytes -= count
        steps += 1
        if steps % 16 == 0:
            yield
    yield


@contextmanager
def _open_part(
    file: SourceFile, part: Slice, separator: bytes | None, begin: Cursor | None
) -> Iterator[tuple[ByteStream, int]]:
    """What to read, and the first byte of the slice, decompressed."""
    path = Path(file.path)
    if file.compression != "none":
        place = (begin.place, begin.place_offset) if begin is not None else (0, 0)
        with open_stream(path, file.compression, place) as stream:
            yield stream, 0
        return
    first, last = part.start, part.stop
    if separator is not None and (part.start > 0 or part.stop < file.num_bytes):
        first, last = _owned_range(path, part.start, part.stop, file.num_bytes, separator)
    with open_range(path, first if begin is None else begin.offset, last) as stream:
        yield stream, first


def _owned_range(path: Path, start: int, stop: int, size: int, separator: bytes) -> tuple[int, int]:
    """The bytes of the records that start in [start, stop) of a plain file; ``(n, n)`` where none does.

    Args:
        path: the file.
        start: begin of the slice; a record that starts exactly here is in.
        stop: end of the slice; a record that starts exactly here is not.
        size: bytes of the whole file.
        separator: ends a record; `is_splittable`.

    Raises:
        SourceError: the file cannot be read or is shorter than `size`.
    """
    with open_range(path, 0, min(len(BOM), size)) as stream:
        head = bytearray(len(BOM))
        fill(stream, memoryview(head)[: min(len(BOM), size)])
    base = len(BOM) if head == BOM else 0
    first = 0
    if start > 0:
        first = _after_separator(path, max(start - len(separator), base), min(stop - 1, size - 1), separator)
        if first < 0:
            return start, start
    if stop >= size:
        return first, size
    last = _after_separator(path, max(stop - len(separator), base), size, separator)
    return first, last if last >= 0 else size


def _after_separator(path: Path, begin: int, limit: int, separator: bytes) -> int:
    """The end of the first separator at or after `begin`, -1 if it is behind `limit`."""
    buffer = bytearray(1 << 16)
    kept, offset = 0, begin
    with open_range(path, begin, max(begin, limit)) as stream:
        while count := fill(stream, memoryview(buffer)[kept:]):
            at = buffer.find(separator, 0, kept + count)
            if at >= 0:
                return offset + at + len(separator)
            keep = min(kept + count, len(separator) - 1)
            buffer[:keep] = buffer[kept + count - keep : kept + count]
            offset += kept + count - keep
            kept = keep
    return -1
