"""Workers on this machine: threads of this process, or processes of their own. Dask's servers are bound to loopback.

With threads, tasks travel without a socket, libraries and the reference are shared, and the engine releases the GIL.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

from dataprep.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)


class Here:
    """A `Place` on this machine.

    Args:
        workers: units worked on at the same time.
        processes: a process per worker instead of a thread.
        dashboard: serve Dask's pages, and say where.
    """

    def __init__(self, workers: int, processes: bool = False, dashboard: bool = False) -> None:
        self.workers = workers
        self.in_process = not processes
        self._dashboard = dashboard

    def open(self) -> Any:
        """Start the workers; returns Dask's client.

        Raises:
            ClusterError: they did not start.
        """
        import dask
        from distributed import Client, LocalCluster

        # A thread that is not heard of for minutes was stopped with all of this process, by Ctrl-Z or `scontrol
        # suspend`. Dask would give it up as it wakes up, and nobody would start another one.
        heard = {"distributed.scheduler.worker-ttl": None} if self.in_process else {}
        try:
            with dask.config.set(heard), contextlib.nullcontext() if self.in_process else _no_interrupts():
                self._cluster = LocalCluster(
                    n_workers=1 if self.in_process else self.workers,
                    threads_per_worker=self.workers if self.in_process else 1,
                    processes=not self.in_process,
                    memory_limit=0,
                    dashboard_address="127.0.0.1:8787" if self._dashboard else "127.0.0.1:0",
                    worker_dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
        except Exception as error:
            raise ClusterError(
                f"the workers did not start: {' '.join(str(error).split())[:200]}; with runtime.processes=true a "
                "script needs `if __name__ == '__main__':` around its call"
            ) from error
        if self._dashboard:
            log.info("Dask's pages: %s", self._cluster.dashboard_link)
        self._client = Client(self._cluster, set_as_default=False)
        return self._client

    def trouble(self) -> str | None:
        """Why there will be no workers any more."""
        return None

    def close(self, error: object) -> None:
        """Stop them.

        Args:
            error: what ends the work early, or None.
        """
        if not self.in_process and isinstance(error, ClusterError):
            # Dask is just starting the worker that died anew. To close it meanwhile fails in one of ten runs
            # (distributed 2026.8), whose AssertionError would hide this error, and the worker prints a traceback.
            with contextlib.suppress(OSError):  # TimeoutError among them: the worker died once more
                self._client.wait_for_workers(self.workers, timeout=30)
        self._client.close()
        self._cluster.close()


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
