"""A scheduler in the driver's process, for workers that come from elsewhere with the settings they were given.

    driver + scheduler   <-- TLS --   workers that srun, sbatch or Kubernetes started

Whoever starts workers hands them two environment variables: DASK_CONFIG names a file with all settings, the paths of
the certificate among them. What they need beside it, a path to the same Python and to the output, their starter knows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.cluster.settings import config_text
from dataprep.cluster.tls import write_certificate
from dataprep.errors import ClusterError
from dataprep.storage import MARK, explain, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)


class Hosted:
    """A `Place` whose scheduler is here.

    Args:
        work: a folder that workers see; a private one in it holds settings, key and certificate meanwhile.
        host: address that scheduler and client listen at.
        port: of the scheduler; 0: any.
        insecure: no TLS.
        dashboard: serve Dask's pages on loopback.
    """

    in_process = False

    def __init__(self, work: Path, host: str, port: int = 0, insecure: bool = False, dashboard: bool = False) -> None:
        self._work, self._host, self._port, self._insecure, self._dashboard = work, host, port, insecure, dashboard
        self._stack = contextlib.ExitStack()
        self.folder = work

    def open(self) -> Any:
        """Start the scheduler; returns Dask's client.

        Raises:
            ClusterError: it did not start.
            OutputError: the file system refuses.
        """
        from distributed import Client, LocalCluster
        from distributed.security import Security

        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(private_folder(self._work, self._insecure))
            try:
                cluster = LocalCluster(
                    n_workers=0,
                    host=self._host,
                    scheduler_port=self._port,
                    protocol="tcp://" if self._insecure else "tls://",
                    security=Security(),
                    dashboard_address="127.0.0.1:8787" if self._dashboard else "127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
            except Exception as error:
                raise ClusterError(
                    f"the scheduler did not start on {self._host}: {' '.join(str(error).split())[:200]}; if that is no "
                    "address of this machine, name its network interface: --set cluster.interface=NAME"
                ) from error
            stack.callback(cluster.close)
            if self._dashboard:
                log.info("Dask's pages, on %s: %s", socket.gethostname(), cluster.dashboard_link)
            client = stack.enter_context(Client(cluster, security=cluster.security, set_as_default=False))
            with explain(folder, "write settings in"):
                scheduler_path(folder).write_text(json.dumps({"address": cluster.scheduler_address}), encoding="utf-8")
            self.folder = folder
            self._stack = stack.pop_all()
        return client

    def trouble(self) -> str | None:
        return None

    def close(self, error: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def private_folder(work: Path, insecure: bool) -> Iterator[Path]:
    """A folder with Dask's settings for workers, key and certificate; meanwhile the settings are this process's, too.

    Args:
        work: what it is made in.
        insecure: no TLS.

    Raises:
        OutputError: the file system refuses.
    """
    import dask

    make_folder(work)
    with explain(work, "create a folder in"):
        folder = Path(tempfile.mkdtemp(prefix=f"cluster{MARK}", dir=work))  # with mode 0700
    try:
        tls = {} if insecure else write_certificate(folder)
        with explain(folder, "write settings in"):
            config_path(folder).write_text(config_text(tls), encoding="utf-8")
        with dask.config.set(tls):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def config_path(folder: Path) -> Path:
    """Dask's settings for workers; name it in their DASK_CONFIG."""
    return folder / "dask.yaml"


def scheduler_path(folder: Path) -> Path:
    """The scheduler file, for ``dask worker --scheduler-file``."""
    return folder / "scheduler.json"
