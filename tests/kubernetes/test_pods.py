"""The rendered pods run as processes on three hosts to the end, and publish what a run here publishes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep.cluster.kubernetes import render_text
from dataprep.specs.cluster import Kubernetes

pytestmark = pytest.mark.kubernetes

MOUNT = "/srv/claim"
ARGUMENTS = ("run", "corpus.jsonl", "--tokenizer", "sample", "--set", "runtime.unit_bytes=1MiB")


def _manifests(**settings: Any) -> list[dict[str, Any]]:
    spec = Kubernetes(image="dataprep", claim="corpora", mount=MOUNT, workers=2, **settings)
    return list(yaml.safe_load_all(render_text(spec, [*ARGUMENTS, "--output", "out"])))


def _published(folder: Path) -> dict[str, str]:
    """The name of the dataset, which holds the recipe's digest, and what its pair contains."""
    (dataset,) = (path.parent for path in folder.glob("*/manifest.json") if not path.parent.is_symlink())
    return {
        f"{dataset.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (*dataset.glob("*.bin"), *dataset.glob("*.idx"))
    }


def _events(folder: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(json.JSONDecodeError):
        texts = [path.read_text() for path in sorted(folder.glob("work/*/events-*.jsonl"))]
        return [json.loads(line) for text in texts for line in text.splitlines()]
    return []


@pytest.fixture(scope="module")
def here(write_nonsense: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus, and what a run on this machine makes of it."""
    folder = tmp_path_factory.mktemp("here")
    write_nonsense(folder / "corpus.jsonl", 14_000_000, 5, rejects=False)
    command = [sys.executable, "-m", "dataprep", "-q", *ARGUMENTS, "--output", "out"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def claim(lab: Any, tmp_path: Path, here: Path) -> Path:
    """The folder behind the claim, with the corpus."""
    folder = lab.claims["corpora"] = tmp_path / "claim"
    folder.mkdir()
    shutil.copy2(here / "corpus.jsonl", folder)
    return folder


def _wait_for(condition: Callable[[], bool], lab: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, lab.logs()
        time.sleep(0.01)


def test_job(lab, here, claim):
    job = lab.create(_manifests())

    assert lab.run_job(job) == 0, lab.logs()
    assert _published(claim / "out") == _published(here / "out")
    assert sum(event["event"] == "unit" for event in _events(claim / "out")) > 10


def test_job_whose_driver_is_killed_goes_on(lab, here, claim):
    job = lab.create(_manifests())

    def kill_driver(lab: Any) -> None:
        _wait_for(lambda: any(event["event"] == "unit" for event in _events(claim / "out")), lab)
        next(pod for pod in lab.pods if pod.name.endswith("-0")).kill(signal.SIGKILL)

    assert lab.run_job(job, kill_driver) == 0, lab.logs()
    assert _published(claim / "out") == _published(here / "out")
    resumed = [event["done"] for event in _events(claim / "out") if event["event"] == "resume"]
    assert len(resumed) == 2
    assert resumed[1] > 0


def test_job_that_cannot_succeed_fails_at_once(lab, claim):
    spec = Kubernetes(image="dataprep", claim="corpora", mount=MOUNT, workers=1)
    text = render_text(spec, ["run", "corpus.jsonl", "--tokenizer", "no-such-tokenizer", "--output", "out"])

    assert lab.run_job(lab.create(list(yaml.safe_load_all(text)))) == 2
    assert "no-such-tokenizer" in lab.logs()


def test_worker_that_is_evicted_has_not_succeeded(lab, claim):
    job = lab.create(_manifests())
    worker = lab.start("worker", job["spec"]["template"], 1, {"JOB_COMPLETION_INDEX": "1"})
    _wait_for(lambda: bool(_ports(worker)), lab)

    assert worker.stop(grace_seconds=60) == 143, "with 0 its index would be done, and nobody take its place"


def test_dask_job(lab, here, claim, operator):
    job = lab.create(_manifests(form="daskjob"))

    assert lab.run_dask_job(job, operator) == 0, lab.logs()
    assert _published(claim / "out") == _published(here / "out")


KNOCK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as s:
        s.settimeout(60)
        s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        print(s.recv(2).hex() or "closed")
except ConnectionResetError:
    print("closed")
"""


@pytest.mark.parametrize("insecure", [False, True])
def test_ports_that_others_reach_speak_tls(lab, here, claim, insecure):
    manifests = _manifests(insecure=insecure)
    answers: dict[str, str] = {}

    def knock(lab: Any) -> None:
        _wait_for(lambda: all(_ports(pod) for pod in lab.pods), lab)
        for pod, port in ((each, port) for each in lab.pods for port in _ports(each)):
            words = [sys.executable, "-c", KNOCK, lab.address(pod.host), str(port)]
            done = subprocess.run(["ip", "netns", "exec", lab.hosts[0], *words], capture_output=True, text=True)
            answers[f"{pod.name}:{port}"] = done.stdout.strip() or done.stderr

    assert lab.run_job(lab.create(manifests), knock) == 0, lab.logs()
    assert _published(claim / "out") == _published(here / "out")
    assert len(answers) == 3, answers
    alert = {"1503", "closed"}  # the first bytes of an alert of TLS
    assert set(answers.values()).isdisjoint(alert) if insecure else set(answers.values()) <= alert, answers
    assert ("Secret" in {each["kind"] for each in manifests}) != insecure


def _ports(pod: Any) -> list[int]:
    """Those that something on another host can connect to."""
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pod.init}/net/{table}").read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and address not in ("0100007F", "00000000000000000000000001000000"):
                listening.append(int(port, 16))
    return sorted(set(listening))
