"""A Dask cluster that somebody else runs. Its workers have to have this very dataprep, and see the output's folder."""

from __future__ import annotations

import contextlib
import logging
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
        kind = "address" if "://" in address else "scheduler_file"
        try:
            self._client = Client(**{kind: address}, timeout=min(30, self._spec.patience_seconds), set_as_default=False)
        except (OSError, TypeError, ValueError) as error:  # TimeoutError among them; TypeError: no certificates
            raise ClusterError(
                f"no scheduler answers at {address}: {' '.join(str(error).split())[:200]}; start it with `dask "
                "scheduler`, or give the address it says it listens at. For tls:// Dask's own settings name the "
                "certificates (distributed.comm.tls)"
            ) from error
        self._warn()
        return self._client

    def _warn(self) -> None:
        """Say what makes its workers slow."""
        with contextlib.suppress(OSError):
            trimmed = self._client.run(_trims)
            if any(trimmed.values()):
                log.warning(
                    "%d of %d workers run with MALLOC_TRIM_THRESHOLD_, which costs 20 to 30 %% of their speed: start "
                    "them with DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON='{}'",
                    sum(trimmed.values()),
                    len(trimmed),
                )

    def trouble(self) -> str | None:
        return None

    def close(self, error: object) -> None:
        self._client.close()


def _trims() -> bool:
    import os

    return "MALLOC_TRIM_THRESHOLD_" in os.environ
