"""A Kubernetes of three hosts for the tests of rendered manifests, as far as one machine can stand in for it.

    host            a network namespace on a bridge, without a way out
    pod             a process in it, with process, host name and mount namespaces of its own; the container's command,
                    environment and working directory, variables expanded as Kubernetes expands them
    Secret, claim   folders, bound where the container mounts them
    Service         a line in the hosts file of every host, while a pod with its labels runs
    Job             `run_job`: the rules of an Indexed Job that ours goes by
    DaskJob         `run_dask_job`: the pods that the operator's own functions make of it

The image is this machine's: PATH leads to the Python that runs the tests.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import copy
import itertools
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PLACE = """
place() {
  [ -d "$2" ] || {
    up=$2; while [ ! -d "$up" ]; do up=$(dirname "$up"); done
    mount -t tmpfs none "$up"; mkdir -p "$2"
  }
  mount --bind "$1" "$2"; [ -z "$3" ] || mount -o "remount,bind,$3" "$2"
}
"""


class Pod:
    """A pod whose container is a process; `queue` is told of its end."""

    def __init__(self, name: str, labels: dict[str, str], host: int, process: subprocess.Popen, log: Path) -> None:
        self.name, self.labels, self.host, self.process, self.log = name, labels, host, process, log
        self._killed = False

    @property
    def init(self) -> int:
        """The process that is number 1 inside: `unshare`'s only child."""
        while self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children:
                return int(children[0])
        raise ProcessLookupError(self.name)

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self.init, number)
            self._killed |= number == signal.SIGKILL

    def stop(self, grace_seconds: float = 3) -> int:
        """As the kubelet does it: SIGTERM, then SIGKILL; returns the exit code."""
        self.kill(signal.SIGTERM)
        try:
            self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill(signal.SIGKILL)
            self.process.wait()
        return self.exit_code

    @property
    def exit_code(self) -> int:
        code = self.process.wait()
        return 128 + signal.SIGKILL if self._killed else code  # unshare of util-linux 2.38 says 1 then


class Lab:
    """The hosts, and what was created on them."""

    def __init__(self, folder: Path, network: Any) -> None:
        self.folder, self.network = folder, network
        self.hosts, self.address = network.names, network.address
        self.claims: dict[str, Path] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.services: list[dict[str, Any]] = []
        self.pods: list[Pod] = []
        self.ends: queue.SimpleQueue[Pod] = queue.SimpleQueue()
        self._numbers = itertools.count()

    def open(self) -> None:
        self.network.up()
        for host in self.hosts:
            Path("/etc/netns", host).mkdir(parents=True)
        self._resolve()

    def close(self) -> None:
        for pod in self.pods:
            pod.kill(signal.SIGKILL)
            pod.process.wait()
        self.network.down()
        for host in self.hosts:
            shutil.rmtree(Path("/etc/netns", host), ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()

    def create(self, objects: list[dict[str, Any]]) -> dict[str, Any]:
        """Take in what needs no pod; returns the one object that does."""
        for each in objects:
            if each["kind"] == "Secret":
                self.secrets[each["metadata"]["name"]] = {
                    **each.get("stringData", {}),
                    **{key: base64.b64decode(value).decode() for key, value in each.get("data", {}).items()},
                }
            elif each["kind"] == "Service":
                self.services.append(each)
        return next(each for each in objects if each["kind"] in ("Job", "DaskJob"))

    def start(self, name: str, template: dict[str, Any], host: int, more: dict[str, str] | None = None) -> Pod:
        """Start a pod of one container.

        Args:
            name: of the pod, and of its host.
            template: metadata and spec.
            host: number of the host.
            more: variables that a controller adds.
        """
        spec = template["spec"]
        (container,) = spec["containers"]
        image = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/root", "LANG": "C.UTF-8"}
        if "PYTHONPATH" in os.environ:
            image["PYTHONPATH"] = os.environ["PYTHONPATH"]
        given: dict[str, str] = dict(more or {})
        for source in container.get("envFrom", ()):
            given.update(self.secrets[source["secretRef"]["name"]])
        for each in container.get("env", ()):
            given[each["name"]] = expand(each["value"], given)
        words = [expand(word, given) for word in (*container["command"], *container.get("args", ()))]
        setup = [PLACE, "set -e", f"hostname {name}", *self._mounts(name, spec["volumes"], container["volumeMounts"])]
        setup += [f"cd '{container['workingDir']}'", 'exec "$@"']
        spaces = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        log = self.folder / f"{name}-{next(self._numbers)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*self.network.prefix(host), *spaces, "sh", "-c", "\n".join(setup), "sh", *words],
                env={**image, **given},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        pod = Pod(name, template["metadata"]["labels"] | {}, host, process, log)
        self.pods.append(pod)
        self._resolve()
        threading.Thread(target=lambda: (process.wait(), self.ends.put(pod)), daemon=True).start()
        return pod

    def _mounts(self, name: str, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> Iterator[str]:
        by_name = {volume["name"]: volume for volume in volumes}
        for mount in mounts:
            volume = by_name[mount["name"]]
            if "secret" in volume:
                folder = self.folder / f"secret-{next(self._numbers)}"
                folder.mkdir()
                for key, value in self.secrets[volume["secret"]["secretName"]].items():
                    (folder / key).write_text(value)
                    (folder / key).chmod(volume["secret"]["defaultMode"])
            else:
                folder = self.claims[volume["persistentVolumeClaim"]["claimName"]]
            yield f"place '{folder}' '{mount['mountPath']}' '{'ro' if mount.get('readOnly') else ''}'"

    def ended(self, pod: Pod) -> None:
        self.pods.remove(pod)
        self._resolve()

    def _resolve(self) -> None:
        """Write what the cluster's DNS would say, in place: the files are bound in the mount namespaces of pods."""
        lines = ["127.0.0.1 localhost"]
        for service in self.services:
            wanted = service["spec"]["selector"].items()
            lines += [
                f"{self.address(pod.host)} {service['metadata']['name']}"
                for pod in self.pods
                if wanted <= pod.labels.items()
            ]
        for host in self.hosts:
            Path("/etc/netns", host, "hosts").write_text("\n".join(lines) + "\n")

    def run_job(self, job: dict[str, Any], disturb: Callable[[Lab], None] = lambda lab: None) -> int:
        """Run an Indexed Job to its end; returns 0, or the exit code of the pod that failed it.

        Args:
            job: the object.
            disturb: called once all pods are started.
        """
        spec, name = job["spec"], job["metadata"]["name"]
        failures: Counter[int] = Counter()
        index_of: dict[str, int] = {}

        def begin(index: int) -> None:
            template = copy.deepcopy(spec["template"])
            template["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
            host = f"{name}-{index}"
            index_of[host] = index
            self.start(host, template, index % len(self.hosts), {"JOB_COMPLETION_INDEX": str(index)})

        for index in reversed(range(spec["parallelism"])):  # the driver last: nobody may count on the order
            begin(index)
        disturb(self)
        while True:
            pod = self.ends.get(timeout=120)
            self.ended(pod)
            index, code = index_of[pod.name], pod.exit_code
            if code == 0 and str(index) in [rule["succeededIndexes"] for rule in spec["successPolicy"]["rules"]]:
                return self._stop_all(0)
            assert code != 0, f"{pod.name} succeeded: nothing would take its place"
            failures[index] += 1
            for rule in spec["podFailurePolicy"]["rules"]:
                if rule["action"] == "FailJob" and code in rule["onExitCodes"]["values"]:
                    return self._stop_all(code)
            if failures[index] > spec["backoffLimitPerIndex"]:
                return self._stop_all(code)
            begin(index)

    def run_dask_job(self, job: dict[str, Any], operator: dict[str, Any]) -> int:
        """Run what the operator makes of a DaskJob until its runner ends; returns the runner's exit code.

        Args:
            job: the object.
            operator: see the fixture of this name.
        """
        deployments, services, runner = operator["components"](job)
        self.services += services
        for i, deployment in enumerate(deployments):
            assert deployment["spec"]["template"]["spec"]["restartPolicy"] == "Always"
            self.start(deployment["metadata"]["name"], deployment["spec"]["template"], i % len(self.hosts))
        first = self.start(runner["metadata"]["name"], runner, 0)
        while (pod := self.ends.get(timeout=120)) is not first:
            self.ended(pod)
            raise AssertionError(f"{pod.name} ended:\n{pod.log.read_text()}")
        self.ended(first)
        return self._stop_all(first.exit_code)

    def _stop_all(self, code: int) -> int:
        for pod in self.pods:
            pod.kill(signal.SIGTERM)
        for pod in self.pods:
            pod.stop()
        self.pods.clear()
        return code

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))


def expand(text: str, variables: dict[str, str]) -> str:
    """Put variables in for $(NAME) as Kubernetes does (its third_party/forked/golang/expansion); $$ is a dollar."""

    def put(match: re.Match) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", put, text)


@pytest.fixture
def lab(make_network, tmp_path: Path) -> Iterator[Lab]:
    """Three hosts; a skip where they cannot be had."""
    lab = Lab(tmp_path, make_network(f"dp{os.getpid()}", "10.77.0", 3))
    try:
        lab.open()
        yield lab
    finally:
        lab.close()


@pytest.fixture(scope="session")
def wheel() -> zipfile.ZipFile:
    """The wheel of dask-kubernetes, or a skip: it is read, never installed."""
    path = os.environ.get("DATAPREP_TEST_OPERATOR")
    if not path:
        pytest.skip("DATAPREP_TEST_OPERATOR names no wheel: pip download --no-deps dask-kubernetes==2026.3.0")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="session")
def operator(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """The operator's own functions from a DaskJob to its pods; ``components`` calls them."""
    wanted = {"build_scheduler_deployment_spec", "build_scheduler_service_spec", "build_worker_deployment_spec"}
    wanted |= {"get_job_runner_pod_name", "build_job_pod_spec"}
    source = wheel.read("dask_kubernetes/operator/controller/controller.py")
    tree = ast.parse(source)
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    assert {n.name for n in tree.body} == wanted
    for node in ast.walk(tree):  # annotations name libraries that are not here
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    for function in tree.body:
        function.body = [_plain(node) for node in function.body]
    space: dict[str, Any] = {"copy": copy, "SCHEDULER_NAME_TEMPLATE": "{cluster_name}-scheduler"}
    exec(compile(ast.fix_missing_locations(tree), "controller.py", "exec"), space)

    def components(job: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
        name, labels, spec = job["metadata"]["name"], job["metadata"]["labels"], job["spec"]
        cluster = spec["cluster"]["spec"]
        scheduler, worker = cluster["scheduler"], cluster["worker"]
        deployments = [space["build_scheduler_deployment_spec"](name, scheduler["spec"], {}, labels)]
        deployments += [
            space["build_worker_deployment_spec"](
                f"{name}-default", "default", name, str(i), worker["spec"], {}, labels
            )
            for i in range(worker["replicas"])
        ]
        services = [space["build_scheduler_service_spec"](name, scheduler["service"], {}, labels)]
        return (
            deployments,
            services,
            space["build_job_pod_spec"](name, name, "default", spec["job"]["spec"], {}, labels),
        )

    return {"components": components}


def _plain(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.Assign(targets=[node.target], value=node.value)
    return node
