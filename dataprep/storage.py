"""Atomic writes, checksums, copies: everything that touches the output folder.

What is written whole goes through `AtomicFile`: a private temporary name in the same folder, fsync, rename, fsync of
the folder. A reader therefore sees a whole file or none, and a run that dies leaves only names that hold ``.tmp-``.
What grows (a plan, receipts, events) is appended to line by line; `mend_lines` drops one that a crash cut off.

Not here: how files are called (`layout`), what they mean (`indexed`, `manifest`), who may write (`claims`, `locks`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import orjson
import xxhash

from dataprep.errors import Cancelled, OutputError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    import numpy.typing as npt

    Data = bytes | bytearray | memoryview | npt.NDArray[Any]  # not Buffer: numpy's types are none before Python 3.12

MARK = ".tmp-"
"""What every temporary name holds, and no final one does."""

COPY_BYTES = 1 << 20
"""Block of the scans: reading into a reused buffer of 256 KiB to 1 MiB is the fastest way through a
file that is in the page cache (6 to 11 GB/s on the machine of notes, against 5 for a fresh mmap)."""

MOST_BYTES = 256 << 20
"""Of a file that is read whole: the manifest of a corpus of a million files has as much."""


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """What is in a plain file.

    On a shared file system anything can have the name of a file of ours: opening a pipe would wait for ever, and a file
    of holes fills the memory.

    Raises:
        OSError: it cannot be read, is no plain file, or has more than `most` bytes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        data = file.read(most + 1) if found.st_size <= most else None
    if data is None or len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


@contextlib.contextmanager
def explain(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError on the output into an OutputError that says what to do."""
    try:
        yield
    except OSError as error:
        raise output_error(path, doing, error) from error


def output_error(path: Path, doing: str, error: OSError) -> OutputError:
    """The message for a failed write: what, where, and the next step."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "quota exceeded" if error.errno == errno.EDQUOT else "no space left"
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({shutil.disk_usage(existing(path)).free / 1e6:.0f} MB free)"
        again = "run the same command again: what is finished is kept"
        hint = f"{what}{free}; make room or choose another --output, then {again}"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = f"{os.strerror(error.errno)}; choose a folder you can write to with --output"
    elif error.errno == errno.ENOTDIR:
        hint = "a part of this path is a file, not a folder; choose another --output"
    else:
        hint = f"{error.strerror or error}; run the same command again once this is mended: what is finished is kept"
    return OutputError(f"cannot {doing} {path}: {hint}")


def existing(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def make_folder(path: Path) -> None:
    """Create a folder and its parents.

    Raises:
        OutputError: it cannot be made or is not a folder.
    """
    with explain(path, "create the folder"):
        path.mkdir(parents=True, exist_ok=True)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. A folder that cannot be synced (some network mounts) is left alone."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def write_all(fd: int, data: Data) -> None:
    """Write a whole buffer to a file descriptor, however often the kernel takes only a part."""
    view = memoryview(cast("bytes", data)).cast("B")
    while view:
        view = view[os.write(fd, view) :]


class AtomicFile:
    """A file that appears under its name whole, or not at all.

    Use as a context manager: leaving it normally commits (fsync, rename, fsync of the folder), leaving
    it by an exception removes the temporary file. `checksum` is that of all bytes passed to `write`.

    Args:
        path: the final name.
        durable: survive a power failure. Not for shards: they are proven by their checksum before they are
            used again, which costs less than an fsync in the middle of the hot path.

    Raises:
        OutputError: the file system refuses.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.path = path
        self.durable = durable
        self.temporary = path.with_name(f"{path.name}{MARK}{os.getpid()}-{secrets.token_hex(4)}")
        self.num_bytes = 0
        self._is_committed = False
        self._hash = xxhash.xxh3_128()
        with explain(path, "create"):
            self.fd = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    @property
    def checksum(self) -> str:
        return f"xxh3_128:{self._hash.hexdigest()}"

    def write(self, data: Data) -> None:
        """Append; any C-contiguous buffer."""
        view = memoryview(cast("bytes", data))
        if not view.nbytes:
            return
        with explain(self.path, "write"):
            write_all(self.fd, view)
        self._hash.update(view)
        self.num_bytes += view.nbytes

    def mark(self) -> tuple[int, Any]:
        """A point to come back to with `undo`."""
        return self.num_bytes, self._hash.copy()

    def undo(self, mark: tuple[int, Any]) -> None:
        """Forget what was written since the mark."""
        self.num_bytes, state = mark
        self._hash = state.copy()
        with explain(self.path, "cut back"):
            os.ftruncate(self.fd, self.num_bytes)
            os.lseek(self.fd, self.num_bytes, os.SEEK_SET)

    def commit(self) -> None:
        with explain(self.path, "finish"):
            if self.durable:
                os.fsync(self.fd)
            fd, self.fd = self.fd, -1
            os.close(fd)  # network file systems report a failed write here
            os.replace(self.temporary, self.path)
            self._is_committed = True
            if self.durable:
                sync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove what was not committed. Never raises: it follows an error that says more, and `sweep` follows it."""
        with contextlib.suppress(OSError):
            if self.fd >= 0:
                fd, self.fd = self.fd, -1
                os.close(fd)
        if not self._is_committed:
            with contextlib.suppress(OSError):
                self.temporary.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Write a JSON document atomically: sorted keys, two spaces, a final newline."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    with AtomicFile(path, durable) as file:
        file.write(orjson.dumps(value, option=options))  # json takes a second for 10 MB


def append_line(path: Path, value: dict[str, Any], durable: bool = False) -> None:
    """Append one JSON line; what a crash cuts off is for the reader to leave out, and for `mend_lines`."""
    with explain(path, "append to"), path.open("ab", buffering=0) as file:
        write_all(file.fileno(), json.dumps(value, sort_keys=True).encode() + b"\n")
        if durable:
            os.fsync(file.fileno())


def mend_lines(path: Path) -> None:
    """End the last line of a file, which a crash may have cut off, so that the next one is not lost with it."""
    with explain(path, "append to"), contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            with path.open("ab", buffering=0) as end:  # appended, wherever the end is by now
                end.write(b"\n")


def checksum(path: Path, stop: threading.Event | None = None, span: tuple[int, int] | None = None) -> str:
    """``xxh3_128:<hex>`` of a file, or of as much as there is of bytes [first, last) of it.

    Raises:
        Cancelled: `stop` was set meanwhile.
    """
    digest = xxhash.xxh3_128()
    view = memoryview(bytearray(COPY_BYTES))
    first, last = span or (0, sys.maxsize)
    with path.open("rb", buffering=0) as file:
        file.seek(first)
        while count := file.readinto(view[: last - first]):
            first += count
            digest.update(view[:count])
            if stop is not None and stop.is_set():
                raise Cancelled("stopped")
    return f"xxh3_128:{digest.hexdigest()}"


def copy_range(source: int, target: int, start: int, stop: int) -> None:
    """Append bytes [start, stop) of one open file to another at its position, in the kernel where it can.

    Tries copy_file_range, then sendfile, then read and write: network file systems refuse the first
    two in a dozen ways, and a return of 0 before the end means the same as a refusal.
    """
    position = start
    for method in (_copy_file_range, _sendfile, _read_write):
        while position < stop:
            try:
                count = method(source, target, position, stop - position)
            except OSError as error:
                if method is not _read_write and error.errno in _REFUSALS:
                    break
                raise
            if count == 0:
                break
            position += count
    if position != stop:
        raise OSError(errno.EIO, f"the file ends at byte {position}, expected {stop}")


_REFUSALS = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ENODATA}


UNSUPPORTED = _REFUSALS | {errno.EACCES, errno.EROFS, errno.EPROTO, errno.ENOLCK, errno.ENOTTY}
"""How file systems say that they cannot do something at all, in a folder that can be written to."""


def _copy_file_range(source: int, target: int, position: int, count: int) -> int:
    return os.copy_file_range(source, target, min(count, 1 << 30), offset_src=position)


def _sendfile(source: int, target: int, position: int, count: int) -> int:
    return os.sendfile(target, source, position, min(count, 1 << 30))


def _read_write(source: int, target: int, position: int, count: int) -> int:
    data = os.pread(source, min(count, COPY_BYTES), position)
    write_all(target, data)
    return len(data)


def replace_link(link: Path, target: str) -> None:
    """Point a symlink at a new target in one step; anything that is not a symlink stays as it is.

    The temporary name holds the target's, whose lock the caller holds: what a dead run left is replaced, too.
    """
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f"{link.name}{MARK}{target}")
    with explain(link, "link"):
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(target)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return  # the link is for people; the dataset is there without it
            raise
        os.replace(temporary, link)


def replace_with_link(source: Path, path: Path) -> None:
    """Give a file a second name, in place of what had it.

    Raises:
        OSError: a file system without hard links, or another one.
    """
    temporary = path.with_name(f"{path.name}{MARK}{os.getpid()}-{secrets.token_hex(4)}")
    os.link(source, temporary)
    try:
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # a rename onto the same file leaves both names
