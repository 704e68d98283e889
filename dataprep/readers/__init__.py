"""Source files to text batches: JSON lines, plain text, Parquet, Arrow.

    detect   what a file is, by its content
    cut      its slices: byte ranges, runs of row groups or record batches, or the whole file
    read     one slice -> TextBatch, TextBatch, ...: documents in source order, and the records that are none

    streams    bytes, decompressed              columns   values of a text column as batches
    records    bytes -> blocks of records       parquet   runs of row groups
    ranges     records of a byte range          arrow     runs of record batches, streams
    jsonl      block of lines -> batch          messages  where the record batches of a stream lie
    text       block of pieces -> batch         verdicts  what makes a record no document
    groups     several records -> one document  detection

Which documents and rejects come out depends on the content alone: not on `batch_bytes`, not on the cuts.
Files are not listed, checked for change or renumbered here; rows and lines start at 0 in every slice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from dataprep.batches import TextBatch
from dataprep.readers import arrow, parquet, ranges
from dataprep.readers.detection import check_format, detect, format_by_name
from dataprep.readers.groups import group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Cursor
    from dataprep.manifest import Slice
    from dataprep.specs import FileFormat, ReaderSpec, SourceFile

__all__ = ["check_format", "cut", "detect", "format_by_name", "read"]


class _Format(Protocol):
    """A module that can `cut` and `read` a format."""

    def cut(self, index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]: ...
    def read(self, file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int) -> Iterator[TextBatch]: ...


_FORMATS: dict[FileFormat, _Format] = {"jsonl": ranges, "text": ranges, "parquet": parquet, "arrow": arrow}


def cut(index: int, file: SourceFile, reader: ReaderSpec, unit_bytes: int) -> list[Slice]:
    """The slices of a file, in order, of about `unit_bytes` of text at the most.

    Args:
        index: the file's place in the recipe.
        file: the file.
        reader: how it is read.
        unit_bytes: text per slice; a row group, a record batch or a long record may make it more.

    Returns:
        Slices that hold every record once, begin where a group of `reader.group_rows` does, and whose ``num_bytes`` add
        up to the file's. None for a Parquet or Arrow file without row groups.

    Raises:
        SourceError: the file cannot be opened, or has no column of text under the name asked for.
    """
    return _FORMATS[file.format].cut(index, file, reader, unit_bytes)


def read(
    file: SourceFile, part: Slice, reader: ReaderSpec, batch_bytes: int, begin: Cursor | None = None
) -> Iterator[TextBatch]:
    """The records of one slice, in source order.

    ``num_source_bytes`` of the batches add up to ``part.num_bytes``, and their ``num_lines`` to the newlines of what is
    read of the slice. A batch may hold no documents, and the last one nothing but some source bytes.

    Args:
        file: the file, unchanged since `cut`.
        part: one of its slices.
        reader: how it is read.
        batch_bytes: text per batch, about; a longer record makes a longer batch.
        begin: what an earlier batch of the same slice had as its cursor: only what follows it is read.

    Yields:
        Batches whose rows and lines are counted within the slice. Rows of JSON lines are lines that are not blank.
        Where those are that have a cursor depends on the content of the slice alone, as everything else does.

    Raises:
        SourceError: unreadable, truncated or corrupt.
    """
    left, row = part.num_bytes, 0 if begin is None else begin.num_rows
    if begin is None:
        batches = _FORMATS[file.format].read(file, part, reader, batch_bytes)
    else:  # the only ones that give cursors
        batches = ranges.read(file, part, reader, batch_bytes, begin)
    for batch in batches if reader.group_rows == 1 else group(batches, reader.group_rows):
        left -= batch.num_source_bytes
        row = batch.first_row + batch.num_rows
        yield replace(batch, file=file.name)
    if left:
        yield replace(TextBatch.of([], row), file=file.name, num_source_bytes=left)
