"""`--cluster slurm` on a real Slurm: jobs that are cancelled, queued again, told to end, run out of time, lose nodes.

Each ends with the bytes of a run on this machine. The nodes are two slurmd on loopback; `test_hosts` has them apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

TWO_NODES = ("--cluster", "slurm", "--set", "cluster.nodes=2", "--set", "cluster.workers_per_node=1")
SLOW = ("--set", "runtime.engine=reference", "--set", "runtime.unit_bytes=200KB")
"""About a second for a unit's ten, so that there is a middle of a run to do something in."""


@pytest.fixture(scope="module")
def corpora(write_nonsense, tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpora")
    return [write_nonsense(folder / f"corpus{i}.jsonl", 8_000_000 if i == 0 else 1_500_000, i) for i in range(3)]


def _sums(output: Path) -> dict[str, str]:
    """Of all pairs of an output, by their names."""
    files = [path for path in output.glob("*/*") if path.suffix in (".bin", ".idx") and not path.parent.is_symlink()]
    return {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def expected(corpora, tmp_path_factory) -> dict[str, str]:
    """What runs on this machine make of the corpora, with the fast engine."""
    output = tmp_path_factory.mktemp("expected")
    for corpus in corpora:
        command = [sys.executable, "-m", "dataprep", "-q", "run", str(corpus), "-t", "sample", "-o", str(output)]
        subprocess.run(command, check=True, capture_output=True)
    found = _sums(output)
    assert len(found) == 6
    return found


def _only(expected: dict[str, str], corpus: Path) -> dict[str, str]:
    return {name: value for name, value in expected.items() if name.startswith(f"{corpus.stem}-")}


def _settled(output: Path) -> bool:
    """Whether nothing is left of the cluster's private folders."""
    return not list(output.glob("work/*/cluster*"))


def test_a_run_waits_for_its_job_and_prints_the_prefix(slurm, corpora, expected, workspace):
    output = workspace / "out put"
    corpus = corpora[1]
    printed = slurm.dataprep("run", corpus, "-t", "sample", "-o", output, *TWO_NODES)
    assert Path(f"{printed.strip()}.bin").is_file()
    assert printed.count("\n") == 1
    assert _sums(output) == _only(expected, corpus)
    assert _settled(output)
    (log,) = output.glob("work/*/workers-*.log")
    assert "tls://" in log.read_text()
    assert "tcp://" not in log.read_text()
    again = slurm.dataprep("run", corpus, "-t", "sample", "-o", output, *TWO_NODES)
    assert again == printed
    assert len(list(output.glob("work/job-*.log"))) == 1, "done already: no job is submitted"


def _submit(slurm, corpus: Path, output: Path, *more: str) -> str:
    return slurm.dataprep("run", corpus, "-t", "sample", "-o", output, *TWO_NODES, *SLOW, *more, "--detach").strip()


def test_cancelled_and_submitted_again(slurm, corpora, expected, tmp_path, middle):
    job = _submit(slurm, corpora[0], tmp_path)
    done = middle(tmp_path, 5)
    slurm.call("scancel", job)
    slurm.wait_until(job, "CANCELLED")
    again = slurm.dataprep("run", corpora[0], "-t", "sample", "-o", tmp_path, *TWO_NODES, *SLOW)
    assert _sums(tmp_path) == _only(expected, corpora[0])
    assert Path(f"{again.strip()}.bin").is_file()
    assert _resumed(tmp_path) >= done


def test_queued_again_by_slurm(slurm, corpora, expected, tmp_path, middle):
    job = _submit(slurm, corpora[0], tmp_path)
    done = middle(tmp_path, 5)
    slurm.call("scontrol", "requeue", job)
    slurm.go_on(job)
    slurm.wait_until(job, "COMPLETED")
    assert _sums(tmp_path) == _only(expected, corpora[0])
    assert _resumed(tmp_path) >= done


def test_told_to_end(slurm, corpora, expected, tmp_path, middle):
    """By SIGTERM, as before a preemption: in order, and soon; whoever preempts queues it again."""
    job = _submit(slurm, corpora[0], tmp_path)
    done = middle(tmp_path, 5)
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    slurm.wait_until(job, "FAILED", "CANCELLED")
    assert slurm.job(job)["ExitCode"] == "143:0"
    assert _settled(tmp_path)
    slurm.dataprep("run", corpora[0], "-t", "sample", "-o", tmp_path, *TWO_NODES, *SLOW)
    assert _sums(tmp_path) == _only(expected, corpora[0])
    assert _resumed(tmp_path) >= done


def test_told_that_its_time_is_up_it_queues_itself_again(slurm, corpora, expected, tmp_path, middle):
    """As Slurm does `notice_seconds` before the time limit."""
    job = _submit(slurm, corpora[0], tmp_path)
    done = middle(tmp_path, 5)
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    slurm.go_on(job)
    slurm.wait_until(job, "COMPLETED")
    assert _sums(tmp_path) == _only(expected, corpora[0])
    assert _resumed(tmp_path) >= done
    told = (tmp_path / "work" / f"job-{job}.log").read_text()
    assert "queued again" in told
    assert "run the same command again" not in told
    assert _settled(tmp_path)


@pytest.mark.slow
def test_the_time_limit(slurm, corpora, expected, tmp_path, middle):
    """One minute is the least that Slurm takes; notice is given up to a minute early (sbatch(1), --signal)."""
    job = _submit(slurm, corpora[0], tmp_path, "--set", "cluster.time=00:10:00", "--set", "cluster.notice_seconds=55")
    done = middle(tmp_path, 1)
    slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    for pid in _both_workers(tmp_path):
        os.kill(pid, signal.SIGSTOP)  # or the run would be done before
    slurm.go_on(job)
    slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    slurm.wait_until(job, "COMPLETED")
    assert _sums(tmp_path) == _only(expected, corpora[0])
    assert _resumed(tmp_path) >= done


def test_an_array_of_three_corpora(slurm, corpora, expected, tmp_path):
    """Each task an allocation of its own, one output folder for all."""
    script = tmp_path / "array.sh"
    command = [sys.executable, "-m", "dataprep", "-q", "run"]
    script.write_text(
        "#!/bin/bash\n#SBATCH --array=0-2 --ntasks=1 --cpus-per-task=1\n"
        f"#SBATCH --output={tmp_path}/array-%a.log\n"
        f"{' '.join(command)} {corpora[0].parent}/corpus$SLURM_ARRAY_TASK_ID.jsonl -t sample -o {tmp_path}/out "
        "--cluster slurm --set cluster.workers_per_node=1\n"
    )
    slurm.call("sbatch", "--wait", str(script))
    assert _sums(tmp_path / "out") == expected


def test_a_worker_that_is_killed_is_replaced(slurm, corpora, expected, tmp_path, middle):
    job = _submit(slurm, corpora[0], tmp_path)
    middle(tmp_path, 3)
    os.kill(_both_workers(tmp_path)[0], signal.SIGKILL)
    slurm.wait_until(job, "COMPLETED")
    assert _sums(tmp_path) == _only(expected, corpora[0])


def test_no_worker_left(slurm, corpora, tmp_path, middle):
    """All of srun's tasks are killed: the driver says so, at once, and a run on this machine goes on."""
    job = _submit(slurm, corpora[0], tmp_path)
    middle(tmp_path, 3)
    slurm.call("scancel", "--signal=KILL", f"{job}.0")
    slurm.wait_until(job, "FAILED")
    log = (tmp_path / "work" / f"job-{job}.log").read_text()
    assert "srun, which runs the workers, ended" in log
    assert "run the same command again" in log
    assert "Traceback" not in log


def test_elastic_workers(slurm, corpora, expected, tmp_path, middle):
    """The driver here, a job for each node; one job is cancelled and replaced. dask-jobqueue takes no Ctrl-C away."""
    pytest.importorskip("dask_jobqueue", reason="pip install 'dataprep-llm[slurm]'")
    where = ("--cluster", "slurm-elastic", "--set", "cluster.nodes=2", "--set", "cluster.workers_per_node=1")
    command = [sys.executable, "-m", "dataprep", "-q", "run", corpora[0], "-t", "sample", "-o", tmp_path, *where, *SLOW]
    with subprocess.Popen(list(map(str, command)), env=slurm.environment, stderr=subprocess.PIPE, text=True) as driver:
        done = middle(tmp_path, 3)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
        assert driver.stderr is not None
        assert "Traceback" not in driver.stderr.read()
    assert _settled(tmp_path)
    _wait_until_none(slurm)
    with subprocess.Popen(list(map(str, command)), env=slurm.environment, stderr=subprocess.PIPE, text=True) as driver:
        middle(tmp_path, done + 3)
        slurm.call("scancel", slurm.call("squeue", "-h", "-o", "%A").split()[0])
        assert driver.wait(200) == 0
    assert _sums(tmp_path) == _only(expected, corpora[0])
    assert _resumed(tmp_path) >= done
    _wait_until_none(slurm)


def test_elastic_workers_that_slurm_refuses(slurm, corpora, tmp_path):
    """Their jobs cannot even be submitted: what sbatch says is passed on, and the end is an error of ours."""
    pytest.importorskip("dask_jobqueue", reason="pip install 'dataprep-llm[slurm]'")
    settings = ("cluster.workers_per_node=1", "cluster.partition=none", "cluster.patience_seconds=4")
    where = ("--cluster", "slurm-elastic", *(word for setting in settings for word in ("--set", setting)))
    said = slurm.dataprep("run", corpora[1], "-t", "sample", "-o", tmp_path, *where, code=1)
    assert "invalid partition specified: none" in said
    assert "error: no worker has been at work" in said
    assert _settled(tmp_path)


def _wait_until_none(slurm) -> None:
    """Return once no job is left."""
    deadline = time.monotonic() + 120
    while slurm.call("squeue", "-h").strip():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_mistakes_are_said_before_anything_is_submitted(slurm, corpora, tmp_path):
    run = ("run", corpora[1], "-t", "sample", "-o", tmp_path)
    wrong = slurm.dataprep(*run, "--cluster", "slurm", "--set", "cluster.partition=none", code=2)
    assert "partition" in wrong
    assert "Traceback" not in wrong
    assert "known here" in slurm.dataprep(*run, "--cluster", "slurm", "--set", "cluster.node=2", code=2)
    assert "cluster.nodes" in slurm.dataprep(*run, "--cluster", "slurm", "--workers", 2, code=2)
    assert "no such file" in slurm.dataprep(*run, "--cluster", "slurn", code=2)
    missing = ("run", tmp_path / "nothing.jsonl", "-t", "sample", "-o", tmp_path)
    assert "nothing.jsonl" in slurm.dataprep(*missing, *TWO_NODES, code=2)
    assert not slurm.call("squeue", "-h").strip()


def _resumed(output: Path) -> int:
    """How many units the last run found done."""
    lines = [line for path in output.glob("work/*/events*.jsonl") for line in path.read_text().splitlines()]
    events = sorted((json.loads(line) for line in lines), key=lambda event: event["time"])
    return max(event["done"] for event in events if event["event"] == "resume")


def _workers(output: Path) -> list[int]:
    """Processes that were told of a private folder of this run's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"DASK_CONFIG={output}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _both_workers(output: Path) -> list[int]:
    """One of each node, once the other one has come, too."""
    found: list[int] = []
    deadline = time.monotonic() + 120
    while len(found) != 2:
        assert time.monotonic() < deadline, found
        found = [pid for pid in _workers(output) if _is_worker(pid)]
        time.sleep(0.01)
    return found


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def middle(units_done):
    """Wait until so many units of a run are done; returns how many were then."""

    def wait(output: Path, number: int) -> int:
        found = 0
        deadline = time.monotonic() + 120
        while (found := units_done(output)) < number:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert not list(output.glob("*/manifest.json")), "too fast: there is no middle"
        return found

    return wait
