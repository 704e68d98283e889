"""Blocks do not change what the records are."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataprep.readers.records import BOM, LongRecord, Splitter, find, is_splittable
from dataprep.readers.streams import open_stream

if TYPE_CHECKING:
    from pathlib import Path


def test_splittable():
    assert [s for s in (b"\n", b"ab", b"aab", b"<|sep|>") if not is_splittable(s)] == []
    assert [s for s in (b"\n\n", b"aba", b"<<", b"abcab") if is_splittable(s)] == []


@given(
    st.binary(max_size=60).map(lambda b: bytes(c % 3 + 97 for c in b)), st.sampled_from([b"a", b"ab", b"aa", b"aba"])
)
def test_find_is_bytes_split(data: bytes, separator: bytes):
    found = find(np.frombuffer(data, np.uint8), separator).tolist()
    expected, at = [], data.find(separator)
    while at >= 0:
        expected.append(at)
        at = data.find(separator, at + len(separator))
    assert found == expected


class _Trickle:
    """A stream that hands out what it has in pieces of a given size."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step, self.position = data, step, 0

    def readinto(self, view: memoryview) -> int:
        piece = self._data[self.position : self.position + min(self._step, len(view))]
        view[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


def _records(data: bytes, separator: bytes | None, block_bytes: int, max_bytes: int, step: int):
    """(offset, bytes) or (offset, length) of a long one."""
    records, num_lines = [], 0
    for item in Splitter(_Trickle(data, step), separator, block_bytes, max_bytes, 0).split():
        assert item.line == num_lines == data.count(b"\n", 0, item.offset)
        num_lines += item.num_lines
        if isinstance(item, LongRecord):
            assert item.num_bytes > max_bytes
            assert data[item.offset : item.offset + item.num_bytes].startswith(item.head)
            assert item.last == data[item.offset + item.num_bytes - 1]
            records.append((item.offset, item.num_bytes))
            continue
        for start, stop in zip(item.starts.tolist(), item.stops.tolist(), strict=True):
            text = item.data[start:stop].tobytes()
            # One that ends in the same block was held anyway; that it is long is the caller's to say.
            records.append((item.offset + start, text if len(text) <= max_bytes else len(text)))
    assert num_lines == data.count(b"\n")
    return records


@given(
    st.lists(st.integers(0, 90), max_size=12),
    st.sampled_from([b"\n", b"\n\n", b"ab", b"aba"]),
    st.integers(16, 100),
    st.integers(1, 60),
    st.integers(1, 50),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_blocks_do_not_change_the_records(lengths, separator, block_bytes, max_bytes, step, bom, random):
    alphabet = b"\nabx"
    pieces = [bytes(random.choices(alphabet, weights=(1, 1, 1, 9), k=n)) for n in lengths]
    content = separator.join(pieces)
    expected, offset = [], 3 if bom else 0
    parts = content.split(separator)
    for part in parts if parts[-1] else parts[:-1]:
        expected.append((offset, part if len(part) <= max_bytes else len(part)))
        offset += len(part) + len(separator)
    data = (BOM if bom else b"") + content
    assert _records(data, separator, block_bytes, max_bytes, step) == expected


def test_a_long_record_is_not_held(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"short\n" + b"x" * (32 << 20) + b"\nshort\n")
    tracemalloc.start()
    with open_stream(path, "none") as stream:
        items = [type(item).__name__ for item in Splitter(stream, b"\n", 1 << 16, 1 << 20, 0).split()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert items == ["Block", "LongRecord", "Block"]
    assert peak < 6 << 20
