"""A fixed number of connections, given to whoever comes first in the order of the corpus, not in that of asking.

Files are wanted in order: with all connections at work on the first file that is not whole, it is whole soon, and can
be tokenized while the next ones come. With a file for each connection, all would be whole at the same late time.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dataprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Connections:
    """Threads that do one call each at a time, the smallest priority first. Use as a context manager.

    Args:
        number: how many.

    Raises:
        SourceError: the machine starts no more threads.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._queue: queue.PriorityQueue[tuple[tuple[float, ...], int, Callable[[], None]]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._threads = [
            threading.Thread(target=self._work, name=f"connection-{i}", daemon=True) for i in range(number)
        ]

    def submit(self, priority: tuple[float, ...], call: Callable[[], T]) -> Future[T]:
        """Have a call done; the future knows what came of it."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
                future.set_exception(error)
            else:
                future.set_result(result)

        self._queue.put((priority, next(self._count), work))
        return future

    def _work(self) -> None:
        while True:
            priority, _, call = self._queue.get()
            if priority == _END:
                return
            call()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.push(self)
            with starting():
                for thread in self._threads:
                    thread.start()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        started = [thread for thread in self._threads if thread.ident is not None]
        for _ in started:
            self._queue.put((_END, next(self._count), _nothing))
        for thread in started:
            thread.join()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Say what to do where the machine starts no more threads, of which Python says so much by a RuntimeError.

    Raises:
        SourceError: it does not.
    """
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise SourceError(
            f"cannot fetch files: {error}; raise the limit on processes and threads (ulimit -u, or that of the "
            "container or job), or lower runtime.connections"
        ) from error


_END: tuple[float, ...] = (float("inf"),)


def _nothing(*_: Any) -> None:
    pass
