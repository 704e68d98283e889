"""Commands that are run to their end, and signals that come while they start and run."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from dataprep.children import run_to_end
from dataprep.errors import Terminated


@pytest.fixture
def raising():
    """SIGTERM raises, as in every command; SIGHUP is ignored, as under nohup."""

    def stop(number, frame):
        raise Terminated

    before = {signal.SIGTERM: stop, signal.SIGHUP: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in before.items()}
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def signalled():
    """Have this process get signals just when a command is there, and its number has no name yet."""

    def signalled(*numbers: int) -> None:
        def watch(frame, event, arg):
            if event == "c_return" and arg.__name__ == "fork_exec":
                sys.setprofile(None)
                for number in numbers:
                    os.kill(os.getpid(), number)

        sys.setprofile(watch)

    yield signalled
    sys.setprofile(None)


def test_a_signal_while_the_command_starts_is_told(raising, signalled):
    asked = []

    def answer(number, earlier, starting):
        asked.append((number, earlier, starting))
        return signal.SIGKILL if earlier else None

    signalled(signal.SIGTERM, signal.SIGTERM)
    code, told = run_to_end(["sleep", "60"], answer)
    assert (code, told) == (-signal.SIGKILL, [signal.SIGTERM, signal.SIGTERM])
    assert asked == [(signal.SIGTERM, 0, True), (signal.SIGTERM, 1, True)]
    assert signal.getsignal(signal.SIGTERM) is raising


def test_what_is_ignored_stays_so(raising):
    command = ["sh", "-c", "kill -HUP $PPID; kill -TERM $PPID; sleep 60"]
    assert run_to_end(command, lambda *asked: signal.SIGKILL) == (-signal.SIGKILL, [signal.SIGTERM])


def test_no_such_command(raising):
    with pytest.raises(FileNotFoundError):
        run_to_end(["no-such-program-here"], lambda *asked: None)
    assert signal.getsignal(signal.SIGTERM) is raising
