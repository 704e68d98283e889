"""One run of a job: claim its dataset, ingest what is new, record how it went, and tell whom it concerns."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dataprep import versions as versioned
from dataprep.claims import Claim
from dataprep.errors import BusyError, DataprepError, LostClaimError, OutputError, SpecError
from dataprep.service import schedule
from dataprep.service.ingesting import dataset_of, ingest
from dataprep.service.notices import tell
from dataprep.service.records import RECENT, RunRecord, log_path, read_records, since, trim, utc, write_record
from dataprep.storage import make_folder
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
    versions, error = dataset_of(job), None
    if versions.folder.is_symlink() or (versions.folder / "manifest.json").exists():
        raise SpecError(f"{versions.folder} is something else than the dataset of a job; give the job another name")
    try:
        with Claim(versions.claim) as claim:
            record = _begin(job, claim.epoch, due, clock())
            if due is not None and due != _due(job, versions, clock()):
                return _skipped(record, "another run, which was faster", clock())
            record, error = _run(job, versions, claim, record, (watcher or Silent(), clock))
    except BusyError as busy:
        record = _skipped(_begin(job, 0, due, clock()), _holder(busy), clock())
        if all((each.slot, each.holder) != (record.slot, record.holder) for each in _skips(versions)):
            write_record(versions, record)  # once, however often it is looked
    for problem in tell(job.notify, event_of(job, record)):
        log.warning("%s", problem)
    if error is not None:
        raise error
    return record


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
) -> tuple[RunRecord, DataprepError | None]:
    """Do it, and record how it went, whatever ends it."""
    watcher, clock = beside
    state: State = "interrupted"
    said = dict[str, Any]()
    failed: DataprepError | None = None
    write_record(versions, record)

    def started(request: Request) -> None:
        nonlocal record
        record = record.model_copy(update={"work": request.layout.work.name})
        write_record(versions, record)

    with _logged(versions, record.run):
        try:
            versions.take_over(claim)
            done = ingest(job, claim, watcher, started)
            _retain(job, versions, claim, clock())
            trim(versions)
            state, said = ("unchanged" if done.version is None else "published"), asdict(done)
        except DataprepError as error:
            state, failed = "failed", _lost(claim) or error
        except Exception as error:  # a fault of ours, or of a library: this run is over, and others go on
            state, failed = "failed", DataprepError(f"{type(error).__name__}: {error}")
            log.exception("the run failed")
        finally:
            record = record.model_copy(update={"state": state, "ended": utc(clock()), **said})
            if failed is not None:
                log.error("%s", failed)
                record = record.model_copy(update={"error": str(failed)})
            again = None if isinstance(failed, LostClaimError) else schedule.retry_at(job.retries, record)
            record = record.model_copy(update={"retry_at": None if again is None else utc(again)})
            write_record(versions, record)
    return record, failed


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


@contextlib.contextmanager
def _logged(versions: Versions, run: int) -> Iterator[None]:
    """Keep what is logged in the file of this run as well; one that cannot be written is done without."""
    path = log_path(versions, run)
    make_folder(path.parent)
    try:
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
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
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        for each, least in others:
            each.setLevel(least)
        handler.close()
