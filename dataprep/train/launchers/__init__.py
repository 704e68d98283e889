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
        render: what it would do, as text.
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
    return Starter(module.render, None if name == "print" else getattr(module, "launch", None))
