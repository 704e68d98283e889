"""What there is to see: outputs, and the runs in them, of jobs and from any command line. Files are read, none written.

    Works (a run's folder)  --+
                              +--> Line, one for each run --> Seen, all of it at one time --> pages, API, events
    records (a job's runs)  --+

All clients share one look that is `FRESH_SECONDS` old at the most, or as old as the file system is slow: who asks while
somebody else looks gets what was seen before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from dataprep.meters import RunState
from dataprep.service.board import Board, JobView
from dataprep.service.folders import OutputFolder, output_id
from dataprep.service.records import RunRecord
from dataprep.service.runs import GOING, Run
from dataprep.specs import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FRESH_SECONDS = 0.8
"""How old what is shown may be, so that all clients share one look."""

SHARE = 0.05
"""Of one processor, that looking may take: where there is very much to see, what is shown may be older."""

LineState = Literal[
    "running",
    "claimed",
    "published",
    "unchanged",
    "failed",
    "interrupted",
    "lost",
    "stopped",
    "skipped",
    "unreadable",
]

BAD = ("failed", "interrupted", "lost", "stopped", "unreadable")
"""States that somebody should look at."""


class Output(Model):
    """An output folder.

    Attributes:
        id: names it in addresses, where no path may stand.
        path: of the folder.
        exists: whether it is there.
        free_bytes, total_bytes: of its file system; None: it is not there.
        num_runs: in it, of jobs and others.
        problem: why its runs cannot be seen; "": they can.
    """

    id: str
    path: str
    exists: bool
    free_bytes: int | None
    total_bytes: int | None
    num_runs: int
    problem: str = ""


class Line(Model):
    """One run in a list: of a job, as its record has it, or of a command line, as its work folder has it.

    Attributes:
        output: id of the output.
        page: where its page is; of one that was skipped, those of its job.
        dataset: where the page of what it made is; "": it made nothing, or that is gone.
        run: name of its work folder; None: it had none.
        job: that it is of; None: of none.
        number: of the job's run; 0: it was skipped.
        corpus, tokenizer: names, as far as they are known.
        state: see `records.RunRecord` and `runs.Run`.
        detail: of one that went wrong: why.
        trigger: of a job's run: why it began.
        version: that it made.
        started, ended: UTC, by the clock of its machine; a run of no job has no end but its last sign of life.
        num_documents, num_tokens: that it made, as far as it is.
        progress: of one that goes on, what its driver wrote last.
    """

    output: str
    page: str
    dataset: str = ""
    run: str | None = None
    job: str | None = None
    number: int | None = None
    corpus: str = ""
    tokenizer: str = ""
    state: LineState
    detail: str = ""
    trigger: str | None = None
    version: int | None = None
    started: str | None = None
    ended: str | None = None
    num_documents: int = 0
    num_tokens: int = 0
    progress: RunState | None = None

    @property
    def is_going(self) -> bool:
        return self.state in GOING

    @property
    def share(self) -> float | None:
        """How much of its stage is done, 0 to 1; None: nobody knows."""
        if self.progress is None or not self.progress.stage_bytes:
            return None
        return min(1.0, self.progress.stage_bytes_done / self.progress.stage_bytes)


@dataclass(frozen=True)
class Seen:
    """All that was seen at one time.

    Attributes:
        outputs: by their ids.
        lines: all runs: those that go on first, then the newest.
        jobs: by name.
    """

    outputs: dict[str, Output]
    lines: tuple[Line, ...]
    jobs: tuple[JobView, ...]

    @property
    def going(self) -> list[Line]:
        return [line for line in self.lines if line.is_going]

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The output folders by their ids."""
        return {name: Path(output.path) for name, output in self.outputs.items()}

    @cached_property
    def digest(self) -> str:
        """Another one whenever something that pages show is another."""
        shown = (*self.lines[:200], *self.jobs)
        text = "\n".join(each.model_dump_json() for each in shown)
        return hashlib.sha256(f"{len(self.lines)}\n{text}".encode()).hexdigest()[:16]

    @cached_property
    def settled(self) -> str:
        """Another one whenever a run began or ended, or a version is there or gone; how runs get on is not in it."""
        lines = "\n".join(f"{line.page} {line.state} {line.version} {line.ended}" for line in self.lines[:200])
        jobs = "\n".join(f"{job.name} {job.version} {job.versions}" for job in self.jobs)
        return hashlib.sha256(f"{len(self.lines)}\n{lines}\n{jobs}".encode()).hexdigest()[:16]


class State:
    """What pages and API show. For several threads at once.

    Args:
        outputs: the output folders; those of the jobs come on top.
        board: the jobs.
        clock: seconds that only grow.
    """

    def __init__(self, outputs: Iterable[Path], board: Board, clock: Callable[[], float] = time.monotonic) -> None:
        self.board = board
        self._outputs, self._clock = tuple(outputs), clock
        self._places: dict[str, OutputFolder] = {}
        self._seen: tuple[float, Seen] | None = None  # until when it is fresh
        self._looking = threading.Lock()

    def seen(self) -> Seen:
        """What there is to see."""
        seen = self._seen
        if seen is not None and (self._clock() < seen[0] or self._looking.locked()):
            return seen[1]
        with self._looking:
            seen = self._seen
            if seen is None or self._clock() >= seen[0]:
                start = time.thread_time()
                found = self._look()
                fresh = max(FRESH_SECONDS, (time.thread_time() - start) / SHARE)
                seen = self._seen = (self._clock() + fresh, found)
            return seen[1]

    @property
    def last(self) -> Seen | None:
        """What was seen last; looks at nothing."""
        seen = self._seen
        return None if seen is None else seen[1]

    def forget(self) -> None:
        """Look again, however new what was seen is: somebody changed something here."""
        self._seen = None

    def place(self, output: str) -> OutputFolder | None:
        """An output, by its id."""
        self.seen()
        return self._places.get(output)

    def record(self, output: str, job: str, number: int) -> RunRecord | None:
        """The record of a job's run."""
        place = self.place(output)
        if place is None or job not in place.jobs() or number < 1:
            return None
        return next((each for each in place.records(job) if each.run == number), None)

    def _look(self) -> Seen:
        named = (*self._outputs, *(job.output_folder for job in self.board.jobs()))
        folders = {output_id(folder): Path(os.path.abspath(folder)) for folder in named}
        places = {name: self._places.get(name) or OutputFolder.of(folder) for name, folder in folders.items()}
        self._places = places
        outputs, lines = {}, []
        for name, place in places.items():
            try:
                found, problem = _lines(place), ""
            except OSError as error:
                found, problem = [], f"cannot be read: {error.strerror}"
            outputs[name] = _output(place, len(found), problem)
            lines += found
        lines.sort(key=lambda line: (line.is_going, line.started or line.ended or "", line.number or 0), reverse=True)
        jobs = self.board.views(lambda folder: places[output_id(folder)])
        return Seen(outputs, tuple(lines), tuple(jobs))


def _output(place: OutputFolder, num_runs: int, problem: str) -> Output:
    free = total = None
    try:
        usage = shutil.disk_usage(place.folder)
        free, total = usage.free, usage.total
    except OSError:
        pass
    return Output(
        id=place.id,
        path=str(place.folder),
        exists=total is not None,
        free_bytes=free,
        total_bytes=total,
        num_runs=num_runs,
        problem=problem,
    )


def _lines(place: OutputFolder) -> list[Line]:
    """All runs of an output: those of jobs, and those that belong to none."""
    works = {run.id: run for run in place.works.list()}
    lines, mine = [], set[str]()
    for job in place.jobs():
        for record in place.records(job):
            lines.append(_of_record(place.id, job, record, works.get(record.work)))
            mine.add(record.work)
    return [*lines, *(_of_work(run, place.folder) for name, run in works.items() if name not in mine)]


def _of_record(output: str, job: str, record: RunRecord, work: Run | None) -> Line:
    is_going = record.state == "running"
    progress = work.progress if work is not None and is_going else None
    name = quote(job, safe="")
    return Line(
        output=output,
        page=f"/runs/{output}/{name}/{record.run}" if record.run else f"/runs?job={name}",
        dataset="" if record.version is None else f"/datasets/{output}~{name}~v{record.version:06d}",
        run=record.work or None,
        job=job,
        number=record.run,
        corpus=work.corpus if work is not None else job,
        tokenizer=work.tokenizer if work is not None else "",
        state=record.state,
        detail=record.error,
        trigger=record.trigger,
        version=record.version,
        started=record.started,
        ended=record.ended,
        num_documents=progress.num_documents if progress is not None else record.num_documents,
        num_tokens=progress.num_tokens if progress is not None else record.num_tokens,
        progress=progress,
    )


def _of_work(run: Run, folder: Path) -> Line:
    seen, home = run.progress, ""
    if run.prefix is not None and Path(run.prefix).parent.parent == folder:
        home = Path(run.prefix).parent.name
    return Line(
        output=run.output,
        page=f"/runs/{run.output}/{quote(run.id, safe='')}",
        dataset=f"/datasets/{run.output}~{quote(home, safe='')}" if home else "",
        run=run.id,
        corpus=run.corpus,
        tokenizer=run.tokenizer,
        state=run.state,
        detail=run.detail,
        started=run.started or run.updated,
        ended=None if run.is_going else run.updated,
        num_documents=seen.num_documents if seen is not None else 0,
        num_tokens=seen.num_tokens if seen is not None else 0,
        progress=seen if run.is_going else None,
    )


def pick(lines: Sequence[Line], state: str = "", job: str = "", output: str = "") -> list[Line]:
    """Those of some lines that are in a state, of a job, in an output; "" means any."""
    wanted = {"going": GOING, "bad": BAD}.get(state, (state,))
    return [
        line
        for line in lines
        if (not state or line.state in wanted)
        and (not job or line.job == job)
        and (not output or line.output == output)
    ]
