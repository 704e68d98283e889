"""A Dask cluster that somebody else runs. Its workers have to have this very dataprep, and see the output's folder."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import ClusterError

if TYPE_CHECKING:
    from dataprep.specs import Existing

log = logging.getLogger(__name__)


class Joined:
    """A `Place` that runs already.

    Args:
        spec: its address.
    """

    in_process = False

    def __init__(self, spec: Existing) -> None:
        self._spec = spec

    def open(self) -> Any:
        """Connect; returns Dask's client.

        Raises:
            ClusterError: nobody answers.
        """
        from distributed import Client

        address = self._spec.address
        if "://" not in address:
            _check_scheduler_file(address)
        kind = "address" if "://" in address else "scheduler_file"
        try:
            client = Client(**{kind: address}, timeout=min(30, self._spec.patience_seconds), set_as_default=False)
        except (OSError, TypeError, ValueError) as error:  # TimeoutError among them; TypeError: no certificates
            raise ClusterError(
                f"no scheduler answers at {address}: {' '.join(str(error).split())[:200]}; start it with `dask "
                "scheduler`, or give the address it says it listens at. For tls:// Dask's own settings name the "
                "certificates (distributed.comm.tls)"
            ) from error
        self._client = client
        client.submit(os.getenv, "MALLOC_TRIM_THRESHOLD_", pure=False).add_done_callback(_warn)  # by the first to come
        return client

    def trouble(self) -> str | None:
        return None

    def close(self, error: object) -> None:
        self._client.close()


def _check_scheduler_file(path: str) -> None:
    """Raise ClusterError for a file that no scheduler wrote; Dask says nothing of it."""
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("address"), str):
        raise ClusterError(
            f"{path} is no scheduler file; `dask scheduler --scheduler-file {path}` writes one. A YAML with `cluster:` "
            "has to end in .yaml"
        )


def _warn(found: Any) -> None:
    """Say what makes workers slow."""
    if found.status == "finished" and found.result() is not None:
        log.warning(
            "workers run with MALLOC_TRIM_THRESHOLD_, which costs 20 to 30 %% of their speed: start them with "
            "DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON=\"{'MALLOC_TRIM_THRESHOLD_': None}\""
        )
