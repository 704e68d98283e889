"""Where units are worked: ``--cluster`` and the settings ``cluster.*``. None of it changes a byte of the result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dataprep.specs.models import Model


class _Any(Model):
    """What all kinds have in common.

    Attributes:
        dashboard: serve Dask's own pages, on loopback of the machine the driver runs on.
        patience_seconds: how long there may be no worker that works before the run gives up.
    """

    dashboard: bool = False
    patience_seconds: int = Field(default=300, ge=1)


class Local(_Any):
    """This machine, and no open port beyond loopback; `runtime.workers` and `runtime.processes` say how."""

    kind: Literal["local"] = "local"


class Existing(_Any):
    """A Dask cluster that runs already.

    Attributes:
        address: of its scheduler, ``tcp://host:port`` or ``tls://host:port``, or the path of its scheduler file. TLS
            uses Dask's own settings (``distributed.comm.tls``).
    """

    kind: Literal["existing"] = "existing"
    address: str


class _Slurm(_Any):
    """What both ways to use Slurm have in common.

    Attributes:
        workers_per_node: processes of one thread each. None: as many as the node's processors, of those it is given.
        memory: of each node, as ``--mem`` takes it (``64G``). None: the partition's default.
        time: as ``--time`` takes it (``12:00:00``). None: the partition's default.
        partition, account, qos, constraint: as the options of these names take them.
        directives: more options of sbatch, as they are typed: ``--reservation=x``.
        prologue: lines of shell before anything of ours, e.g. ``module load python``.
        scratch: folder of each node for what Dask's workers keep.
        insecure: connect without TLS: whoever reaches the ports can run code under your name.
    """

    workers_per_node: int | None = Field(default=None, ge=1, le=1024)
    memory: str | None = Field(default=None, pattern=r"^\d+[KMGT]?$")
    time: str | None = Field(default=None, pattern=r"^[\d:-]+$")
    partition: str | None = Field(default=None, pattern=r"^[\w.,-]+$")
    account: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    qos: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    constraint: str | None = Field(default=None, pattern=r"^[\w.&|*!,()\[\]-]+$")
    directives: tuple[Annotated[str, Field(pattern=r"^-[^\n]*$")], ...] = ()
    prologue: tuple[Annotated[str, Field(pattern=r"^[^\n]*$")], ...] = ()
    scratch: str = "/tmp"
    insecure: bool = False


class Slurm(_Slurm):
    """One allocation, the driver inside it.

    Attributes:
        nodes: of the allocation.
        notice_seconds: how long before its time limit the job is told, to stop in order and to queue itself again.
        requeue: whether it may be queued again, by Slurm after a node failed, or by itself.
    """

    kind: Literal["slurm"] = "slurm"
    nodes: int = Field(default=1, ge=1)
    notice_seconds: int = Field(default=60, ge=5)
    requeue: bool = True


class SlurmElastic(_Slurm):
    """The driver here, workers as jobs of one node each, as many as there is work for; dask-jobqueue's SLURMCluster.

    Attributes:
        nodes: at the most.
        interface: the network interface that workers reach this machine by, e.g. ``ib0``. None: Dask's guess.
    """

    kind: Literal["slurm-elastic"] = "slurm-elastic"
    nodes: int = Field(default=1, ge=1)
    interface: str | None = None


class Kubernetes(_Any):
    """Pods: manifests are rendered, for you to apply.

    Attributes:
        form: ``job``: a Job with the driver and its scheduler, a Service, and a Deployment of workers. ``daskjob``: a
            DaskJob for Dask's operator.
        image: that has dataprep installed.
        workers: pods of one worker each.
        cpus, memory: of each worker, requested and limited: Kubernetes quantities.
        driver_memory: of the driver.
        namespace: of everything.
        claim: the PersistentVolumeClaim (ReadWriteMany) that holds the output.
        mount: where it is mounted; ``--output`` lies below it.
        node_selector: of all pods.
        secret: whose keys become environment variables (``HF_TOKEN``). None: none.
        insecure: connect without TLS: whoever reaches the ports can run code in the pods.
    """

    kind: Literal["kubernetes"] = "kubernetes"
    form: Literal["job", "daskjob"] = "job"
    image: str
    workers: int = Field(default=4, ge=1)
    cpus: Annotated[str, Field(pattern=r"^\d+(\.\d+|m)?$")] = "1"
    memory: Annotated[str, Field(pattern=r"^\d+([KMGT]i?)?$")] = "2Gi"
    driver_memory: Annotated[str, Field(pattern=r"^\d+([KMGT]i?)?$")] = "4Gi"
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    claim: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    mount: str = Field(default="/data", pattern=r"^/")
    node_selector: dict[str, str] = Field(default_factory=dict)
    secret: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    insecure: bool = False


ClusterSpec = Annotated[Local | Existing | Slurm | SlurmElastic | Kubernetes, Field(discriminator="kind")]
