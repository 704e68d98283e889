"""Where units are worked; nobody else imports Dask.

mapping       a function over units, on the workers of a `Place`
calls         the call for one item, on a worker
local         threads or processes here
existing      a Dask cluster that runs already
hosted        a scheduler here, workers from elsewhere
allocation    the nodes of a Slurm allocation
slurm         the job that asks for one
elastic       jobs of Slurm, as many as there is work for
kubernetes    manifests of pods that are a cluster, with the driver among them
settings      what Dask is told; tls: certificates
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataprep.cluster.calls import Reporter
from dataprep.cluster.local import Here
from dataprep.cluster.mapping import WINDOW, Cluster, Place
from dataprep.errors import SpecError
from dataprep.specs import Existing, Local, Slurm, SlurmElastic

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.specs import ClusterSpec, Runtime

__all__ = ["WINDOW", "Cluster", "Here", "Place", "Reporter", "find_place"]


def find_place(spec: ClusterSpec, runtime: Runtime, workers: int, work: Path) -> Place:
    """The place that a spec means.

    Args:
        spec: what was asked for.
        runtime: whether workers here are processes.
        workers: how many there are to be here.
        work: a folder of the run that all workers see.

    Raises:
        SpecError: it is one that a run is handed to, and this process is not inside.
    """
    if isinstance(spec, Local):
        return Here(workers, runtime.processes, spec.dashboard)
    if isinstance(spec, Existing):
        from dataprep.cluster.existing import Joined

        return Joined(spec)
    if isinstance(spec, Slurm):
        from dataprep.cluster.allocation import Allocation, is_inside

        if is_inside():
            return Allocation(spec, work)
    if isinstance(spec, SlurmElastic):
        from dataprep.cluster.elastic import Elastic

        return Elastic(spec, work)
    raise SpecError(
        f"cluster.kind={spec.kind}: a run is handed over by the command line, dataprep run --cluster {spec.kind}, and "
        "done inside; from Python choose local, slurm-elastic or the address of a cluster"
    )
