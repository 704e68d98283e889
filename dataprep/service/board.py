"""Jobs as pages show them: their YAML, when they run next, and how they are."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import yaml

from dataprep.errors import DataprepError, OutputError, SpecError, public
from dataprep.service import schedule
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import find_job, load_jobs
from dataprep.service.places import outside, strange
from dataprep.service.records import Pause, RunRecord, newest_of, paused
from dataprep.service.summaries import SLOTS, JobState, state_of
from dataprep.specs import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dataprep.service.folders import OutputFolder
    from dataprep.service.job import Job

LOOK_SECONDS = 10.0
"""How often a page looks whether a job names what lies elsewhere; a run looks itself."""

HIDDEN = "..."
"""What stands for what an address or a command may hide."""


class JobView(Model):
    """A job in short.

    Attributes:
        name: of the job and its dataset.
        state: ``waiting``: for its next time; ``by hand``: it has no schedule; ``broken``: see `problem`.
        problem: why it cannot be run.
        output: id of the output that its dataset lies in; "" where there is a problem.
        dataset: folder of its dataset.
        corpus, tokenizer: as its YAML has them.
        schedule, time_zone: cron; None: only by hand.
        next: its next times, UTC.
        paused: since when, by whom and why.
        last: its newest run that was not skipped.
        succeeded: when one ended well last, UTC.
        versions: how many there are.
        version: the newest; None: there is none.
        num_documents, num_tokens, num_bytes: of that one.
    """

    name: str
    state: JobState | Literal["broken"]
    problem: str = ""
    output: str = ""
    dataset: str = ""
    corpus: tuple[str, ...] = ()
    tokenizer: str = ""
    schedule: str | None = None
    time_zone: str = "UTC"
    next: tuple[str, ...] = ()
    paused: Pause | None = None
    last: RunRecord | None = None
    succeeded: str | None = None
    versions: int = 0
    version: int | None = None
    num_documents: int = 0
    num_tokens: int = 0
    num_bytes: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether its newest run ended badly."""
        return self.last is not None and self.last.state in schedule.AGAIN


class Board:
    """The jobs of a folder. For several threads at once.

    Args:
        folder: of the jobs; None: there are none.
        allowed: folders beside that one which jobs may name.
        clock: what the time is.
    """

    def __init__(
        self,
        folder: Path | None,
        allowed: Sequence[Path] = (),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.folder = None if folder is None else Path(os.path.abspath(folder))
        self._allowed, self._clock = tuple(allowed), clock
        self._lock = threading.Lock()
        self._loaded: tuple[Any, list[Job], list[JobView]] = (None, [], [])
        self._views: dict[str, tuple[Any, JobView]] = {}
        self._definitions: dict[str, tuple[Any, float, str, str]] = {}

    def jobs(self) -> list[Job]:
        """The jobs that can be run, as far as their outputs go."""
        return self._load()[1]

    def views(self, place_of: Callable[[Path], OutputFolder]) -> list[JobView]:
        """All jobs, also those that are broken, by name.

        Args:
            place_of: the output that a folder is.
        """
        _, jobs, broken = self._load()
        return sorted([*broken, *(self._view(job, place_of(job.output_folder)) for job in jobs)], key=lambda j: j.name)

    def find(self, name: str) -> Job:
        """A job, as it is now.

        Raises:
            SpecError: there is none of this name, it is broken, or it names what lies elsewhere.
        """
        if self.folder is None:
            raise SpecError("this server has no jobs; it was started without --jobs")
        job = find_job(self.folder, name)
        if away := outside(job, self._allowed):
            raise SpecError(_away(away))
        return job

    def definition(self, name: str) -> tuple[str, str]:
        """The YAML of a job as it was understood, see `text_of`, and why the job cannot be run, or ""; a bit old.

        To find that out takes long: all files that the job names are looked at.
        """
        found = self._definitions.get(name)
        stamp, now = self._load()[0], time.monotonic()
        if found is None or found[0] != stamp or now - found[1] > LOOK_SECONDS:
            try:
                text, problem = text_of(self.find(name)), ""
            except SpecError as error:
                text, problem = "", str(error)
            found = self._definitions[name] = (stamp, now, text, problem)
        return found[2], found[3]

    def _load(self) -> tuple[Any, list[Job], list[JobView]]:
        if self.folder is None:
            return self._loaded
        with self._lock:
            stamp = _stamp(self.folder)
            if self._loaded[0] != stamp:
                self._loaded = (stamp, *self._read(self.folder))
            return self._loaded

    def _read(self, folder: Path) -> tuple[list[Job], list[JobView]]:
        try:
            found, problems = load_jobs(folder)
        except DataprepError as error:
            return [], [JobView(name=folder.name, state="broken", problem=str(error))]
        broken = [JobView(name=each.name, state="broken", problem=each.text) for each in problems]
        jobs = []
        for job in found:
            if self._is_inside(job.output_folder):
                jobs.append(job)
            else:
                broken.append(JobView(name=job.name, state="broken", problem=_away([job.output_folder])))
        return jobs, broken

    def _is_inside(self, path: Path) -> bool:
        folders = [self.folder, *self._allowed] if self.folder is not None else []
        return any(Path(os.path.realpath(path)).is_relative_to(os.path.realpath(each)) for each in folders)

    def _view(self, job: Job, place: OutputFolder) -> JobView:
        """A job in short; made anew each minute, and when something of it is another."""
        moment = self._clock()
        records, numbers = place.records(job.name), place.versions(job.name)
        pause, problem = _paused(job)
        key = (
            id(job),
            id(records),
            len(numbers),
            numbers[-1:],
            pause,
            problem,
            moment.replace(second=0, microsecond=0),
        )
        known = self._views.get(job.name)
        if known is None or known[0] != key:
            known = self._views[job.name] = (key, _made(job, place, records, numbers, moment, pause, problem))
        return known[1]


def _made(  # noqa: PLR0913 - what is known of a job
    job: Job,
    place: OutputFolder,
    records: Sequence[RunRecord],
    numbers: Sequence[int],
    moment: datetime,
    pause: Pause | None,
    problem: str,
) -> JobView:
    last = newest_of(records)
    good = [record.ended for record in records if record.state in ("published", "unchanged") and record.ended]
    state = state_of(job, records, pause, moment)
    newest = place.version(job.name, numbers[-1]) if numbers else None
    slots = schedule.next_slots(job, moment, SLOTS)
    return JobView(
        name=job.name,
        state="broken" if problem and state != "running" else state,
        problem=problem,
        output=place.id,
        dataset=str(dataset_of(job).folder),
        corpus=tuple(public(each) for each in job.corpus),
        tokenizer=job.tokenizer,
        schedule=job.schedule,
        time_zone=job.time_zone,
        next=tuple(slot.isoformat(timespec="seconds") for slot in slots),
        paused=pause,
        last=last,
        succeeded=max(good, default=None),
        versions=len(numbers),
        version=numbers[-1] if numbers else None,
        num_documents=newest.num_documents if newest is not None else 0,
        num_tokens=newest.num_tokens if newest is not None else 0,
        num_bytes=newest.num_bytes if newest is not None else 0,
    )


def text_of(job: Job) -> str:
    """The YAML of a job as it was understood, without what addresses and commands in it may hide."""
    value = job.model_dump(mode="json", exclude_defaults=True)
    notify = value.get("notify", {})
    if notify.get("webhook"):
        parts = urlsplit(notify["webhook"])
        notify["webhook"] = f"{parts.scheme}://{parts.hostname}/{HIDDEN}"
    if len(notify.get("command", ())) > 1:
        notify["command"] = [notify["command"][0], HIDDEN]
    return yaml.safe_dump(_public(value), sort_keys=False, allow_unicode=True, width=100)


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _public(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_public(each) for each in value]
    return public(value) if isinstance(value, str) else value


def _paused(job: Job) -> tuple[Pause | None, str]:
    try:
        return paused(dataset_of(job)), ""
    except OutputError as error:
        return None, str(error)


def _away(paths: Sequence[Path]) -> str:
    return f"it names {strange(paths)}"


def _stamp(folder: Path) -> tuple[Any, ...]:
    """Another one whenever a file of the folder is."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(_entry(entry) for entry in entries))
    except OSError as error:
        return (error.errno,)


def _entry(entry: os.DirEntry[str]) -> tuple[str, int, int, int]:
    try:
        found = entry.stat()
    except OSError:
        return entry.name, 0, 0, 0
    return entry.name, found.st_mtime_ns, found.st_size, found.st_ino
