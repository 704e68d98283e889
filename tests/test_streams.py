"""`dataprep.streams`: nothing cut short goes unseen, and blocks do not change what the records are."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import SourceError
from dataprep.streams import (
    BOM,
    LongRecord,
    Splitter,
    compression_of,
    fill,
    find,
    is_splittable,
    open_range,
    open_stream,
)

if TYPE_CHECKING:
    from pathlib import Path

SKIPPABLE = bytes.fromhex("532a4d18") + (3).to_bytes(4, "little") + b"abc"
TEXT = b"".join(b"line %d of some text that is not all alike\n" % (i * i) for i in range(40))


def _zstd(data: bytes, checksum: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(data)


PACKERS = {"gzip": gzip.compress, "zstd": _zstd, "xz": lzma.compress, "bz2": bz2.compress}


def _unpack(path: Path, compression: str, step: int = 1 << 16) -> bytes:
    out = bytearray()
    buffer = bytearray(step)
    with open_stream(path, compression) as stream:
        while count := stream.readinto(memoryview(buffer)):
            out += buffer[:count]
        assert stream.position == path.stat().st_size
    return bytes(out)


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_unpacks_members_end_to_end(tmp_path: Path, compression: str, step: int):
    pack = PACKERS[compression]
    path = tmp_path / "file"
    path.write_bytes(pack(TEXT) + pack(b"") + pack(b"x") + pack(TEXT))
    assert _unpack(path, compression, step) == TEXT + b"x" + TEXT
    assert compression_of(path.read_bytes()[:16]) == compression


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("step", [1, 64, 1 << 20])
def test_truncation_at_every_byte_is_seen(tmp_path: Path, compression: str, step: int):
    """But exactly between two members, where a shorter but complete file remains."""
    first, second = PACKERS[compression](TEXT), PACKERS[compression](TEXT[:200])
    path = tmp_path / "file"
    whole = first + second
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        if size == len(first):
            assert _unpack(path, compression, step) == TEXT
        else:
            with pytest.raises(SourceError, match="truncated or corrupt"):
                _unpack(path, compression, step)


@pytest.mark.parametrize("make", [lambda d: _zstd(d, checksum=False), lambda d: SKIPPABLE + _zstd(d) + SKIPPABLE])
def test_truncation_of_other_zstd_frames_is_seen(tmp_path: Path, make):
    whole = make(TEXT)
    complete = {len(SKIPPABLE), len(whole) - len(SKIPPABLE)} if whole.startswith(SKIPPABLE) else set()
    path = tmp_path / "file"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        if size in complete:
            _unpack(path, "zstd")
        else:
            with pytest.raises(SourceError, match="truncated or corrupt"):
                _unpack(path, "zstd")


def test_truncation_of_large_zstd_blocks_is_seen(tmp_path: Path):
    """Raw, repeated and compressed blocks, headers of all sizes, a window descriptor."""
    data = np.random.default_rng(0).bytes(300_000) + bytes(400_000) + TEXT * 300
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    whole = writer.compress(data) + writer.flush()
    path = tmp_path / "file"
    path.write_bytes(whole)
    assert _unpack(path, "zstd") == data
    for size in [*range(1, len(whole), 40_009), *range(len(whole) - 20, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match="the end of the frame is missing"):
            _unpack(path, "zstd")


@pytest.mark.parametrize("compression", PACKERS)
def test_a_flipped_byte_is_seen_or_harmless(tmp_path: Path, compression: str):
    """All four carry checksums; what may change unseen is a header's time or flags, never the content."""
    whole = PACKERS[compression](TEXT)
    path = tmp_path / "file"
    for i in range(4, len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :])
        try:
            assert _unpack(path, compression) == TEXT
        except SourceError as error:
            assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("compression", ["gzip", "xz"])
def test_zero_padding_is_no_content(tmp_path: Path, compression: str):
    pack = PACKERS[compression]
    path = tmp_path / "file"
    path.write_bytes(pack(TEXT) + bytes(8) + pack(b"x") + bytes(512))
    assert _unpack(path, compression) == TEXT + b"x"


@pytest.mark.parametrize("compression", PACKERS)
def test_garbage_behind_the_last_member_is_corrupt(tmp_path: Path, compression: str):
    path = tmp_path / "file"
    path.write_bytes(PACKERS[compression](TEXT) + b"garbage that is no member")
    with pytest.raises(SourceError, match="truncated or corrupt"):
        _unpack(path, compression)


@pytest.mark.parametrize("compression", PACKERS)
def test_a_bomb_inflates_in_steps(tmp_path: Path, compression: str):
    path = tmp_path / "file"
    path.write_bytes(PACKERS[compression](bytes(64 << 20)))
    buffer = bytearray(1 << 16)
    total = 0
    tracemalloc.start()
    with open_stream(path, compression) as stream:
        for _ in range(20):
            total += stream.readinto(memoryview(buffer))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 20 << 16
    assert peak < 16 << 20  # 8 MiB of them are xz's dictionary


def test_a_file_that_shrinks_is_told(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with open_range(path, 2, 9) as stream, pytest.raises(SourceError, match="expected 9 bytes, found 5"):
        fill(stream, memoryview(bytearray(7)))


def test_magic():
    assert compression_of(b"") == "none"
    assert compression_of(b"BZh is how this text begins") == "none"
    assert compression_of(b"BZh9") == "bz2"
    assert compression_of(bz2.compress(b"")) == "bz2"
    assert compression_of(SKIPPABLE) == "zstd"
    assert compression_of(b'{"text": 1}') == "none"


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
    records = []
    for item in Splitter(_Trickle(data, step), separator, block_bytes, max_bytes).split(0):
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
        items = [type(item).__name__ for item in Splitter(stream, b"\n", 1 << 16, 1 << 20).split(0)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert items == ["Block", "LongRecord", "Block"]
    assert peak < 6 << 20
