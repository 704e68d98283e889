"""Slurm over several hosts, of which one is lost in the middle of a run; the folder of the run stays, as a server's."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.hosts]

SLOW = ("--set", "runtime.engine=reference", "--set", "runtime.unit_bytes=150KB")


@pytest.fixture(scope="module")
def corpus(write_nonsense, tmp_path_factory) -> Path:
    return write_nonsense(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 8_000_000, 1)


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory) -> list[str]:
    output = tmp_path_factory.mktemp("expected")
    command = [sys.executable, "-m", "dataprep", "-q", "run", str(corpus), "-t", "sample", "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    return _sums(output)


def _sums(output: Path) -> list[str]:
    files = [path for path in sorted(output.glob("*/*.[bi][id][nx]")) if not path.parent.is_symlink()]
    assert len(files) == 2
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


@pytest.fixture
def submit(slurm_hosts, corpus, tmp_path):
    slurm_hosts.environment["DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP"] = "11s"

    def run(nodes: int, *more: str) -> str:
        where = ("--cluster", "slurm", "--set", f"cluster.nodes={nodes}", "--set", "cluster.workers_per_node=1")
        return slurm_hosts.dataprep(
            "run", corpus, "-t", "sample", "-o", tmp_path, *where, *SLOW, *more, "--detach"
        ).strip()

    return run


def _wait_for_units(output: Path, number: int, units_done) -> None:
    deadline = time.monotonic() + 120
    while units_done(output) < number:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(output.glob("*/manifest.json")), "too fast: there is no middle"


def _of_job(job: str) -> list[int]:
    """Processes of ours in a job."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            inside = f"\0SLURM_JOB_ID={job}\0".encode() in b"\0" + (path / "environ").read_bytes()
            if inside and b"python" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def test_workers_on_two_hosts_and_one_is_lost(slurm_hosts, hosts, submit, expected, tmp_path, units_done):
    """The other one does its work; the job goes on without the node (sbatch(1), --no-kill)."""
    job = submit(2)
    _wait_for_units(tmp_path, 4, units_done)
    (log,) = tmp_path.glob("work/*/workers-*.log")
    assert all(f"tls://{hosts.address(host)}:" in log.read_text() for host in (1, 2))
    hosts.cut(2)
    try:
        slurm_hosts.wait_until(job, "COMPLETED")
    finally:
        hosts.cut(2, off=False)
    assert _sums(tmp_path) == expected


def test_the_host_of_the_driver_is_lost(slurm_hosts, hosts, submit, expected, tmp_path, units_done):
    """Slurm begins the job again on the other one, whose driver goes on; the first is cut off, asleep, and wakes up."""
    slurm_hosts.call("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=later")
    job = submit(1)
    _wait_for_units(tmp_path, 4, units_done)
    slurm_hosts.call("scontrol", "update", "NodeName=n2", "State=RESUME")
    asleep = _of_job(job)
    assert asleep
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    hosts.cut(1)
    try:
        slurm_hosts.go_on(job)
        slurm_hosts.wait_until(job, "COMPLETED")
        assert slurm_hosts.job(job)["BatchHost"] == "n2"
    finally:
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 120
        while set(asleep) & set(_of_job(job)):
            assert time.monotonic() < deadline, "who was overtaken ends by itself"
            time.sleep(0.05)
        hosts.cut(1, off=False)
    assert _sums(tmp_path) == expected
    assert len(list(tmp_path.glob("*/manifest.json"))) == 2, "the dataset, and its name without a digest"
    assert len(list(tmp_path.glob("work/*/events-*.jsonl"))) == 2, "two claims"
