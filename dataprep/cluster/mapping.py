"""Map a function over units.

No data lives in Dask: a task is a unit, its result nothing; what a unit made is on disk, and its manifest is the
receipt. So a scheduler holds a window of small tasks, a lost worker costs the units in its hands, and a lost
driver costs nothing that was finished.

Where the workers are is a `Place`'s matter.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
import queue
import threading
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import dataprep
from dataprep.cluster.calls import Reporter, Run, Sealed, call
from dataprep.cluster.settings import SETTINGS
from dataprep.errors import ClusterError, DataprepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 20
"""How often an item may have been with a worker that was lost. Many, because that counts for every item that the worker
held, also for those that it had not begun; which one it was that killed it, `stages.tokenize` knows."""

WINDOW = 32
"""Items with the scheduler at the least: a window of two per worker costs 7 ms per do-nothing item, this one 3."""

MAX_BESIDE = 4
"""Added items that may be under way before no further ones are begun: a disk that cannot follow slows the workers down,
instead of being filled with what it is to take."""

SILENT_SECONDS = 10
"""How long there may be no worker before something is said about it."""

LOOK_SECONDS = 2.0
"""How often it is looked after workers of other processes."""


class Place(Protocol):
    """Where workers are.

    Attributes:
        in_process: workers are threads of this process: they can report, and be told to stop.
    """

    in_process: bool

    def open(self) -> Any:
        """Start or find the workers; returns Dask's client.

        Raises:
            ClusterError: it cannot be had.
        """

    def trouble(self) -> str | None:
        """Why there will be no workers any more, or None."""

    def close(self, error: object) -> None:
        """Let go of the workers, after an error or without one."""


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep Dask's log, with its tracebacks, off the terminal: what is lost, a message of ours says."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(("asyncio", "distributed", "tornado"))]
    loggers = [logging.getLogger(name) for name in names]  # Dask gives levels to some of its own
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True, slots=True)
class _Task:
    """A task with the scheduler.

    Attributes:
        then: what is to be done once it is done.
        attempts: how often Dask gave it up before.
    """

    function: Callable[[Any, Reporter], None]
    item: Any
    then: Callable[[], None]
    priority: int
    attempts: int = 0


_Event = tuple["Callable[[], DataprepError | None]", _Task] | BaseException | int
"""A task that ended, and what gives its result; what went wrong with the items; or how many there were."""


class _LostError(Exception):
    """A result went with its worker. Dask does the item again once there is another worker, or waits for ever."""


def _take(future: Any) -> DataprepError | None:
    """The result of a future, which is not needed any more then.

    Raises:
        _LostError: it is not to be had yet.
    """
    try:
        result: DataprepError | None = future.result(timeout=LOOK_SECONDS)
    except BaseException as error:
        if isinstance(error, TimeoutError) and future.status != "error":
            raise _LostError from error
        future.release()
        raise
    future.release()  # or Python would, when the future goes, and drop a Ctrl-C that arrives meanwhile
    return result


class Cluster:
    """Workers, for the length of a ``with`` block.

    Args:
        place: where they are.
        sink: called with every progress report, from the worker's thread; only where they are threads of this process.
        patience_seconds: how long there may be no worker that works before the run gives up.

    Attributes:
        num_workers: that were at work when it was last looked.
        num_retries: items given to Dask again, because the worker that held them was lost.
    """

    def __init__(self, place: Place, sink: Callable[[Any], None] | None = None, patience_seconds: float = 300) -> None:
        self._place, self._patience = place, patience_seconds
        self._run = Run(sink)
        self._reporter = self._run.reporter
        self._done: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._window, self._window_size = threading.Semaphore(), WINDOW
        self._num_added = self._num_beside = 0
        self._next_look = self._last_seen = 0.0
        self._is_said = False
        self.num_workers = self.num_retries = 0

    def __enter__(self) -> Self:
        import dask
        import distributed  # noqa: F401 - its own settings have to be there first, or would go with ours

        with contextlib.ExitStack() as stack:
            stack.callback(self._run.forget)
            stack.enter_context(dask.config.set(SETTINGS))
            stack.enter_context(_silence())
            self._beside = stack.enter_context(ThreadPoolExecutor(1, "beside"))
            self._client = self._place.open()
            with contextlib.ExitStack() as opened:
                opened.callback(self._place.close, None)
                self._last_seen = time.monotonic()
                self._look()
                opened.pop_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._run.stop.set()
        try:
            self._run.wait_until_idle()
            self._place.close(error)
        finally:
            self._stack.close()

    @property
    def dashboard(self) -> str:
        """The address of Dask's pages on this machine; they are on its loopback, and Dask says another one."""
        return f"http://127.0.0.1:{urlsplit(self._client.dashboard_link).port}/status"

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
            ClusterError: an item lost its worker too often, there are no workers any more, or the scheduler is gone.
        """
        self._done = queue.SimpleQueue()
        self._num_added = self._num_beside = 0
        window = self._window = threading.Semaphore(self._window_size)
        closed = threading.Event()

        threading.Thread(target=self._feed, args=(function, items, closed), name="feeder", daemon=True).start()
        num_done, num_items = 0, -1
        owed: deque[Callable[[], None]] = deque()
        try:
            while num_items < 0 or num_done != num_items + self._num_added:
                event = self._next()
                if isinstance(event, BaseException):
                    raise event
                if isinstance(event, int):
                    num_items = event
                    continue
                result, task = event
                if self._is_done(result, task):
                    if task.priority:
                        task.then()
                    else:
                        owed.append(task.then)
                    num_done += 1
                    yield task.item
                    while owed and self._num_beside <= MAX_BESIDE:
                        owed.popleft()()
        finally:
            closed.set()
            window.release()

    def _feed(self, function: Callable[[T, Reporter], None], items: Iterable[T], closed: threading.Event) -> None:
        """Give items to the scheduler as long as there is room; then say how many there were."""
        done, window, count = self._done, self._window, 0
        try:
            for item in items:
                window.acquire()
                if closed.is_set():
                    return
                self._submit(_Task(function, item, window.release, 0))
                count += 1
        except BaseException as error:  # noqa: BLE001 - it is raised again by whoever takes what is done
            done.put(error)
        else:
            done.put(count)

    def add(self, function: Callable[[T, Reporter], None], item: T) -> None:
        """Call ``function(item, reporter)`` too, before what waits: for the thread that iterates over `map`.

        Where workers are threads of this process, one more of it does these, so that none of them waits for the disk.
        """
        self._num_added += 1
        self._num_beside += 1
        task = _Task(function, item, self._added_is_done, 1)
        if not self._place.in_process:
            self._submit(task)
            return
        done = self._done
        future = self._beside.submit(call, function, item, self._reporter)
        future.add_done_callback(lambda future: done.put((future.result, task)))

    def _added_is_done(self) -> None:
        self._num_beside -= 1

    def _submit(self, task: _Task) -> None:
        from distributed.protocol.pickle import dumps  # of functions of __main__ too

        done = self._done
        sealed = dumps(Sealed((task.function, task.item, self._reporter)))
        future = self._client.submit(pickle.loads, sealed, key=f"unit-{uuid.uuid4().hex}", priority=task.priority)
        future.add_done_callback(lambda future: done.put((functools.partial(_take, future), task)))

    def _next(self) -> _Event:
        """What happens next; workers of other processes are looked after meanwhile."""
        while not self._place.in_process:
            wait = self._next_look - time.monotonic()
            if wait <= 0:
                self._look()
                continue
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=wait)
        return self._done.get()

    def _look(self) -> None:
        """See how many workers there are; more of them get more items at the same time.

        Raises:
            ClusterError: there have been none for too long, or there will be none any more.
        """
        trouble = self._place.trouble()
        if trouble is not None:
            raise ClusterError(f"{trouble}; run the same command again: finished units are kept")
        states = self._states()
        now = time.monotonic()
        self._next_look = now + LOOK_SECONDS
        self.num_workers = sum(num_threads for status, num_threads in states or () if status == "running")
        while self._window_size < 2 * self.num_workers:
            self._window.release()
            self._window_size += 1
        if self.num_workers:
            self._last_seen, self._is_said = now, False
            return
        found = ", ".join(sorted({status for status, _ in states})) if states is not None else "no answer"
        if now - self._last_seen > SILENT_SECONDS and not self._is_said:
            self._is_said = True
            left = self._patience - (now - self._last_seen)
            why = "there is none at work" if states is not None else "the scheduler does not answer"
            log.info("waiting for a worker: %s; giving up in %.0f s if none comes", why, left)
        if now - self._last_seen > self._patience:
            raise ClusterError(
                f"no worker has been at work for {now - self._last_seen:.0f} s ({found or 'none at all'}); look for "
                "the reason in the workers' logs, and run the same command again: finished units are kept"
            )

    def _states(self) -> list[tuple[str, int]] | None:
        """Status and number of threads of all workers; None: the scheduler does not answer, and may be gone."""
        scheduler = self._client.scheduler
        if scheduler is None:
            return None
        try:
            found = self._client.sync(scheduler.identity, callback_timeout=LOOK_SECONDS)
        except OSError:  # TimeoutError among them
            return None
        return [(worker["status"], worker["nthreads"]) for worker in found["workers"].values()]

    def _is_done(self, result: Callable[[], DataprepError | None], task: _Task) -> bool:
        """Whether a task that ended is done; if not, it was given to Dask again.

        Raises:
            DataprepError: what its function raised.
            ClusterError: it lost its worker too often, or the scheduler is gone.
        """
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        try:
            error = result()
        except _LostError:
            self._done.put((result, task))  # and look after the workers first
            return False
        except (KilledWorker, OSError) as killed:  # OSError: its result, None, was lost with the worker
            if task.attempts + 1 < ATTEMPTS:
                self.num_retries += 1
                self._submit(replace(task, attempts=task.attempts + 1))
                return False
            raise ClusterError(
                f"{task.item}, or one beside it: its worker died {ATTEMPTS} times, most likely out of memory; "
                "lower runtime.memory, runtime.batch_bytes or runtime.workers and run the same command again: "
                "finished units are kept"
            ) from killed
        except ImportError as error:
            raise ClusterError(
                f"a worker cannot import what it needs ({error}); install dataprep {dataprep.__version__} and its "
                "packages wherever workers run, and run the same command again"
            ) from error
        except CancelledError as gone:
            raise ClusterError("the scheduler is gone; run the same command again: finished units are kept") from gone
        if error is not None:
            raise error
        return True
