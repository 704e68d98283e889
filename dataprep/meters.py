"""What is counted of a stage while it goes on, how fast it is, how long it will take, and the words for it.

Shows and writes nothing: that is for `progress` (stderr) and `monitor` (files).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Literal, Self

from dataprep.specs import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.watcher import Progress

MEMORY_SECONDS = 300.0
"""How far a speed looks back: what is older weighs less than a third. Long, since a worker elsewhere reports a unit at
a time; but not the whole stage, or hours in which workers waited for their nodes would be in it for ever."""


class Speed:
    """Bytes per second: until `MEMORY_SECONDS` nearly the plain average, later that of about the time since then."""

    def __init__(self, now: float) -> None:
        self._start = self._last = now
        self._bytes = 0.0

    def add(self, num_bytes: int, now: float) -> None:
        self._bytes = self._bytes * math.exp((self._last - now) / MEMORY_SECONDS) + num_bytes
        self._last = now

    def at(self, now: float) -> float | None:
        """None while nothing is known."""
        seconds = -math.expm1((self._start - now) / MEMORY_SECONDS) * MEMORY_SECONDS
        rate = self._bytes * math.exp((self._last - now) / MEMORY_SECONDS) / max(1e-3, seconds)
        return round(rate, 3) if rate >= 1e-3 else None


class Figures(Model):
    """How far a stage is.

    Attributes:
        stage: its name.
        stage_bytes, stage_bytes_done: there are to read, and were read. 0: nobody knows.
        seconds: since it began.
        seconds_left: about. None: nobody knows.
        units, units_done: the first may grow while files are fetched.
        num_documents, num_tokens, num_text_bytes: written, those of units that are being worked among them.
        text_bytes_per_second: of this run, lately. None: nobody knows.
        fetch_bytes, fetched_bytes: are to be fetched, and were, by this run.
        fetched_bytes_per_second: lately. None: nobody knows.
        workers: processes beside the driver's.
        retries: units given out again, because their worker was lost.
    """

    stage: str
    stage_bytes: int
    stage_bytes_done: int
    seconds: float
    seconds_left: float | None
    units: int
    units_done: int
    num_documents: int
    num_tokens: int
    num_text_bytes: int
    text_bytes_per_second: float | None
    fetch_bytes: int
    fetched_bytes: int
    fetched_bytes_per_second: float | None
    workers: int
    retries: int


class Tally(Model):
    """What a part of the work came to; the names are those of `Figures`."""

    units_done: int
    source_bytes: int
    num_documents: int
    num_tokens: int
    num_text_bytes: int

    @classmethod
    def of(cls, progress: Progress) -> Self:
        return cls(
            units_done=progress.units,
            source_bytes=progress.source_bytes,
            num_documents=progress.documents,
            num_tokens=progress.tokens,
            num_text_bytes=progress.text_bytes,
        )


class RunState(Figures):
    """A run as ``progress.json`` has it. All counts but those of the stage are of the whole dataset.

    Attributes:
        state: as the driver knew when it wrote; one that was killed could not say so.
        stage_bytes, stage_bytes_done, seconds, seconds_left: of the stage.
        text_bytes_per_second, fetch_bytes, fetched_bytes, fetched_bytes_per_second, retries: of this driver.
        source_bytes, source_bytes_done: of the corpus.
        workers: units worked on at the same time: threads of the driver, or processes that are at work now.
        earlier: what was done when this driver began, and is part of the counts.
        started, updated: UTC, by the clock of the driver's host: when it began, and when it wrote this.
        host, pid: of the driver.
        sequence: how often it has written.
    """

    schema_version: Literal[1] = 1
    state: Literal["running", "published", "failed", "interrupted"]
    corpus: str
    tokenizer: str
    recipe_digest: str
    source_bytes: int
    source_bytes_done: int
    earlier: Tally
    started: str
    updated: str
    host: str
    pid: int
    sequence: int


class Meter:
    """Counts one stage at a time. Not for several threads at once.

    Args:
        clock: seconds, of any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin("", 0)

    def begin(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        """A stage begins, see `watcher.Watcher`; everything is counted anew."""
        self.name, self.total, self.done, self.to_fetch = name, total_bytes, done_bytes, fetch_bytes
        self.documents = self.tokens = self.text_bytes = self.fetched = 0
        self.units = self.planned = self.workers = self.retries = 0
        self.start = self._clock()
        self._read, self._text, self._fetch = Speed(self.start), Speed(self.start), Speed(self.start)

    def add(self, progress: Progress) -> None:
        self.done += progress.source_bytes
        self.documents += progress.documents
        self.tokens += progress.tokens
        self.text_bytes += progress.text_bytes
        self.fetched += progress.fetched_bytes
        self.units += progress.units
        self.planned += progress.planned
        self.workers += progress.workers
        self.retries += progress.retries
        if not progress.earlier:
            now = self._clock()
            self._read.add(progress.source_bytes, now)
            self._text.add(progress.text_bytes, now)
            self._fetch.add(progress.fetched_bytes, now)

    def figures(self) -> Figures:
        now = self._clock()
        fetching = self._fetch.at(now)
        return Figures(
            stage=self.name,
            stage_bytes=self.total,
            stage_bytes_done=self.done,
            seconds=round(now - self.start, 3),
            seconds_left=_left((self.total - self.done, self._read.at(now)), (self.to_fetch - self.fetched, fetching)),
            units=self.planned,
            units_done=self.units,
            num_documents=self.documents,
            num_tokens=self.tokens,
            num_text_bytes=self.text_bytes,
            text_bytes_per_second=self._text.at(now),
            fetch_bytes=self.to_fetch,
            fetched_bytes=self.fetched,
            fetched_bytes_per_second=fetching,
            workers=self.workers,
            retries=self.retries,
        )


def _left(*work: tuple[int, float | None]) -> float | None:
    """About how long it will still take: as long as what takes longest of what there is to do, and its speed."""
    known = [max(0.0, to_do / rate) for to_do, rate in work if rate is not None]
    return round(max(known), 3) if known and max(known) < 1e9 else None


def line(figures: Figures) -> str:
    """How much of a stage is done, how long it took and will take, and what was counted."""
    parts = []
    if figures.stage_bytes > 0:
        parts.append(f"{min(1.0, figures.stage_bytes_done / figures.stage_bytes):.0%}")
    parts.append(short_time(figures.seconds))
    if figures.seconds_left is not None:
        parts.append(f"about {short_time(figures.seconds_left)} left")
    return ", ".join(filter(None, (*parts, counts(figures))))


def counts(figures: Figures, short: bool = False) -> str:
    """What was counted, as far as it says something; '' where there is nothing.

    Args:
        figures: of a stage.
        short: for a terminal of 80 columns.
    """
    of, number = ("/", _three_digits) if short else (" of ", "{:,}".format)
    parts = []
    if figures.units > 0:
        parts.append(f"{figures.units_done:,}{of}{figures.units:,} units")
    if figures.num_tokens:
        parts.append(f"{number(figures.num_documents)} documents, {number(figures.num_tokens)} tokens")
    if figures.text_bytes_per_second is not None:
        parts.append(f"{figures.text_bytes_per_second / 1e6:,.0f} MB/s")
    if figures.fetched_bytes >= figures.fetch_bytes > 0:
        parts.append(f"all {figures.fetched_bytes / 1e9:,.2f} GB fetched")
    elif figures.fetched_bytes:
        wanted = f" of {figures.fetch_bytes / 1e9:,.2f}" if figures.fetch_bytes else ""
        speed = figures.fetched_bytes_per_second
        at = "" if speed is None else f" at {speed / 1e6:,.1f} MB/s"
        parts.append(f"fetched {figures.fetched_bytes / 1e9:,.2f}{wanted} GB{at}")
    if figures.workers:
        parts.append(f"{figures.workers:,} worker{'' if figures.workers == 1 else 's'}")
    if figures.retries:
        parts.append(f"{figures.retries:,} {'retry' if figures.retries == 1 else 'retries'}")
    return ", ".join(parts)


def _three_digits(number: int) -> str:
    return f"{number:,}" if number < 10_000 else short_number(number).replace(" ", "")


def short_number(number: float) -> str:
    """A number in three digits, with a space, for what follows: ``1.23 M``, ``4 ``."""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f} "


def short_time(seconds: float) -> str:
    """A time in the largest unit of which there are two."""
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(1.0, seconds):.0f} s"
