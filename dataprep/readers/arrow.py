"""Arrow IPC: files and streams, cut into runs of record batches; a stream with dictionaries cannot be cut."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dataprep.batches import offsets_of
from dataprep.errors import SourceError
from dataprep.manifest import Slice
from dataprep.readers.columns import Values, first_line, text_column
from dataprep.readers.messages import STREAM_END, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Offsets, TextBatch
    from dataprep.specs import ReaderSpec, SourceFile

    ArrowReader = Any  # pa.RecordBatchFileReader | pa.RecordBatchStreamReader

FILE_MAGIC = b"ARROW1"
FILE_BEGIN = 8
"""A file is its magic, padded to this, a stream, and an index of it."""


def cut(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    """Runs of record batches, which begin where a group of `reader.group_rows` does."""
    whole = Slice(file=index, start=0, stop=file.num_bytes, num_bytes=file.num_bytes)
    with _open(file, reader) as (opened, source):
        if isinstance(opened, pa.RecordBatchStreamReader):
            found = walk(source, 0)
            if found is None or not found.rows or found.dictionaries or found.end != file.num_bytes:
                return [whole]
            places = np.array([0, *found.places[1:], file.num_bytes])
            cuts = _cuts(places, _begins(found.rows, reader), unit_bytes)
            return _slices(index, places[cuts], places[cuts])
        count = opened.num_record_batches
        if count == 0:
            return []
        places = np.arange(count + 1) * file.num_bytes // count
        begins = np.arange(count)
        if reader.group_rows > 1:
            found = walk(source, FILE_BEGIN)
            begins = begins[:1] if found is None or len(found.rows) != count else _begins(found.rows, reader)
        cuts = _cuts(places, begins, unit_bytes)
        return _slices(index, cuts, places[cuts])


def _begins(rows: list[int], reader: ReaderSpec) -> Offsets:
    """The record batches that begin where a group does."""
    return np.flatnonzero(offsets_of(rows)[:-1] % reader.group_rows == 0)


def _cuts(places: Offsets, begins: Offsets, unit_bytes: int) -> Offsets:
    """Where slices of about `unit_bytes` begin, and the end: numbers of record batches.

    Args:
        places: int64[num_batches + 1], the byte each begins at, and the end.
        begins: those that a slice may begin with; 0 is the first of them.
    """
    num_bytes = int(places[-1])
    num_slices = max(1, -(-num_bytes // unit_bytes))
    if num_slices < len(begins):
        wanted = np.arange(num_slices) * num_bytes // num_slices
        begins = np.unique(begins[np.searchsorted(places[begins], wanted, "right") - 1])
    return np.append(begins, len(places) - 1)


def _slices(index: int, ends: Offsets, num_bytes: Offsets) -> list[Slice]:
    return [
        Slice(file=index, start=start, stop=stop, num_bytes=size)
        for start, stop, size in zip(ends[:-1].tolist(), ends[1:].tolist(), np.diff(num_bytes).tolist(), strict=True)
    ]


def read(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    """The values of a run of record batches."""
    values = Values(file, reader, batch_bytes)
    with _open(file, reader) as (opened, source):
        is_stream = isinstance(opened, pa.RecordBatchStreamReader)
        pieces = _stream(opened, source, part) if is_stream else _file(opened, part)
        row = reported = 0
        for number, piece, position in pieces:
            for batch in values.batches(piece.column(0), row, number):
                yield replace(batch, num_source_bytes=position - reported)
                reported = position
            row += len(piece)
        if is_stream and part.stop == file.num_bytes and not _is_complete(source):
            raise SourceError(f"{file.path}: expected an end-of-stream marker as the last 8 bytes; fetch it again")


def _file(opened: ArrowReader, part: Slice) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    """Record batches with their number and how much of the slice is read with them."""
    for i in range(part.start, part.stop):
        yield i, opened.get_batch(i), part.num_bytes * (i - part.start + 1) // (part.stop - part.start)


def _stream(opened: ArrowReader, source: pa.NativeFile, part: Slice) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    """The same of a stream. Its slices are byte ranges: the reader has taken the schema, and goes on from anywhere."""
    number = 0
    if part.start:
        found = walk(source, 0)
        number = bisect_left(found.places, part.start) if found else 0
        source.seek(part.start)
    while source.tell() < part.stop:
        try:
            piece = opened.read_next_batch()
        except StopIteration:
            return
        yield number, piece, source.tell() - part.start
        number += 1


def _is_complete(source: pa.NativeFile) -> bool:
    """Whether an Arrow stream was read up to its end marker, and the marker is the end of the file."""
    at = source.tell()
    source.seek(max(0, at - len(STREAM_END)))
    return bool(source.read() == STREAM_END)


@contextmanager
def _open(file: SourceFile, reader: ReaderSpec) -> Iterator[tuple[ArrowReader, pa.NativeFile]]:
    """The open file or stream, which reads only the text column, and what it reads from."""
    with _broken_is_source_error(file), pa.OSFile(file.path) as source:
        is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        open_ = pa.ipc.open_file if is_file else pa.ipc.open_stream
        source.seek(0)
        place = text_column(open_(source).schema, file, reader)
        source.seek(0)
        yield open_(source, options=pa.ipc.IpcReadOptions(included_fields=[place], use_threads=False)), source


@contextmanager
def _broken_is_source_error(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {file.path} as arrow: {first_line(error)}; fetch it again") from error
