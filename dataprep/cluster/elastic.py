"""Workers as jobs of Slurm, as many as there is work for: dask-jobqueue, with its traps closed.

importing it takes Ctrl-C away (dask-jobqueue 0.9.0, issue 696)       the handler is put back
a lost job is not replaced                                           `adapt`, which does
a scheduler on all addresses without a password                      TLS, and one address
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from dataprep.cluster.hosted import config_path, private_folder
from dataprep.cluster.slurm import ANSWER_SECONDS, ask
from dataprep.errors import ClusterError, SpecError
from dataprep.storage import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataprep.specs import SlurmElastic

log = logging.getLogger(__name__)

LIFETIME_SHARE = 0.9
"""Of a job's time after which its workers take no more units, so that they do not die in the middle of one."""


class Elastic:
    """A `Place` of jobs of one node each.

    Args:
        spec: what to ask Slurm for.
        work: a folder that all nodes see.
    """

    in_process = False

    def __init__(self, spec: SlurmElastic, work: Path) -> None:
        self._spec, self._work = spec, work
        self._stack = contextlib.ExitStack()

    def open(self) -> Any:
        """Start the scheduler here; jobs are submitted as units come.

        Raises:
            ClusterError: it did not start.
            SpecError: dask-jobqueue is not installed.
        """
        from distributed import Client

        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(private_folder(self._work, self._spec.insecure))
            try:
                cluster = _slurm_cluster()(**self._options(folder))
            except (OSError, ValueError, RuntimeError) as error:
                raise ClusterError(f"the scheduler did not start: {' '.join(str(error).split())[:300]}") from error
            stack.callback(_close, cluster)
            if self._spec.dashboard:
                log.info("Dask's pages, on %s: %s", socket.gethostname(), cluster.dashboard_link)
            _warn_of_refusal(cluster.job_script())
            cluster.adapt(minimum_jobs=1, maximum_jobs=self._spec.nodes, interval="2s", wait_count=30)
            client = stack.enter_context(Client(cluster, set_as_default=False))
            self._stack = stack.pop_all()
        return client

    def _options(self, folder: Path) -> dict[str, Any]:
        """Of dask-jobqueue's class."""
        from distributed.security import Security

        spec, logs = self._spec, self._work / "workers"
        make_folder(logs)
        workers = spec.num_workers // spec.nodes
        return {
            "cores": workers,
            "processes": workers,
            "memory": spec.memory or "1GB",  # it insists; without ours the directive is left out
            "job_directives_skip": [] if spec.memory else ["--mem="],
            "walltime": spec.time,
            "queue": spec.partition,
            "account": spec.account,
            "interface": spec.interface,
            "local_directory": spec.scratch,
            "log_directory": str(logs),
            "death_timeout": 120,
            "protocol": "tcp://" if spec.insecure else "tls://",
            "security": Security(),
            "python": sys.executable,
            "job_name": "dataprep-worker",
            "job_extra_directives": _directives(spec),
            "job_script_prologue": [f"export DASK_CONFIG={shlex.quote(str(config_path(folder)))}", *spec.prologue],
            "worker_extra_args": ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", *_lifetime(spec.time)],
            "scheduler_options": {"dashboard_address": "127.0.0.1:8787" if spec.dashboard else "127.0.0.1:0"},
            "silence_logs": logging.CRITICAL,
        }

    def trouble(self) -> str | None:
        return None

    def close(self, error: object) -> None:
        self._stack.close()


def _close(cluster: Any) -> None:
    """End the jobs; an sbatch or scancel that does not end by itself is not waited for."""
    try:
        cluster.close(timeout=ANSWER_SECONDS)
    except AssertionError:  # Dask's, of a worker whose job could not be submitted
        return
    except TimeoutError:
        log.warning("Slurm does not answer: see with squeue whether jobs named dataprep-worker are left")


def _warn_of_refusal(script: str) -> None:
    """Say what sbatch has against a worker's job; dask-jobqueue would try again and again without a word."""
    with contextlib.suppress(OSError):
        done = ask("sbatch", "--test-only", text=script)
        if done.returncode:
            log.warning("sbatch may refuse the workers' jobs: %s", " ".join(done.stderr.split()))


def _slurm_cluster() -> Any:
    """dask-jobqueue's class, imported without what that does to Ctrl-C.

    Raises:
        SpecError: it is not installed, or this is not the main thread, where alone it can be imported.
    """
    if threading.current_thread() is not threading.main_thread() and "dask_jobqueue" not in sys.modules:
        raise SpecError("slurm-elastic needs the main thread of the process")
    with _kept_handlers():
        try:
            from dask_jobqueue import SLURMCluster
        except ImportError as error:
            raise SpecError("--cluster slurm-elastic needs dask-jobqueue: pip install 'dataprep-llm[slurm]'") from error
    return SLURMCluster


@contextlib.contextmanager
def _kept_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _directives(spec: SlurmElastic) -> list[str]:
    named = [f"--{key}={value}" for key in ("qos", "constraint") if (value := getattr(spec, key)) is not None]
    return ["--requeue", "--open-mode=append", *named, *spec.directives]


def _lifetime(time: str | None) -> list[str]:
    """Options of a worker that is to end before its job does."""
    if time is None:
        return []
    seconds = int(_seconds(time) * LIFETIME_SHARE)
    return ["--lifetime", f"{seconds}s", "--lifetime-stagger", f"{max(1, seconds // 20)}s"]


def _seconds(time: str) -> int:
    """Slurm's ``minutes[:seconds]``, ``hours:minutes:seconds`` or ``days-hours[:minutes[:seconds]]``."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
