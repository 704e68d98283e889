"""Map a function over units.

No data lives in Dask: a task is a unit, its result nothing; what a unit made is on disk, and its manifest is the
receipt. So a scheduler holds a window of small tasks, a lost worker costs the units in its hands, and a lost
driver costs nothing that was finished.

The local cluster is one process with a thread per worker: tasks travel without a socket, libraries and the
reference are shared, and the engine releases the GIL. ``processes=True`` gives each worker a process instead. Dask's
HTTP servers are bound to loopback.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dataprep.errors import Cancelled, ClusterError, DataprepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 3
"""How often a unit may lose its worker before the run gives up."""


WINDOW = 32
"""Items with the scheduler at the least: a window of two per worker costs 7 ms per do-nothing item, this one 3."""


class _Run:
    """The driver's side of one `Cluster`, found by number from the threads of the same process."""

    def __init__(self, sink: Callable[[Any], None] | None) -> None:
        self.stop = threading.Event()
        self.sink = sink
        self._active = 0
        self._idle = threading.Condition()

    def __enter__(self) -> None:
        with self._idle:
            self._active += 1

    def __exit__(self, *error: object) -> None:
        with self._idle:
            self._active -= 1
            self._idle.notify_all()

    def wait_until_idle(self) -> None:
        """Return when no thread is inside a unit any more."""
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0)


_runs: dict[int, _Run] = {}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Reporter:
    """What a unit reports its progress to; where the driver is another process, it does nothing.

    Calling it raises Cancelled once the run is being stopped.
    """

    number: int

    def __call__(self, progress: Any) -> None:
        run = _runs.get(self.number)
        if run is None:
            return
        if run.stop.is_set():
            raise Cancelled("stopped; run the same command again to go on: finished units are kept")
        if run.sink is not None and progress is not None:
            run.sink(progress)


def _call(function: Callable[[Any, Reporter], None], item: Any, reporter: Reporter) -> DataprepError | None:
    """Do one item. An error of ours travels as a value, so that Dask neither logs it nor tries again."""
    with _runs.get(reporter.number) or contextlib.nullcontext():
        try:
            reporter(None)
            function(item, reporter)
        except DataprepError as error:
            return error
    return None


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Let processes started in this block ignore Ctrl-C, which a terminal sends to all of them: the driver stops them.

    A Ctrl-C in the second that this takes is lost. Blocking the signal instead would keep it, but multiprocessing
    unblocks it in the child.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class _Done:
    """A task that has ended, its item, and what is to be done then."""

    future: Any
    item: Any
    then: Callable[[], None]


class Cluster:
    """A Dask cluster on this machine, for the length of a ``with`` block.

    Args:
        workers: units worked on at the same time.
        processes: a process per worker instead of a thread.
        sink: called with every progress report, from the worker's thread.
    """

    def __init__(self, workers: int, processes: bool = False, sink: Callable[[Any], None] | None = None) -> None:
        self.workers = workers
        self.processes = processes
        self._reporter = Reporter(next(_numbers))
        self._run = _runs[self._reporter.number] = _Run(sink)
        self._done: queue.SimpleQueue[_Done | BaseException | int] = queue.SimpleQueue()
        self._num_added = 0

    def __enter__(self) -> Self:
        import dask
        from distributed import Client, LocalCluster

        self._settings = dask.config.set(
            {
                # The nanny sets MALLOC_TRIM_THRESHOLD_, which turns glibc's dynamic mmap threshold off: that costs
                # 20 to 30 % of throughput.
                "distributed.nanny.pre-spawn-environ": {
                    "OMP_NUM_THREADS": 1,
                    "RAYON_NUM_THREADS": 1,
                    "MALLOC_TRIM_THRESHOLD_": None,
                },
                # No task data lives in Dask: nothing to spill, and a paused worker would wait for ever.
                "distributed.worker.memory.target": False,
                "distributed.worker.memory.spill": False,
                "distributed.worker.memory.pause": False,
                "distributed.worker.memory.terminate": False,
                "distributed.scheduler.allowed-failures": ATTEMPTS - 1,
                "distributed.admin.tick.limit": "60s",
            }
        )
        try:
            with _no_interrupts() if self.processes else contextlib.nullcontext():
                self._cluster = LocalCluster(
                    n_workers=self.workers if self.processes else 1,
                    threads_per_worker=1 if self.processes else self.workers,
                    processes=self.processes,
                    memory_limit=0,
                    dashboard_address="127.0.0.1:0",
                    worker_dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
        except Exception as error:
            self._forget()
            raise ClusterError(
                f"the workers did not start: {' '.join(str(error).split())[:200]}; with runtime.processes=true a "
                "script needs `if __name__ == '__main__':` around its call"
            ) from error
        self._client = Client(self._cluster)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._run.stop.set()
        try:
            self._run.wait_until_idle()
            if self.processes and isinstance(error, ClusterError):
                # Dask is just starting the worker that died anew. To close it meanwhile fails in one of ten runs
                # (distributed 2026.8), whose AssertionError would hide this error, and the worker prints a traceback.
                with contextlib.suppress(OSError):  # TimeoutError among them: the worker died once more
                    self._client.wait_for_workers(self.workers, timeout=30)
            self._client.close()
            self._cluster.close()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._settings.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        del _runs[self._reporter.number]

    def map(self, function: Callable[[T, Reporter], None], items: Iterable[T]) -> Iterator[Any]:
        """Call ``function(item, reporter)`` for every item; yields each item when it is done, in any order.

        A window of items is with the scheduler at any time, and is filled up as they end. An item whose worker is lost
        goes to another. What `add` was given meanwhile is yielded as well.

        Args:
            function: picklable; must be free to run twice for the same item.
            items: picklable; taken by a thread of its own, which may wait for them. Once the caller stops to take what
                is done, `items` has to come to an end by itself.

        Raises:
            DataprepError: what the function raised, or the items did.
            ClusterError: an item lost its worker `ATTEMPTS` times, or the scheduler is gone.
        """
        self._done, self._num_added = queue.SimpleQueue(), 0
        done = self._done
        window = threading.Semaphore(max(WINDOW, 2 * self.workers))
        closed = threading.Event()

        def feed() -> None:
            count = 0
            try:
                for item in items:
                    window.acquire()
                    if closed.is_set():
                        return
                    self._submit(function, item, window.release, 0)
                    count += 1
            except BaseException as error:  # noqa: BLE001 - it is raised again by whoever takes what is done
                done.put(error)
            else:
                done.put(count)

        threading.Thread(target=feed, name="feeder", daemon=True).start()
        num_done, num_items = 0, -1
        try:
            while num_items < 0 or num_done != num_items + self._num_added:
                event = done.get()
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, int):
                    num_items = event
                    continue
                error = self._result(event.future, event.item)
                if error is not None:
                    raise error
                event.then()
                num_done += 1
                yield event.item
        finally:
            closed.set()
            window.release()

    def add(self, function: Callable[[T, Reporter], None], item: T) -> None:
        """Call ``function(item, reporter)`` too, before what waits: for the thread that iterates over `map`."""
        self._num_added += 1
        self._submit(function, item, lambda: None, 1)

    def _submit(
        self, function: Callable[[T, Reporter], None], item: T, then: Callable[[], None], priority: int
    ) -> None:
        done = self._done
        future = self._client.submit(_call, function, item, self._reporter, pure=False, priority=priority)
        future.add_done_callback(lambda future: done.put(_Done(future, item, then)))

    def _result(self, future: Any, item: Any) -> DataprepError | None:
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        try:
            result: DataprepError | None = future.result()
        except KilledWorker as error:
            raise ClusterError(
                f"{item}, or one beside it: its worker died {ATTEMPTS} times, most likely out of memory; "
                "lower runtime.memory, runtime.batch_bytes or runtime.workers and run the same command again: "
                "finished units are kept"
            ) from error
        except CancelledError as error:
            raise ClusterError("the scheduler is gone; run the same command again: finished units are kept") from error
        future.release()  # or Python would, when the future goes, and drop a Ctrl-C that arrives meanwhile
        return result
