"""A training as pods: manifests, rendered and printed, never sent: ``| kubectl create -f -``.

    kind         objects                                the pods meet by
    pytorchjob   ConfigMap, PyTorchJob (kubeflow.org)   c10d at the first worker; no etcd
    trainjob     ConfigMap, TrainJob (trainer.kubeflow) the variables PET_* that the operator sets

The ConfigMap holds the script of a node, as `command` has it, and the files that its arguments name, each of which is
mounted where they name it. Data, checkpoints and caches are on one claim, which all pods see at `launch.mount_path`.
A job's name is its own: while one is there, another of that name, with its checkpoints, cannot be created.

A PyTorchJob has workers and no master: with an elastic policy the operator gives each a name in the cluster's DNS, and
the first one holds the store of the rendezvous. DeepSpeed's programs are started by torchrun, as on Slurm.

Sources: kubeflow/training-operator release-1.9, pkg/controller.v1/pytorch and pkg/webhooks/pytorch; kubeflow/trainer
release-2.3, pkg/apis/trainer/v1alpha1/trainjob_types.go (runtimePatches came with 2.2; an argument list holds 128 words
at most) and pkg/runtime/framework/plugins/torch; Amazon's names of resources: awsome-distributed-training 7217859f.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from dataprep.cluster.kubernetes import KEPT_SECONDS, to_yaml
from dataprep.errors import SpecError
from dataprep.train.launchers import command, shell
from dataprep.train.launchers.containers import is_below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataprep.train.job import Job
    from dataprep.train.program import Program

SCRIPTS = "/etc/dataprep"
MAX_CONFIG_BYTES = 1 << 20
"""What a ConfigMap holds; https://kubernetes.io/docs/concepts/configuration/configmap."""

MAX_NAME = 48
"""Characters of a job's name: pods add ``-worker-1234`` to it, and a host's name has 63."""

INSTANCE = "app.kubernetes.io/instance"

MANAGER = "dataprep/train"
"""Who patches a runtime. Kubeflow's webhook takes nothing but a domain, a slash and a path, which the schema does not
say: kubeflow/trainer release-2.2 and 2.3, pkg/runtime/framework/plugins/jobset/jobset.go, `IsDomainPrefixedPath`."""


def render(job: Job, program: Program) -> str:
    """The manifests as one YAML text, and what to do with it in comments.

    Raises:
        SpecError: no image or claim; a path that the pods do not see; files that are too large.
    """
    kind, name = job.launch.kind, name_of(job)
    where = f" -n {job.launch.namespace}" if job.launch.namespace else ""
    operator = "Kubeflow Trainer 2.2 or later" if kind == "trainjob" else "Kubeflow Training Operator 1.9"
    pods = f"jobset.sigs.k8s.io/jobset-name={name}" if kind == "trainjob" else f"training.kubeflow.org/job-name={name}"
    comments = [
        f"{name}: {job.parallel.nodes} pods of {job.parallel.gpus_per_node} accelerators; needs {operator}.",
        "Create: dataprep train ... --launcher kubernetes | kubectl create -f -",
        f"Follow: kubectl{where} logs -f --prefix --max-log-requests {job.parallel.nodes + 5} -l {pods}",
        f"Delete: kubectl{where} delete {kind},configmap -l {INSTANCE}={name}",
        "Deleted and created again, a training with `load` goes on from its checkpoint.",
    ]
    return "".join(f"# {line}\n" for line in comments) + to_yaml(objects(job, program))


def objects(job: Job, program: Program) -> list[dict[str, Any]]:
    """The objects, as plain JSON values, in the order in which they are to be created.

    Raises:
        SpecError: see `render`.
    """
    _check(job, program)
    is_train_job = job.launch.kind == "trainjob"
    content = {command.SCRIPT: shell.script(_lines(job, program)), **program.files}
    config = {**_head("v1", "ConfigMap", job), "immutable": True, "data": content}
    size = sum(len(name) + len(text.encode()) for name, text in content.items())
    if size > MAX_CONFIG_BYTES:
        raise SpecError(
            f"the files of the training are {size} bytes, and a ConfigMap holds {MAX_CONFIG_BYTES}: blend fewer "
            "prefixes; `dataprep merge` makes one of several"
        )
    return [config, _train_job(job, program) if is_train_job else _pytorch_job(job, program)]


def name_of(job: Job) -> str:
    """The job's name as Kubernetes takes it: a label of DNS that begins with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")
    return (name if name[:1].isalpha() else f"train-{name}")[:MAX_NAME].strip("-")


def _check(job: Job, program: Program) -> None:
    launch = job.launch
    for key, what in (("image", "an image"), ("claim", "a PersistentVolumeClaim")):
        if not getattr(launch, key):
            raise SpecError(f"--launcher kubernetes needs {what}: --set launch.{key}=NAME")
    if launch.mounts:
        raise SpecError("launch.mounts: pods see the claim alone, at launch.mount_path; leave it out")
    if bad := [name for name in program.files if not re.fullmatch(r"[-._A-Za-z0-9]+", name)]:
        raise SpecError(f"{bad[0]!r}: a ConfigMap takes letters, digits, and - _ . in the names of files")
    for path in (launch.mount_path, job.output):
        if ":" in path:
            raise SpecError(f"{path}: Kubernetes mounts at no path with a colon; name another")
    train = job.train
    paths = {part.prefix for part in job.data.all_parts} | {job.output}
    paths |= {path for path in (train.save, train.load, train.data_cache_path, train.log_dir) if path}
    paths |= {job.tokenizer_path} if os.path.isabs(job.tokenizer_path) else set()
    for path in sorted(paths):
        if not is_below(path, launch.mount_path):
            raise SpecError(
                f"{path} is not below {launch.mount_path}, where pods see the claim {launch.claim}: give paths as the "
                "pods see them, or set launch.mount_path"
            )


def _lines(job: Job, program: Program) -> list[str]:
    if job.launch.kind == "trainjob":
        elastic = job.launch.max_restarts > 0
        meeting = command.Meeting('"$PET_NODE_RANK"', '"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"', name_of(job), elastic)
    else:
        first = f"{name_of(job)}-worker-0"
        meeting = command.Meeting("", first, str(job.launch.master_port), name_of(job), elastic=True)
    *before, last = command.node(job, program, meeting if job.parallel.nodes > 1 else None)
    return [*before, f"exec {last}"]


def _head(version: str, kind: str, job: Job) -> dict[str, Any]:
    name = name_of(job)
    space = {"namespace": job.launch.namespace} if job.launch.namespace else {}
    labels = {"app.kubernetes.io/name": "dataprep", INSTANCE: name}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **space, "labels": labels}}


def _pytorch_job(job: Job, program: Program) -> dict[str, Any]:
    launch, nodes = job.launch, job.parallel.nodes
    container = {
        "name": "pytorch",  # the operator looks for it
        "image": launch.image,
        "command": ["bash", f"{SCRIPTS}/{command.SCRIPT}"],
        "env": _env(job, program),
        "ports": [{"name": "pytorchjob-port", "containerPort": launch.master_port}],
        "resources": _resources(job, program),
        "volumeMounts": _volume_mounts(job, program),
    }
    pod = {**_pod(job), "automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container]}
    worker = {
        "replicas": nodes,
        "restartPolicy": "OnFailure" if launch.max_restarts else "Never",
        "template": {"metadata": _pod_metadata(job), "spec": pod},
    }
    elastic = {
        "rdzvBackend": "c10d",
        "rdzvId": name_of(job),
        "minReplicas": nodes,
        "maxReplicas": nodes,
        "maxRestarts": launch.max_restarts,
    }
    spec = {
        "nprocPerNode": str(job.parallel.gpus_per_node),
        "runPolicy": {
            "cleanPodPolicy": "Running",  # those that are done keep what they logged
            "backoffLimit": launch.max_restarts,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        },
        **({"elasticPolicy": elastic} if nodes > 1 else {}),
        "pytorchReplicaSpecs": {"Worker": worker},
    }
    return {**_head("kubeflow.org/v1", "PyTorchJob", job), "spec": spec}


def _train_job(job: Job, program: Program) -> dict[str, Any]:
    launch = job.launch
    trainer = {
        "image": launch.image,
        "command": ["bash", f"{SCRIPTS}/{command.SCRIPT}"],
        "env": _env(job, program),
        "numNodes": job.parallel.nodes,
        "numProcPerNode": job.parallel.gpus_per_node,
        "resourcesPerNode": _resources(job, program),
    }
    mounts = {"name": "node", "volumeMounts": _volume_mounts(job, program)}
    pod = {"metadata": _pod_metadata(job), "spec": {**_pod(job), "containers": [mounts]}}
    patched = {"name": "node", "template": {"spec": {"template": pod}}}
    spec = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": launch.runtime},
        "trainer": trainer,
        "runtimePatches": [
            {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}}}
        ],
    }
    return {**_head("trainer.kubeflow.org/v1alpha1", "TrainJob", job), "spec": spec}


def _pod_metadata(job: Job) -> dict[str, Any]:
    # A mesh's proxy in the pod would stand between the ranks, and keep the pod alive after they have ended.
    return {
        "labels": {"app.kubernetes.io/name": "dataprep", INSTANCE: name_of(job)},
        "annotations": {"sidecar.istio.io/inject": "false"},
    }


def _pod(job: Job) -> dict[str, Any]:
    launch = job.launch
    selector = {"node.kubernetes.io/instance-type": launch.instance_type} if launch.instance_type else {}
    return {
        "terminationGracePeriodSeconds": command.SHUTDOWN_SECONDS + 30,
        **({"nodeSelector": selector} if selector else {}),
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": launch.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": launch.shared_memory}},
            {"name": "scripts", "configMap": {"name": name_of(job)}},
        ],
    }


def _volume_mounts(job: Job, program: Program) -> list[dict[str, Any]]:
    files = [
        {"name": "scripts", "mountPath": os.path.join(job.output, name), "subPath": name, "readOnly": True}
        for name in sorted(program.files)
    ]
    return [
        {"name": "data", "mountPath": job.launch.mount_path},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scripts", "mountPath": SCRIPTS, "readOnly": True},
        *files,
    ]


def _env(job: Job, program: Program) -> list[dict[str, Any]]:
    defaults, fixed = command.environment(job, program)
    shell.exports(defaults, fixed)  # the names are checked there
    # The tokenizer that one pod has fetched the others find; without it, each rank asks the hub.
    values: Mapping[str, str] = {"HF_HOME": f"{job.launch.mount_path}/.cache/huggingface", **defaults, **fixed}
    # Kubernetes puts variables in for $(NAME), and makes $ of $$.
    env: list[dict[str, Any]] = [{"name": name, "value": text.replace("$", "$$")} for name, text in values.items()]
    if job.launch.token_secret:
        reference = {"name": job.launch.token_secret, "key": "HF_TOKEN"}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return env


def _resources(job: Job, program: Program) -> dict[str, Any]:
    launch = job.launch
    accelerator = "amd.com/gpu" if program.vendor == "amd" else "nvidia.com/gpu"
    asked = {
        "cpu": launch.cpu_per_node,
        "memory": launch.memory_per_node,
        accelerator: str(job.parallel.gpus_per_node),
        "vpc.amazonaws.com/efa": str(launch.efa_per_node) if launch.efa_per_node else None,
    }
    size = {name: value for name, value in asked.items() if value}
    return {"requests": size, "limits": size}
