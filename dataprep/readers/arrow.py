"""Arrow IPC: files, cut into runs of record batches, and streams, which cannot be cut."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dataprep.errors import SourceError
from dataprep.manifest import Slice
from dataprep.readers.columns import Values, first_line, text_column
from dataprep.readers.ranges import even_slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import TextBatch
    from dataprep.specs import ReaderSpec, SourceFile

    ArrowReader = Any  # pa.RecordBatchFileReader | pa.RecordBatchStreamReader

FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def cut(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    """Runs of record batches; all of a stream."""
    with _open(file, reader) as (opened, _):
        if isinstance(opened, pa.RecordBatchStreamReader):
            return [Slice(file=index, start=0, stop=file.num_bytes, num_bytes=file.num_bytes)]
        if opened.num_record_batches == 0:
            return []
        return even_slices(index, opened.num_record_batches, file.num_bytes, -(-file.num_bytes // unit_bytes))


def read(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    """The values of a run of record batches, or of a stream."""
    values = Values(file, reader, batch_bytes)
    with _open(file, reader) as (opened, source):
        is_stream = isinstance(opened, pa.RecordBatchStreamReader)
        pieces = opened if is_stream else map(opened.get_batch, range(part.start, part.stop))
        row = reported = 0
        for i, piece in enumerate(pieces):
            position = source.tell() if is_stream else part.num_bytes * (i + 1) // (part.stop - part.start)
            for batch in values.batches(piece.column(0), row, i if is_stream else part.start + i):
                yield replace(batch, num_source_bytes=position - reported)
                reported = position
            row += len(piece)
        if is_stream and not _is_complete(source):
            raise SourceError(f"{file.path}: expected an end-of-stream marker as the last 8 bytes; fetch it again")


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
