"""When a job is due: slots, which are the times of its schedule, and what earlier runs say of them.

A slot is a moment, and all decisions compare slots with slots, never one machine's clock with another's: a machine
whose clock is ahead runs a slot early, and the others then find that it has a record, and that theirs is older.

    not yet    the newest slot that has come is older than the newest one with a record, or the same
    schedule   it is newer: missed slots before it are not made up for, one run brings all that is new
    retry      the same, but its run failed: after `Retries.wait_seconds`, doubled each time, until there were
               `Retries.attempts` in all, or a run in between went well

Summer time: a time of day that the clock skips is the moment at which it goes on; one that it repeats counts the first
time, unless the hours begin with ``*``, as they do in what is to run every so often: then both times. Days of the month
and of the week are cron's: one of the two suffices, unless one begins with ``*``.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from cronsim import CronSim, CronSimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from zoneinfo import ZoneInfo

    from dataprep.service.jobs import Job, Retries

SHIFT = timedelta(hours=4)
"""More than clocks are ever put back by."""

ABSURD = timedelta(days=1)
"""How far ahead a recorded slot may be. Beyond it the clock of whoever wrote it was wrong, and the job would not run
for as long as it was ahead."""

LONGEST_WAIT = timedelta(days=1)

AGAIN = ("failed", "lost", "interrupted")
WELL = ("published", "unchanged")


class Record(Protocol):
    """What is asked of the record of a run, see `records.RunRecord`."""

    @property
    def run(self) -> int: ...
    @property
    def slot(self) -> str | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def started(self) -> str: ...
    @property
    def ended(self) -> str | None: ...
    @property
    def retry_at(self) -> str | None: ...


@dataclass(frozen=True)
class Due:
    """A run that is to begin.

    Attributes:
        slot: what for, UTC, as records have it.
        attempt: the how many-th for this slot, from 1.
    """

    slot: str
    trigger: Literal["schedule", "retry"]
    attempt: int


def check_cron(cron: str) -> None:
    """Make sure that a schedule is one, and comes.

    Raises:
        ValueError: it does not; the message says what it was, and what is expected.
    """
    expected = "expected five fields, minute hour day month weekday, as in '30 2 * * *'"
    if len(cron.split()) != 5:
        raise ValueError(f"schedule {cron!r}: {expected}")
    try:
        found = next(CronSim(cron, datetime(2000, 1, 1)), None)
    except CronSimError as error:
        raise ValueError(f"schedule {cron!r}: {error}; {expected}".replace("Bad ", "bad ")) from error
    if found is None:
        raise ValueError(f"schedule {cron!r}: there is no such day")


def latest_slot(job: Job, now: datetime) -> datetime | None:
    """The newest slot that is not after `now`, UTC; None: there is no schedule.

    Args:
        job: whose schedule.
        now: with a time zone, as everywhere here.
    """
    if job.schedule is None:
        return None
    found = _slots(job.schedule, job.zone, now, backwards=True)
    return next((slot for slot in found if slot <= now), None)


def next_slots(job: Job, now: datetime, count: int) -> list[datetime]:
    """The first slots after `now`, UTC; fewer where there are no more within 50 years."""
    if job.schedule is None:
        return []
    found = _slots(job.schedule, job.zone, now)
    return list(itertools.islice((slot for slot in found if slot > now), count))


def due(job: Job, records: Sequence[Record], now: datetime, created: datetime) -> Due | None:
    """The run that is to begin now, if any; who paused a job does not ask.

    Args:
        job: whose schedule.
        records: of all runs of the job there are, in any order, also those that were skipped, which count for nothing.
        now: by the clock of this machine.
        created: when the job came to be; it has no slots from before.
    """
    slot = latest_slot(job, now)
    if slot is None:
        return None
    done = [record for record in records if record.state != "skipped"]
    found = [(_moment(record.slot), record) for record in done if record.slot is not None]
    recorded = [(when, record) for when, record in found if when <= now + ABSURD]
    if not recorded:
        begun = min([created, *(_moment(record.started) for record in done)])
        return Due(_text(slot), "schedule", 1) if slot > begun else None
    newest = max(when for when, _ in recorded)
    if slot > newest:
        return Due(_text(slot), "schedule", 1)
    last = max((record for when, record in recorded if when == newest), key=lambda record: (record.attempt, record.run))
    if any(record.run > last.run and record.state in WELL for record in done):
        return None
    again = retry_at(job.retries, last)
    return Due(_text(newest), "retry", last.attempt + 1) if again is not None and now >= again else None


def retry_at(retries: Retries, record: Record) -> datetime | None:
    """When a run is to be tried again, UTC; None: not at all. One for no slot is left to who asked for it."""
    if record.slot is None or record.state not in AGAIN or record.attempt >= retries.attempts:
        return None
    if record.retry_at is not None:
        return _moment(record.retry_at)
    return _moment(record.ended or record.started) + wait(retries, record.attempt)


def wait(retries: Retries, attempt: int) -> timedelta:
    """From the end of this attempt, counted from 1, to the next; at most `LONGEST_WAIT`."""
    return min(timedelta(seconds=retries.wait_seconds << min(attempt - 1, 30)), LONGEST_WAIT)


def _slots(cron: str, zone: ZoneInfo, start: datetime, backwards: bool = False) -> Iterator[datetime]:
    """All slots after, or before, a moment and some around it; UTC, in order, each once.

    Cron is asked for times of day alone, which have no gaps and repeat nothing. Each is the first moment that the clock
    shows it, and those of a schedule that runs every so often the second one, too: two sequences, both in order.
    """
    local = start.astimezone(zone).replace(tzinfo=None)
    local = local + SHIFT if backwards else local - SHIFT
    folds = (0, 1) if cron.split()[1].startswith("*") else (0,)
    shown = [_shown(CronSim(cron, local, reverse=backwards), zone, fold) for fold in folds]
    merged = heapq.merge(*shown, reverse=backwards)
    return (slot for slot, _ in itertools.groupby(merged))


def _shown(times: Iterator[datetime], zone: ZoneInfo, fold: int) -> Iterator[datetime]:
    return (_moment_of(local, zone, fold) for local in times)


def _moment_of(local: datetime, zone: ZoneInfo, fold: int) -> datetime:
    """When a clock of the zone shows a time of day, for the first or the second time, or goes on after it; UTC."""
    while True:
        moment = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == local:
            return moment
        local = local.replace(second=0) + timedelta(minutes=1)  # clocks change at full minutes


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
