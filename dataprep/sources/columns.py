"""What is in a file that is not here yet: its columns or fields, and how much text. Two or three small requests.

What is learnt here chooses defaults and makes estimates; that a file really has the column is seen when it is read.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zstandard

from dataprep.errors import SpecError
from dataprep.requests import RangesIgnoredError, peek

if TYPE_CHECKING:
    from dataprep.specs import ReaderSpec, SourceFile

HEAD_BYTES = 256 << 10


@dataclass(frozen=True)
class Columns:
    """The columns of a file.

    Attributes:
        texts: names of those that hold text.
        others: names of the rest.
        text_bytes: column of text -> its bytes, uncompressed; empty where the file does not say.
    """

    texts: tuple[str, ...]
    others: tuple[str, ...]
    text_bytes: dict[str, int]


def look(file: SourceFile) -> Columns | None:
    """The columns of a file to be fetched; None where its format has none.

    Raises:
        SourceError: it cannot be reached.
    """
    assert file.url is not None
    try:
        if file.format == "parquet":
            return _of_parquet(file)
        if file.format == "jsonl":
            return _of_lines(_unpack(peek(file.url, file.num_bytes, 0, min(HEAD_BYTES, file.num_bytes)), file))
    except RangesIgnoredError:
        pass  # the whole file only to look at it would be too much
    return None


def choose_text(file: SourceFile, reader: ReaderSpec) -> ReaderSpec:
    """The reader with the one column that can be meant, where none was named.

    Raises:
        SpecError: there are several, or none.
    """
    if "text" in reader.model_fields_set:
        return reader
    columns = look(file)
    if columns is None or reader.text in columns.texts:
        return reader
    if len(columns.texts) == 1:
        return reader.model_copy(update={"text": columns.texts[0]})
    texts, others = ", ".join(columns.texts) or "none", ", ".join(columns.others) or "none"
    raise SpecError(
        f"{file.url} has no column {reader.text!r}; choose one with --set reader.text=NAME. "
        f"Columns of text: {texts}; others: {others}"
    )


class _Afar(io.RawIOBase):
    """A file afar, for a reader that seeks."""

    def __init__(self, url: str, num_bytes: int) -> None:
        self._url, self._num_bytes, self._at = url, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._num_bytes if size < 0 else min(self._num_bytes, self._at + size)
        data = peek(self._url, self._num_bytes, self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data


def _of_parquet(file: SourceFile) -> Columns | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert file.url is not None
    try:
        metadata = pq.read_metadata(pa.PythonFile(_Afar(file.url, file.num_bytes), mode="r"))
    except pa.ArrowException:
        return None
    schema = metadata.schema.to_arrow_schema()
    texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    sizes: dict[str, int] = dict.fromkeys(texts, 0)
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            if chunk.path_in_schema in sizes:
                sizes[chunk.path_in_schema] += chunk.total_uncompressed_size
    return Columns(tuple(texts), tuple(f.name for f in schema if f.name not in sizes), sizes)


def _unpack(head: bytes, file: SourceFile) -> bytes:
    """The beginning of what the beginning of a compressed file holds; nothing where it is none."""
    try:
        return _decompress(head, file)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
        return b""  # it is said when the file is here, with its path


def _decompress(head: bytes, file: SourceFile) -> bytes:
    if file.compression == "none":
        return head
    if file.compression == "zstd":
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(head)
        return bytes(reader.read(4 * HEAD_BYTES))
    decoders: dict[str, Any] = {
        "gzip": lambda: zlib.decompressobj(wbits=31),
        "xz": lzma.LZMADecompressor,
        "bz2": bz2.BZ2Decompressor,
    }
    return bytes(decoders[file.compression]().decompress(head, 4 * HEAD_BYTES))


def _of_lines(head: bytes) -> Columns | None:
    import orjson

    kinds: dict[str, set[type]] = {}
    for line in head.split(b"\n")[:-1] or [head]:
        try:
            value = orjson.loads(line)
        except ValueError:
            continue
        for name, field in value.items() if isinstance(value, dict) else ():
            kinds.setdefault(name, set()).add(type(field))
    if not kinds:
        return None  # a first line longer than the head, or no JSON lines
    texts = tuple(name for name, types in kinds.items() if str in types and types <= {str, type(None)})
    return Columns(texts, tuple(name for name in kinds if name not in texts), {})
