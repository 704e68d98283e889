"""What a file is: its container and its format, by its content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import SourceError, SpecError
from dataprep.readers.records import BLANKS, BOM
from dataprep.readers.streams import compression_of, fill, open_stream

if TYPE_CHECKING:
    from dataprep.specs import Compression, FileFormat, ReaderSpec, SourceFile

PARQUET_MAGIC = b"PAR1"
ARROW_FILE_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
SUFFIXES: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
COLUMN_SUFFIXES: dict[str, FileFormat] = {".parquet": "parquet", ".arrow": "arrow"}
COMPRESSION_SUFFIXES: dict[str, Compression] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".xz": "xz",
    ".bz2": "bz2",
}
HEAD_BYTES = 1 << 16


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


def format_by_name(name: str, where: str, reader: ReaderSpec) -> tuple[FileFormat, Compression]:
    """What a file is that is not here yet, by its name.

    Args:
        name: its path.
        where: for the message.
        reader: may say the format.

    Raises:
        SpecError: the name does not tell.
    """
    path = Path(name)
    inner, outer = _suffixes(path)
    compression = COMPRESSION_SUFFIXES.get(outer, "none")
    found = reader.format if reader.format != "auto" else (SUFFIXES | COLUMN_SUFFIXES).get(inner)
    if found is None:
        raise SpecError(
            f"cannot tell by its name what {where} is; set reader.format=jsonl, parquet, arrow or text, or leave it "
            "out with source.exclude"
        )
    _check_settings(path, found, reader)
    return found, compression


def check_format(file: SourceFile, reader: ReaderSpec) -> None:
    """Make sure that a file that was fetched is what its name says.

    Raises:
        SourceError: it is something else: a page that asks to log in, a pointer to a file.
    """
    found = detect(Path(file.path), reader)
    if found != (file.format, file.compression):
        expected, got = (f"{kind} ({container})" for kind, container in ((file.format, file.compression), found))
        raise SourceError(f"{file.url}: expected {expected}, found {got}; set reader.format if that is what it is")


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
    if reader.group_rows > 1 and found == "text" and reader.separator is None:
        raise SpecError(
            f"reader.group_rows has no effect: {path} is one document as a whole; set reader.separator or drop it"
        )
    if found == "text" and ("text" in reader.model_fields_set or reader.text != "text"):
        raise SpecError(f"reader.text names a field or column, but {path} is plain text, which has none; drop it")
