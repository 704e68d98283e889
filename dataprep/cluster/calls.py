"""The call of a function for one item, where a worker does it.

What the driver knows of a run is found by the run's number, in the threads of its own process alone.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dataprep
from dataprep.errors import Cancelled, ClusterError, DataprepError

if TYPE_CHECKING:
    from collections.abc import Callable


class Run:
    """The driver's side of all calls of one `Cluster`, until it is forgotten.

    Attributes:
        reporter: what its calls report to.
        sink: takes their progress.
        stop: set once they are to stop.
    """

    def __init__(self, sink: Callable[[Any], None] | None) -> None:
        self.reporter, self.sink, self.stop = Reporter(next(_numbers)), sink, threading.Event()
        self._active, self._idle = 0, threading.Condition()
        _runs[self.reporter.number] = self

    def __enter__(self) -> None:
        with self._idle:
            self._active += 1

    def __exit__(self, *error: object) -> None:
        with self._idle:
            self._active -= 1
            self._idle.notify_all()

    def forget(self) -> None:
        """Nothing of it is called any more."""
        del _runs[self.reporter.number]

    def wait_until_idle(self) -> None:
        """Return when no thread is inside a unit any more."""
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0)


_runs: dict[int, Run] = {}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Reporter:
    """What a unit reports its progress to; where the driver is another process, it does nothing.

    Calling it raises Cancelled once the run is being stopped.
    """

    number: int
    version: str = dataprep.__version__

    def __call__(self, progress: Any) -> None:
        run = _runs.get(self.number)
        if run is None:
            return
        if run.stop.is_set():
            raise Cancelled("stopped; run the same command again to go on: finished units are kept")
        if run.sink is not None and progress is not None:
            run.sink(progress)


def call(function: Callable[[Any, Reporter], None], item: Any, reporter: Reporter) -> DataprepError | None:
    """Do one item. An error of ours travels as a value, so that Dask neither logs it nor tries again."""
    if reporter.version != dataprep.__version__:
        return ClusterError(
            f"the worker on {socket.gethostname()} runs dataprep {dataprep.__version__}, the driver "
            f"{reporter.version}; install the same version everywhere"
        )
    with _runs.get(reporter.number) or contextlib.nullcontext():
        try:
            reporter(None)
            function(item, reporter)
        except DataprepError as error:
            return error
    return None


@dataclass(frozen=True, slots=True)
class Sealed:
    """A call of `call` that happens when it is unpickled.

    Dask has to see nothing of ours: a scheduler without dataprep could not read its tasks, and a worker without it
    would be killed by the first one, unheard. This way the call fails, and says what is missing.
    """

    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return call, self.arguments
