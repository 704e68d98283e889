"""A node's script."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataprep.train.job import Job
    from dataprep.train.program import Program


def render(job: Job, program: Program) -> str:
    """The command line."""
    return shlex.join(["torchrun", program.script, *program.arguments]) + "\n"
