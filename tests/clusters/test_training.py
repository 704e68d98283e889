"""Trainings on a real Slurm, with stand-ins for torchrun and the trainer, which record what each rank was given."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from dataprep.errors import ClusterError, SpecError
from dataprep.train.launchers import slurm as launcher

pytestmark = pytest.mark.slurm

STUBS = Path(__file__).parents[1] / "train" / "stubs"
LAUNCH = {"gpus_option": "none"}  # there are none
TWO_NODES = {"nodes": 2, "gpus_per_node": 2}


@pytest.fixture
def make(slurm, stubs, make_training, monkeypatch):
    """As `make_training`; what it submits goes to this Slurm, and is cancelled in the end."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setattr("dataprep.cluster.slurm.POLL_SECONDS", 0.2)

    def make_it(folder: Path, *arguments: str, **changes: dict):
        changes["launch"] = {**LAUNCH, **changes.get("launch", {})}
        changes.setdefault("program", {"script": "trainer.py", "folder": str(STUBS)})
        return make_training(str(folder), arguments, **changes)

    yield make_it
    slurm.call("scancel", "--full", "--signal=KILL", "--user", "0")


def _record(stubs: Path, rank: int) -> dict:
    return json.loads((stubs / f"rank-{rank}.json").read_text())


def _options(stubs: Path, rank: int) -> dict:
    return json.loads(_record(stubs, rank)["environment"]["STUB_OPTIONS"])


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_rank_gets_everything(make, slurm, stubs, workspace, nodes, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    nasty = ("--words", "", "a b", "it's", '"', "$HOME", "`id`", "\\", "*", "line\nbreak")
    launch = {"environment": {"OWN": "it's $HOME"}, "prologue": ("export LATE=1",), "exclusive": False}
    job, program = make(workspace, *nasty, launch=launch, parallel={"nodes": nodes, "gpus_per_node": 2})
    said: list[str] = []
    launcher.launch(job, program, said.append)

    number = re.search(r"job (\d+) is submitted", said[0])[1]
    for rank in range(2 * nodes):
        record = _record(stubs, rank)
        assert record["argv"] == list(program.arguments)
        assert record["cwd"] == str(STUBS)
        found = record["environment"]
        assert (found["OWN"], found["LATE"], found["HF_TOKEN"]) == ("it's $HOME", "1", "hf_secret")
        assert found["WORLD_SIZE"] == str(2 * nodes)
        assert found["MASTER_ADDR"] == "n1"
        assert found["MASTER_PORT"] == str(15000 + int(number) % 17000)
        assert found["SLURMD_NODENAME"] == f"n{rank // 2 + 1}"
        meeting = {"--node-rank": str(rank // 2), "--master-addr": "n1", "--master-port": found["MASTER_PORT"]}
        meeting = {"--nnodes": "2", **meeting} if nodes == 2 else {"--standalone": ""}
        assert _options(stubs, rank) == {"--nproc-per-node": "2", **meeting}
    assert not (stubs / f"rank-{2 * nodes}.json").exists()
    assert Path(job.output, "config.json").read_text() == '{"steps": 10}\n'
    assert f"rank {2 * nodes - 1} is at work\n" in "".join(said)
    assert "hf_secret" not in Path(job.output, "train.sbatch").read_text()
    assert slurm.job(number)["JobState"] == "COMPLETED"


def test_a_rank_that_fails_ends_all_nodes(make, slurm, stubs, tmp_path):
    job, program = make(tmp_path, "--code", "7", "--others", parallel={"nodes": 2, "gpus_per_node": 1})
    with pytest.raises(ClusterError, match=r"ended: failed, exit code 7; .* a training with `load` goes on from its"):
        launcher.launch(job, program, lambda text: None)
    assert (stubs / "rank-1.json").exists(), "it waited, and was ended"


def _submit(job, program, slurm, stubs: Path, ranks: int):
    """A job whose ranks are all at work."""
    submitted = launcher.submit(job, program)
    slurm.wait_until(submitted.number, "RUNNING")
    _wait_for(lambda: len(list(stubs.glob("rank-*.json"))) == ranks)
    return submitted


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _saved(stubs: Path) -> list[str]:
    return sorted(path.name for path in stubs.glob("saved-*"))


def test_told_that_its_time_is_up_all_ranks_save(make, slurm, stubs, tmp_path):
    """By the batch shell, as Slurm tells it before the time limit."""
    job, program = make(tmp_path, "--wait", parallel=TWO_NODES)
    submitted = _submit(job, program, slurm, stubs, 4)
    slurm.call("scancel", "--batch", "--signal=USR1", submitted.number)
    slurm.wait_until(submitted.number, "FAILED")

    assert _saved(stubs) == [f"saved-{rank}" for rank in range(4)]
    assert slurm.job(submitted.number)["ExitCode"] == "1:0"


def test_told_that_its_time_is_up_it_is_queued_again(make, slurm, stubs, tmp_path):
    job, program = make(tmp_path, "--wait", parallel=TWO_NODES, launch={"requeue": True})
    submitted = _submit(job, program, slurm, stubs, 4)
    slurm.call("scancel", "--batch", "--signal=USR1", submitted.number)
    slurm.go_on(submitted.number)
    said: list[str] = []
    submitted.follow(said.append)

    assert slurm.job(submitted.number)["JobState"] == "COMPLETED"
    assert slurm.job(submitted.number)["Restarts"] == "1"
    assert _saved(stubs) == [f"saved-{rank}" for rank in range(4)]
    log = submitted.log.read_text()
    assert "the job's time is up; it is queued again" in log
    assert log.count("rank 3 is at work") == 2


@pytest.mark.slow
def test_the_time_limit(make, slurm, stubs, tmp_path):
    """One minute is the least that Slurm takes."""
    changes = {"launch": {"time": "10", "directives": ("--signal=B:USR1@55",)}, "parallel": TWO_NODES}
    job, program = make(tmp_path, "--wait", **changes)
    submitted = _submit(job, program, slurm, stubs, 4)
    slurm.call("scontrol", "update", f"JobId={submitted.number}", "TimeLimit=1")
    slurm.wait_until(submitted.number, "FAILED", "TIMEOUT")

    assert _saved(stubs) == [f"saved-{rank}" for rank in range(4)]
    assert slurm.job(submitted.number)["JobState"] == "FAILED", "before the time ended"


def test_cancelled_all_ranks_save(make, slurm, stubs, tmp_path):
    """Within KillWait, of which this Slurm gives ten seconds."""
    job, program = make(tmp_path, "--wait", parallel=TWO_NODES)
    submitted = _submit(job, program, slurm, stubs, 4)
    slurm.call("scancel", submitted.number)
    with pytest.raises(ClusterError, match="ended: cancelled"):
        submitted.follow(lambda text: None)
    assert _saved(stubs) == [f"saved-{rank}" for rank in range(4)]


def test_two_trainings_share_nodes_and_meet_apart(make, slurm, stubs, tmp_path):
    changes = {"launch": {"exclusive": False, "cpus_per_task": 1}, "parallel": {"nodes": 2, "gpus_per_node": 1}}
    job, program = make(tmp_path, "--wait", **changes)
    first = _submit(job, program, slurm, stubs, 2)
    port = _options(stubs, 0)["--master-port"]
    (stubs / "rank-0.json").unlink()
    second = launcher.submit(job.model_copy(update={"name": "another"}), program)
    _wait_for((stubs / "rank-0.json").exists)

    assert slurm.job(first.number)["JobState"] == slurm.job(second.number)["JobState"] == "RUNNING"
    assert _options(stubs, 0)["--master-port"] != port
    assert first.log != second.log


def test_the_same_training_twice_waits_for_itself(make, slurm, stubs, tmp_path):
    changes = {"launch": {"exclusive": False, "cpus_per_task": 1}}
    job, program = make(tmp_path, "--wait", **changes)
    first = _submit(job, program, slurm, stubs, 2)
    second = launcher.submit(job, program)
    said: list[str] = []

    def show(text: str) -> None:
        said.append(text)
        if "another job of this run has not ended" in text:
            slurm.call("scancel", "--signal=TERM", first.number)

    second.follow(show)
    slurm.wait_until(first.number, "FAILED")  # it was told to end
    assert "pending (Dependency: another job of this run has not ended)" in "".join(said)


def test_ctrl_c_leaves_the_job(make, slurm, tmp_path):
    job, program = make(tmp_path, "--wait")
    said: list[str] = []

    def show(text: str) -> None:
        said.append(text)
        if "is at work" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launcher.launch(job, program, show)
    number = re.search(r"job (\d+)", said[0])[1]
    assert slurm.job(number)["JobState"] == "RUNNING"
    log = Path(job.output, f"sample-125m-{number}.log")
    assert f"to follow it: tail -f {log}; to end it: scancel {number}\n" in said[-1]


def test_in_containers(make, stubs, tmp_path):
    (tmp_path / "data" / "sample-gpt2-0a1b2c3d").mkdir(parents=True)
    launch = {"container": "docker", "image": "x", "environment": {"OWN": "a $b"}}
    job, program = make(tmp_path, "--words", "it's", launch=launch, parallel=TWO_NODES)
    launcher.launch(job, program, lambda text: None)

    record = _record(stubs, 3)
    assert record["argv"] == list(program.arguments)
    assert record["environment"]["OWN"] == "a $b"
    assert _options(stubs, 3)["--node-rank"] == "1"
    assert "SLURMD_NODENAME" not in record["environment"], "the container has what is passed on, and no more"


def test_what_slurm_refuses_is_said(make, tmp_path):
    job, program = make(tmp_path, launch={"partition": "none"})
    with pytest.raises(SpecError, match="invalid partition specified: none"):
        launcher.launch(job, program, lambda text: None)
