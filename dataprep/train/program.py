"""What each process of a training runs, before it is known who starts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Program:
    """A trainer's command, as a backend renders it and a launcher starts it.

    Attributes:
        start: who makes the processes: ``torchrun`` on each node; or ``deepspeed``, which starts all nodes by itself
            where no scheduler does.
        script: file of the trainer, relative to `folder`; or with ``is_module`` the name of a Python module.
        is_module: whether `script` is started as ``-m``.
        arguments: of the script, one word each; nothing in them is for a shell to expand.
        environment: variables that the trainer's libraries read.
        files: name -> text of files that the arguments name; a launcher writes them into `Job.output`, and the
            arguments name them by their absolute paths there.
        folder: where the trainer's code is, the working directory; empty: wherever the launcher runs.
        vendor: whose accelerators the environment is for; which devices a container is given.
        notes: what the user should know of it.
        before: command lines that may be run first, on this machine, each with what it is for.
        after: command lines for later, as to convert a checkpoint, each with what it is for.
    """

    start: Literal["torchrun", "deepspeed"]
    script: str
    arguments: tuple[str, ...]
    is_module: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    vendor: Literal["nvidia", "amd", "any"] = "nvidia"
    notes: tuple[str, ...] = ()
    before: tuple[tuple[str, str], ...] = ()
    after: tuple[tuple[str, str], ...] = ()
