"""Plain text: a file is a document, or each of the pieces between separators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dataprep.batches import TextBatch, offsets_of
from dataprep.readers.verdicts import bad_byte, is_utf8, judge, refuse, too_long

if TYPE_CHECKING:
    from dataprep.readers.records import Block, LongRecord
    from dataprep.readers.verdicts import Problem
    from dataprep.specs import ReaderSpec


class Texts:
    """Turns blocks of pieces into batches.

    Args:
        name: of the file.
        reader: how it is read.
    """

    def __init__(self, name: str, reader: ReaderSpec) -> None:
        self._name = name
        self._reader = reader

    def long(self, record: LongRecord, row: int) -> TextBatch:
        return refuse(record, record.num_bytes, row, self._name, self._reader)

    def block(self, block: Block, row: int) -> TextBatch:
        lengths = block.stops - block.starts
        if lengths.max() > self._reader.max_document_bytes or not is_utf8(block.data):
            return judge(block, block.starts, block.stops, row, self._name, self._parse)
        data = block.data.tobytes()
        if self._reader.separator is not None:
            data = data.replace(self._reader.separator.encode(), b"")
        return TextBatch(np.frombuffer(data, np.uint8), offsets_of(lengths), row, len(lengths))

    def _parse(self, text: bytes) -> bytes | Problem:
        if len(text) > self._reader.max_document_bytes:
            return too_long(len(text), self._reader)
        return bad_byte(text) or text
