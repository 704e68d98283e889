"""A source file as a stream of bytes, decompressed.

    file --(plain range | gzip | zstd | xz | bz2)--> readinto, readinto, ..., 0

Every stream is read to a proven end: a container that stops in the middle is an error, also where it stops
at the edge of a block. What cannot be seen: a file cut exactly between two gzip members, zstd frames, xz or
bz2 streams is a shorter, complete file; only a checksum from the source tells.

What a record is, is not known here: `records` cuts a stream into them.
"""

from __future__ import annotations

import bz2
import collections
import io
import lzma
import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

import zstandard
from isal import igzip_lib

from dataprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from dataprep.specs import Compression

CHUNK_BYTES = 1 << 18
"""Compressed bytes read at once. Also what a gzip of tiny members (bgzip: 64 KiB each) copies per member."""

IsalError = cast("type[Exception]", igzip_lib.IsalError)  # its stub takes the class for an instance
XZ_MEMORY_BYTES = 1 << 30
"""xz -9 needs 65 MiB to decompress; a header may claim 4 GiB."""


class ByteStream(Protocol):
    """Bytes, decompressed."""

    @property
    def position(self) -> int:
        """Bytes of the file on disk that were read so far, or the absolute position in a plain file."""

    def readinto(self, view: memoryview) -> int:
        """Fill some of `view` and say how much; 0 says that the stream is complete.

        Raises:
            SourceError: unreadable, truncated or corrupt.
        """

    def place_before(self, offset: int) -> tuple[int, int]:
        """The last place known at which decompression can begin to read from `offset` on, or 0, 0.

        Returns:
            The byte on disk, and which byte of the decompressed file is there. What is before it is forgotten: later
            calls ask for no smaller `offset`.
        """


def fill(stream: ByteStream, view: memoryview) -> int:
    """Read until `view` is full or the stream ends; returns the number of bytes read."""
    filled = 0
    while filled < len(view) and (count := stream.readinto(view[filled:])):
        filled += count
    return filled


class _Decoder(Protocol):
    """What `bz2.BZ2Decompressor`, `lzma.LZMADecompressor` and isal's `IgzipDecompressor` have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def compression_of(head: bytes) -> Compression:
    """The container that the first bytes of a file announce; ``none`` where they announce none.

    Args:
        head: the first 16 bytes, fewer only where the file is shorter.
    """
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"\x28\xb5\x2f\xfd") or _is_skippable(head[:4]):
        return "zstd"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    # 'BZh' alone may begin a text; the block or end marker (pi, sqrt(pi)) that follows may not.
    if head[:3] == b"BZh" and head[3:4].isdigit() and _starts_alike(head[4:10], b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    return "none"


def _starts_alike(found: bytes, *markers: bytes) -> bool:
    return any(marker.startswith(found) for marker in markers)


def _is_skippable(magic: bytes) -> bool:
    return len(magic) == 4 and int.from_bytes(magic, "little") >> 4 == 0x184D2A5


@contextmanager
def open_range(path: Path, start: int, stop: int) -> Iterator[ByteStream]:
    """Bytes [start, stop) of a plain file."""
    with _open(path) as file:
        yield _Range(path, file, start, stop)


@contextmanager
def open_stream(path: Path, compression: Compression, place: tuple[int, int] = (0, 0)) -> Iterator[ByteStream]:
    """A file from its start or from a place on, decompressed; ``position`` counts compressed bytes.

    Args:
        path: the file.
        compression: its container.
        place: what `ByteStream.place_before` gave for the same file.

    Raises:
        SourceError: it cannot be opened.
    """
    with _open(path) as file:
        if compression == "none":
            yield _Range(path, file, 0, os.fstat(file.fileno()).st_size)
        elif compression == "zstd":
            yield _Frames(path, file, place)
        else:
            yield _Members(path, file, compression, place)


@contextmanager
def _open(path: Path) -> Iterator[io.FileIO]:
    try:
        file = io.FileIO(path)
    except OSError as error:
        raise SourceError(f"cannot open {path}: {error.strerror}") from error
    with file:
        yield file


class _Range:
    """Bytes [start, stop) of a plain file."""

    def __init__(self, path: Path, file: io.FileIO, start: int, stop: int) -> None:
        self._path, self._file, self.position, self._stop = path, file, start, stop

    def readinto(self, view: memoryview) -> int:
        wanted = min(len(view), self._stop - self.position)
        if wanted <= 0:
            return 0
        try:
            count = os.preadv(self._file.fileno(), [view[:wanted]], self.position)
        except OSError as error:
            raise SourceError(f"cannot read {self._path} at byte {self.position}: {error.strerror}") from error
        if count == 0:
            raise SourceError(
                f"{self._path}: expected {self._stop} bytes, found {self.position}; the file changed while it was read"
            )
        self.position += count
        return count

    def place_before(self, offset: int) -> tuple[int, int]:
        return 0, 0


class _Compressed:
    """What all containers share: counted reads, places to begin at, and one error text."""

    def __init__(self, path: Path, file: io.FileIO, place: tuple[int, int]) -> None:
        self._path, self._file = path, file
        self.position, self._offset = place
        self._places = collections.deque([place])
        file.seek(self.position)

    def _note_place(self, position: int) -> None:
        """Decompression can begin at byte `position` of the file; one that is hardly behind another is not noted."""
        if self._is_far():
            self._places.append((position, self._offset))

    def _is_far(self) -> bool:
        return self._offset - self._places[-1][1] >= CHUNK_BYTES

    def place_before(self, offset: int) -> tuple[int, int]:
        while len(self._places) > 1 and self._places[1][1] <= offset:
            self._places.popleft()
        return self._places[0]

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        try:
            data = self._file.read(size) or b""
        except OSError as error:
            raise SourceError(f"cannot read {self._path} at byte {self.position}: {error.strerror}") from error
        self.position += len(data)
        return data

    def broken(self, what: str) -> SourceError:
        return SourceError(
            f"{self._path}: truncated or corrupt at or before compressed byte {self.position} ({what}); fetch it again"
        )


def _new_decoder(compression: Compression) -> _Decoder:
    if compression == "gzip":
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    if compression == "xz":
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
    return bz2.BZ2Decompressor()


class _Members(_Compressed):
    """gzip, xz or bz2: one or more streams end to end; gzip and xz may have zero bytes between and behind them."""

    def __init__(self, path: Path, file: io.FileIO, compression: Compression, place: tuple[int, int]) -> None:
        super().__init__(path, file, place)
        self._compression = compression
        self._decoder: _Decoder | None = _new_decoder(compression)
        self._rest = b""

    def readinto(self, view: memoryview) -> int:
        while self._decoder is not None or self._start_member():
            out = self._decode(len(view))
            if out:
                view[: len(out)] = out
                self._offset += len(out)
                return len(out)
        return 0

    def _decode(self, max_bytes: int) -> bytes:
        decoder = self._decoder
        assert decoder is not None
        data = b""
        if decoder.needs_input:
            data = self._rest or self.read()
            self._rest = b""
            if not data:
                raise self.broken("the end of the stream is missing")
        try:
            out = decoder.decompress(data, max_bytes)
        except (OSError, EOFError, ValueError, lzma.LZMAError, IsalError) as error:
            raise self.broken(str(error)) from error
        if decoder.eof:
            self._rest, self._decoder = decoder.unused_data, None
        return out

    def _start_member(self) -> bool:
        """Find what follows a complete stream: padding, another stream, or the end of the file."""
        while True:
            rest = self._rest or self.read()
            if not rest:
                return False
            self._rest = rest if self._compression == "bz2" else rest.lstrip(b"\0")
            if self._rest:
                self._note_place(self.position - len(self._rest))
                self._decoder = _new_decoder(self._compression)
                return True


class _Frames(_Compressed):
    """zstd: frames and skippable frames end to end.

    `zstandard` fills a buffer of ours, so that a small file that inflates enormously stays bounded, but ends
    without a word where the input is cut (0.25, stream_reader). So the frames are walked beside it. Now and then a new
    reader begins with a frame: only when one has come to its end is it known how much the frames before hold.
    """

    def __init__(self, path: Path, file: io.FileIO, place: tuple[int, int]) -> None:
        super().__init__(path, file, place)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # what `zstd --long=31` writes
        self._walker = _FrameWalker()
        self._rest = b""
        self._reader = self._new_reader()

    def _new_reader(self) -> zstandard.ZstdDecompressionReader:
        return self._decompressor.stream_reader(
            cast("IO[bytes]", self), CHUNK_BYTES, read_across_frames=True, closefd=False
        )

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        if self._walker.complete and self._is_far():
            return b""  # the end, for this reader
        data = self._rest or super().read(size)
        end = self._walker.feed(data)
        self._rest = data[end:]
        return data[:end]

    def readinto(self, view: memoryview) -> int:
        while True:
            try:
                count = self._reader.readinto(view)
            except zstandard.ZstdError as error:
                raise self.broken(str(error)) from error
            if count:
                self._offset += count
                return count
            if not self._walker.complete:
                raise self.broken("the end of the frame is missing")
            self._rest = self._rest or super().read()
            if not self._rest:
                return 0
            self._note_place(self.position - len(self._rest))
            self._reader = self._new_reader()


class _FrameWalker:
    """Knows whether zstd input may end where it ends, from the sizes in its headers (RFC 8878, 3.1.1)."""

    def __init__(self) -> None:
        self._held, self._skip, self._between = b"", 0, True
        self._steps = self._walk()
        self._wanted = next(self._steps)

    @property
    def complete(self) -> bool:
        return self._between and not self._held and self._skip == 0

    def feed(self, data: bytes) -> int:
        """Look at the bytes that follow, up to the end of a frame; returns how many those are."""
        at = 0
        while at < len(data):
            if self._skip:
                jump = min(self._skip, len(data) - at)
                self._skip -= jump
                at += jump
                if self.complete:
                    break
                continue
            piece = data[at : at + self._wanted - len(self._held)]
            self._held += piece
            at += len(piece)
            if len(self._held) == self._wanted:
                held, self._held = self._held, b""
                self._wanted = self._steps.send(held)
                if self.complete:
                    break
        return at

    def _walk(self) -> Generator[int, bytes, None]:
        """Yield how many bytes are wanted next; ``_skip`` more pass unseen before them."""
        while True:
            self._between = True
            magic = yield 4
            self._between = False
            if _is_skippable(magic):
                self._skip = int.from_bytes((yield 4), "little")
                continue
            descriptor = (yield 1)[0]
            one_segment = bool(descriptor & 0x20)
            content_size_bytes = (1 if one_segment else 0, 2, 4, 8)[descriptor >> 6]
            self._skip = (0 if one_segment else 1) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
            last = False
            while not last:
                header = int.from_bytes((yield 3), "little")
                last = bool(header & 1)
                repeats_one_byte = (header >> 1) & 3 == 1
                self._skip = 1 if repeats_one_byte else header >> 3
            self._skip += 4 if descriptor & 4 else 0
