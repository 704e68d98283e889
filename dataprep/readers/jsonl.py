"""JSON lines: one field of each object, read by two readers that must agree.

The fast one gives a block to Arrow and believes the result only if nothing can have gone wrong: every line begins
with ``{`` and ends with ``}`` (so that no object spans lines), rows equal lines (so that no line holds two),
nothing is null, and the raw block is UTF-8 (Arrow does not look, and refuses lone surrogates itself).

Everything else goes line by line: orjson first, then the same Arrow reader on the single line (it takes NaN and
deep nesting in fields that nobody asked for), then `json`, which mostly knows why it is bad.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json

from dataprep.batches import TextBatch
from dataprep.readers.columns import buffers
from dataprep.readers.records import BLANKS
from dataprep.readers.verdicts import Problem, bad_byte, is_utf8, judge, refuse, too_long

if TYPE_CHECKING:
    from dataprep.batches import Bytes, Offsets
    from dataprep.readers.records import Block, LongRecord
    from dataprep.specs import ReaderSpec


class Lines:
    """Turns blocks of lines into batches. Lines that are blank are no records.

    Args:
        name: of the file.
        reader: how it is read.
    """

    def __init__(self, name: str, reader: ReaderSpec) -> None:
        self._name = name
        self._reader = reader
        self._options = pa.json.ParseOptions(
            explicit_schema=pa.schema([(reader.text, pa.large_string())]), unexpected_field_behavior="ignore"
        )

    def long(self, record: LongRecord, row: int) -> TextBatch:
        if record.blank:
            return TextBatch.of([], row)
        return refuse(record, record.num_bytes - (record.last == ord("\r")), row, self._name, self._reader)

    def block(self, block: Block, row: int) -> TextBatch:
        starts, stops = self._bounds(block)
        array = self._fast(block.data, starts, stops)
        if array is None:
            return self._slow(block, starts, stops, row)
        values, offsets = buffers(array)
        return TextBatch(values, offsets, row, len(array))

    def _bounds(self, block: Block) -> tuple[Offsets, Offsets]:
        """Starts and stops of the lines without their ends, LF or CRLF; empty lines are left out."""
        filled = block.stops > block.starts
        starts, stops = block.starts[filled], block.stops[filled]
        stops = stops - (block.data[stops - 1] == ord("\r"))
        filled = stops > starts
        return starts[filled], stops[filled]

    def _fast(self, data: Bytes, starts: Offsets, stops: Offsets) -> pa.LargeStringArray | None:
        """The texts of all lines, or None if any line needs a closer look. `data` holds nothing but these lines."""
        if not len(starts) or (stops - starts).max() > self._reader.max_document_bytes:
            return None
        if not ((data[starts] == ord("{")).all() and (data[stops - 1] == ord("}")).all() and is_utf8(data)):
            return None
        options = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = pa.json.read_json(pa.BufferReader(pa.py_buffer(data)), options, self._options)
        except pa.ArrowException:
            return None
        column = table.column(0)
        if len(column) != len(starts) or column.null_count:
            return None
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def _slow(self, block: Block, starts: Offsets, stops: Offsets, row: int) -> TextBatch:
        """The same, line by line, for every block."""
        return judge(block, starts, stops, row, self._name, self._parse)

    def _parse(self, line: bytes) -> bytes | Problem | None:
        """The text of one line, or what is wrong with it; None for a blank one."""
        if not line.strip(BLANKS):
            return None
        if len(line) > self._reader.max_document_bytes:
            return too_long(len(line), self._reader)
        try:
            return self._field(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            problem = Problem("not-json", f"{error.msg}, at character {error.pos + 1}")
        # With its line end: Arrow splits a block behind the last CR or LF, which must not be inside the line.
        data = np.frombuffer(line.strip(BLANKS) + b"\n", np.uint8)
        array = self._fast(data, np.array([0]), np.array([len(data) - 1]))
        if array is not None:
            return buffers(array)[0].tobytes()
        return bad_byte(line) or self._lenient(line.decode(), problem)

    def _lenient(self, line: str, problem: Problem) -> bytes | Problem:
        if _depth(line) > MAX_DEPTH:
            return problem
        try:
            value = json.loads(line, parse_int=float)
        except ValueError:
            return problem
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return Problem("lone-surrogate", f"\\u{ord(error.object[error.start]):04x} stands alone")
        return self._field(value)

    def _field(self, value: Any) -> bytes | Problem:
        name = self._reader.text
        if not isinstance(value, dict):
            return Problem("not-an-object", f"expected an object, found {_json_type(value)}")
        if name not in value:
            return Problem(
                "missing-text", f"no field {name!r}; there are: {', '.join(key[:40] for key in list(value)[:20])}"
            )
        text = value[name]
        if text is None:
            return Problem("null-text", f"{name!r} is null")
        if not isinstance(text, str):
            return Problem("text-not-a-string", f"expected {name!r} to be a string, found {_json_type(text)}")
        return text.encode()


def _depth(line: str) -> int:
    """How deep the brackets outside strings are nested."""
    outside = np.frombuffer(STRING.sub("", line).encode(), np.uint8)
    steps = np.isin(outside, list(b"[{")).astype(np.int8) - np.isin(outside, list(b"]}"))
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')

MAX_DEPTH = 500
"""Deeper than this, whether Python's own parser goes along depends on its version and on the stack."""


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
