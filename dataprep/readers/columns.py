"""Values of a column of text, of any Arrow type that can hold one, as batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dataprep.batches import RECORD_BYTES, Reject, TextBatch
from dataprep.errors import SourceError
from dataprep.readers.verdicts import Problem, bad_byte, is_valid, too_long

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Bytes, Offsets
    from dataprep.specs import ReaderSpec, SourceFile


def text_column(schema: pa.Schema, file: SourceFile, reader: ReaderSpec) -> int:
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


def buffers(array: pa.LargeStringArray) -> tuple[Bytes, Offsets]:
    """Values and offsets of a large_string or large_binary array; views."""
    _, offsets, values = array.buffers()
    if values is None or not values.size:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(values, np.uint8), np.frombuffer(offsets, np.int64)[
        array.offset : array.offset + len(array) + 1
    ]


def _is_textual(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    views = (pa.string_view(), pa.binary_view())
    return type_ in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), *views)


def as_text(array: pa.Array) -> pa.LargeStringArray:
    """The same as large_string: sizes and indices are checked, UTF-8 is not; values are copied only out of views.

    Raises:
        pa.ArrowInvalid: offsets or indices that point nowhere.
    """
    if pa.types.is_dictionary(array.type):
        values = as_text(array.dictionary).view(pa.large_binary())
        array = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    array = array.view(as_bytes.get(array.type, array.type))
    array.validate(full=True)
    return array.cast(pa.large_binary()).view(pa.large_string())


@dataclass(frozen=True, slots=True)
class Values:
    """Turns arrays of a text column into batches."""

    file: SourceFile
    reader: ReaderSpec
    batch_bytes: int
    null_reason: str = "null-text"

    def batches(self, column: pa.Array, row: int, group: int) -> Iterator[TextBatch]:
        """Batches of about `batch_bytes` for the values of `column`, whose first one is record `row`."""
        # A dictionary's values are many times its size; decode some rows at a time.
        step = max(1, self.batch_bytes // 1024) if pa.types.is_dictionary(column.type) else max(1, len(column))
        for first in range(0, len(column), step):
            array = as_text(column.slice(first, step))
            offsets = buffers(array)[1]
            start = 0
            while start < len(array):
                fitting = int(np.searchsorted(offsets, offsets[start] + self.batch_bytes, "right")) - 1
                stop = min(max(fitting, start + 1), len(array))
                yield self._batch(array.slice(start, stop - start), row + first + start, group)
                start = stop

    def _batch(self, array: pa.LargeStringArray, row: int, group: int) -> TextBatch:
        values, offsets = buffers(array)
        suspect = np.diff(offsets) > self.reader.max_document_bytes
        suspect |= array.is_null().to_numpy(zero_copy_only=False) | (not is_valid(array))
        if not suspect.any():
            return TextBatch(values, offsets, row, len(array))
        good, rejects = np.ones(len(array), dtype=bool), []
        for i in np.flatnonzero(suspect).tolist():
            value = values[offsets[i] : offsets[i + 1]] if array[i].is_valid else None
            problem = self._problem(value)
            if problem is not None:
                good[i] = False
                head = b"" if value is None else value[:RECORD_BYTES].tobytes()
                reason, detail = problem
                rejects.append(Reject(self.file.name, reason, row + i, group=group, detail=detail, record=head))
        values, offsets = buffers(array.filter(pa.array(good)))
        return TextBatch(values, offsets, row, len(array), rows=row + np.flatnonzero(good), rejects=tuple(rejects))

    def _problem(self, value: Bytes | None) -> Problem | None:
        if value is None:
            return Problem(self.null_reason, f"{self.reader.text!r} is null")
        if len(value) > self.reader.max_document_bytes:
            return too_long(len(value), self.reader)
        return bad_byte(value.tobytes())


def first_line(error: BaseException) -> str:
    """What Arrow says, without the lines of C++ behind it."""
    return (str(error).splitlines() or [type(error).__name__])[0]
