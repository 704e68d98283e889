"""One run of a job: claim its dataset, ingest what is new, record how it went, and tell whom it concerns."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dataprep import versions as versioned
from dataprep.claims import TTL_SECONDS, Claim
from dataprep.errors import BusyError, DataprepError, LostClaimError, OutputError, SpecError
from dataprep.service import schedule
from dataprep.service.ingesting import dataset_of, ingest
from dataprep.service.notices import tell
from dataprep.service.records import (
    RECENT,
    RunRecord,
    log_path,
    newest_of,
    read_records,
    since,
    trim,
    utc,
    write_record,
)
from dataprep.watcher import Silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataprep.planning import Request
    from dataprep.service.jobs import Job
    from dataprep.service.records import State
    from dataprep.service.schedule import Due
    from dataprep.versions import Versions
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)

aside = logging.getLogger(f"{__name__}.aside")
"""For the log of a run alone: what whoever called is told by an exception."""

aside.propagate = False


def now() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


def run_job(
    job: Job, due: Due | None = None, watcher: Watcher | None = None, clock: Callable[[], datetime] = now
) -> RunRecord:
    """Run a job once.

    Args:
        job: which.
        due: what for; None: somebody asked for it.
        watcher: is told how it gets on.
        clock: what the time is; for records and the schedule alone.

    Returns:
        How it went: a new version, nothing new, or skipped, because another one was at work or had been faster.

    Raises:
        SpecError: the folder of the dataset is something else.
        DataprepError: it failed; that is recorded, and told.
    """
    versions, ended = dataset_of(job), list[RunRecord]()
    error: BaseException | None = None
    if versions.folder.is_symlink() or (versions.folder / "manifest.json").exists():
        raise SpecError(f"{versions.folder} is something else than the dataset of a job; give the job another name")
    try:
        with Claim(versions.claim, told=lambda who: _tell_holder(versions, who)) as claim:
            record = _begin(job, claim.epoch, due, clock())
            if due is not None and due != _due(job, versions, clock()):
                return _skipped(record, "another run, which was faster", clock())
            before = newest_of(read_records(versions, RECENT))
            if before is not None and before.state == "lost":
                ended.append(before)  # it could tell nobody itself
            record, error = _run(job, versions, claim, record, (watcher or Silent(), clock))
    except BusyError as busy:
        record = _skipped(_begin(job, 0, due, clock()), _holder(busy), clock())
        if all((each.slot, each.holder) != (record.slot, record.holder) for each in _skips(versions)):
            write_record(versions, record)  # once, however often it is looked
    for each in (*ended, record):
        for problem in tell(job.notify, event_of(job, each)):
            log.warning("%s", problem)
    if error is not None:
        raise error
    return record


def _tell_holder(versions: Versions, who: str) -> None:
    unlock = f"if you know that it is dead: dataprep unlock {shlex.quote(str(versions.folder.parent))}"
    log.info("%s is held by %s: looking for a sign of life, up to %d s; %s", versions.folder, who, TTL_SECONDS, unlock)


def _begin(job: Job, epoch: int, due: Due | None, moment: datetime) -> RunRecord:
    return RunRecord(
        job=job.name,
        run=epoch,
        trigger="hand" if due is None else due.trigger,
        slot=None if due is None else due.slot,
        attempt=1 if due is None else due.attempt,
        started=utc(moment),
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def _due(job: Job, versions: Versions, moment: datetime) -> Due | None:
    return schedule.due(job, read_records(versions, RECENT), moment, since(versions, job.created))


def _skips(versions: Versions) -> list[RunRecord]:
    return [record for record in read_records(versions, RECENT) if record.state == "skipped"]


def _skipped(record: RunRecord, holder: str, moment: datetime) -> RunRecord:
    return record.model_copy(update={"state": "skipped", "holder": holder, "ended": utc(moment)})


def _holder(busy: BusyError) -> str:
    """Who holds the dataset, out of the message that says so."""
    text = str(busy)
    return text.partition(" is held by ")[2].partition(";")[0] or text


def event_of(job: Job, record: RunRecord) -> dict[str, Any]:
    """What those are told whom a run concerns, as plain JSON values."""
    versions = dataset_of(job)
    event: dict[str, Any] = {**record.to_json(), "dataset": str(versions.folder)}
    if record.version is not None:
        event["path"] = str(versions.version(record.version))
    return event


def _run(
    job: Job,
    versions: Versions,
    claim: Claim,
    record: RunRecord,
    beside: tuple[Watcher, Callable[[], datetime]],
) -> tuple[RunRecord, BaseException | None]:
    """Do it, and record how it went, whatever ends it."""
    watcher, clock = beside
    error: BaseException | None = None

    def started(request: Request) -> None:
        nonlocal record
        record = record.model_copy(update={"work": request.layout.work.name})
        write_record(versions, record)

    with _logged(versions, record.run):
        try:
            write_record(versions, record)
            versions.take_over(claim)
            done = ingest(job, claim, watcher, started)
            state: State = "unchanged" if done.version is None else "published"
            record = record.model_copy(update=done.model_dump())
            _retain(job, versions, claim, clock())
            trim(versions)
        except DataprepError as caught:
            state, error = "failed", _lost(claim) or caught
        except Exception as caught:  # a fault of ours, or of a library: this run is over, and others go on
            state, error = "failed", DataprepError(f"{type(caught).__name__}: {caught}")
            log.exception("the run failed")
        except (KeyboardInterrupt, SystemExit) as caught:  # somebody ends the process
            state, error = "interrupted", caught
        if state == "failed":
            aside.error("%s", error)
            record = record.model_copy(update={"error": str(error)})
        record = record.model_copy(update={"state": state, "ended": utc(clock())})
        again = None if isinstance(error, LostClaimError) else schedule.retry_at(job.retries, record)
        record = record.model_copy(update={"retry_at": None if again is None else utc(again)})
        try:
            write_record(versions, record)
        except OutputError as caught:  # a full disk: those who are told know all the same
            log.error("%s", caught)
            error = error or caught
    return record, error


def _lost(claim: Claim) -> LostClaimError | None:
    """That the claim was overtaken, if it was: whatever else went wrong comes of that."""
    with contextlib.suppress(OutputError):  # the error that is there says more
        try:
            claim.check()
        except LostClaimError as error:
            return error
    return None


def _retain(job: Job, versions: Versions, claim: Claim, moment: datetime) -> None:
    removed = versioned.retain(versions, claim, job.retention.versions, job.retention.days, moment)
    for number in removed.versions:
        log.info("removed %s, which is old", versions.version(number))
    for number in removed.leased:
        log.info("%s is old, and stays: it is in use", versions.version(number))
    if removed.parts:
        log.info("removed %d parts that are in no version: %.1f MB", len(removed.parts), removed.num_bytes / 1e6)


class _LogFile(logging.FileHandler):
    """The log of a run. On a full disk lines are lost, of which logging itself would print a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging calls it
        """Do without the line."""


@contextlib.contextmanager
def _logged(versions: Versions, run: int) -> Iterator[None]:
    """Keep what is logged in the file of this run as well; one that cannot be written is done without."""
    path = log_path(versions, run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        log.warning("%s cannot be written: %s", path, os.strerror(error.errno or 0))
        yield
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S %z"))
    logger = logging.getLogger("dataprep")
    shown, level, others = logger.getEffectiveLevel(), logger.level, [(each, each.level) for each in logger.handlers]
    for each, least in others:
        each.setLevel(max(shown, least))  # they go on to show what they did
    logger.setLevel(min(shown, logging.INFO))
    logger.addHandler(handler)
    aside.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        aside.removeHandler(handler)
        logger.setLevel(level)
        for each, least in others:
            each.setLevel(least)
        with contextlib.suppress(OSError):  # of a full disk, again
            handler.close()
