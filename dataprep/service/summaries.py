"""How a job is; and a job in short, and its runs, as plain JSON values: what the command line shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dataprep.errors import public
from dataprep.service import schedule
from dataprep.service.ingesting import dataset_of
from dataprep.service.records import newest_of, paused, read_records, since, utc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from dataprep.service.job import Job
    from dataprep.service.records import Pause, RunRecord

SLOTS = 5
"""Next times that are told."""

JobState = Literal["running", "paused", "due", "waiting", "by hand"]


def summary(job: Job, now: datetime) -> dict[str, Any]:
    """What a job is, how its last run went, and when it runs next.

    Returns:
        Of its YAML name, corpus, tokenizer (as a run would be given them), schedule, time_zone; ``state``: running,
        paused, due, waiting (for its next time), or by hand (it has no schedule); ``next``: `SLOTS` times, UTC;
        ``due``, ``paused``, ``last`` (the record of its newest run), each None where there is none; ``dataset``: its
        folder; ``version``: the newest one's number and counts, or None.

    Raises:
        DataprepError: what is on disk of it cannot be read.
        OSError: the same.
    """
    versions = dataset_of(job)
    records, stopped = read_records(versions), paused(versions)
    due = schedule.due(job, records, now, since(versions, job.created))
    last, newest = newest_of(records), versions.newest()
    return {
        "name": job.name,
        "state": state_of(job, records, stopped, now),
        "corpus": [public(each) for each in job.corpus_arguments],
        "tokenizer": job.tokenizer_argument,
        "schedule": job.schedule,
        "time_zone": job.time_zone,
        "next": [utc(slot) for slot in schedule.next_slots(job, now, SLOTS)],
        "due": None if due is None else {"slot": due.slot, "trigger": due.trigger, "attempt": due.attempt},
        "paused": None if stopped is None else stopped.to_json(),
        "last": None if last is None else last.to_json(),
        "dataset": str(versions.folder),
        "version": None
        if newest is None
        else {
            "number": newest.number,
            "path": str(versions.version(newest.number)),
            "num_documents": newest.num_documents,
            "num_tokens": newest.num_tokens,
        },
    }


def state_of(job: Job, records: Sequence[RunRecord], stopped: Pause | None, now: datetime) -> JobState:
    """How a job is, by its records and whether it is paused."""
    last = newest_of(records)
    if last is not None and last.state == "running":
        return "running"
    if stopped is not None:
        return "paused"
    if job.schedule is None:
        return "by hand"
    due = schedule.due(job, records, now, since(dataset_of(job), job.created))
    return "waiting" if due is None else "due"


def history(jobs: list[Job], newest: int) -> list[dict[str, Any]]:
    """The records of jobs, newest first, at most so many."""
    found = [record for job in jobs for record in read_records(dataset_of(job), newest)]
    found.sort(key=lambda record: (record.started, record.job, record.run), reverse=True)
    return [record.to_json() for record in found[:newest]]
