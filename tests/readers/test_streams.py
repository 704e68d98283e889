"""Containers: nothing cut short goes unseen."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard

from dataprep.errors import SourceError
from dataprep.readers.streams import compression_of, fill, open_range, open_stream

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
