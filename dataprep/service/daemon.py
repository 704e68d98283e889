"""What starts jobs where no other scheduler does: looks every so often what is due, and starts it as a process.

The processes are sessions of their own: they outlive the server, and whoever serves next sees them by their records.
Two servers of one folder do no harm: who is due is asked once more by the process itself, under the dataset's claim.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from dataprep.errors import DataprepError
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import find_job, load_jobs
from dataprep.service.oneshot import due_of
from dataprep.service.places import check_inside
from dataprep.service.running import now
from dataprep.storage import explain, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from dataprep.service.job import Job

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""How often it looks: schedules are of minutes."""

AT_ONCE = 4
"""Processes at the same time that a schedule has begun; what a person starts comes on top."""


class Daemon:
    """Starts the jobs of a folder.

    Args:
        folder: of the jobs.
        allowed: folders that jobs may name files in, beside their own.
        clock: what the time is.
    """

    def __init__(self, folder: Path, allowed: Sequence[Path], clock: Callable[[], datetime] = now) -> None:
        self._folder, self._allowed, self._clock = folder, allowed, clock
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._changing = threading.Lock()  # of what is started: `launch` is called from other threads
        self._said: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set; what was started goes on."""
        while not stop.is_set():
            try:
                self.look()
            except Exception:  # a fault of ours: the thread would end unseen, and with it all schedules
                log.exception("to look what is due failed; it is tried again")
            stop.wait(LOOK_SECONDS)

    def look(self) -> list[str]:
        """Start what is due; returns the names of the jobs that were started."""
        with self._changing:
            self._started = {name: process for name, process in self._started.items() if process.poll() is None}
        try:
            jobs, problems = load_jobs(self._folder)
        except DataprepError as error:
            self._say("", str(error))
            return []
        for problem in problems:
            self._say(problem.name, problem.text)
        started = []
        for job in jobs:
            if len(self._started) >= AT_ONCE:
                break
            if job.name not in self._started and self._begin(job):
                started.append(job.name)
        return started

    def launch(self, name: str) -> None:
        """Run a job that somebody asks for.

        Raises:
            SpecError: there is none of this name, or it names files elsewhere.
            OutputError: its folder cannot be written to.
        """
        job = find_job(self._folder, name)
        check_inside(job, self._allowed)
        self._start(job, ["run", name])

    def _begin(self, job: Job) -> bool:
        """Start a job if it is due; says what it cannot be started for."""
        try:
            if due_of(job, self._clock()) is None:
                return False
            check_inside(job, self._allowed)
            self._start(job, ["due", job.name])
        except (DataprepError, OSError) as error:
            self._say(job.name, str(error))
            return False
        self._said.pop(job.name, None)
        return True

    def _start(self, job: Job, words: Sequence[str]) -> None:
        folder = dataset_of(job).folder / "runs"
        make_folder(folder)
        command = [sys.executable, "-m", "dataprep", "--quiet", "jobs", *words, "--jobs", str(self._folder)]
        command += [word for path in (job.folder, *self._allowed) for word in ("--allow", str(path))]
        with explain(folder, "start a process that logs in"), (folder / "launched.log").open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        with self._changing:
            self._started[job.name] = process
        log.info("started %s as process %d", " ".join(words), process.pid)

    def _say(self, name: str, text: str) -> None:
        """Log what is wrong with a job, once as long as it stays the same."""
        if self._said.get(name) != text:
            self._said[name] = text
            log.warning("%s", text)
