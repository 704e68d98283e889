"""Workers elsewhere: a scheduler and workers as processes of their own, on loopback."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dataprep.cluster.settings import SETTINGS, config_text, nested
from dataprep.cluster.tls import write_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": ""}


class Elsewhere:
    """A scheduler, and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.environment = dict(ENVIRONMENT)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, *arguments: Any) -> subprocess.Popen[bytes]:
        """`scheduler` or `worker` of Dask's command line."""
        log = (self.folder / f"{program}-{len(self.processes)}.log").open("wb")
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, cwd=self.folder)
        log.close()
        self.processes.append(process)
        return process

    def scheduler(self, *arguments: Any) -> subprocess.Popen[bytes]:
        found = self.start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            0,
            "--dashboard-address",
            "127.0.0.1:0",
            "--scheduler-file",
            self.file,
            *arguments,
        )
        deadline = time.monotonic() + 120
        while not self.file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def worker(self, *arguments: Any) -> subprocess.Popen[bytes]:
        return self.start(
            "worker",
            "--scheduler-file",
            self.file,
            "--nthreads",
            1,
            "--no-dashboard",
            "--dashboard-address",
            "127.0.0.1:0",
            "--death-timeout",
            30,
            *arguments,
        )

    @property
    def address(self) -> str:
        return str(json.loads(self.file.read_text())["address"])

    def stop(self) -> None:
        for process in reversed(self.processes):  # a worker whose scheduler is gone takes eight seconds to end
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[Elsewhere]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    found = Elsewhere(folder)
    yield found
    found.stop()


def _command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "dataprep", *map(str, arguments)]


def _dataprep(*arguments: Any, environment: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*arguments), capture_output=True, text=True, check=False, env=environment)


def _sums(output: Path) -> list[str]:
    found = [path for path in sorted(output.glob("*/*.[bi][id][nx]")) if not path.parent.is_symlink()]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in found]


@pytest.fixture
def corpus(write_texts) -> Path:
    return write_texts([f"document {i} " * (i % 50) for i in range(4000)])


@pytest.mark.slow
def test_the_bytes_are_those_of_a_run_here(elsewhere, corpus, workspace):
    run = ("-q", "run", corpus, "-t", "sample", "--set", "runtime.unit_bytes=100KB", "-o")
    here = _dataprep(*run, workspace / "here")
    assert here.returncode == 0, here.stderr
    elsewhere.scheduler()
    elsewhere.worker("--nworkers", 2)
    for i, name in enumerate((str(elsewhere.file), elsewhere.address)):
        found = _dataprep(*run, workspace / f"there{i}", "--cluster", name)
        assert found.returncode == 0, found.stderr
        assert len(_sums(workspace / f"there{i}")) == 2
        assert _sums(workspace / f"there{i}") == _sums(workspace / "here")
        assert "MALLOC_TRIM_THRESHOLD_" in found.stderr, "Dask's own default, which costs speed, is named"
    by_environment = {**ENVIRONMENT, "DASK_SCHEDULER_ADDRESS": elsewhere.address}
    found = _dataprep(*run, workspace / "pod", environment=by_environment)
    assert found.returncode == 0, found.stderr
    assert _sums(workspace / "pod") == _sums(workspace / "here")


@pytest.mark.slow
def test_tls_and_only_with_its_certificate(elsewhere, corpus, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    tls = write_certificate(keys)
    assert all((path.stat().st_mode & 0o077) == 0 for path in keys.iterdir())
    (keys / "dask.yaml").write_text(config_text(tls))
    elsewhere.environment["DASK_CONFIG"] = str(keys / "dask.yaml")
    elsewhere.scheduler("--protocol", "tls")
    elsewhere.worker()
    assert elsewhere.address.startswith("tls://")
    run = ("-q", "run", corpus, "-t", "sample", "-o", tmp_path / "out", "--cluster", elsewhere.address)
    patient = ("--set", "cluster.patience_seconds=3")
    refused = _dataprep(*run, *patient)
    assert refused.returncode == 1
    assert "no scheduler answers at tls://" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = _dataprep(*run, environment=elsewhere.environment)
    assert done.returncode == 0, done.stderr
    assert "MALLOC_TRIM_THRESHOLD_" not in done.stderr, "our settings leave it out"


@pytest.mark.slow
def test_a_scheduler_that_dies_ends_the_run(elsewhere, corpus, tmp_path):
    scheduler = elsewhere.scheduler()
    elsewhere.worker()
    slow = ("--set", "runtime.engine=reference", "--set", "runtime.unit_bytes=50KB")
    run = ("-q", "run", corpus, "-t", "sample", "-o", tmp_path / "out", "--cluster", elsewhere.address, *slow)
    with subprocess.Popen(_command(*run), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as driver:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("out/work/*/shards/*.json")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(scheduler.pid, signal.SIGKILL)
        assert driver.stderr is not None
        told = driver.stderr.read()
    assert driver.returncode == 1
    assert "scheduler" in told
    assert "run the same command again" in told
    assert "Traceback" not in told
    again = _dataprep("-q", "run", corpus, "-t", "sample", "-o", tmp_path / "out")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_without_workers_it_gives_up_and_says_so(elsewhere, corpus, tmp_path):
    elsewhere.scheduler()
    run = ("-q", "run", corpus, "-t", "sample", "-o", tmp_path / "out", "--cluster", elsewhere.file)
    found = _dataprep(*run, "--set", "cluster.patience_seconds=2")
    assert found.returncode == 1
    assert "no worker has been at work for" in found.stderr
    assert "none at all" in found.stderr


@pytest.mark.slow
def test_without_dataprep(elsewhere, corpus, tmp_path):
    (elsewhere.folder / "sitecustomize.py").write_text("import sys\nsys.modules['dataprep'] = None\n")
    elsewhere.environment["PYTHONPATH"] = str(elsewhere.folder)
    elsewhere.scheduler()
    worker = elsewhere.worker()
    run = ("-q", "run", corpus, "-t", "sample", "-o", tmp_path / "out", "--cluster", elsewhere.file)
    found = _dataprep(*run)
    assert found.returncode == 1
    assert "a worker cannot import what it needs" in found.stderr
    assert "Traceback" not in found.stderr
    assert worker.poll() is None, "it is not ours to kill"
    worker.terminate()
    worker.wait()
    elsewhere.environment = ENVIRONMENT
    elsewhere.worker()
    found = _dataprep(*run)
    assert found.returncode == 0, "the scheduler does not need it"


@pytest.mark.slow
def test_workers_that_do_not_see_the_output(elsewhere, corpus, tmp_path):
    """As on a node that has not mounted it: in a mount namespace where an empty folder hides it."""
    if os.geteuid() != 0:
        pytest.skip("mount namespaces need root")
    elsewhere.scheduler()
    output = tmp_path / "out"
    output.mkdir()
    hide = f"mount -t tmpfs none '{output}' && exec \"$@\""
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(elsewhere.file)]
    command = ["unshare", "--mount", "sh", "-c", hide, "sh", *worker, "--nthreads", "1", "--no-dashboard"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=elsewhere.folder)
    elsewhere.processes.append(process)
    found = _dataprep("-q", "run", corpus, "-t", "sample", "-o", output, "--cluster", elsewhere.file)
    assert found.returncode == 1
    assert "does not see" in found.stderr
    assert "Traceback" not in found.stderr


def test_settings_as_a_file():
    assert nested({"a.b.c": 1, "a.b.d": {"x": None}, "e": 2}) == {"a": {"b": {"c": 1, "d": {"x": None}}}, "e": 2}
    assert yaml.safe_load(config_text({"distributed.comm.require-encryption": True})) == nested(
        {**SETTINGS, "distributed.comm.require-encryption": True}
    )
