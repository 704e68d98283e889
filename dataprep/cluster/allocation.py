"""Inside an allocation of Slurm: driver and scheduler in the batch step, workers on all nodes by one ``srun``."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.cluster.hosted import Hosted, config_path, scheduler_path
from dataprep.cluster.slurm import ask
from dataprep.errors import ClusterError, SpecError
from dataprep.storage import explain, make_folder

if TYPE_CHECKING:
    from dataprep.specs import Slurm

log = logging.getLogger(__name__)

STOP_SECONDS = 20
"""How long workers have to end by themselves once their scheduler is gone."""

DEATH_SECONDS = 120
"""How long a worker looks for a scheduler before it gives up."""


class Allocation:
    """A `Place` on the nodes of the allocation that this process runs in.

    Args:
        spec: workers per node, scratch, interface.
        work: a folder that all nodes see.
    """

    in_process = False

    def __init__(self, spec: Slurm, work: Path) -> None:
        self._spec = spec
        self._hosted = Hosted(work, _address(spec.interface), 0, spec.insecure, spec.dashboard)
        self.log_path = work / f"workers-{os.environ['SLURM_JOB_ID']}.log"

    def open(self) -> Any:
        make_folder(self.log_path.parent)
        with contextlib.ExitStack() as stack:
            with explain(self.log_path, "write"):
                self._log = self.log_path.open("ab")
            stack.callback(self.close, None)
            client = self._hosted.open()
            environment = {**os.environ, "DASK_CONFIG": str(config_path(self._hosted.folder))}
            try:
                self._srun = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is the driver's
                )
            except OSError as error:
                raise ClusterError(f"cannot start srun: {error.strerror}; load the site's Slurm module") from error
            stack.pop_all()
        return client

    def command(self) -> list[str]:
        """The ``srun`` that starts a nanny for each worker on every node."""
        nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
        workers = self._spec.workers_per_node or int(os.environ.get("SLURM_CPUS_ON_NODE", "1"))
        return [
            "srun",
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={workers}",
            *worker_command(workers, self._spec.scratch),
            f"--scheduler-file={scheduler_path(self._hosted.folder)}",
        ]

    def trouble(self) -> str | None:
        code = self._srun.poll()
        return None if code is None else f"srun, which runs the workers, ended with {code}: {_tail(self.log_path)}"

    def close(self, error: object) -> None:
        self._hosted.close(error)
        if hasattr(self, "_srun"):
            try:
                self._srun.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._srun.send_signal(signal.SIGTERM)
                try:
                    self._srun.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self._srun.kill()
                    self._srun.wait()
        self._log.close()


def worker_command(workers: int, scratch: str) -> list[str]:
    """``dask worker`` with this Python: processes of one thread, nothing served, ended once their scheduler is gone."""
    return [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        f"--nworkers={workers}",
        "--nthreads=1",
        "--memory-limit=0",
        "--no-dashboard",
        "--dashboard-address=127.0.0.1:0",
        f"--death-timeout={DEATH_SECONDS}",
        f"--local-directory={scratch}",
    ]


def is_inside() -> bool:
    """Whether this process runs in an allocation of Slurm."""
    return "SLURM_JOB_ID" in os.environ


def _address(interface: str | None) -> str:
    """The address of this node that the others reach it by.

    Raises:
        SpecError: there is no such interface.
    """
    if interface is not None:
        from distributed.utils import get_ip_interface

        try:
            return str(get_ip_interface(interface))
        except ValueError as error:
            raise SpecError(f"cluster.interface={interface}: {error}") from error
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    found = ask("scontrol", "show", "node", "--oneliner", name).stdout
    fields = dict(field.partition("=")[::2] for field in found.split())
    return socket.gethostbyname(fields.get("NodeAddr") or name)


def _tail(path: Path) -> str:
    """The last words of a log that say something, for a message."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line.strip() for line in lines if "error" in line.lower()] or lines
    return f"{told[-1][:300] if told else 'no output'}; all of it is in {path}"
