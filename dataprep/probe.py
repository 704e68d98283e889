"""What the file system of a folder can do, found out by doing it, in about 10 ms.

A run notes it in its manifest and refuses a folder in which nothing could be made safely. All else has a way around,
taken where the call itself fails, since that is a better answer than one of a minute ago:

    link              claims are made by exclusive creation, pairs of pairs appear by renames
    copy_file_range   sendfile, or read and write
    flock             what was left is recognised by its age
    symlink           no link to the newest dataset
    sync_folder       nothing: the server does what it does
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import OutputError
from dataprep.specs import Model
from dataprep.storage import MARK, UNSUPPORTED, explain, write_all

if TYPE_CHECKING:
    from collections.abc import Callable


class Probe(Model):
    """What works in a folder.

    Attributes:
        file_system: its type, as the kernel calls it; empty if it does not say.
        exclusive: a file is made only if its name is free.
        replace: a rename puts a file in the place of another.
        link: a file gets a second name, if that is free.
        symlink: a name can stand for another.
        sync_file, sync_folder: fsync does not refuse.
        copy_file_range: the kernel copies between two files.
        flock: a lock that is held is refused to another descriptor, at least on the same machine.
    """

    file_system: str
    exclusive: bool
    replace: bool
    link: bool
    symlink: bool
    sync_file: bool
    sync_folder: bool
    copy_file_range: bool
    flock: bool

    @property
    def lacks(self) -> list[str]:
        """Names of what a run cannot do without."""
        return [name for name in ("exclusive", "replace") if not getattr(self, name)]


def check(folder: Path) -> Probe:
    """Probe the folder of a run.

    Raises:
        OutputError: it cannot be written to, or lacks what a run needs.
    """
    found = probe(folder)
    if found.lacks:
        raise OutputError(
            f"{folder}: this file system ({found.file_system}) has no working {' and '.join(found.lacks)}, without "
            "which half-made files could pass for whole ones; `dataprep doctor` shows more. Choose another --output"
        )
    return found


def probe(folder: Path) -> Probe:
    """Find out what works in a folder; leaves nothing behind.

    Raises:
        OutputError: it cannot be written to.
    """
    place = folder / f"probe{MARK}{os.getpid()}-{secrets.token_hex(4)}"
    with explain(folder, "write to"):
        place.mkdir()
        try:
            return Probe(file_system=file_system(folder), **{name: _works(test, place) for name, test in TESTS.items()})
        finally:
            for path in place.iterdir():
                path.unlink()
            place.rmdir()


def _works(test: Callable[[Path], bool], place: Path) -> bool:
    """Whether something works; an error that says something else than that it does not is raised."""
    try:
        return test(place)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return False


def _make(path: Path, data: bytes = b"dataprep") -> Path:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
    return path


def _exclusive(place: Path) -> bool:
    path = _make(place / "exclusive")
    try:
        _make(path, b"")
    except FileExistsError:
        return path.read_bytes() == b"dataprep"
    return False


def _replace(place: Path) -> bool:
    new, old = _make(place / "new", b"new"), _make(place / "old", b"old")
    os.replace(new, old)
    return old.read_bytes() == b"new" and not new.exists()


def _link(place: Path) -> bool:
    path, other = _make(place / "linked"), place / "link"
    os.link(path, other)
    try:
        os.link(path, other)
    except FileExistsError:
        return other.read_bytes() == b"dataprep"
    return False


def _symlink(place: Path) -> bool:
    os.symlink("exclusive", place / "symlink")
    return os.readlink(place / "symlink") == "exclusive"


def _sync(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _copy(place: Path) -> bool:
    source, target = _make(place / "source"), _make(place / "target", b"")
    with source.open("rb") as one, target.open("r+b") as other:
        count = os.copy_file_range(one.fileno(), other.fileno(), 8)
    return count == 8 and target.read_bytes() == b"dataprep"


def _flock(place: Path) -> bool:
    path = _make(place / "locked")
    with path.open("r+b") as one, path.open("r+b") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


TESTS: dict[str, Callable[[Path], bool]] = {
    "exclusive": _exclusive,
    "replace": _replace,
    "link": _link,
    "symlink": _symlink,
    "sync_file": lambda place: _sync(_make(place / "synced")),
    "sync_folder": _sync,
    "copy_file_range": _copy,
    "flock": _flock,
}


def file_system(path: Path) -> str:
    """The type of the file system that a path lies on, e.g. ``ext4``, ``nfs4``, ``lustre``; empty if nobody says."""
    real, found = os.path.realpath(path), ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:  # man 5 proc: ... mount point ... - type source options
        left, dash, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), left.split()[4]) if dash else ""
        if mount and os.path.commonpath([real, mount]) == mount and len(mount) >= len(found[0]):
            found = (mount, right.split()[0])
    return found[1]
