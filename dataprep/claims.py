"""One writer for each output, also where locks lie, clocks disagree, and several machines share the folder.

    <folder>/
      epoch-<N>.json       who made the N-th claim: written privately, named by a hard link, never replaced
      epoch-<N>.beat       a number that its holder counts up every `BEAT_SECONDS`
      epoch-<N>.released   there once its holder is done with it

The highest N counts, and is a fencing token: it only grows, and whoever sees one above its own has lost its claim.
Nobody asks for the time of day or of a file. Who comes next takes N + 1

    at once       the claim was released, or its holder was a process of this very machine that has ended
    after a TTL   neither epoch nor beat changed while it looked on for `TTL_SECONDS`, by its own clock; time in which
                  it could not look (it was stopped, the server hung) does not count
    not           there was a sign of life: then it gives up, or waits, as it was asked to

A holder that was only asleep finds out when it wakes: by `Claim.check` before all that destroys or shows, and by names
that hold its epoch and are gone (`layout.Layout.merged`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Self

from dataprep.errors import BusyError, DataprepError, LostClaimError, OutputError
from dataprep.holders import Holder, mine
from dataprep.remains import sweep
from dataprep.storage import MARK, AtomicFile, explain, make_folder, read_whole, write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEAT_SECONDS = 10.0
"""How often a holder shows that it lives."""

TTL_SECONDS = 180.0
"""How long it has to be silent to be overtaken: longer than network file systems keep names and attributes (60 s), and
than a machine stands still for (swapping, a live migration)."""

LOOK_SECONDS = 1.0
"""How often who waits looks."""

_NAME = re.compile(r"epoch-(\d+)\.(?:json|beat|released)")


@dataclass(frozen=True, slots=True)
class Seen:
    """The claim that counts, as it was found.

    Attributes:
        epoch: its number; 0: nobody ever claimed the folder.
        holder: who made it; None where its file cannot be read.
        beat: what its holder counted up last.
        released: whether its holder is done with it.
    """

    epoch: int
    holder: Holder | None
    beat: bytes
    released: bool

    @property
    def is_free(self) -> bool:
        """Whether it can be taken at once."""
        return self.released or (self.holder is not None and self.holder.has_ended)

    @property
    def is_near(self) -> bool:
        """Whether its holder is a process of this machine: whether it lives is no guess then."""
        return self.holder is not None and self.holder.is_near

    @property
    def who(self) -> str:
        """Its holder, for a message."""
        return str(self.holder or "another process")


def look(folder: Path) -> Seen:
    """The claim that counts in a folder.

    Raises:
        OSError: the folder is there and cannot be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        names = []
    epoch = max((int(match[1]) for match in map(_NAME.fullmatch, names) if match), default=0)
    beat = b""
    try:
        beat = read_whole(folder / f"epoch-{epoch}.beat")
    except OSError as error:  # not there yet, or just replaced, by another NFS client
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise  # one whose beats cannot be read would pass for dead
    released = epoch == 0 or f"epoch-{epoch}.released" in names
    return Seen(epoch, Holder.read(folder / f"epoch-{epoch}.json"), beat, released)


class Claim:
    """The claim to one folder, held while the block runs. Use as a context manager.

    Args:
        folder: where claims are kept, in the folder that is claimed; made.
        wait: for a holder that lives.
        told: called once, with who holds it, when there is a reason to look on.
        beat_seconds, ttl_seconds: see `BEAT_SECONDS` and `TTL_SECONDS`.

    Attributes:
        epoch: of this claim.
        overtook: who had it and was silent for too long, or "".

    Raises:
        BusyError: another one holds it and lives.
        OutputError: the file system refuses.
    """

    def __init__(
        self,
        folder: Path,
        wait: bool = False,
        told: Callable[[str], None] | None = None,
        beat_seconds: float | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        self.folder, self.epoch, self.overtook = folder, 0, ""
        self._wait, self._told = wait, told
        self._beat_seconds = BEAT_SECONDS if beat_seconds is None else beat_seconds
        self._ttl_seconds = TTL_SECONDS if ttl_seconds is None else ttl_seconds
        self._me = Holder.me()
        self._beats, self._beating = 0, threading.Lock()
        self._over, self._lost = threading.Event(), threading.Event()
        self._heart = threading.Thread(target=self._beat_on, name="claim", daemon=True)

    @property
    def held(self) -> bool:
        """Whether nobody is known to have overtaken it; asks no file."""
        return not self._lost.is_set()

    def check(self) -> None:
        """Make sure that the claim is still ours; to be called before anything is destroyed or shown.

        Beats first: a network file system may know names of a minute ago, until it changes the folder itself.

        Raises:
            LostClaimError: it was overtaken, or removed.
            OutputError: the file system refuses.
        """
        failed = self._beat()
        with explain(self.folder, "look into"):
            seen = look(self.folder)
        if seen.epoch > self.epoch:
            self._lost.set()
            raise LostClaimError(
                f"{self.folder.parent} was taken over by {seen.who}: this run gave no sign of life for "
                f"{self._ttl_seconds:.0f} s, or was unlocked. It ends here and writes nothing more; what it finished "
                "is kept, and the other one goes on from there"
            )
        if failed is not None and seen.epoch < self.epoch:
            self._lost.set()
            raise LostClaimError(
                f"{self.folder} was removed while this run went on, so another one may work beside it. It ends here; "
                "run the same command again: finished units are kept"
            )
        if failed is not None:
            raise failed

    def _beat(self) -> OutputError | None:
        """Count up. A full disk is no reason not to clear up what lies on it; another error is returned."""
        try:
            with self._beating, AtomicFile(self._path("beat"), durable=False) as file:
                self._beats += 1
                file.write(b"%d\n" % self._beats)
        except OutputError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
            return None if full else error
        return None

    def _beat_on(self) -> None:
        while not self._over.wait(self._beat_seconds):
            try:
                self.check()
            except LostClaimError:
                return
            except DataprepError:
                pass  # the next one may succeed; if none does, the run is overtaken

    def _path(self, suffix: str) -> Path:
        return self.folder / f"epoch-{self.epoch}.{suffix}"

    def __enter__(self) -> Self:
        make_folder(self.folder)
        mine.add(self._me.token)
        with contextlib.ExitStack() as stack:
            stack.callback(self._release)
            self._take()
            sweep(self.folder, self.check)
            self._heart.start()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._heart.join()
        self._release()

    def _release(self) -> None:
        if self.epoch and self.held:
            with contextlib.suppress(OSError):
                os.close(os.open(self._path("released"), os.O_WRONLY | os.O_CREAT, 0o666))
        mine.discard(self._me.token)

    def _take(self) -> None:
        """Take the claim as soon as it may be taken."""
        pause = min(LOOK_SECONDS, self._ttl_seconds / 10)
        before, lives, silent, last = None, False, 0.0, time.monotonic()
        while True:
            with explain(self.folder, "look into"):
                seen = look(self.folder)
            now = time.monotonic()
            silent, last = silent + min(now - last, 2 * pause), now
            if before not in (None, seen):
                lives, silent = True, 0.0
            before = seen
            if seen.is_free or silent >= self._ttl_seconds:
                if self._make(seen.epoch + 1):
                    self.overtook = "" if seen.is_free else seen.who
                    return
                time.sleep(min(pause, 0.01))
                continue  # another one was faster
            if not self._wait and (lives or seen.is_near):
                raise BusyError(
                    f"{self.folder.parent} is held by {seen.who}; wait for it to end (--wait), or choose another "
                    "--output"
                )
            if self._told is not None:
                self._told(seen.who)
                self._told = None
            time.sleep(pause)

    def _make(self, epoch: int) -> bool:
        """Make the claim of a number; says whether it is ours, or another one was faster."""
        path = self.folder / f"epoch-{epoch}.json"
        private = path.with_name(f"{path.name}{MARK}{self._me.token}")
        me = replace(self._me, since=time.strftime("%Y-%m-%d %H:%M:%S %z"))
        with explain(path, "claim"):
            _write(private, me)
            try:
                os.link(private, path)
            except OSError as error:
                if not _is_same(private, path):  # else it was made, and the answer was lost
                    private.unlink(missing_ok=True)
                    if isinstance(error, FileExistsError) or not _write_alone(path, me):
                        return False
        self.epoch = epoch
        return True


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _write(path: Path, holder: Holder) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            write_all(fd, json.dumps(asdict(holder)).encode() + b"\n")
        finally:
            os.close(fd)  # network file systems report a failed write here
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _write_alone(path: Path, holder: Holder) -> bool:
    """Make the claim without a hard link, which may have failed for any reason; says whether it is ours.

    Whoever finds it before it is written whole finds a holder without a name, and looks on.
    """
    try:
        _write(path, holder)
    except FileExistsError:
        found = Holder.read(path)
        return found is not None and found.token == holder.token
    return True
