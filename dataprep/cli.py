"""The command line: parse, call, print; nothing else. The commands themselves are in `commands`.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 the work or the check failed,
2 a bad request, 130 interrupted, 143 told to end. Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from typing import NoReturn

import typer

from dataprep.commands import (
    cache,
    checkpoint,
    corpora,
    diff,
    doctor,
    export,
    generate,
    inspect,
    jobs,
    lease,
    preprocess,
    repair,
    reshape,
    run,
    serve,
    status,
    train,
    unlock,
    verify,
    where,
)
from dataprep.commands.app import app, note
from dataprep.errors import DataprepError, Terminated, TimeIsUp

__all__ = [
    "app",
    "cache",
    "checkpoint",
    "corpora",
    "diff",
    "doctor",
    "export",
    "generate",
    "inspect",
    "jobs",
    "lease",
    "main",
    "preprocess",
    "repair",
    "reshape",
    "run",
    "serve",
    "status",
    "train",
    "unlock",
    "verify",
    "where",
]

UsageProblem: type[BaseException] = typer.BadParameter.__mro__[2]
"""Click's ClickException, which typer carries under a private name."""


def _open_streams() -> None:
    """Give the process the two it may lack, before a file of the work gets their numbers; let them take any text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _noted_interrupts() -> list[int]:
    """Filled with the signals of Ctrl-C from now on, each of which raises KeyboardInterrupt as before, and SIGTERM."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        interrupts.append(number)
        kinds = {int(signal.SIGTERM): Terminated, int(signal.SIGUSR1): TimeIsUp}
        raise kinds.get(number, KeyboardInterrupt)

    signal.signal(signal.SIGTERM, interrupt)
    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGUSR1, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in a script's background
        signal.signal(signal.SIGINT, interrupt)
    return interrupts


def _run(interrupts: list[int]) -> int:
    """Run the command line; the only place that turns an exception into text. Returns the exit code."""
    debug = "--debug" in sys.argv
    try:
        return app(standalone_mode=False) or 0
    except DataprepError as error:
        if debug:
            raise
        note(f"error: {error}")
        return error.exit_code
    except UsageProblem as error:
        error.show()  # type: ignore[attr-defined]
        if getattr(error, "option_name", None) in ("-q", "--quiet", "--debug"):
            note("Options of all commands come before the command: dataprep --quiet run ...")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        if interrupts:  # a lock of Python's breaks when a Ctrl-C arrives while it is taken
            return 130
        what = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        note(f"error: {what}{error}; dataprep --debug with the same command shows where")
        return 1


def main() -> NoReturn:
    """Run the command line and end the process."""
    # Start-up is half a second in which nothing else can run: no BLAS threads (0.07 s of processor time, and nothing
    # here multiplies matrices), and no looking for cycles among the hundred thousand objects of a vocabulary.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000)

    _open_streams()
    interrupts = _noted_interrupts()
    code = _run(interrupts)
    for number in {signal.SIGINT, signal.SIGTERM, *interrupts}:
        signal.signal(number, signal.SIG_IGN)  # too late to stop anything
    if code == 130:  # Typer turns a KeyboardInterrupt into this, without a word
        goes_on = {"download", "preprocess", "run"} & set(sys.argv)
        what = "interrupted"
        if set(interrupts) & {signal.SIGTERM, signal.SIGUSR1}:
            code, what = 128 + signal.SIGTERM, "told to end"
        note(what + ("; run the same command again to go on: what is finished is kept" if goes_on else ""))
    try:
        sys.stdout.flush()
    except OSError as error:
        note(f"error: cannot write the result: {error.strerror}")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the interpreter's own end takes 0.25 s more: it frees the engines word by word
