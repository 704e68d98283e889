"""A command that is run to its end, whatever this process is told meanwhile.

An exception that a signal raises while a process is being started, or waited for, leaves it running and nobody who
knows of it: locks and leases that are held for it are let go. So signals raise nothing here. They are noted, and the
command is told.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType


class Answer(Protocol):
    """Says which signal the command gets when this process gets one; None: none."""

    def __call__(self, number: int, earlier: int, starting: bool) -> int | None:
        """Decide.

        Args:
            number: of the signal.
            earlier: how many came before.
            starting: whether it came before the command was there, which cannot have got it from a terminal then.
        """


def _nothing(pid: int) -> None:
    """What is done about a command that has started, if nothing else is said."""


def run_to_end(
    command: Sequence[str | os.PathLike[str]],
    answer: Answer,
    started: Callable[[int], None] = _nothing,
    **options: Any,
) -> tuple[int, list[int]]:
    """Run a command and wait for its end. For the main thread, since only that has signals.

    Args:
        command: its words.
        answer: see there; for SIGHUP, SIGINT, SIGTERM, and in a job of Slurm SIGUSR1, its notice that time is up. One
            that is ignored stays so, as under nohup or in a script's background.
        started: called with the number of the process once there is one; must not raise.
        options: of `subprocess.Popen`. With `start_new_session`, signals go to all processes of the session's group.

    Returns:
        The exit code, or minus the signal that ended the command; and the signals that this process got.

    Raises:
        OSError: there is no such command.
    """
    told: list[int] = []
    waiting: deque[tuple[int, int, bool]] = deque()
    numbers = itertools.count()
    process: subprocess.Popen[bytes] | None = None
    send = os.killpg if options.get("start_new_session") else os.kill

    def note(number: int, frame: FrameType | None) -> None:
        told.append(number)
        waiting.append((number, next(numbers), process is None))
        pass_on()

    def pass_on() -> None:
        with contextlib.suppress(IndexError):  # a signal that comes meanwhile takes what was there for this one
            while process is not None:
                number = answer(*waiting.popleft())
                if number is not None and process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        send(process.pid, number)

    before: dict[int, Any] = {}
    try:
        for each in _heard():
            before[each] = signal.signal(each, note)
        process = subprocess.Popen(command, **options)
        started(process.pid)
        pass_on()
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, told


def _heard() -> list[signal.Signals]:
    numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGUSR1] if "SLURM_JOB_ID" in os.environ else []
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
