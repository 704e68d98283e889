"""Where units are worked: ``--cluster`` and the settings ``cluster.*``. None of it changes a byte of the result."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dataprep.errors import SpecError
from dataprep.specs.models import Model, load_yaml


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

    @property
    def num_workers(self) -> None:
        return None


class Existing(_Any):
    """A Dask cluster that runs already.

    Attributes:
        address: of its scheduler, ``tcp://host:port`` or ``tls://host:port``, or the path of its scheduler file. TLS
            uses Dask's own settings (``distributed.comm.tls``).
    """

    kind: Literal["existing"] = "existing"
    address: str

    @property
    def num_workers(self) -> int:
        """Only a guess, by which units are cut: nobody knows how many there will be."""
        return 32


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
        interface: the network interface that workers reach the driver by, e.g. ``ib0``. None: the address Slurm knows
            the node by, or Dask's guess.
        insecure: connect without TLS: whoever reaches the ports can run code under your name.
        nodes: of the allocation; with slurm-elastic at the most.
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
    interface: str | None = Field(default=None, pattern=r"^[\w.:-]+$")
    insecure: bool = False
    nodes: int = Field(default=1, ge=1)

    @property
    def num_workers(self) -> int:
        return self.nodes * (self.workers_per_node or len(os.sched_getaffinity(0)))


class Slurm(_Slurm):
    """One allocation, the driver inside it.

    Attributes:
        notice_seconds: how long before its time limit the job is told, to stop in order and to queue itself again.
        requeue: whether it may be queued again, by Slurm after a node failed, or by itself.
    """

    kind: Literal["slurm"] = "slurm"
    notice_seconds: int = Field(default=60, ge=5)
    requeue: bool = True


class SlurmElastic(_Slurm):
    """The driver here, workers as jobs of one node each, as many as there is work for; dask-jobqueue's SLURMCluster."""

    kind: Literal["slurm-elastic"] = "slurm-elastic"


class Kubernetes(_Any):
    """Pods: manifests are rendered, for you to create. See `dataprep.cluster.kubernetes`.

    Attributes:
        form: ``job``: a Job whose first pod is the driver and whose others are workers. ``daskjob``: a DaskJob for
            Dask's operator.
        image: that has dataprep installed.
        workers: pods of one worker each.
        cpus, memory: of each pod, requested and limited: Kubernetes quantities.
        namespace: of everything. None: the one that kubectl is set to.
        claim: the PersistentVolumeClaim (ReadWriteMany) that holds the output, and sources that are files.
        mount: where it is mounted; relative paths start there.
        node_selector: of all pods.
        secret: whose keys become environment variables (``HF_TOKEN``). None: none.
        patience_seconds: see above; long, since nodes may have to be started, and images pulled.
        user: numbers of the user and group to run as (``1000:1000``), who may write to the claim. None: the image's.
        insecure: connect without TLS: whoever reaches the ports can run code in the pods.
    """

    kind: Literal["kubernetes"] = "kubernetes"
    form: Literal["job", "daskjob"] = "job"
    image: str = Field(pattern=r"^[^\s]+$")
    workers: int = Field(default=4, ge=1, le=10_000)
    cpus: Annotated[str, Field(pattern=r"^\d+(\.\d+|m)?$")] = "1"
    memory: Annotated[str, Field(pattern=r"^[1-9]\d*([kMGT]|[KMGT]i)?$")] = "2Gi"
    namespace: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)
    claim: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)
    mount: str = Field(default="/data", pattern=r"^(/[\w-][\w.-]*)+$")
    node_selector: dict[str, str] = Field(default_factory=dict)
    secret: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)
    user: str | None = Field(default=None, pattern=r"^[1-9]\d{0,9}:\d{1,10}$")
    patience_seconds: int = Field(default=1800, ge=1)
    insecure: bool = False

    @property
    def num_workers(self) -> int:
        return self.workers


ClusterSpec = Annotated[Local | Existing | Slurm | SlurmElastic | Kubernetes, Field(discriminator="kind")]


class _Where(Model):
    cluster: ClusterSpec = Local()


def cluster_settings(value: str | None) -> list[str]:
    """What ``--cluster VALUE`` stands for, as settings; those of ``--set`` come behind them, and win.

    Args:
        value: a kind, the address of a scheduler, a scheduler file, or a YAML with ``cluster:``. None: nothing.

    Raises:
        SpecError: it is none of these.
    """
    if value is None:
        return []
    if value in KINDS:
        return [f"cluster.kind={value}"]
    if value.startswith(("tcp://", "tls://")):
        return ["cluster.kind=existing", f"cluster.address={value}"]
    path = Path(value)
    if not path.is_file():
        raise SpecError(
            f"--cluster {value}: expected one of {', '.join(KINDS)}, tcp://HOST:PORT, tls://HOST:PORT, a scheduler "
            "file, or a YAML with `cluster:`; there is no such file"
        )
    if path.suffix not in (".yaml", ".yml"):
        return ["cluster.kind=existing", f"cluster.address={json.dumps(os.path.abspath(path))}"]
    given = load_yaml(path)
    if set(given) != {"cluster"} or not isinstance(given["cluster"], dict):
        raise SpecError(f"{path}: expected the one key `cluster:`, and below it kind, nodes, ...")
    _Where.check_part(given, str(path))
    return [f"cluster.{key}={json.dumps(each)}" for key, each in given["cluster"].items()]


KINDS = ("local", "slurm", "slurm-elastic", "kubernetes")
"""What can be named; the rest is said by an address."""


def find_cluster(given: dict[str, Any]) -> Local | Existing | Slurm | SlurmElastic | Kubernetes:
    """The cluster of the settings ``cluster.*``.

    Without a kind it is the one whose address Dask's operator left in the environment, or this machine.

    Raises:
        SpecError: a key is wrong or unknown.
    """
    if "kind" not in given and (address := os.environ.get("DASK_SCHEDULER_ADDRESS")):
        given = {"kind": "existing", "address": address, **given}
    if "kind" not in given and (foreign := set(given) - set(Local.model_fields)):
        raise SpecError(
            f"cluster.{min(foreign)}: of which cluster? Name it: --cluster {', '.join(KINDS[1:])} or an address"
        )
    return _Where.from_json({"cluster": {"kind": "local", **given}}, "cluster settings").cluster
