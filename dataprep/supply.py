"""What a run works on: its units in plan order, each group as soon as its files are here.

    plan       which groups, and of those that were cut, which units
    done       units that an earlier run finished: merged for good or as shards, found so by their checksums
    downloads  files of groups that are not done: fetched ahead, in plan order
    used       a group whose shards are all done: its raw files may go

The files of a corpus are proven here, too: what was fetched by the checksum it was fetched with, the user's own files
by a thread that reads ahead of the work.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dataprep import journal, shards
from dataprep.cuts import Cuts
from dataprep.estimates import estimate
from dataprep.layout import RawFolder
from dataprep.manifest import Counts
from dataprep.sources import check_unchanged, remember, with_checksum
from dataprep.stages import tokenize
from dataprep.stages.download import Downloads
from dataprep.storage import existing, explain
from dataprep.units import Plan
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dataprep.manifest import Counts, Unit, UnitManifest
    from dataprep.planning import Request
    from dataprep.specs import SourceFile

log = logging.getLogger(__name__)


class Supply:
    """Units and files of one run. Use as a context manager.

    Args:
        request: the run.
        job: the same, for workers.
        report: told of bytes fetched and of units cut, from several threads.
        fence: raises if the run does not hold its output any more.

    Attributes:
        plan: the groups, and the units of those that were cut.
        done: keys of units that are done.
        earlier: what of the units in `done` an earlier run did; their source bytes are not in it.
        merged: the first of them, which an earlier run merged for good.
    """

    def __init__(
        self, request: Request, job: tokenize.Job, report: Callable[[Progress], None], fence: Callable[[], None]
    ) -> None:
        self._request, self._job = request, job
        self.plan = Plan.load(request.layout, request.recipe, request.runtime, fence)
        self.done: set[str] = set()
        self._cuts = Cuts(request.recipe.max_tokens, by_unit=not request.recipe.output.merge)
        self.merged = journal.Merged(self._cuts)
        self.earlier = Progress(earlier=True)
        self._report, self._fence = report, fence
        self._stack = contextlib.ExitStack()
        self._downloads: Downloads | None = None
        if request.listing.raw is not None:
            remember(request.corpus.source, request.listing)
            folder = RawFolder(Path(request.listing.raw))
            recipe = request.recipe
            self._downloads = Downloads(folder, recipe.files, recipe.reader, request.runtime, self._fetched)
        own = [file for file in request.recipe.files if file.url is None and file.checksum is None]
        self._hashing = _Hashing(own)

    def __enter__(self) -> Self:
        if self._downloads is not None:
            self._stack.enter_context(self._downloads)
        self._stack.enter_context(self._hashing)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self) -> int:
        """Find what is done, and begin to fetch what is not; returns how many bytes are to be fetched."""
        for number in range(len(self.plan.groups)):
            self.plan.keep(number, self._noted(number))
        left = self._find_merged()
        todo: list[int] = []
        for number, files in enumerate(self.plan.groups):
            units = self.plan.units(number)
            keys = ((unit, unit.key) for unit in units or ())
            whole = [key for unit, key in keys if key in self.done or (key in left and self.is_whole(unit))]
            self.done.update(whole)
            if units is None or len(whole) < len(units):
                todo += files
        if self.done:
            log.info("resuming: %d of %d units are already done", len(self.done), len(self.known()))
        missing = self._downloads.missing(todo) if self._downloads is not None else []
        if self._downloads is not None:
            self._downloads.check_room(missing)
        if not self.done:
            self._warn_of_a_small_disk()
        if self._downloads is not None:
            self._downloads.start(missing)
        return sum(self._request.recipe.files[i].num_bytes for i in missing)

    def _warn_of_a_small_disk(self) -> None:
        """Say so if the dataset may not fit; only about, so that it stops nothing."""
        guess = estimate(self._request.recipe, self._request.runtime, ask=False)
        free = shutil.disk_usage(existing(self._request.layout.output)).free
        if free < guess.disk_bytes:
            log.warning(
                "%s: about %.2f GB will be needed while this runs, %.2f GB are free",
                self._request.layout.output,
                guess.disk_bytes / 1e9,
                free / 1e9,
            )

    def units(self, number: int) -> list[Unit]:
        """The units of a group; waits for its files unless all of them are done.

        Raises:
            SourceError: a file cannot be had or read.
        """
        units = self.plan.units(number)
        if self._downloads is not None and (units is None or any(unit.key not in self.done for unit in units)):
            self._downloads.start(self.plan.groups[number])
            self._downloads.wait(self.plan.groups[number])
        if units is None:
            units = self.plan.cut(number, self._noted(number))
            self._report(Progress(planned=len(units)))
        return units

    def _fetched(self, num_bytes: int) -> None:
        self._report(Progress(fetched_bytes=num_bytes))

    def _add_earlier(self, counts: Counts, units: int) -> None:
        self.earlier += Progress(0, counts.num_documents, counts.num_tokens, counts.num_text_bytes, units=units)

    def _noted(self, number: int) -> list[str | None]:
        """The sha256 of those of a group's fetched files whose sources prove nothing; None where it is not known."""
        return self._downloads.noted(self.plan.groups[number]) if self._downloads is not None else []

    def __iter__(self) -> Iterator[list[Unit]]:
        """The units of all groups, in plan order."""
        return (self.units(number) for number in range(len(self.plan.groups)))

    def known(self) -> list[Unit]:
        """The units of all groups that were cut."""
        return [unit for number in range(len(self.plan.groups)) for unit in self.plan.units(number) or ()]

    def is_whole(self, unit: Unit) -> bool:
        """Whether an earlier run finished a unit, this one may use it, and its shard is still what it wrote.

        Shards are not synced to disk one by one, so after a power failure a manifest may stand beside a hollow shard.
        """
        layout = self._request.layout
        found = self._shards(unit)
        if found is not None and all(shards.is_whole(layout, shard) for shard in found):
            self._add_earlier(sum((shard.counts for shard in found), Counts()), 1)
            return True
        with explain(layout.shard(unit.key), "clear"):
            layout.unit_manifest(unit.key).unlink(missing_ok=True)
        return False

    def _shards(self, unit: Unit) -> tuple[UnitManifest, ...] | None:
        """What an earlier run says it made of a unit, if we `tokenize.may_use` it."""
        found = shards.load_done(self._request.layout, unit.key, self._request.digest)
        usable = found is not None and all(tokenize.may_use(self._job, shard.engine) for shard in found)
        return found if usable else None

    def _find_merged(self) -> set[str]:
        """See which of the first units an earlier run merged for good; of them nothing stays among the shards.

        Returns:
            The units of which there is something left there.
        """
        layout, job = self._request.layout, self._job
        may_use = functools.cache(lambda engine: tokenize.may_use(job, engine))
        self.merged = journal.resume(layout, self.known(), self._request.digest, self._cuts, may_use)
        self.done.update(unit.key for unit in itertools.islice(self.known(), self.merged.num_units))
        self._add_earlier(self.merged.counts, self.merged.num_units)
        left: set[str] = set()
        self._fence()
        with explain(layout.shards, "clear"):
            for entry in os.scandir(layout.shards):
                key = entry.name.partition(".")[0]
                if key in self.done:
                    os.unlink(entry)
                else:
                    left.add(key)
        return left

    def used(self, number: int) -> None:
        """All shards of a group are done."""
        if self._downloads is not None:
            self._downloads.drop(self.plan.groups[number])

    def files(self) -> tuple[SourceFile, ...]:
        """All files with the checksums of what was read.

        Raises:
            SourceError: a file of the user's own has changed.
        """
        hashed = {file.name: file for file in self._hashing.result()}
        return tuple(hashed.get(file.name) or self._proven(i) for i, file in enumerate(self._request.recipe.files))

    def _proven(self, index: int) -> SourceFile:
        """A fetched file with the checksum it was fetched with; one that a limit did not need, as it was listed."""
        file = self._request.recipe.files[index]
        receipt = self._downloads.receipt(index) if self._downloads is not None else None
        if receipt is None or file.url is None:
            return file.public()
        return file.public().model_copy(update={"checksum": f"sha256:{receipt.sha256}", "stated": file.checksum})


class _Hashing:
    """Checksums of the source files, taken by a thread while the units are worked: it reads ahead of them."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "hashing")

    def __enter__(self) -> Self:
        self._future = self._pool.submit(lambda: tuple(self._checksum(file) for file in self._files))
        return self

    def _checksum(self, file: SourceFile) -> SourceFile:
        result = with_checksum(file, self._stop)
        check_unchanged(file)
        return result

    def result(self) -> tuple[SourceFile, ...]:
        """The files with their checksums, once more found to be those that were listed."""
        files = self._future.result()
        for file in files:
            check_unchanged(file)
        return files

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._pool.shutdown()
