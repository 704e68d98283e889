"""Locks of the kernel, for what processes of one machine share; who may write a dataset, `claims` settle."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dataprep.errors import BusyError
from dataprep.storage import explain

if TYPE_CHECKING:
    from collections.abc import Iterator


class Users:
    """Who uses a folder: a file that all of them lock together. Use as a context manager.

    Args:
        path: the file. Where it cannot be made, or locks do not work, nobody is known.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._fd = path, -1

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        return self

    def __exit__(self, *error: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether there is no other user; none comes while the block runs."""
        if self._fd < 0:
            yield True
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        except OSError:
            alone = True
        try:
            yield alone
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_SH)


@contextlib.contextmanager
def hold(path: Path) -> Iterator[int]:
    """Hold a lock file for the length of the block; the kernel lets go of it when the process dies.

    Yields:
        The file descriptor. The lock is that of the open file (flock(2)): a process that inherits the descriptor holds
        it, too, and on if this one dies. See `lend` and `let_go`.

    Raises:
        BusyError: another process holds it; the message says which, where and since when.
    """
    with explain(path, "lock"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with explain(path, "lock"):  # but not the block: its errors are not the lock's
            _lock(fd, path)
            record = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
            _write(fd, record)
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


def lend(fd: int, pid: int) -> None:
    """Note that a process that was started with the descriptor holds the lock as well, for who finds it held."""
    with contextlib.suppress(OSError, ValueError, TypeError):  # a full disk; then it is not named
        _write(fd, json.loads(os.pread(fd, 4096, 0)) | {"started": pid})


def let_go(fd: int) -> None:
    """Release the lock whoever else has the descriptor: a daemon that the process left behind, say."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def _write(fd: int, record: dict[str, Any]) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(record).encode(), 0)


def _lock(fd: int, path: Path) -> None:
    """Take the lock; tries for half a second, because `_holder` takes it for an instant to look."""
    deadline = time.monotonic() + 0.5
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                who = _holder(path) or "another process"
                raise BusyError(
                    f"{path.parent} is held by {who}; wait for it to end, or choose another --output"
                ) from None
            time.sleep(0.02)


def _holder(path: Path) -> str | None:
    """Who holds a lock file now, for a message, or None; looks without waiting."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _named(file.read())
    except OSError:
        pass
    return None


def _named(record: bytes) -> str:
    try:
        value = json.loads(record)
        who = f"process {value['pid']}"
        if "started" in value:  # which may live on without it
            who = f"process {value['started']}, which {who} started,"
        return f"{who} on {value['host']} since {value['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
