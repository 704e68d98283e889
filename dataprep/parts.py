"""A file while it is fetched: whose it is, and what is there of it.

A part is private to one process, which holds its lock while it writes, and touches it while it waits. One that a dead
run left is taken over by a rename: of several who try, one wins. Where locks do not reach, on another machine, or tell
nothing, a process that has not touched its part for long is taken for dead, though it may be alive: its part is copied,
so that no two ever write to one file.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from dataprep.digests import Digests
from dataprep.storage import COPY_BYTES, MARK, explain, sync_folder

if TYPE_CHECKING:
    from dataprep.layout import RawFolder
    from dataprep.web import Pause

IDLE_SECONDS = 60.0
"""A part of another machine that nobody wrote to for so long was left by a dead run: locks may mean nothing there."""

BEAT_SECONDS = 15.0
"""How often who waits, for its turn or a server, touches its part."""

LOOK_SECONDS = 1.0
"""What at most counts of the time between two looks: who stood still, or whose file server did, saw nothing."""

LOCKING_SECONDS = 2.0
"""How long a process of this machine may take between naming a part and locking it."""


@dataclass(frozen=True)
class Wanted:
    """A file to fetch.

    Attributes:
        name: below the raw folder.
        url: where it is: ``hf://``, ``https://``, or an object store.
        num_bytes: its size.
        checksum: ``sha256:``, ``git-sha1:``, ``etag:``, or None.
    """

    name: str
    url: str
    num_bytes: int
    checksum: str | None

    @property
    def is_proven(self) -> bool:
        """Whether the source states what the content must be."""
        return (self.checksum or "").startswith(("sha256:", "git-sha1:"))

    @property
    def identity(self) -> str:
        return f"{self.num_bytes} {self.checksum}"


class Part:
    """A file while it is fetched.

    Attributes:
        position: how much of it is there; always its beginning.
    """

    def __init__(self, path: Path, fd: int, wanted: Wanted, left: Path | None) -> None:
        self.path, self._fd, self._wanted, self._left = path, fd, wanted, left
        self._digests, self.position = Digests(wanted.num_bytes, wanted.checksum), 0

    @classmethod
    def open(cls, path: Path, wanted: Wanted, left: Path | None, dead: bool) -> Self | None:
        """A new part, or one that was left; None if another process was faster to take that.

        One whose owner is dead gets our name. Another one is copied by `take_in`: its owner may yet go on, and must not
        write to what is ours.
        """
        with explain(path, "create"):
            if left is not None and dead:
                try:
                    os.rename(left, path)
                    os.utime(path)  # lately written to, so alive, until it is locked
                except FileNotFoundError:
                    return None
                left = None
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            with contextlib.suppress(OSError):  # a file system without locks: then idle time tells
                fcntl.flock(fd, fcntl.LOCK_EX)  # who only looks holds it for an instant
            os.utime(fd)  # the same for machines that do not see the lock
            return cls(path, fd, wanted, left)

    def take_in(self, pause: Pause) -> None:
        """Read what is there of it, which may take as long as fetching it.

        Raises:
            OutputError: the file system refuses.
            Cancelled: the pause was stopped.
        """

        def check() -> None:
            pause.check()
            os.utime(self._fd)  # still alive

        with explain(self.path, "read"):
            if self._left is not None:
                with contextlib.suppress(FileNotFoundError), self._left.open("rb", buffering=0) as left:
                    while block := left.read(COPY_BYTES):
                        check()
                        os.write(self._fd, block)
                    self._left.unlink()
            self.position = self._digests.read(self._fd, self._wanted.num_bytes, check)

    def touch(self) -> None:
        """Show those who cannot see its lock, or cannot trust it, that its owner is alive."""
        with explain(self.path, "touch"):
            os.utime(self._fd)

    @property
    def stop(self) -> int:
        """The size it is to have."""
        return self._wanted.num_bytes

    @property
    def sha256(self) -> str:
        return self._digests.sha256

    def write(self, data: bytes | bytearray) -> None:
        with explain(self.path, "write"):
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], self.position + written)
        self._digests.update(data)
        self.position += len(data)

    def restart(self) -> None:
        """Begin anew."""
        with explain(self.path, "cut back"):
            os.ftruncate(self._fd, 0)
        self._digests, self.position = Digests(self._wanted.num_bytes, self._wanted.checksum), 0

    def is_whole(self) -> bool:
        """Whether all bytes are there, and are those that the source states."""
        whole = self.position == self._wanted.num_bytes == os.fstat(self._fd).st_size
        return whole and self._digests.agree()

    def publish(self, path: Path) -> bool:
        """Give it its name; False where somebody who took this process for dead has taken it over."""
        with explain(path, "finish"):
            os.fsync(self._fd)
            try:
                os.replace(self.path, path)
            except FileNotFoundError:
                return False
            sync_folder(path.parent)
        return True

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


def claim(folder: RawFolder, wanted: Wanted, pause: Pause) -> Part | None:
    """A part of this process's own, or None once the file is there; waits while another process fetches it.

    Raises:
        OutputError: the file system refuses.
        Cancelled: the pause was stopped.
    """
    begin, path = folder.part(wanted.name, wanted.identity), folder.files / wanted.name
    watched: dict[Path, Watched] = {}
    while not path.exists():
        with _claiming:
            part = _take(folder, begin, wanted, watched)
        if part is None:
            pause.wait(0.2)
        elif path.exists():  # published in between
            part.discard()
        else:
            with contextlib.ExitStack() as stack:
                stack.push(part)
                part.take_in(pause)
                stack.pop_all()
            return part
    return None


_claiming = threading.Lock()
"""Threads of a process take turns, so that a part of this process without a lock is always one that was left."""


@dataclass
class Watched:
    """A part of another machine whose lock is held, by whoever.

    Attributes:
        mtime_ns: when it was touched, by the clock of the file system.
        looked: when it was looked at, by our own.
        quiet: seconds of looking on in which it was not touched.
    """

    mtime_ns: int
    looked: float
    quiet: float = 0.0

    def look(self, mtime_ns: int) -> bool:
        """Whether it was touched lately."""
        now = time.monotonic()
        self.quiet = self.quiet + min(now - self.looked, LOOK_SECONDS) if mtime_ns == self.mtime_ns else 0.0
        self.mtime_ns, self.looked = mtime_ns, now
        return self.quiet < IDLE_SECONDS


def _take(folder: RawFolder, begin: str, wanted: Wanted, watched: dict[Path, Watched]) -> Part | None:
    """A part of this process's own, or None: another process has one."""
    with explain(folder.parts, "look into"):
        there = [p for p in folder.parts.iterdir() if p.name.startswith(begin)]
    states = {path: _state(path, watched) for path in there}
    if "alive" in states.values():
        return None
    # What nothing can prove is gone on with only where the kernel that wrote it still runs: after a power failure there
    # may be zeros in it.
    trusted = there if wanted.is_proven else [p for p in there if _boot_of(p) == _boot()]
    longest = max(trusted, key=_size, default=None)
    for path in there:
        if path != longest:
            path.unlink(missing_ok=True)
    dead = longest is not None and states[longest] == "dead"
    part = Part.open(folder.parts / (begin + _owner()), wanted, longest, dead)
    if part is None:
        return None
    rivals = [p for p in folder.parts.iterdir() if p.name.startswith(begin) and p.name < part.path.name]
    if any(_state(p, watched) == "alive" for p in rivals):  # two began in the same instant
        part.discard()
        return None
    return part


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # taken meanwhile
        return 0


@functools.cache
def _boot() -> str:
    """Which machine, and since when it has been running."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").replace("-", "")[:16]
    except OSError:
        return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16]


def _owner() -> str:
    return f"{_boot()}-{os.getpid()}-{secrets.token_hex(4)}"


def _boot_of(path: Path) -> str:
    return path.name.rpartition(MARK)[2].partition("-")[0]


def _state(path: Path, watched: dict[Path, Watched]) -> Literal["alive", "dead", "silent"]:
    """Whether somebody is writing a part: holds its lock, or, where locks do not reach, touched it lately.

    A lock that another machine holds proves nothing for ever: an NFSv3 server keeps those of a client that is gone.

    ``silent``: nobody did, but its owner may be alive.
    """
    reached = _boot_of(path) == _boot()
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                mtime_ns = os.fstat(file.fileno()).st_mtime_ns
                seen = watched.setdefault(path, Watched(mtime_ns, time.monotonic()))
                return "alive" if seen.look(mtime_ns) or reached else "silent"
            except OSError:  # a file system without locks
                reached = False
            idle = time.time() - os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return "dead"
    if not reached:
        return "alive" if idle < IDLE_SECONDS else "silent"
    pid = int(path.name.rsplit("-", 2)[1])
    return "alive" if pid != os.getpid() and _is_running(pid) and idle < LOCKING_SECONDS else "dead"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
