"""The script of one node: what the ranks of a stand-in are given, how it ends, what signals do."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dataprep.errors import BusyError, SpecError, Terminated, TrainingError
from dataprep.locks import hold
from dataprep.train.launchers import command, find_launcher

STUBS = Path(__file__).parents[1] / "stubs"
TRAINER = {"script": "trainer.py", "folder": str(STUBS)}
NASTY = ("--words", "", "a b", "it's", '"', "$HOME", "`id`", "\\", "*", "line\nbreak")


def _record(stubs: Path, rank: int) -> dict:
    return json.loads((stubs / f"rank-{rank}.json").read_text())


def test_ranks_get_words_variables_and_folder(stubs, workspace, make_training, capfd):
    launch = {"environment": {"OWN": "it's $HOME"}, "interface": "eth0", "prologue": ("LATE=1; export LATE",)}
    job, program = make_training(str(workspace), NASTY, launch=launch, program=TRAINER)
    command.launch(job, program)

    for rank in (0, 1):
        record = _record(stubs, rank)
        assert record["argv"] == list(program.arguments)
        assert record["cwd"] == str(STUBS)
        found = record["environment"]
        assert (found["RANK"], found["WORLD_SIZE"], found["LATE"]) == (str(rank), "2", "1")
        assert found["OWN"] == "it's $HOME"
        assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"
        assert found["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert json.loads(_record(stubs, 0)["environment"]["STUB_OPTIONS"]) == {"--nproc-per-node": "2", "--standalone": ""}
    assert Path(job.output, "config.json").read_text() == '{"steps": 10}\n'
    assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0 is at work", "rank 1 is at work"]


def test_environment_overrides_tuning_and_not_what_is_asked_for(stubs, tmp_path, make_training, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    monkeypatch.setenv("OWN", "environment")
    job, program = make_training(str(tmp_path), launch={"environment": {"OWN": "asked"}}, program=TRAINER)
    command.launch(job, program)

    found = _record(stubs, 0)["environment"]
    assert (found["CUDA_DEVICE_MAX_CONNECTIONS"], found["OWN"]) == ("8", "asked")


@pytest.mark.parametrize(("log", "tee"), [(False, True), (True, True), (True, False)])
def test_a_failure_is_told_with_its_code_and_log(stubs, workspace, make_training, log, tee, capfd):
    path = workspace / "logs" / "it's a.log"
    train = {"log_file": str(path), "tee": tee} if log else {}
    job, program = make_training(str(workspace), ("--code", "7"), train=train, program=TRAINER)
    with pytest.raises(TrainingError, match="exit code 7") as caught:
        command.launch(job, program)

    assert (str(path) in str(caught.value)) == log
    assert f"{job.output}/train.sh" in str(caught.value)
    out = capfd.readouterr().out
    assert ("rank 0 is at work" in out) == tee
    if log:
        assert path.read_text() == out or not tee
        assert "rank 0 is at work" in path.read_text()


def test_no_torchrun_is_told(tmp_path, make_training, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    job, program = make_training(str(tmp_path), program=TRAINER)
    with pytest.raises(TrainingError, match="exit code 127: is torchrun on the search path"):
        command.launch(job, program)


def test_a_python_of_its_own(stubs, tmp_path, make_training):
    (tmp_path / "py thon").symlink_to(sys.executable)
    job, program = make_training("/fsx", launch={"python": f"{tmp_path}/py thon", "max_restarts": 3})

    text = command.render(job, program)
    assert f"exec '{tmp_path}/py thon' -m torch.distributed.run \\\n" in text
    assert "--max-restarts=3" in text
    assert "'-m'" not in text
    job, program = make_training("/fsx", program={"script": "a.b", "is_module": True})
    assert "--standalone -m \\\n  a.b" in command.render(job, program)


@pytest.fixture
def start(stubs):
    """Launch in a process of its own, since signals would end the tests; returns it once both ranks are at work."""
    code = (
        "import json, sys\nfrom dataprep.errors import Terminated, TimeIsUp\n"
        "from dataprep.train.job import Job\nfrom dataprep.train.program import Program\n"
        "from dataprep.train.launchers import command\n"
        "job, program = json.load(sys.stdin)\n"
        "try: command.launch(Job.from_json(job, 'job'), Program(**program))\n"
        "except TimeIsUp: sys.exit(44)\nexcept Terminated: sys.exit(43)\nexcept KeyboardInterrupt: sys.exit(30)\n"
    )
    started = []

    def start(job, program, **options) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True, **options)
        lock = Path(job.output, "train-0.lock")
        started.append((process, lock))
        process.stdin.write(json.dumps([job.to_json(), program.__dict__]))
        process.stdin.close()
        _wait_for(lambda: len(list(stubs.glob("rank-*.json"))) == 2 and "started" in lock.read_text())
        return process

    yield start
    for process, lock in started:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError, KeyError):
            os.killpg(_trainer(lock), signal.SIGKILL)


def _trainer(lock: Path) -> int:
    """The number of its process, and of its group."""
    return int(json.loads(lock.read_text())["started"])


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 43), (signal.SIGINT, 30)])
def test_told_to_end_it_waits_for_checkpoints(start, stubs, tmp_path, make_training, log, number, code):
    train = {"log_file": str(tmp_path / "log")} if log else {}
    process = start(*make_training(str(tmp_path), ("--wait",), train=train, program=TRAINER))
    process.send_signal(number)
    assert process.wait(120) == code
    assert _saved(stubs) == ["saved-0", "saved-1"]
    if log:
        assert "rank 1 has saved" in (tmp_path / "log").read_text()


def test_told_to_end_because_its_terminal_has_gone(start, stubs, tmp_path, make_training):
    """Nobody can be told of it then."""
    read, write = os.pipe()
    process = start(*make_training(str(tmp_path), ("--wait",), program=TRAINER), stderr=write)
    os.close(write)
    os.close(read)
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 43
    assert _saved(stubs) == ["saved-0", "saved-1"]


def test_told_by_slurm_that_its_time_is_up_it_waits_for_checkpoints(
    start, stubs, tmp_path, make_training, monkeypatch, capfd
):
    """More than once, and all that runs in a step, as srun and scancel do it: torchrun does not know that signal."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    job, program = make_training(str(tmp_path), ("--wait",), program=TRAINER)
    process = start(job, program)
    os.killpg(_trainer(Path(job.output, "train-0.lock")), signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "the job's time is about to end: the trainer is told to end" in said

    _wait_for(is_told)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 44
    assert _saved(stubs) == ["saved-0", "saved-1"]


def test_a_trainer_whose_starter_was_killed_is_no_others(start, stubs, tmp_path, make_training):
    job, program = make_training(str(tmp_path), ("--wait",), program=TRAINER)
    process = start(job, program)
    process.kill()
    process.wait()
    trainer = _trainer(Path(job.output, "train-0.lock"))
    message = f"/runs/one is held by process {trainer}, which process {process.pid} started, on .*; wait for it to end"
    with pytest.raises(BusyError, match=message):
        command.launch(job, program)
    os.kill(trainer, signal.SIGTERM)

    def is_free() -> bool:
        with contextlib.suppress(BusyError):
            return command.launch(job, program) == 0
        return False

    _wait_for(is_free)
    assert _saved(stubs) == ["saved-0", "saved-1"]


def test_what_a_prologue_leaves_running_is_no_trainer(stubs, tmp_path, make_training):
    prologue = (f"sleep 60 > /dev/null & echo $! > {shlex.quote(str(tmp_path))}/daemon",)
    job, program = make_training(str(tmp_path), launch={"prologue": prologue}, program=TRAINER)
    command.launch(job, program)
    daemon = int((tmp_path / "daemon").read_text())
    try:
        command.launch(job, program)
    finally:
        os.kill(daemon, signal.SIGKILL)
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)


def _saved(stubs: Path) -> list[str]:
    return sorted(path.name for path in stubs.glob("saved-*"))


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_same_training_twice_is_refused(stubs, tmp_path, make_training):
    job, program = make_training(str(tmp_path), program=TRAINER)
    Path(job.output).mkdir(parents=True)
    with hold(Path(job.output, "train-0.lock")), pytest.raises(BusyError, match=r"/runs/one is held by process"):
        command.launch(job, program)
    assert list(stubs.iterdir()) == []


def test_a_path_that_no_file_can_name(make_training):
    job, program = make_training("/fsx")
    job = job.model_copy(update={"output": "/fsx/a\udcff"})
    with pytest.raises(SpecError, match=r"is no UTF-8, .*: .*/fsx/a\\udcff"):
        find_launcher("local").render(job, program)


def test_told_to_end_is_no_failure(stubs, tmp_path, make_training, monkeypatch):
    """The signals of this process are its own again afterwards."""
    job, program = make_training(str(tmp_path), ("--wait",), program=TRAINER)
    before = signal.getsignal(signal.SIGTERM)
    waiting = subprocess.Popen(
        ["bash", "-c", 'until [[ -e $0/rank-1.json ]]; do sleep 0.05; done; kill -TERM "$1"', stubs, str(os.getpid())]
    )
    with pytest.raises(Terminated):
        command.launch(job, program)
    assert waiting.wait() == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_python_that_is_found_from_one_folder_only(make_training):
    job, program = make_training("/fsx", launch={"python": "venv/bin/python"})
    with pytest.raises(SpecError, match=r"launch\.python=venv/bin/python: relative"):
        command.render(job, program)


def test_machines_by_hand(stubs, tmp_path, make_training):
    job, program = make_training(str(tmp_path), parallel={"nodes": 2}, program=TRAINER)
    text = command.render(job, program)
    environment = {**os.environ, "MASTER_ADDR": "node 0", "NODE_RANK": "1"}
    missing = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    subprocess.run(["bash", "-c", text], env=environment, check=True, capture_output=True)

    assert missing.returncode == 2
    assert missing.stderr.startswith("2 machines: set MASTER_ADDR and NODE_RANK: the name of the first machine")
    options = json.loads(_record(stubs, 3)["environment"]["STUB_OPTIONS"])
    assert options == {
        "--nproc-per-node": "2",
        "--nnodes": "2",
        "--node-rank": "1",
        "--master-addr": "node 0",
        "--master-port": "29500",
    }


def test_machines_by_hand_that_are_known(stubs, tmp_path, make_training):
    launch = {"master_addr": "a$b", "node_rank": 0, "master_port": 4000, "max_restarts": 1}
    job, program = make_training(str(tmp_path), parallel={"nodes": 2}, program=TRAINER, launch=launch)
    subprocess.run(["bash", "-c", command.render(job, program)], check=True, capture_output=True)

    options = json.loads(_record(stubs, 0)["environment"]["STUB_OPTIONS"])
    assert options["--rdzv-endpoint"] == "a$b:4000"
    assert options["--rdzv-backend"] == "c10d"


def test_one_machine_of_deepspeed_is_torchruns(stubs, tmp_path, make_training):
    """DeepSpeed's own launcher would die of SIGTERM, and its ranks without a checkpoint."""
    job, program = make_training(str(tmp_path), program={**TRAINER, "start": "deepspeed"})
    command.launch(job, program)

    assert _record(stubs, 1)["argv"] == list(program.arguments)
    assert not (stubs / "deepspeed.json").exists()


def test_deepspeed_on_several_machines(stubs, tmp_path, make_training):
    launch = {"environment": {"OWN": "a b"}}
    changes = {"program": {**TRAINER, "start": "deepspeed"}, "parallel": {"nodes": 2}, "launch": launch}
    job, program = make_training(str(tmp_path), **changes)
    text = command.render(job, program)
    missing = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    environment = {**os.environ, "HOSTFILE": str(tmp_path / "hosts")}
    subprocess.run(["bash", "-c", text], env=environment, check=True)

    assert missing.returncode == 2
    assert "set HOSTFILE" in missing.stderr
    found = json.loads((stubs / "deepspeed.json").read_text())
    assert found["argv"][:4] == [f"--hostfile={tmp_path}/hosts", "--num_nodes=2", "--num_gpus=2", "--master_port=29500"]
    lines = ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT=300", "CUDA_DEVICE_MAX_CONNECTIONS=1", "OWN=a b"]
    assert found["variables"].splitlines() == lines


@pytest.mark.parametrize("name", command.SECRETS)
def test_secrets_are_in_no_text(make_training, name, monkeypatch):
    monkeypatch.setenv(name, "hf_secret")
    job, program = make_training("/fsx", launch={"container": "docker", "image": "x"})
    assert "hf_secret" not in command.render(job, program)
    assert f"--env={name}" in command.render(job, program)
    job, program = make_training("/fsx", launch={"environment": {name: "hf_secret"}})
    with pytest.raises(SpecError, match=f"{name}: a secret") as caught:
        command.render(job, program)
    assert "hf_secret" not in str(caught.value)


def test_texts_are_those_that_were_read_through(make_training, golden):
    launch = {"environment": {"NCCL_DEBUG": "INFO"}, "prologue": ("module load rocm",), "interface": "eth0"}
    program = {"folder": "/opt/Megatron-LM", "script": "pretrain_gpt.py"}
    job, program = make_training("/fsx/it's", launch=launch, program=program, train={"log_file": "/tmp/a b.log"})
    golden("command.sh", command.render(job, program))
