"""What Dask is told, in every process of ours that runs it, and what is told to workers that somebody else starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS: dict[str, Any] = {
    # The nanny sets MALLOC_TRIM_THRESHOLD_, which turns glibc's dynamic mmap threshold off: that costs 20 to 30 % of
    # throughput. One thread each for OpenMP and gigatoken: a worker is one thread.
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
    # The driver is told of every item whose worker was lost, counts it, and gives it to Dask again: Dask's own limit
    # blames every item that the worker held, also those not begun, and takes a node that left for a crash.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.admin.tick.limit": "60s",
}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` -> ``{"a": {"b": 1}}``, as Dask's configuration files have it."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        inner = result
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return result


def config_text(more: Mapping[str, Any]) -> str:
    """A Dask configuration file, for processes that find it by the environment variable DASK_CONFIG."""
    return yaml.safe_dump(nested({**SETTINGS, **more}), sort_keys=True)
