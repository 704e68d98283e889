"""Who starts a program, and where: each renders text, and hands it over if it is asked to."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.train.job import Job
    from dataprep.train.program import Program

MODULES = {"local": "command", "print": "command", "slurm": "slurm", "kubernetes": "kubernetes"}


@dataclass(frozen=True)
class Starter:
    """One launcher.

    Attributes:
        render: what it would do, as text; raises SpecError where it cannot be.
        launch: do it, and return an exit code; None: the user does, with the text.
    """

    render: Callable[[Job, Program], str]
    launch: Callable[[Job, Program], int] | None


def find_launcher(name: str) -> Starter:
    """The launcher of a name.

    Raises:
        SpecError: there is none.
    """
    if name not in MODULES:
        raise SpecError(f"--launcher {name}: expected one of {', '.join(MODULES)}")
    module = import_module(f"dataprep.train.launchers.{MODULES[name]}")

    def render(job: Job, program: Program) -> str:
        text: str = module.render(job, program)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            line = text[: error.end].rpartition("\n")[2].strip()
            raise SpecError(
                f"a path of the training is no UTF-8, and files have to name it; rename it: {line!r}"
            ) from error
        return text

    return Starter(render, None if name == "print" else getattr(module, "launch", None))
