"""A training as one job of Slurm: its script, and to submit and follow it.

    batch shell, first node   exports, files, MASTER_ADDR, MASTER_PORT; told by USR1 that the time is about to end, it
                              has all steps told by SIGTERM, and queues the job again if it may
    srun, a task per node     NODE_RANK; the container, if there is one; torchrun

Nothing is taken from the environment but what `command` says, and everything that decides the training is in the text:
a script that was printed here can be submitted elsewhere. A program of DeepSpeed's is started by torchrun as well: its
own launcher would need ssh between nodes, and DeepSpeed reads the variables that torchrun sets.

Source: sbatch(1), srun(1) and scancel(1) of Slurm 22.05 and later; the ``--auto-resume`` of SageMaker HyperPod and the
folder that its nodes have: awsome-distributed-training 7217859f, megatron-lm/slurm.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.cluster import slurm
from dataprep.errors import SpecError
from dataprep.storage import AtomicFile, make_folder
from dataprep.train.launchers import command, containers, shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.train.job import Job
    from dataprep.train.program import Program

SCRIPT = "train.sbatch"
"""What the script that was submitted is called below `Job.output`."""

NOTICE_SECONDS = 300
"""How long before the job's time ends its trainer is told to; Slurm may do it up to a minute earlier."""

AGAIN = "Once the cause is mended, run the same command again: a training with `load` goes on from its checkpoint"

# Two trainings on a node must not meet at one port. Below 32768, where Linux begins to hand ports out.
_PORT = "$((15000 + SLURM_JOB_ID % 17000))"

_RESUME = "if [[ -d /opt/sagemaker_cluster ]]; then resume+=(--auto-resume=1); fi"

_TRAP = """trap 'waiting=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1"""
_TOLD = """told=\ntrap 'told=1 waiting=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1"""

# A trap makes `wait` return, so it is waited once more after each; bash keeps the code of what ended meanwhile.
_WAIT = """\
step=$! waiting=1 code=0
while [[ -n $waiting ]]; do
  waiting=
  wait "$step" && code=0 || code=$?
done"""

_REQUEUE = """\
if [[ -n $told && $code != 0 ]]; then
  echo "the job's time is up; it is queued again" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi"""


def log_of(job: Job) -> Path:
    """Where the job's output goes; ``%j`` stands for its number."""
    return Path(job.output, f"{job.name}-%j.log")


def render(job: Job, program: Program) -> str:
    """The script for sbatch.

    Raises:
        SpecError: a name or a path that Slurm or the container cannot take.
    """
    defaults, fixed = command.environment(job, program)
    names = [*defaults, *fixed, *command.SECRETS, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "SLURM_JOB_ID"]
    meeting = command.Meeting(
        rank='"$NODE_RANK"',
        address='"$MASTER_ADDR"',
        port='"$MASTER_PORT"',
        name='"$SLURM_JOB_ID"',
        elastic=job.launch.max_restarts > 0,
    )
    port = str(job.launch.master_port) if "master_port" in job.launch.model_fields_set else _PORT
    trainer = command.node(job, program, meeting if job.parallel.nodes > 1 else None)
    *before, last = containers.wrap(job, program, trainer, names)
    task = shell.script(['export NODE_RANK="$SLURM_NODEID"', *before, f"exec {last}"])
    resume = ["resume=()", _RESUME] if job.launch.auto_resume else []
    return "\n".join(
        [
            shell.HEAD[0],
            *_directives(job),
            *shell.HEAD[1:],
            *shell.exports(defaults, fixed),
            *command.prepare(job, program.files),
            'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            f"export MASTER_ADDR=${{hosts[0]}} MASTER_PORT={port}",
            *shell.variable("task", task),
            *resume,
            *(_TOLD if job.launch.requeue else _TRAP).split("\n"),
            shell.command(_srun(job, names), ["bash", "-c", '"$task"']) + " &",
            *_WAIT.split("\n"),
            *(_REQUEUE.split("\n") if job.launch.requeue else []),
            'exit "$code"',
            "",
        ]
    )


def _srun(job: Job, names: list[str]) -> list[str]:
    nodes, cpus = job.parallel.nodes, job.launch.cpus_per_task
    return [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        # srun no longer takes it from sbatch, and without it binds a task to what one process needs.
        *([] if cpus is None else [f"--cpus-per-task={cpus}"]),
        *("--cpu-bind=none", "--kill-on-bad-exit=1"),
        *(['"${resume[@]}"'] if job.launch.auto_resume else []),
        *(containers.pyxis(job, names) if job.launch.container == "pyxis" else []),
    ]


def _directives(job: Job) -> list[str]:
    launch, gpus = job.launch, job.parallel.gpus_per_node
    limit = None if launch.time is None else seconds(launch.time)
    # Of a short job a tenth: a job that is given less time than the notice would be told to end as it begins.
    notice = NOTICE_SECONDS if limit is None else min(NOTICE_SECONDS, limit // 10)
    asked = {
        "job-name": job.name,
        "dependency": "singleton",  # a second one at once would write the same checkpoints
        "nodes": job.parallel.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": launch.cpus_per_task,
        "gres": f"gpu:{gpus}" if launch.gpus_option == "gres" else None,
        "gpus-per-node": gpus if launch.gpus_option == "gpus-per-node" else None,
        "mem": launch.memory or ("0" if launch.exclusive else None),  # 0: all of the node's, see sbatch(1)
        "time": launch.time,
        "partition": launch.partition,
        "account": launch.account,
        "qos": launch.qos,
        "reservation": launch.reservation,
        "constraint": launch.constraint,
        "signal": f"B:USR1@{notice}",
        "wait-all-nodes": 1 if job.parallel.nodes > 1 else None,
        "open-mode": "append",
        "chdir": os.getcwd(),
        "output": slurm.log_pattern(log_of(job)),
    }
    flags = [
        "--exclusive" if launch.exclusive else "",
        "--requeue" if launch.requeue else "--no-requeue",
        *launch.directives,
    ]
    return slurm.directives(asked, flags)


def seconds(time: str) -> int | None:
    """A time limit of Slurm's in seconds; None: there is none.

    Raises:
        SpecError: it is not one.
    """
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        raise SpecError(f"launch.time={time}: expected MINUTES, MINUTES:SECONDS, [DAYS-]HOURS:MINUTES:SECONDS")
    days, *parts = (None if text is None else int(text) for text in found.groups())
    numbers = [number for number in parts if number is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]  # it begins with minutes
    hours, minutes, rest = [*numbers, 0, 0][:3]
    return (days or 0) * 86400 + (hours or 0) * 3600 + (minutes or 0) * 60 + (rest or 0)


def submit(job: Job, program: Program) -> slurm.Job:
    """Submit the job.

    Raises:
        SpecError: Slurm is not here, or refuses; or see `render`.
        OutputError: `Job.output` cannot be written to.
    """
    text, log = render(job, program), log_of(job)
    make_folder(log.parent)
    with AtomicFile(Path(job.output, SCRIPT)) as file:
        file.write(text.encode())
    return slurm.Job(slurm.submit(text), log, AGAIN)


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def launch(job: Job, program: Program, show: Callable[[str], None] = _tell) -> int:
    """Submit the job, and show what it says until it ends. Ctrl-C leaves it alone. Returns 0.

    Raises:
        SpecError, OutputError: see `submit`.
        ClusterError: it failed, was cancelled, or Slurm forgot it.
    """
    submitted = submit(job, program)
    number, log = submitted.number, shlex.quote(str(submitted.log))
    show(f"job {number} is submitted, its output goes to {submitted.log}\n")
    try:
        submitted.follow(show)
    except KeyboardInterrupt:
        show(f"job {number} goes on without this command; to follow it: tail -f {log}; to end it: scancel {number}\n")
        raise
    return 0
