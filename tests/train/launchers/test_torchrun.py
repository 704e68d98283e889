"""The script of one node with the real torchrun; the trainer is the stand-in."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.errors import Terminated, TrainingError
from dataprep.train.launchers import command, kubernetes

pytestmark = pytest.mark.train

STUBS = Path(__file__).parents[1] / "stubs"
TRAINER = {"script": "trainer.py", "folder": str(STUBS)}


@pytest.fixture
def torchrun(stubs, monkeypatch) -> Path:
    """The real one is found first; returns the folder of records."""
    pytest.importorskip("torch", reason="pip install torch")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return stubs


def _records(folder: Path) -> dict[str, dict]:
    found = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return {each["environment"]["RANK"]: each for each in found}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_words_arrive(torchrun, workspace, make_training):
    nasty = ("--words", "", "a b", "it's", '"', "$HOME", "\\", "-m", "--standalone")
    job, program = make_training(str(workspace), nasty, program=TRAINER)
    command.launch(job, program)

    found = _records(torchrun)
    assert sorted(found) == ["0", "1"]
    assert found["1"]["argv"] == list(program.arguments)
    assert found["1"]["environment"]["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "300"


def test_a_rank_that_fails(torchrun, tmp_path, make_training):
    job, program = make_training(str(tmp_path), ("--code", "7", "--others"), program=TRAINER)
    with pytest.raises(TrainingError, match="the training failed with exit code 1"):
        command.launch(job, program)


def test_told_to_end_all_ranks_save(torchrun, tmp_path, make_training):
    job, program = make_training(str(tmp_path), ("--wait",), program=TRAINER, train={"log_file": f"{tmp_path}/log"})
    text = 'until [[ -e $0/rank-0.json && -e $0/rank-1.json ]]; do sleep 0.1; done; kill -TERM "$1"'
    waiting = subprocess.Popen(["bash", "-c", text, torchrun, str(os.getpid())])
    with pytest.raises(Terminated):
        command.launch(job, program)
    assert waiting.wait() == 0
    assert sorted(path.name for path in torchrun.glob("saved-*")) == ["saved-0", "saved-1"]
    assert "rank 0 has saved" in (tmp_path / "log").read_text()


def _both(text: str, environments: list[dict[str, str]]) -> None:
    nodes = [subprocess.Popen(["bash", "-c", text], env={**os.environ, **each}) for each in environments]
    assert [each.wait(120) for each in nodes] == [0, 0]


@pytest.mark.parametrize("restarts", [0, 1])
def test_two_nodes_meet(torchrun, tmp_path, make_training, restarts):
    """At fixed ranks, and by c10d."""
    launch = {"max_restarts": restarts, "master_addr": "127.0.0.1", "master_port": _free_port()}
    job, program = make_training(str(tmp_path), program=TRAINER, parallel={"nodes": 2}, launch=launch)
    _both(command.render(job, program), [{"NODE_RANK": "0"}, {"NODE_RANK": "1"}])

    assert sorted(_records(torchrun)) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_two_pods_meet(torchrun, tmp_path, make_training, kind):
    """With the variables that each operator sets; this machine stands for the first worker."""
    port = _free_port()
    launch = {"kind": kind, "image": "x", "claim": "y", "mount_path": str(tmp_path), "master_port": port}
    job, program = make_training(str(tmp_path), program=TRAINER, parallel={"nodes": 2}, launch=launch)
    text = kubernetes.objects(job, program)[0]["data"]["train.sh"]
    own = {"PET_NNODES": "2" if kind == "trainjob" else "2:2", "PET_NPROC_PER_NODE": "2"}
    if kind == "trainjob":
        own |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
        _both(text, [{**own, "PET_NODE_RANK": str(i)} for i in range(2)])
    else:
        assert "=sample-125m-worker-0:" in text
        own |= {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "nowhere:1", "PET_MAX_RESTARTS": "0"}
        _both(text.replace("sample-125m-worker-0:", "127.0.0.1:"), [own, own])

    assert sorted(_records(torchrun)) == ["0", "1", "2", "3"]
