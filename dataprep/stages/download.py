"""Fetch the files of a corpus, in order, some at a time, ahead of whoever waits for them.

    run     all files of a corpus, whoever may need them later

    start   these files are wanted, in this order
    wait    until they are whole, checked, and what their names say
    drop    they were used (runtime.keep_raw=false): remove them, unless other runs use them, and give their room away

Where raw files are not kept, no more of them are fetched ahead than `Downloads.ahead_bytes`.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dataprep.connections import Connections, starting
from dataprep.errors import Cancelled, DataprepError, OutputError, SourceError
from dataprep.layout import RawFolder
from dataprep.locks import Users
from dataprep.parts import Wanted
from dataprep.readers import check_format
from dataprep.receipts import Receipt, Receipts
from dataprep.storage import existing, explain, replace_with_link
from dataprep.transfer import Fetcher
from dataprep.web import Pause, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dataprep.specs import Corpus, Listing, ReaderSpec, Runtime, SourceFile

GIVING_UP = 3
"""Files in a row that could not be had for all patience, before the rest is not tried any more."""


def run(corpus: Corpus, listing: Listing, runtime: Runtime, report: Callable[[int], None]) -> None:
    """Fetch all files that a listing names; one that cannot be had does not keep the others from coming.

    Args:
        corpus: for its reader.
        listing: of it.
        runtime: connections.
        report: called with the number of new bytes, from several threads.

    Raises:
        SourceError: some files cannot be had.
        OutputError: the file system refuses.
    """
    if listing.raw is None:
        return
    folder, everything = RawFolder(Path(listing.raw)), range(len(listing.files))
    keeping = runtime.model_copy(update={"keep_raw": True})
    with Downloads(folder, listing.files, corpus.reader, keeping, report) as downloads:
        missing = downloads.missing(everything)
        downloads.check_room(missing)
        downloads.start(missing)
        failed = downloads.failures()
    if failed:
        more = f"; and {len(failed) - 1:,} other files failed" if len(failed) > 1 else ""
        raise SourceError(f"{failed[0]}{more}") from failed[0]


class Downloads:
    """The files of one raw folder, while a run needs them; leaving it as a context manager stops what is under way.

    Args:
        folder: the raw folder.
        files: of the recipe; those without a url are the user's own, and always here.
        reader: to make sure that a file is what its name says.
        runtime: connections, keep_raw.
        report: called with the number of new bytes, from several threads.
    """

    def __init__(
        self,
        folder: RawFolder,
        files: Sequence[SourceFile],
        reader: ReaderSpec,
        runtime: Runtime,
        report: Callable[[int], None],
    ) -> None:
        self._folder, self._files, self._reader, self._runtime = folder, files, reader, runtime
        self._pause = Pause()
        self._connections = Connections(runtime.connections)
        self._fetcher = Fetcher(folder, self._connections, self._pause, report)
        self._receipts = self._fetcher.receipts
        self._siblings = [(other, Receipts(other)) for other in folder.siblings() if other.receipts.exists()]
        self._pool = ThreadPoolExecutor(runtime.connections, "download")
        self._order: list[threading.Thread] = []
        self._futures: dict[int, Future[None]] = {}
        self._room = threading.Condition()
        self._held: dict[int, int] = {}
        self._urgent = (0, -1)
        self._given_up = 0
        self._fatal: BaseException | None = None
        self._users = Users(folder.in_use)
        self._used: set[int] = set()
        fetched = [file.num_bytes for file in files if file.url is not None]
        self.ahead_bytes = runtime.ahead_bytes(max(fetched, default=0))

    def missing(self, indices: Iterable[int]) -> list[int]:
        """Those of the files that have to be fetched; what another raw folder has of them is taken from there."""
        files = ((i, self._files[i]) for i in indices)
        return [i for i, file in files if not (_is_here(Path(file.path), file, self._receipts) or self._borrow(file))]

    def _borrow(self, file: SourceFile) -> bool:
        """Link a file that another commit has as well; says whether there was one."""
        if not _wanted(file).is_proven:
            return False
        for folder, receipts in self._siblings:
            theirs, mine, receipt = folder.files / file.name, Path(file.path), receipts.get(file.name)
            if receipt is None or not _is_here(theirs, file, receipts):
                continue
            with contextlib.suppress(OSError):  # a file system without links: it is fetched
                mine.parent.mkdir(parents=True, exist_ok=True)
                replace_with_link(theirs, mine)
                self._receipts.add(_wanted(file), receipt.sha256)
                return True
        return False

    def check_room(self, missing: Sequence[int]) -> None:
        """Make sure that the disk holds what is to be fetched.

        Raises:
            OutputError: it does not.
        """
        left = self._folder.parts_left()
        needed = 0
        for file in (self._files[i] for i in missing):
            begin = self._folder.part(file.name, _wanted(file).identity)
            here = file.num_bytes if _size(Path(file.path)) == file.num_bytes else left.get(begin, 0)
            needed += max(0, file.num_bytes - here)
        if not self._runtime.keep_raw:
            needed = min(needed, self.ahead_bytes)
        free = shutil.disk_usage(existing(self._folder.path)).free
        if needed > free:
            hint = ", or set runtime.keep_raw=false" if self._runtime.keep_raw else ""
            raise OutputError(
                f"{self._folder.path}: {needed / 1e9:,.1f} GB are to be fetched, {free / 1e9:,.1f} GB are free; make "
                f"room, choose another --output{hint}"
            )

    def start(self, indices: Iterable[int]) -> None:
        """Fetch files, in this order, as far as they are not here. Returns at once.

        Raises:
            SourceError: the machine starts no more threads.
        """
        todo = self.missing(i for i in indices if i not in self._futures)
        if not todo:
            return
        self._futures |= {i: Future() for i in todo}
        thread = threading.Thread(target=self._submit, args=(todo,), name="downloads", daemon=True)
        with starting():
            thread.start()
        self._order.append(thread)

    def _submit(self, todo: list[int]) -> None:
        left = deque(todo)
        try:
            while left:
                self._submit_one(left[0])
                left.popleft()
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for one of the files
            self._fatal = self._fatal or error
            self._pause.stop.set()
            for i in left:
                self._settle(i, error)

    def _submit_one(self, index: int) -> None:
        with self._room:
            while not self._pause.stop.is_set() and not self._fits(index):
                self._room.wait()
            self._held[index] = self._files[index].num_bytes
        if self._pause.stop.is_set():
            raise Cancelled("stopped; run the same command again to go on")
        with starting():
            self._pool.submit(self._fetch, index)

    def _settle(self, index: int, error: BaseException | None) -> None:
        """Say what became of a file; what was said first holds: a pool that cannot start a thread keeps the call."""
        with contextlib.suppress(InvalidStateError):
            if error is None:
                self._futures[index].set_result(None)
            else:
                self._futures[index].set_exception(error)

    def _fits(self, index: int) -> bool:
        """Whether there is room for a file.

        There always is for one that somebody waits for, unless files before it are in use, which will make room.
        """
        if self._runtime.keep_raw:
            return True
        if sum(self._held.values()) + self._files[index].num_bytes <= self.ahead_bytes:
            return True
        first, last = self._urgent
        return index <= last and all(other >= first for other in self._held)

    def _fetch(self, index: int) -> None:
        file = self._files[index]
        try:
            self._fetcher.fetch(_wanted(file))
            try:
                check_format(file, self._reader)
            except DataprepError:
                Path(file.path).unlink(missing_ok=True)  # or the next run would take it for good
                raise
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for the file
            self._given_up = self._given_up + 1 if isinstance(error.__cause__, TransientError) else 0
            if self._given_up >= GIVING_UP or isinstance(error, OutputError):
                self._fatal = self._fatal or error
                self._pause.stop.set()  # no network, no disk: the others need not try
            self._settle(index, error)
        else:
            self._given_up = 0
            self._settle(index, None)

    def wait(self, indices: Iterable[int]) -> None:
        """Return once the files are here.

        Raises:
            SourceError: one cannot be had, or is not what it should be.
            OutputError: the file system refuses.
            Cancelled: the block was left.
        """
        waited = [i for i in indices if i in self._futures]
        with self._room:
            self._urgent = (min(waited, default=0), max(waited, default=-1))
            self._room.notify_all()
        for i in waited:
            try:
                self._futures[i].result()
            except Cancelled:
                if self._fatal is not None:  # of another file
                    raise self._fatal from None
                raise

    def failures(self) -> list[DataprepError]:
        """Wait for all; returns why some could not be had."""
        errors = [future.exception() for future in self._futures.values()]
        for error in errors:
            if error is not None and not isinstance(error, DataprepError):
                raise error
        failed = [error for error in errors if isinstance(error, DataprepError)]
        return [error for error in failed if not isinstance(error, Cancelled)] or failed

    def receipt(self, index: int) -> Receipt | None:
        """What a file is that was fetched, now or before; None for one of the user's own."""
        file = self._files[index]
        return self._receipts.get(file.name) if file.url is not None else None

    def noted(self, indices: Iterable[int]) -> list[str | None]:
        """The sha256 of those of the fetched files whose sources prove nothing; None for one without a receipt."""
        unproven = [i for i in indices if self._files[i].url is not None and not _wanted(self._files[i]).is_proven]
        return [receipt.sha256 if (receipt := self.receipt(i)) is not None else None for i in unproven]

    def drop(self, indices: Iterable[int]) -> None:
        """Remove files that were used, unless raw files are kept. Their receipts stay.

        While another run uses the raw folder, nothing is removed; what was put off is done with the next ones, or at
        the end.
        """
        if self._runtime.keep_raw:
            return
        with self._room:
            self._used.update(i for i in indices if self._files[i].url is not None)
            self._remove_used()
            for i in indices:
                self._held.pop(i, None)
            self._room.notify_all()

    def _remove_used(self) -> None:
        with self._users.alone() as alone:
            while alone and self._used:
                path = Path(self._files[self._used.pop()].path)
                with explain(path, "remove"):
                    path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._users)
            self._connections.__enter__()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._pause.stop.set()
        with self._room:
            self._room.notify_all()
        for thread in self._order:
            thread.join()
        self._pool.shutdown()
        self._connections.__exit__()
        self._remove_used()
        self._users.__exit__()


def _is_here(path: Path, file: SourceFile, receipts: Receipts) -> bool:
    """Whether a file lies at a path as its receipt says; the user's own always does."""
    if file.url is None:
        return True
    receipt = receipts.get(file.name)
    if receipt is None or not receipt.fits(_wanted(file)):
        return False
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (receipt.num_bytes, receipt.mtime_ns)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _wanted(file: SourceFile) -> Wanted:
    assert file.url is not None
    return Wanted(file.name, file.url, file.num_bytes, file.checksum)
