"""A run as one job of Slurm: its script, and to submit and follow it. Nothing of Dask here; see `allocation`.

    login node    dataprep run ... --cluster slurm      renders the script, submits it, shows what it says
    first node      dataprep run ... --cluster slurm    the same command again, inside: driver and scheduler
    all nodes         srun dask worker ...              its workers

What is done is on disk, so a job that Slurm queues again, or that queues itself again as its time ends, goes on.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import ClusterError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dataprep.specs import Slurm

POLL_SECONDS = 2.0
"""How often Slurm is asked how a job does; what the job says is shown twice as often."""

AGAIN = "Run the same command again: finished units are kept"

UNKNOWN_SECONDS = 60.0
"""How long Slurm may not answer before a job is no longer followed."""

ANSWER_SECONDS = 60.0
"""How long one of Slurm's commands may take: they themselves wait for a controller that is busy, 10 s by default
(slurm.conf(5), MessageTimeout), and some try again."""


def render(spec: Slurm, arguments: Sequence[str], name: str, log: Path) -> str:
    """The script for sbatch.

    Args:
        spec: what to ask Slurm for.
        arguments: of ``dataprep``, to run inside.
        name: of the job; of jobs of one name and user, one runs at a time.
        log: where the job's output goes; ``%j`` in the file's name stands for its number.

    Raises:
        SpecError: Slurm cannot write to such a path.
    """
    asked = {
        "job-name": name,
        "dependency": "singleton",
        **resources(spec),
        "signal": f"B:USR1@{spec.notice_seconds}",
        "open-mode": "append",
        "chdir": os.getcwd(),
        "output": log_pattern(log),
    }
    flags = [
        "--exclusive" if spec.workers_per_node is None else "",
        "--requeue" if spec.requeue else "--no-requeue",
        "--no-kill",
        *spec.directives,
    ]
    lines = directives(asked, flags)
    command = shlex.join([sys.executable, "-m", "dataprep", *arguments])
    return "\n".join(["#!/bin/bash", *lines, *spec.prologue, f"exec {command}", ""])


def resources(spec: Slurm) -> dict[str, object]:
    """What a job asks Slurm for, by the names of sbatch's options; None: nothing is said of it."""
    return {
        "nodes": spec.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": spec.workers_per_node,
        "mem": spec.memory,
        "time": spec.time,
        "partition": spec.partition,
        "account": spec.account,
        "qos": spec.qos,
        "constraint": spec.constraint,
    }


def directives(asked: Mapping[str, object], flags: Sequence[str], mark: str = "#SBATCH") -> list[str]:
    """Lines for sbatch, or by their mark for scrontab; options that are None are left out, and so are empty flags.

    Raises:
        SpecError: a line break in one: what follows it would be run as a command.
    """
    options = [f"--{key}={shlex.quote(str(value))}" for key, value in asked.items() if value is not None]
    options += [flag for flag in flags if flag]
    if broken := [option for option in options if len(option.splitlines()) > 1]:
        raise SpecError(f"sbatch takes options of one line, and this is none: {broken[0]!r}")
    return [f"{mark} {option}" for option in options]


def log_pattern(log: Path) -> str:
    """A log's path as sbatch takes it: in the file's name ``%j`` stands for the job's number, in its folder's for %j.

    Raises:
        SpecError: Slurm cannot write to such a path.
    """
    folder = str(log.parent)
    if "\\" in folder or not folder.isprintable():
        raise SpecError(f"--output: Slurm can write no log to {folder!r}, for its backslash or control character")
    return f"{folder.replace('%', '%%')}/{log.name}"


def ask(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands to its end, whatever that is.

    Args:
        command: and its arguments.
        text: for its stdin.

    Raises:
        ClusterError: it does not end; it was killed.
        OSError: there is no such command.
    """
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"{command[0]} has not answered for {ANSWER_SECONDS:.0f} s; see with sinfo and squeue how Slurm does, and "
            "run the same command again"
        ) from error


def submit(script: str) -> str:
    """Hand a script to sbatch; returns the number of the job.

    Raises:
        SpecError: there is no Slurm here, or it refuses the request.
        ClusterError: it does not answer.
    """
    try:
        done = ask("sbatch", "--parsable", text=script)
    except OSError as error:
        raise SpecError(
            f"sbatch: {error.strerror}; run this where jobs are submitted, or see the script with --dry-run"
        ) from error
    if done.returncode:
        raise SpecError(f"sbatch refuses: {' '.join(done.stderr.split())}; --dry-run shows the script")
    return done.stdout.strip().partition(";")[0]


class Job:
    """A job that was submitted.

    Args:
        number: what sbatch gave.
        log: the file that its output goes to.
        again: what to do after it has failed.
    """

    def __init__(self, number: str, log: Path, again: str = AGAIN) -> None:
        self.number, self.log = number, log.with_name(log.name.replace("%j", number))
        self._again, self._shown = again, 0

    def state(self) -> dict[str, str] | None:
        """What ``scontrol show job`` says; None if it says nothing."""
        try:
            found = ask("scontrol", "show", "job", "--oneliner", self.number).stdout
        except ClusterError:  # whoever follows the job counts how long nothing is said
            return None
        return dict(re.findall(r"(\w+)=(\S*)", found)) or None

    def follow(self, show: Callable[[str], None]) -> None:
        """Show what the job says, as it says it, until it ends.

        Raises:
            ClusterError: it failed, was cancelled, or Slurm forgot it.
        """
        seen, before = time.monotonic(), ("", "")
        while True:
            state = self.state()
            self._show_new(show)
            if state is not None:
                seen, now = time.monotonic(), state.get("JobState", "")
                why = state.get("Reason", "None")
                if (now, why) != before and now in ("PENDING", "REQUEUED", "SUSPENDED"):
                    what = "" if why == "None" else f" ({why}{WAITS.get(why, '')})"
                    show(f"job {self.number}: {now.lower()}{what}\n")
                before = now, why
                if now == "COMPLETED":
                    return
                if now in ENDED:
                    raise ClusterError(self._end(now, state))
            elif time.monotonic() - seen > UNKNOWN_SECONDS:
                raise ClusterError(f"Slurm says nothing about job {self.number} any more; its output is in {self.log}")
            time.sleep(POLL_SECONDS)

    def _end(self, now: str, state: dict[str, str]) -> str:
        """How a job ended that was not completed, for a message."""
        code, _, number = state.get("ExitCode", "?").partition(":")
        how = f"exit code {code}" if number in ("", "0") else f"signal {number}"
        if state.get("Reason", "None") not in ("None", "NonZeroExitCode"):
            how += f", {state['Reason']}"
        where = f"its output is in {self.log}" if self.log.exists() else f"it never wrote to {self.log}"
        return f"job {self.number} ended: {now.lower()}, {how}; {where}. {self._again}"

    def _show_new(self, show: Callable[[str], None]) -> None:
        try:
            with self.log.open("rb") as file:
                file.seek(self._shown)
                new = file.read()
        except OSError:  # not yet begun, or not seen from here yet
            return
        self._shown += len(new)
        if new:
            show(new.decode("utf-8", "replace"))


WAITS = {
    "Dependency": ": another job of this run has not ended",
    "PartitionConfig": ": the partition has not as much as is asked for, and the job may wait for ever",
    "PartitionNodeLimit": ": the partition has not as much as is asked for, and the job may wait for ever",
    "PartitionTimeLimit": ": the partition does not give that much time, and the job may wait for ever",
}
"""What some of Slurm's reasons to let a job wait mean."""

ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
"""States that a job does not come back from by itself; one that is queued again shows PENDING instead."""


def requeue() -> None:
    """Queue the job this process is in again. Slurm ends it then, by a SIGTERM that finds it ending by itself.

    Raises:
        ClusterError: Slurm refuses, or does not answer.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    done = ask("scontrol", "requeue", os.environ["SLURM_JOB_ID"])
    if done.returncode:
        raise ClusterError(
            f"the job's time is up, and it cannot be queued again: {' '.join(done.stderr.split())}; run the same "
            "command again to go on: what is finished is kept"
        )
