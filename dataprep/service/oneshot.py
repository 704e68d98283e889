"""What is due in a jobs folder, one job after the other, and then an end: for cron, systemd, Slurm and Kubernetes.

A job that fails, or whose YAML is wrong, keeps no other one from running. Whether a job is due is asked when its turn
comes: the one before may have taken hours, and somebody else may have been here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.errors import DataprepError
from dataprep.service import schedule
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import find_job, load_jobs
from dataprep.service.places import check_inside
from dataprep.service.records import RECENT, note_since, paused, read_records, since
from dataprep.service.running import now, run_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from dataprep.service.job import Job
    from dataprep.service.records import RunRecord
    from dataprep.service.schedule import Due
    from dataprep.watcher import Watcher


@dataclass(frozen=True)
class Outcome:
    """What came of a job that was due, or that is none.

    Attributes:
        job: its name.
        record: of its run; None: it failed.
        error: why it failed; "" where it did not.
    """

    job: str
    record: RunRecord | None
    error: str = ""


def due_of(job: Job, moment: datetime) -> Due | None:
    """The run of a job that is to begin now; None: none is, or the job is paused.

    Raises:
        DataprepError: its records cannot be read, or its folder cannot be made.
        OSError: the same.
    """
    versions = dataset_of(job)
    if job.schedule is None or paused(versions):
        return None
    note_since(versions, job.created)
    return schedule.due(job, read_records(versions, RECENT), moment, since(versions, job.created))


def run_due(
    folder: Path,
    names: Sequence[str],
    watch: Callable[[], AbstractContextManager[Watcher]],
    allowed: Sequence[Path] | None = None,
    clock: Callable[[], datetime] = now,
) -> Iterator[Outcome]:
    """Run the jobs that are due; yields what came of each as soon as it is known.

    Args:
        folder: of the jobs.
        names: of those to look at; empty: all.
        watch: gives what is told how a run gets on.
        allowed: folders that jobs may name files in beside their own; None: all there are.
        clock: what the time is.

    Raises:
        SpecError: there is no such folder, or no job of a name, or it is wrong.
    """
    if names:
        jobs = [find_job(folder, name) for name in dict.fromkeys(names)]
    else:
        jobs, problems = load_jobs(folder)
        yield from (Outcome(problem.name, None, problem.text) for problem in problems)
    for job in jobs:
        try:
            due = due_of(job, clock())
            if due is not None:
                if allowed is not None:
                    check_inside(job, allowed)
                with watch() as watcher:
                    record = run_job(job, due, watcher, clock)
                yield Outcome(job.name, record)
        except (DataprepError, OSError) as error:
            yield Outcome(job.name, None, str(error))
