"""The command train."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path):
    """Run ``dataprep train``; returns its exit code, stdout and stderr."""

    def ran(*words: str, **environment: str):
        done = subprocess.run(
            [sys.executable, "-m", "dataprep", "train", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        return done.returncode, done.stdout, done.stderr

    return ran


def test_amds_line_trains_on_mock_data_as_its_readme_promises(run):
    environment = {"TEE_OUTPUT": "1", "MBS": "2", "BS": "128", "TP": "1"}
    environment |= {"TE_FP8": "1", "SEQ_LENGTH": "8192", "MODEL_SIZE": "8"}
    code, out, err = run("--model", "llama3", "--backend", "rocm", **environment)
    assert code == 0, err
    for flag in ("--micro-batch-size 2", "--global-batch-size 128", "--seq-length 8192", "--num-layers 32"):
        assert flag in " ".join(out.split()), flag
    assert "--mock-data" in out
    assert "--fp8-format" in out
    assert "from the environment: MODEL_SIZE=8 TP=1 MBS=2" in err
    assert "no prefix is given: Megatron trains on mock data" in err


def test_an_error_among_the_checks_ends_it_before_anything_is_printed_or_started(run, dataset):
    code, out, err = run(dataset, "--model", "gpt3-125m", "--iterations", "2", "--global-batch", "100")
    assert (code, out) == (1, "")
    assert "global batch 100 / (1 x 8) is not whole" in err


def test_quiet_shows_warnings_alone(tmp_path, dataset):
    words = [dataset, "--model", "gpt3-125m", "--iterations", "2", "--set", "train.save=null"]
    done = subprocess.run(
        [sys.executable, "-m", "dataprep", "--quiet", "train", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "warning vocabulary" in done.stderr
    assert "ok      world" not in done.stderr


def test_json(run, dataset):
    code, out, _ = run(dataset, "--model", "gpt3-125m", "--iterations", "2", "--json", "--set", "train.save=null")
    found = json.loads(out)
    assert code == 0
    assert found["job"]["train"]["train_iters"] == 2
    assert found["arguments"][:2] == ["--num-layers", "12"]
    assert {finding["severity"] for finding in found["findings"]} == {"ok", "warning"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "llama9"], "unknown model 'llama9'"),
        (["nothing/here", "--model", "gpt3-125m"], "no such prefix"),
        (["--model", "gpt3-125m", "--launcher", "ray"], "--launcher ray: expected one of local"),
    ],
)
def test_mistakes(run, words, text):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert text in err
    assert "Traceback" not in err


def test_told_by_slurm_that_its_time_is_up_the_trainer_saves(stubs, tmp_path, dataset):
    """As `exec dataprep train` in a batch script with --signal=B:USR1@300."""
    shutil.copy(Path(__file__).parent / "stubs" / "trainer.py", tmp_path / "pretrain_gpt.py")
    words = [dataset, "--model", "gpt3-125m", "--iterations", "2", "--gpus-per-node", "1", "--launcher", "local"]
    for setting in (f"launch.trainer={tmp_path}", "argument.wait=", "train.save=null"):
        words += ["--set", setting]
    command = [sys.executable, "-m", "dataprep", "train", *words]
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, cwd=tmp_path, env={**os.environ, "SLURM_JOB_ID": "1"})
    deadline = time.monotonic() + 120
    while not (stubs / "rank-0.json").exists():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(120) == 143
    assert said.read_text().endswith("the trainer is told to end, and its end is waited for\ntold to end\n")
    assert (stubs / "saved-0").exists()
