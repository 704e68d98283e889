"""A dataset of real text, trainings of a tiny model on it, and how several ranks are started.

Tests marked `train` need `pip install torch==2.13.0 'transformers>=5' tensorboard`; a build of torch without CUDA
will do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import dataprep

RANKS = """
import sys
from pathlib import Path
from dataprep.train.builtin.__main__ import load_settings, prepared
from dataprep.train.builtin.ranks import started
with started() as ranks:
    code = max(prepared(load_settings(Path(path)))(ranks) for path in sys.argv[1:])
sys.exit(code)
"""


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of more than 1,000 documents: the paragraphs of this package's own source, real text of a kind."""
    folder = tmp_path_factory.mktemp("text")
    files = sorted(Path(dataprep.__file__).parent.rglob("*.py"))[:60]
    texts = [text for path in files for text in path.read_text(encoding="utf-8").split("\n\n") if text.strip()]
    (folder / "source.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(dataprep.run(str(folder / "source.jsonl"), "sample", folder / "data").prefix)


@pytest.fixture(scope="session")
def settings(prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes the settings of a training, and returns their path: `settings(lr=0.1, num_layers=1)`."""

    def write(**changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("training")
        shape = {
            "family": "llama",
            "num_layers": 2,
            "hidden_size": 32,
            "ffn_hidden_size": 64,
            "num_attention_heads": 4,
            "num_query_groups": 2,
            "vocab_size": 8192,
            "max_position_embeddings": 64,
            "tie_embeddings": False,
            "add_bias_linear": False,
            "hidden_dropout": 0.0,
        }
        value = {
            "data": [[prefix, 1.0]],
            "seq_length": 32,
            "micro_batch_size": 2,
            "global_batch_size": 8,
            "train_iters": 8,
            "lr": 0.01,
            "lr_warmup_iters": 2,
            "precision": "fp32",
            "eval_iters": 1,
            "eval_interval": 4,
            "log_interval": 1,
            "save_interval": 4,
            "output": str(folder / "out"),
        }
        value |= {key: each for key, each in changes.items() if key not in shape}
        value["shape"] = shape | {key: each for key, each in changes.items() if key in shape}
        path = folder / "settings.json"
        path.write_text(json.dumps(value))
        return path

    return write


@pytest.fixture(scope="session")
def output() -> Callable[[Path], Path]:
    """The output folder of settings."""
    return lambda path: Path(json.loads(path.read_text())["output"])


@pytest.fixture(scope="session")
def losses(output: Callable[[Path], Path]) -> Callable[[Path], list[float]]:
    """All losses of a training, those of its evaluations among them, in their order, to 4 decimals."""

    def read(path: Path) -> list[float]:
        lines = [json.loads(line) for line in (output(path) / "metrics.jsonl").read_text().splitlines()]
        return [round(value, 4) for line in lines for name, value in line.items() if name.endswith("loss")]

    return read


@pytest.fixture(scope="session")
def train() -> Callable[[Path], int]:
    """Train on one rank, here."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import torch

    from dataprep.train.builtin.__main__ import main

    torch.set_num_threads(1)

    def run(path: Path) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
            return main([str(path)])

    return run


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start `torchrun` with 2 ranks, one training after the other; to import torch takes longer than to train."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    def run(*paths: Path, ranks: int = 2) -> subprocess.Popen[str]:
        script = paths[0].with_name("ranks.py")
        script.write_text(RANKS)
        options = ["--standalone", f"--nproc-per-node={ranks}", str(script)]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        alone = [sys.executable, str(script)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "150"  # or ranks that save are killed after 30 s
        return subprocess.Popen(
            [*(command if ranks > 1 else alone), *map(str, paths)], env=environment, stderr=subprocess.PIPE, text=True
        )

    return run


@pytest.fixture(scope="session")
def ended() -> Callable[[subprocess.Popen[str]], str]:
    """Wait for what `start` started; returns what it said. What does not end is killed, and its ranks, and told."""

    def wait(running: subprocess.Popen[str]) -> str:
        try:
            return running.communicate(timeout=200)[1]
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(running.pid).children(recursive=True), running]:
                process.kill()
            pytest.fail(f"it did not end: {running.communicate()[1]}")

    return wait
