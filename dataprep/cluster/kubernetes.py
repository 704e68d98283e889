r"""Manifests of a run in pods. They are rendered and printed, never sent: ``| kubectl create -f -``.

    form      objects                                  who makes pods of them
    job       Secret, NetworkPolicy, Service, Job      Kubernetes, from 1.33 on
    daskjob   Secret, NetworkPolicy, DaskJob           Dask's operator: scheduler, workers and a runner

In the form ``job`` all pods are of one Job, told apart by their index: 0 runs the driver, and Dask's scheduler beside
it; the others are workers, and find it by the Service, which selects index 0. The Job is done when the driver is
(``successPolicy``), and then Kubernetes stops the workers; a Deployment of workers would outlive the run, and nothing
in it may delete one without rights in the cluster. A driver that is killed is started again and goes on where it was;
one that says what is wrong (exit codes 1 and 2) fails the Job at once. A pod that dies `RETRIES` times does, too, since
the next one would; what Kubernetes evicts is not counted.

Both forms run the same two programs, ``dataprep run`` and Dask's own, which meet by what the environment says:
``DASK_SCHEDULER_ADDRESS``, TLS, and `settings.SETTINGS`.

No service account is mounted, and of other services in the namespace no variables are set: of one that is called
``dask``, Dask would take them for its configuration.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

from dataprep.cluster.settings import SETTINGS
from dataprep.cluster.tls import VALID, make_certificate, tls_settings
from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dataprep.specs.cluster import Kubernetes

RETRIES = 10
"""How often a pod of the Job may die, of memory or of a node's troubles, before the Job has failed."""

KEPT_SECONDS = 7 * 86400
"""How long the Job and its pods, with what they logged, stay after the end."""

STARTING_SECONDS = 300
"""How late a CronJob may start its pod; later, that one is left out. Without a limit, Kubernetes starts none any more
once a hundred were missed (its documentation of CronJobs)."""

PORT = 8786
PKI = "/var/run/secrets/dataprep"
INSTANCE = "app.kubernetes.io/instance"
INDEX = "batch.kubernetes.io/job-completion-index"

# Kubernetes starts every pod of a Job with the same command. Dask's worker ends when its scheduler does, so it is
# started anew, for the next driver. Process 1 has no default for SIGTERM, hence the trap; `wait` lets it act at once. A
# worker must not end with 0: its index would be done, and no other pod take its place.
_SCRIPT = """\
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  export DASK_SCHEDULER_ADDRESS={protocol}://127.0.0.1:{port}
  DASK_DISTRIBUTED__LOGGING__DISTRIBUTED=warning {scheduler} &
  exec "$@"
fi
trap 'kill $!; wait; exit 143' TERM
while true; do
  {worker} & wait $!
  sleep 5 & wait $!
done
"""


def new_name() -> str:
    """A name that no run had: the operator loses the runner of one that comes again too early (dask-kubernetes#829)."""
    return f"dataprep-{secrets.token_hex(4)}"


def render(
    spec: Kubernetes, arguments: Sequence[str], name: str, credentials: tuple[str, str] | None
) -> list[dict[str, Any]]:
    """The objects of one run, as plain JSON values, in the order in which they are to be created.

    Args:
        spec: what is asked for.
        arguments: of the driver: ``run CORPUS --tokenizer T ...``, without those on the cluster.
        name: of every object; a DNS label of at most 52 characters.
        credentials: key and certificate, as PEM; None where `spec.insecure`.

    Raises:
        SpecError: an argument is not UTF-8, which no manifest can hold.
    """
    protocol = "tcp" if credentials is None else "tls"
    objects = []
    if credentials is not None:
        secret = dict(zip(("tls.key", "tls.crt"), credentials, strict=True))
        objects.append(
            {**_head("v1", "Secret", spec, name), "type": "kubernetes.io/tls", "immutable": True, "stringData": secret}
        )
    mine = {INSTANCE: name}
    policy = {
        "podSelector": {"matchLabels": mine},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": mine}}]}],
    }
    objects.append({**_head("networking.k8s.io/v1", "NetworkPolicy", spec, name), "spec": policy})
    driver = ["dataprep", *map(_literal, arguments), "--set", f"cluster.patience_seconds={spec.patience_seconds}"]
    if spec.form == "job":
        service = {"clusterIP": "None", "selector": {**mine, INDEX: "0"}, "ports": [{"name": "dask", "port": PORT}]}
        objects.append({**_head("v1", "Service", spec, name), "spec": service})
        script = _SCRIPT.format(
            protocol=protocol,
            port=PORT,
            scheduler=" ".join(_scheduler(spec, protocol)),
            worker=" ".join(_worker()),
        )
        pod = _pod(spec, ["/bin/sh", "-c", script, "sh"], f"{protocol}://{name}:{PORT}", name)
        pod["containers"][0]["args"] = driver
        objects.append({**_head("batch/v1", "Job", spec, name), "spec": _job(spec, pod, mine)})
    else:
        address = f"{protocol}://{name}-scheduler:{PORT}"
        objects.append(
            {
                **_head("kubernetes.dask.org/v1", "DaskJob", spec, name),
                "spec": _dask_job(spec, name, driver, _scheduler(spec, protocol), address),
            }
        )
    return objects


def render_text(spec: Kubernetes, arguments: Sequence[str]) -> str:
    """The manifests as one YAML text, with a fresh name and a fresh certificate, and what to do with it in comments.

    Raises:
        SpecError: see `render`.
    """
    name = new_name()
    objects = render(spec, arguments, name, None if spec.insecure else make_certificate())
    return "".join(f"# {line}\n" for line in _comments(spec, name, objects)) + to_yaml(objects)


def render_schedule(spec: Kubernetes, arguments: Sequence[str], name: str, cron: str) -> dict[str, Any]:
    """A CronJob of one pod that does its work by itself, as plain JSON values.

    Args:
        spec: of the pod; what it says of drivers and workers is not used.
        arguments: of ``dataprep``.
        name: of the object, always the same, so that a new one replaces it; a DNS label of at most 52 characters.
        cron: when, UTC.

    Raises:
        SpecError: an argument is not UTF-8, which no manifest can hold.
    """
    pod = _pod(spec.model_copy(update={"insecure": True}), ["dataprep", *map(_literal, arguments)], None, name)
    return {
        **_head("batch/v1", "CronJob", spec, name),
        "spec": {
            "schedule": cron,
            "timeZone": "Etc/UTC",
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": STARTING_SECONDS,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 5,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": 0,  # the next one comes soon, and knows what to try again
                    "ttlSecondsAfterFinished": KEPT_SECONDS,
                    "template": {
                        "metadata": {"labels": {"app.kubernetes.io/name": "dataprep", INSTANCE: name}},
                        "spec": pod,
                    },
                }
            },
        },
    }


def to_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """YAML documents that every reader takes for the same: a text that one of them might take for else is quoted."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, default_flow_style=False, width=1 << 20
    )


def _comments(spec: Kubernetes, name: str, objects: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = ",".join(str(one["kind"]).lower() for one in objects)
    where = f" -n {spec.namespace}" if spec.namespace else ""
    pod = f"-l {INSTANCE}={name},{INDEX}=0" if spec.form == "job" else f"{name}-runner"
    until = f"{datetime.now(UTC) + VALID:%Y-%m-%d}"
    return [
        f"{name}: a driver and {spec.workers} workers.",
        "Create:   dataprep run ... | kubectl create -f -    (`apply` would keep the private key in an annotation)",
        f"Follow:   kubectl{where} logs -f {pod}",
        f"Clean up: kubectl{where} delete {kinds} -l {INSTANCE}={name}",
        "Stopped or failed, the same command goes on where it was.",
        "NO TLS: whoever reaches the ports of these pods can run code in them and write to the claim. A NetworkPolicy "
        "keeps others out only where the cluster's network enforces it."
        if spec.insecure
        else f"Connections are TLS; the certificate is of this run and valid until {until}.",
    ]


def _head(version: str, kind: str, spec: Kubernetes, name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "dataprep", INSTANCE: name}
    space = {"namespace": spec.namespace} if spec.namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **space, "labels": labels}}


def _job(spec: Kubernetes, pod: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    size = spec.workers + 1
    return {
        "completionMode": "Indexed",
        "completions": size,
        "parallelism": size,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "backoffLimitPerIndex": RETRIES,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                # 1 and 2 are dataprep's; 126 and 127 the shell's, where the image has no such program.
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2, 126, 127]}},
            ]
        },
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": {"metadata": {"labels": {"app.kubernetes.io/name": "dataprep", **labels}}, "spec": pod},
    }


def _dask_job(spec: Kubernetes, name: str, driver: list[str], scheduler: list[str], address: str) -> dict[str, Any]:
    """The operator gives the labels of the DaskJob to all pods, and its own ones, by which its Service finds them."""
    service = {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
        "ports": [{"name": "tcp-comm", "port": PORT}],
    }
    workers = {"replicas": spec.workers, "spec": _pod(spec, _worker(), address, name, restart="Always")}
    return {
        "job": {"spec": _pod(spec, driver, address, name)},
        "cluster": {
            "spec": {
                "worker": workers,
                "scheduler": {"spec": _pod(spec, scheduler, address, name, restart="Always"), "service": service},
            }
        },
    }


def _scheduler(spec: Kubernetes, protocol: str) -> list[str]:
    pages = ["--dashboard-address", "127.0.0.1:8787"]
    return ["dask", "scheduler", "--protocol", protocol, "--port", str(PORT), *pages] + (
        [] if spec.dashboard else ["--no-dashboard"]
    )


def _worker() -> list[str]:
    """Without a nanny: what would start a worker again is the pod's own business."""
    return [
        *("dask", "worker", "--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--death-timeout", "120"),
        *("--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--local-directory", "/tmp"),
    ]


def _pod(
    spec: Kubernetes, command: list[str], address: str | None, name: str, restart: str = "Never"
) -> dict[str, Any]:
    size = {"cpu": spec.cpus, "memory": spec.memory}
    volumes: list[dict[str, Any]] = [{"name": "data", "persistentVolumeClaim": {"claimName": spec.claim}}]
    mounts: list[dict[str, Any]] = [{"name": "data", "mountPath": spec.mount}]
    if not spec.insecure:
        # Readable by any user of the container, which has no others: one that is not root could not read 0400, and
        # fsGroup, which helps, would change the group of all files on the claim.
        volumes.append({"name": "tls", "secret": {"secretName": name, "defaultMode": 0o444}})
        mounts.append({"name": "tls", "mountPath": PKI, "readOnly": True})
    security: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if spec.user is not None:
        security["capabilities"] = {"drop": ["ALL"]}
    container = {
        "name": "dataprep",
        "image": spec.image,
        "command": command,
        "workingDir": spec.mount,
        "env": [{"name": key, "value": value} for key, value in _environment(spec, address).items()],
        **({"envFrom": [{"secretRef": {"name": spec.secret}}]} if spec.secret else {}),
        "resources": {"requests": size, "limits": size},
        "securityContext": security,
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": restart,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**_identity(spec), "seccompProfile": {"type": "RuntimeDefault"}},
        **({"nodeSelector": dict(spec.node_selector)} if spec.node_selector else {}),
        "containers": [container],
        "volumes": volumes,
    }


def _identity(spec: Kubernetes) -> dict[str, Any]:
    if spec.user is None:
        return {}
    user, group = map(int, spec.user.split(":"))
    return {"runAsUser": user, "runAsGroup": group, "runAsNonRoot": True}


def _environment(spec: Kubernetes, address: str | None) -> dict[str, str]:
    """What is told to scheduler, workers and driver alike; all values fit to be read by Dask. None: to a pod alone."""
    home = {"HF_HOME": f"{spec.mount}/.cache/huggingface"}  # workers open the tokenizer that the driver fetched
    if address is None:
        return home
    settings = {key: value for key, value in SETTINGS.items() if not key.startswith("distributed.nanny.")}
    if not spec.insecure:
        settings.update(tls_settings(f"{PKI}/tls.key", f"{PKI}/tls.crt"))
    threads: Mapping[str, int | None] = SETTINGS["distributed.nanny.pre-spawn-environ"]
    return {
        "DASK_SCHEDULER_ADDRESS": address,
        **home,
        **{key: str(value) for key, value in threads.items() if value is not None},
        **{f"DASK_{key.replace('.', '__').replace('-', '_').upper()}": str(value) for key, value in settings.items()},
    }


def _literal(argument: str) -> str:
    """An argument as a manifest has it: Kubernetes puts variables in for ``$(NAME)``, and makes ``$`` of ``$$``."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"{argument!r} is not UTF-8, which a manifest cannot hold; rename the file") from error
    return argument.replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """Quotes, for readers of other versions of YAML, what begins with no letter, and takes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    lines = value.endswith("\n") and value.replace("\n", "").isprintable()
    plain = len(value) > 1 and value[0].isalpha() and value.isascii() and value.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, "|" if lines else None if plain else '"')


_Dumper.add_representer(str, _text)
