"""Programs: a job in the words of each trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from dataprep.train.job import Backend, Job
    from dataprep.train.program import Program

MODULES: dict[Backend, str] = {
    "megatron": "megatron",
    "rocm": "megatron",
    "megatron-deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "torch": "builtin",
}


def render(job: Job) -> Program:
    """The program of a job, by its backend.

    Raises:
        SpecError: the trainer cannot do what the job asks for.
    """
    module = import_module(f"dataprep.train.backends.{MODULES[job.backend]}")
    return cast("Program", module.render(job))
