"""Parquet: slices are runs of row groups; a row group that turns out corrupt is taken back as a whole."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dataprep.batches import Reject, TextBatch
from dataprep.errors import SourceError
from dataprep.manifest import Slice
from dataprep.readers.columns import Values, first_line, text_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

    from dataprep.specs import ReaderSpec, SourceFile

BUFFER_BYTES = 1 << 20
"""Column chunks are read through this much; without it all of a chunk is in memory at once."""


def cut(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    """Runs of row groups of about `unit_bytes` of text, uncompressed."""
    with _open(file, reader) as (opened, column):
        ends = _text_ends(opened, column, range(opened.metadata.num_row_groups))
        rows = [opened.metadata.row_group(group).num_rows for group in range(opened.metadata.num_row_groups)]
    begins = [first % reader.group_rows == 0 for first in itertools.accumulate(rows, initial=0)]
    starts = [0] if rows else []
    for group in range(1, len(rows)):
        if begins[group] and ends[group + 1] - ends[starts[-1]] > unit_bytes:
            starts.append(group)
    stops = [*starts[1:], len(rows)]
    places = [file.num_bytes * ends[stop] // ends[-1] if ends[-1] else 0 for stop in [0, *stops]]
    places[-1] = file.num_bytes
    return [
        Slice(file=index, start=start, stop=stop, num_bytes=after - before)
        for start, stop, before, after in zip(starts, stops, places, places[1:], strict=False)
    ]


def _text_ends(opened: pq.ParquetFile, column: int, groups: range) -> list[int]:
    """0, and where the text of each row group ends, in bytes uncompressed."""
    sizes = (opened.metadata.row_group(group).column(column).total_uncompressed_size for group in groups)
    return [0, *itertools.accumulate(sizes)]


def read(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    """The values of a run of row groups."""
    with _open(file, reader) as (opened, column):
        row, groups = 0, range(part.start, part.stop)
        metadata = opened.schema_arrow.field(reader.text).metadata or {}
        null_reason = metadata.get(b"null", b"null-text").decode()  # `contents` writes why it may be null
        ends = _text_ends(opened, column, groups)
        places = [part.num_bytes * end // max(1, ends[-1]) for end in ends]
        for group, before, after in zip(groups, places, places[1:], strict=False):
            values = Values(file, reader, batch_bytes, null_reason)
            yield from _read_group(opened, values, (group, column), row, after - before)
            row += opened.metadata.row_group(group).num_rows


@contextmanager
def _open(file: SourceFile, reader: ReaderSpec) -> Iterator[tuple[pq.ParquetFile, int]]:
    """The open file and the index of the text column among its leaf columns."""
    import pyarrow.parquet as pq  # 20 ms, for those who read Parquet

    try:
        opened = pq.ParquetFile(
            file.path,
            page_checksum_verification=True,
            memory_map=False,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
        )
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {file.path} as parquet: {first_line(error)}; fetch it again") from error
    with opened:
        schema = opened.schema_arrow
        place = text_column(schema, file, reader)
        yield opened, sum(_num_leaves(schema.field(i).type) for i in range(place))


def _num_leaves(type_: pa.DataType) -> int:
    if type_.num_fields == 0:
        return 1
    return sum(_num_leaves(type_.field(i).type) for i in range(type_.num_fields))


def _read_group(
    opened: pq.ParquetFile, values: Values, where: tuple[int, int], first_row: int, num_bytes: int
) -> Iterator[TextBatch]:
    """One row group that stands for `num_bytes` of the file; a corrupt one ends in a batch that takes others back."""
    group = where[0]
    num_rows = opened.metadata.row_group(group).num_rows
    seen = reported = 0
    try:
        for batch in _group_batches(opened, values, where, first_row):
            restart, seen = seen == 0, seen + batch.num_rows
            position = num_bytes * min(seen, num_rows) // num_rows
            yield replace(batch, restart=restart, num_source_bytes=position - reported)
            reported = position
        if seen != num_rows:
            raise pa.ArrowInvalid(f"expected {num_rows} rows, found {seen}")
    except (pa.ArrowException, OSError) as error:
        if not _is_about_content(error):
            raise SourceError(f"cannot read {values.file.path}: {error}") from error
        detail = first_line(error)
        reject = Reject(values.file.name, "corrupt-row-group", first_row, group=group, count=num_rows, detail=detail)
        batch = TextBatch.of([], first_row, num_rows, rejects=[reject])
        yield replace(batch, num_source_bytes=num_bytes - reported, restart=seen == 0, undo=True)


def _is_about_content(error: BaseException) -> bool:
    """False where it is the disk's, the memory's or a signal's fault: the same bytes may be read well next time."""
    if isinstance(error, (MemoryError, pa.ArrowCancelled)):
        return False
    return not (isinstance(error, OSError) and error.errno)


def _group_batches(
    opened: pq.ParquetFile, values: Values, where: tuple[int, int], first_row: int
) -> Iterator[TextBatch]:
    group, column = where
    name, metadata = values.reader.text, opened.metadata.row_group(group)
    is_flat = opened.schema_arrow.field(name).type in FLAT
    num_rows = _rows_per_piece(metadata.column(column), metadata.num_rows, values.batch_bytes, is_flat)
    pieces = opened.iter_batches(num_rows, [group], [name], use_threads=False)
    row = first_row
    # A dot in the name selects a nested column as well.
    for array in _joined((piece.column(piece.schema.get_field_index(name)) for piece in pieces), values.batch_bytes):
        yield from values.batches(array, row, group)
        row += len(array)


PIECES = 32
"""Pieces to a batch, if all values were as long as they are on average. Where they are not, as in a row group that is
sorted by length, as many rows as usually fill a batch took 1.9 GB, and these take 1.2: the pages of the writer."""


def _rows_per_piece(chunk: pq.ColumnChunkMetaData, num_rows: int, batch_bytes: int, is_flat: bool) -> int:
    rows = num_rows * batch_bytes // max(1, chunk.total_uncompressed_size)
    # Of a dictionary-encoded column the size says nothing: a value counts once, however often it occurs.
    most = batch_bytes // (1024 if chunk.has_dictionary_page else 64)
    if is_flat:  # a piece costs 0.02 ms: not all too few short rows
        rows, most = rows // PIECES, most // 8
    return int(max(1, min(rows, most)))


def _joined(pieces: Iterator[pa.Array], batch_bytes: int) -> Iterator[pa.Array]:
    """The same values, in as few arrays as have no more than `batch_bytes`; a longer one stays alone."""
    pending: list[pa.Array] = []
    size = 0
    for piece in pieces:
        # Dictionaries would have to be made one, for which their indices may be too small.
        num_bytes = piece.nbytes if piece.type in FLAT else batch_bytes
        if pending and size + num_bytes > batch_bytes:
            yield pa.concat_arrays(pending)
            pending, size = [], 0
        pending.append(piece)
        size += num_bytes
    if pending:
        yield pa.concat_arrays(pending)


FLAT = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
