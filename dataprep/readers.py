"""Source files to text batches: JSON lines, plain text, Parquet, Arrow.

    detect   what a file is, by its content
    cut      its slices: byte ranges, runs of row groups or record batches, or the whole file
    read     one slice -> TextBatch, TextBatch, ...: documents in source order, and the records that are none

Which documents and rejects come out depends on the content alone: not on `batch_bytes`, not on the cuts.

JSON lines have two readers that must agree. The fast one gives a block to Arrow and believes the result
only if nothing can have gone wrong: every line begins with ``{`` and ends with ``}`` (so that no object
spans lines), rows equal lines (so that no line holds two), nothing is null, and the raw block is UTF-8 (Arrow
does not look, and refuses lone surrogates itself). Everything else goes line by line: orjson first, then
the same Arrow reader on the single line (it takes NaN and deep nesting in fields that nobody asked
for), then `json`, which mostly knows why it is bad.

Files are not listed, checked for change or renumbered here; row numbers start at 0 in every slice.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from dataprep.batches import RECORD_BYTES, Reject, TextBatch
from dataprep.errors import SourceError, SpecError
from dataprep.manifest import Slice
from dataprep.streams import (
    BLANKS,
    BOM,
    LongRecord,
    Splitter,
    compression_of,
    fill,
    is_splittable,
    open_range,
    open_stream,
    owned_range,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Bytes, Offsets
    from dataprep.specs import Compression, FileFormat, ReaderSpec, SourceFile
    from dataprep.streams import Block, ByteStream

    ArrowReader = Any  # pa.RecordBatchFileReader | pa.RecordBatchStreamReader

PARQUET_MAGIC = b"PAR1"
ARROW_FILE_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
ARROW_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
SUFFIXES: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
COMPRESSION_SUFFIXES: dict[str, Compression] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".xz": "xz",
    ".bz2": "bz2",
}
HEAD_BYTES = 1 << 16
COLUMN_BUFFER_BYTES = 1 << 20
"""Parquet column chunks are read through this much; without it all of a chunk is in memory at once."""


def detect(path: Path, reader: ReaderSpec) -> tuple[FileFormat, Compression]:
    """What a file is, by its content; its name decides only what the content leaves open.

    Raises:
        SourceError: unreadable, empty, undecidable, or not what `reader.format` says.
        SpecError: a key of `reader` that has no effect on this format.
    """
    with open_stream(path, "none") as stream:
        magic = bytearray(16)
        del magic[fill(stream, memoryview(magic)) :]
    compression = compression_of(bytes(magic))
    with open_stream(path, compression) as stream:
        head = bytearray(HEAD_BYTES)
        head = head[: fill(stream, memoryview(head))]
    found = _format_of(path, bytes(head), reader)
    if compression != "none" and found in ("parquet", "arrow"):
        raise SourceError(f"{path}: {found} inside {compression} cannot be read in parts; unpack it first")
    if not head and (reader.format != "text" or reader.separator is not None):
        raise SourceError(f"{path} is empty{' once decompressed' if magic else ''}; fetch it again or leave it out")
    if found == "text" and compression == "none":
        _check_suffix(path, reader)
    _check_settings(path, found, reader)
    return found, compression


def _format_of(path: Path, head: bytes, reader: ReaderSpec) -> FileFormat:
    by_magic = _column_format(head)
    if reader.format in ("parquet", "arrow"):
        if by_magic != reader.format:
            raise SourceError(f"{path}: expected {reader.format}, found a file that begins with {head[:8]!r}")
        return by_magic
    if reader.format != "auto":
        return "text" if reader.format == "text" else "jsonl"
    if by_magic is not None:
        return by_magic
    if not head:
        return "jsonl"
    first = head.removeprefix(BOM).lstrip(BLANKS + b"\n")[:1]
    if first == b"{":
        return "jsonl"
    by_name = SUFFIXES.get(_suffixes(path)[0])
    if first == b"[" and by_name == "jsonl":
        raise SourceError(f"{path} is a JSON array, not JSON lines; convert it: jq -c '.[]' {path} > lines.jsonl")
    if by_name is None:
        raise SourceError(f"cannot tell what {path} is; set reader.format=jsonl, parquet, arrow or text")
    return by_name


def _column_format(head: bytes) -> FileFormat | None:
    if head.startswith(PARQUET_MAGIC):
        return "parquet"
    if head.startswith((ARROW_FILE_MAGIC, ARROW_STREAM_MAGIC)):
        return "arrow"
    return None


def _suffixes(path: Path) -> tuple[str, str]:
    """The suffix that tells the format and the one that tells the container, lower case, or ''."""
    outer = path.suffix.lower()
    if outer in COMPRESSION_SUFFIXES:
        return Path(path.stem).suffix.lower(), outer
    return outer, ""


def _check_suffix(path: Path, reader: ReaderSpec) -> None:
    container = _suffixes(path)[1]
    if container and reader.format == "auto":
        expected = COMPRESSION_SUFFIXES[container]
        raise SourceError(f"{path}: expected {expected}, found none; fetch it again, or set reader.format=text")


def _check_settings(path: Path, found: FileFormat, reader: ReaderSpec) -> None:
    if reader.separator is not None and found != "text":
        raise SpecError(
            f"reader.separator has no effect: {path} is {found}, not text; drop it or set reader.format=text"
        )
    if found == "text" and ("text" in reader.model_fields_set or reader.text != "text"):
        raise SpecError(f"reader.text names a field or column, but {path} is plain text, which has none; drop it")


def cut(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    """The slices of a file, in order, of about `unit_bytes` of text at the most.

    Args:
        index: the file's place in the recipe.
        file: the file.
        reader: how it is read.
        unit_bytes: text per slice; a row group, a record batch or a long record may make it more.

    Returns:
        Slices that hold every record once. None for a Parquet or Arrow file without row groups.

    Raises:
        SourceError: the file cannot be opened, or has no column of text under the name asked for.
    """
    if file.format == "parquet":
        return _cut_parquet(index, file, reader, unit_bytes)
    if file.format == "arrow":
        return _cut_arrow(index, file, reader, unit_bytes)
    separator = _separator(file, reader)
    if file.compression != "none" or separator is None or not is_splittable(separator):
        return [Slice(file=index, start=0, stop=file.num_bytes, num_bytes=file.num_bytes)]
    return _even_slices(index, file.num_bytes, file.num_bytes, -(-file.num_bytes // unit_bytes))


def _even_slices(index: int, num_places: int, num_bytes: int, num_slices: int) -> list[Slice]:
    """Places 0 to `num_places` and the file's bytes, spread evenly."""
    num_slices = max(1, min(num_slices, num_places))
    places = [num_places * i // num_slices for i in range(num_slices + 1)]
    sizes = [num_bytes * place // max(num_places, 1) for place in places]
    return [
        Slice(file=index, start=places[i], stop=places[i + 1], num_bytes=sizes[i + 1] - sizes[i])
        for i in range(num_slices)
    ]


def _cut_parquet(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    slices: list[Slice] = []
    with _parquet(file, reader) as (opened, column):
        start = text = on_disk = 0
        for group in range(opened.metadata.num_row_groups):
            chunk = opened.metadata.row_group(group).column(column)
            if group > start and text + chunk.total_uncompressed_size > unit_bytes:
                slices.append(Slice(file=index, start=start, stop=group, num_bytes=on_disk))
                start, text, on_disk = group, 0, 0
            text += chunk.total_uncompressed_size
            on_disk += chunk.total_compressed_size
        if start < opened.metadata.num_row_groups:
            slices.append(Slice(file=index, start=start, stop=opened.metadata.num_row_groups, num_bytes=on_disk))
    return slices


def _cut_arrow(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    with _arrow(file, reader) as (opened, _):
        if isinstance(opened, pa.RecordBatchStreamReader):
            return [Slice(file=index, start=0, stop=file.num_bytes, num_bytes=file.num_bytes)]
        if opened.num_record_batches == 0:
            return []
        return _even_slices(index, opened.num_record_batches, file.num_bytes, -(-file.num_bytes // unit_bytes))


def _separator(file: SourceFile, reader: ReaderSpec) -> bytes | None:
    if file.format == "jsonl":
        return b"\n"
    return None if reader.separator is None else reader.separator.encode()


def read(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    """The records of one slice, in source order.

    ``num_source_bytes`` of the batches add up to ``part.num_bytes``; the last batch may hold nothing else.

    Args:
        file: the file, unchanged since `cut`.
        part: one of its slices.
        reader: how it is read.
        batch_bytes: text per batch, about; a longer record makes a longer batch.

    Yields:
        Batches whose rows are counted within the slice. Rows of JSON lines are lines that are not blank.

    Raises:
        SourceError: unreadable, truncated or corrupt.
    """
    left, row = part.num_bytes, 0
    readers = {"jsonl": _read_stream, "text": _read_stream, "parquet": _read_parquet, "arrow": _read_arrow}
    for batch in readers[file.format](file, part, reader, batch_bytes):
        left -= batch.num_source_bytes
        row = batch.first_row + batch.num_rows
        yield replace(batch, file=file.name)
    if left:
        yield replace(_batch([], row, 0), file=file.name, num_source_bytes=left)


def _batch(texts: list[bytes], row: int, num_rows: int, rows: list[int] | None = None) -> TextBatch:
    """A batch of separate texts, copied; `rows` count from `row`, the first one."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)), out=offsets[1:])
    numbers = None if rows is None else np.array(rows, dtype=np.int64) + row
    return TextBatch(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets, row, num_rows, rows=numbers)


def _rejected(*rejects: Reject) -> TextBatch:
    """A batch without documents; the rejects stand for consecutive records."""
    num_rows = sum(reject.count for reject in rejects)
    return replace(_batch([], rejects[0].row, num_rows), rejects=rejects)


def _too_long(num_bytes: int, reader: ReaderSpec) -> tuple[str, str]:
    return "too-long", f"{num_bytes} bytes; reader.max_document_bytes is {int(reader.max_document_bytes)}"


def is_utf8(data: Bytes) -> bool:
    """Whether `data`, uint8[...], is UTF-8; Arrow's check, 3.5 GB/s and without the GIL."""
    offsets = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    return _is_valid(pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data)))


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _bad_byte(data: bytes) -> tuple[str, str] | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return "invalid-utf8", f"{error.reason}: 0x{data[error.start]:02x} at byte {error.start}"
    return None


# Records of a stream: JSON lines and plain text.


def _read_stream(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    parser = _Lines(file, reader) if file.format == "jsonl" else _Texts(file, reader)
    separator = _separator(file, reader)
    with _open_part(file, part, separator) as (stream, offset):
        reported = start = 0 if file.compression != "none" else part.start
        row = 0
        for item in Splitter(stream, separator, batch_bytes, int(reader.max_document_bytes)).split(offset):
            batch = parser.long(item, row) if isinstance(item, LongRecord) else parser.block(item, row)
            if batch is None:
                continue
            position = min(max(stream.position, start), part.stop)
            yield replace(batch, num_source_bytes=position - reported)
            reported = position
            row += batch.num_rows
        if row == 0 and separator is None:
            yield _batch([b""], 0, 1)


@contextmanager
def _open_part(file: SourceFile, part: Slice, separator: bytes | None) -> Iterator[tuple[ByteStream, int]]:
    path = Path(file.path)
    if file.compression != "none":
        with open_stream(path, file.compression) as stream:
            yield stream, 0
        return
    first, last = part.start, part.stop
    if separator is not None and (part.start > 0 or part.stop < file.num_bytes):
        first, last = owned_range(path, part.start, part.stop, file.num_bytes, separator)
    with open_range(path, first, last) as stream:
        yield stream, first


@dataclass(frozen=True, slots=True)
class _Texts:
    """Pieces of plain text."""

    file: SourceFile
    reader: ReaderSpec

    def long(self, record: LongRecord, row: int) -> TextBatch:
        reason, detail = _too_long(record.num_bytes, self.reader)
        reject = Reject(self.file.name, reason, row, record.offset, detail=detail, record=record.head)
        return _rejected(reject)

    def block(self, block: Block, row: int) -> TextBatch:
        lengths = block.stops - block.starts
        if lengths.max() <= self.reader.max_document_bytes and is_utf8(block.data):
            offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
            data = block.data.tobytes()
            if self.reader.separator is not None:
                data = data.replace(self.reader.separator.encode(), b"")
            return TextBatch(np.frombuffer(data, np.uint8), offsets, row, len(lengths))
        return self._one_by_one(block, row)

    def _one_by_one(self, block: Block, row: int) -> TextBatch:
        texts, rows, rejects = [], [], []
        for i, (start, stop) in enumerate(zip(block.starts.tolist(), block.stops.tolist(), strict=True)):
            text = block.data[start:stop].tobytes()
            long = len(text) > self.reader.max_document_bytes
            bad = _too_long(len(text), self.reader) if long else _bad_byte(text)
            if bad is None:
                texts.append(text)
                rows.append(i)
            else:
                where = block.offset + start
                rejects.append(Reject(self.file.name, bad[0], row + i, where, -1, 1, bad[1], text[:RECORD_BYTES]))
        return replace(_batch(texts, row, len(block.starts), rows), rejects=tuple(rejects))


class _Lines:
    """JSON lines."""

    def __init__(self, file: SourceFile, reader: ReaderSpec) -> None:
        self.file = file
        self.reader = reader
        self.options = pa.json.ParseOptions(
            explicit_schema=pa.schema([(reader.text, pa.large_string())]), unexpected_field_behavior="ignore"
        )

    def long(self, record: LongRecord, row: int) -> TextBatch | None:
        if record.blank:
            return None
        num_bytes = record.num_bytes - (record.last == ord("\r"))
        reason, detail = _too_long(num_bytes, self.reader)
        reject = Reject(self.file.name, reason, row, record.offset, detail=detail, record=record.head[:num_bytes])
        return _rejected(reject)

    def block(self, block: Block, row: int) -> TextBatch | None:
        starts, stops = self.bounds(block)
        if not len(starts):
            return None
        if (stops - starts).max() <= self.reader.max_document_bytes:
            array = self.fast(block.data, starts, stops)
            if array is not None:
                values, offsets = _buffers(array)
                return TextBatch(values, offsets, row, len(array))
        return self.slow(block, starts, stops, row)

    def bounds(self, block: Block) -> tuple[Offsets, Offsets]:
        """Starts and stops of the lines without their ends, LF or CRLF; empty lines are left out."""
        filled = block.stops > block.starts
        starts, stops = block.starts[filled], block.stops[filled]
        stops = stops - (block.data[stops - 1] == ord("\r"))
        filled = stops > starts
        starts, stops = starts[filled], stops[filled]
        return starts, stops

    def fast(self, data: Bytes, starts: Offsets, stops: Offsets) -> pa.LargeStringArray | None:
        """The texts of all lines, or None if any line needs a closer look. `data` holds nothing but these lines."""
        if not ((data[starts] == ord("{")).all() and (data[stops - 1] == ord("}")).all() and is_utf8(data)):
            return None
        options = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = pa.json.read_json(pa.BufferReader(pa.py_buffer(data)), options, self.options)
        except pa.ArrowException:
            return None
        column = table.column(0)
        if len(column) != len(starts) or column.null_count:
            return None
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def slow(self, block: Block, starts: Offsets, stops: Offsets, row: int) -> TextBatch | None:
        """The same, line by line, for every block."""
        texts, rows, rejects, num_rows = [], [], [], 0
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            line = block.data[start:stop].tobytes()
            if not line.strip(BLANKS):
                continue
            text = self._text(line)
            if isinstance(text, bytes):
                texts.append(text)
                rows.append(num_rows)
            else:
                reason, detail = text
                where, record = block.offset + start, line[:RECORD_BYTES]
                rejects.append(Reject(self.file.name, reason, row + num_rows, where, detail=detail, record=record))
            num_rows += 1
        return replace(_batch(texts, row, num_rows, rows), rejects=tuple(rejects)) if num_rows else None

    def _text(self, line: bytes) -> bytes | tuple[str, str]:
        """The text of one line, or reason and detail."""
        if len(line) > self.reader.max_document_bytes:
            return _too_long(len(line), self.reader)
        try:
            return self._field(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            problem = ("not-json", f"{error.msg}, at character {error.pos + 1}")
        # With its line end: Arrow splits a block behind the last CR or LF, which must not be inside the line.
        data = np.frombuffer(line.strip(BLANKS) + b"\n", np.uint8)
        array = self.fast(data, np.array([0]), np.array([len(data) - 1]))
        if array is not None:
            return _buffers(array)[0].tobytes()
        return _bad_byte(line) or self._lenient(line.decode(), problem)

    def _lenient(self, line: str, problem: tuple[str, str]) -> bytes | tuple[str, str]:
        try:
            value = json.loads(line, parse_int=float)
        except (ValueError, RecursionError):
            return problem
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return "lone-surrogate", f"\\u{ord(error.object[error.start]):04x} stands alone"
        except RecursionError:
            return problem
        return self._field(value)

    def _field(self, value: Any) -> bytes | tuple[str, str]:
        name = self.reader.text
        if not isinstance(value, dict):
            return "not-an-object", f"expected an object, found {_json_type(value)}"
        if name not in value:
            return "missing-text", f"no field {name!r}; there are: {', '.join(key[:40] for key in list(value)[:20])}"
        text = value[name]
        if text is None:
            return "null-text", f"{name!r} is null"
        if not isinstance(text, str):
            return "text-not-a-string", f"expected {name!r} to be a string, found {_json_type(text)}"
        return text.encode()


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _buffers(array: pa.LargeStringArray) -> tuple[Bytes, Offsets]:
    """Values and offsets of a large_string or large_binary array; views."""
    _, offsets, values = array.buffers()
    if values is None or not values.size:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(values, np.uint8), np.frombuffer(offsets, np.int64)[
        array.offset : array.offset + len(array) + 1
    ]


# Columns: Parquet and Arrow.


@contextmanager
def _parquet(file: SourceFile, reader: ReaderSpec) -> Iterator[tuple[pa.parquet.ParquetFile, int]]:
    """The open file and the index of the text column among its leaf columns."""
    try:
        opened = pa.parquet.ParquetFile(
            file.path,
            page_checksum_verification=True,
            memory_map=False,
            pre_buffer=False,
            buffer_size=COLUMN_BUFFER_BYTES,
        )
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {file.path} as parquet: {_first_line(error)}; fetch it again") from error
    with opened:
        schema = opened.schema_arrow
        place = _text_column(schema, file, reader)
        yield opened, sum(_num_leaves(schema.field(i).type) for i in range(place))


def _num_leaves(type_: pa.DataType) -> int:
    if type_.num_fields == 0:
        return 1
    return sum(_num_leaves(type_.field(i).type) for i in range(type_.num_fields))


@contextmanager
def _arrow(file: SourceFile, reader: ReaderSpec) -> Iterator[tuple[ArrowReader, pa.NativeFile]]:
    """The open file or stream, which reads only the text column, and what it reads from."""
    with _broken_is_source_error(file), pa.OSFile(file.path) as source:
        is_file = source.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC
        open_ = pa.ipc.open_file if is_file else pa.ipc.open_stream
        source.seek(0)
        place = _text_column(open_(source).schema, file, reader)
        source.seek(0)
        yield open_(source, options=pa.ipc.IpcReadOptions(included_fields=[place], use_threads=False)), source


@contextmanager
def _broken_is_source_error(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {file.path} as arrow: {_first_line(error)}; fetch it again") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _text_column(schema: pa.Schema, file: SourceFile, reader: ReaderSpec) -> int:
    """The place of the text column in the schema."""
    places = schema.get_all_field_indices(reader.text)
    if len(places) == 1 and _is_textual(schema.field(places[0]).type):
        return int(places[0])
    columns = ", ".join(f"{column.name} ({column.type})" for column in schema)
    found = f"found {len(places)} of that name" if len(places) != 1 else f"found {schema.field(places[0]).type}"
    raise SourceError(
        f"{file.path}: expected one column {reader.text!r} of text, {found}; "
        f"use --set reader.text=NAME, there are: {columns}"
    )


def _is_textual(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    views = (pa.string_view(), pa.binary_view())
    return type_ in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), *views)


def _as_text(array: pa.Array) -> pa.LargeStringArray:
    """The same as large_string: sizes and indices are checked, UTF-8 is not; values are copied only out of views.

    Raises:
        pa.ArrowInvalid: offsets or indices that point nowhere.
    """
    if pa.types.is_dictionary(array.type):
        values = _as_text(array.dictionary).view(pa.large_binary())
        array = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    array = array.view(as_bytes.get(array.type, array.type))
    array.validate(full=True)
    return array.cast(pa.large_binary()).view(pa.large_string())


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of a text column."""

    file: SourceFile
    reader: ReaderSpec
    batch_bytes: int

    def batches(self, column: pa.Array, row: int, group: int) -> Iterator[TextBatch]:
        """Batches of about `batch_bytes` for the values of `column`, whose first one is record `row`."""
        # A dictionary's values are many times its size; decode some rows at a time.
        step = max(1, self.batch_bytes // 1024) if pa.types.is_dictionary(column.type) else max(1, len(column))
        for first in range(0, len(column), step):
            array = _as_text(column.slice(first, step))
            offsets = _buffers(array)[1]
            start = 0
            while start < len(array):
                fitting = int(np.searchsorted(offsets, offsets[start] + self.batch_bytes, "right")) - 1
                stop = min(max(fitting, start + 1), len(array))
                yield self._batch(array.slice(start, stop - start), row + first + start, group)
                start = stop

    def _batch(self, array: pa.LargeStringArray, row: int, group: int) -> TextBatch:
        values, offsets = _buffers(array)
        is_long = np.diff(offsets) > self.reader.max_document_bytes
        is_valid = _is_valid(array)
        if is_valid and not array.null_count and not is_long.any():
            return TextBatch(values, offsets, row, len(array))
        suspects = is_long | array.is_null().to_numpy(zero_copy_only=False) | (not is_valid)
        good, rejects = np.ones(len(array), dtype=bool), []
        for i in np.flatnonzero(suspects).tolist():
            problem = self._problem(array, values, offsets[i : i + 2], i)
            if problem is not None:
                good[i] = False
                reason, detail, record = problem
                rejects.append(Reject(self.file.name, reason, row + i, -1, group, 1, detail, record))
        values, offsets = _buffers(array.filter(pa.array(good)))
        return TextBatch(values, offsets, row, len(array), rows=row + np.flatnonzero(good), rejects=tuple(rejects))

    def _problem(
        self, array: pa.LargeStringArray, values: Bytes, bounds: Offsets, i: int
    ) -> tuple[str, str, bytes] | None:
        if not array[i].is_valid:
            return "null-text", f"{self.reader.text!r} is null", b""
        start, stop = bounds.tolist()
        record = values[start : min(stop, start + RECORD_BYTES)].tobytes()
        if stop - start > self.reader.max_document_bytes:
            return *_too_long(stop - start, self.reader), record
        bad = _bad_byte(values[start:stop].tobytes())
        return None if bad is None else (*bad, record)


def _read_parquet(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    with _parquet(file, reader) as (opened, column):
        row = 0
        for group in range(part.start, part.stop):
            yield from _read_group(opened, _Values(file, reader, batch_bytes), (group, column), row)
            row += opened.metadata.row_group(group).num_rows


def _read_group(
    opened: pa.parquet.ParquetFile, values: _Values, where: tuple[int, int], first_row: int
) -> Iterator[TextBatch]:
    """One row group; a corrupt one ends in a batch that takes the others back."""
    group, column = where
    chunk = opened.metadata.row_group(group).column(column)
    num_rows, num_bytes = opened.metadata.row_group(group).num_rows, chunk.total_compressed_size
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
        detail = _first_line(error)
        reject = Reject(values.file.name, "corrupt-row-group", first_row, group=group, count=num_rows, detail=detail)
        yield replace(_rejected(reject), num_source_bytes=num_bytes - reported, restart=seen == 0, undo=True)


def _is_about_content(error: BaseException) -> bool:
    """False where it is the disk's, the memory's or a signal's fault: the same bytes may be read well next time."""
    if isinstance(error, (MemoryError, pa.ArrowCancelled)):
        return False
    return not (isinstance(error, OSError) and error.errno)


def _group_batches(
    opened: pa.parquet.ParquetFile, values: _Values, where: tuple[int, int], first_row: int
) -> Iterator[TextBatch]:
    group, column = where
    name, metadata = values.reader.text, opened.metadata.row_group(group)
    num_rows = _rows_per_batch(metadata.column(column), metadata.num_rows, values.batch_bytes)
    row = first_row
    for piece in opened.iter_batches(num_rows, [group], [name], use_threads=False):
        # A dot in the name selects a nested column as well.
        yield from values.batches(piece.column(piece.schema.get_all_field_indices(name)[0]), row, group)
        row += len(piece)


def _rows_per_batch(chunk: pa.parquet.ColumnChunkMetaData, num_rows: int, batch_bytes: int) -> int:
    rows = num_rows * batch_bytes // max(1, chunk.total_uncompressed_size)
    # Of a dictionary-encoded column the size says nothing: a value counts once, however often it occurs.
    most = batch_bytes // (1024 if chunk.has_dictionary_page else 64)
    return int(max(1, min(rows, most)))


def _read_arrow(file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]:
    values = _Values(file, reader, batch_bytes)
    with _arrow(file, reader) as (opened, source):
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
    source.seek(max(0, at - len(ARROW_STREAM_END)))
    return bool(source.read() == ARROW_STREAM_END)
