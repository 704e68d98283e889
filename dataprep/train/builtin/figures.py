"""What a training says of itself: ``metrics.jsonl``, TensorBoard, a line on stderr, and the share of the device's peak.

A line of ``metrics.jsonl`` is one iteration that was logged, or one evaluation; a training that goes on from a
checkpoint first drops the lines of what comes after it.
"""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dataprep.storage import AtomicFile, append_line

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.train.builtin.settings import Settings
    from dataprep.train.presets import Shape

PEAKS = {
    "B200": 2250e12,  # NVIDIA DGX B200 data sheet: 36 PFLOPS with sparsity for 8
    "H200": 989.5e12,  # NVIDIA H200 data sheet: 1,979 TFLOPS with sparsity
    "GH200": 989.5e12,  # NVIDIA GH200 data sheet: 1,979 TFLOPS with sparsity
    "H100 PCIe": 756.5e12,  # NVIDIA H100 data sheet of 2022: 1,513 TFLOPS with sparsity
    "H100": 989.5e12,  # NVIDIA H100 data sheet, SXM: 1,979 TFLOPS with sparsity
    "A100": 312e12,  # NVIDIA A100 data sheet
    "L40S": 362e12,  # NVIDIA L40S data sheet: 733 TFLOPS with sparsity, 362.05 without
    "MI300X": 1307.4e12,  # AMD Instinct MI300X data sheet
    "MI325X": 1307.4e12,  # AMD Instinct MI325X data sheet
    "MI250X": 191.5e12,  # AMD Instinct MI250X data sheet: 383 TFLOPS of two dies, each a device of its own
}
"""Part of a device's name -> dense bfloat16 FLOP/s. The first that fits."""


def peak_flops(name: str) -> float | None:
    """The peak of a device by its name; None: not known, as that of processors."""
    return next((peak for part, peak in PEAKS.items() if all(word in name for word in part.split())), None)


def flops_per_token(num_parameters: int, shape: Shape, seq_length: int) -> float:
    """Of forward and backward: 6 for each parameter that multiplies, 12 layers hidden_size seq_length of attention.

    By PaLM's count (arXiv 2204.02311, appendix B), which takes attention for whole though half of it is masked, and
    counts nothing twice for activation checkpointing.

    Args:
        num_parameters: of the model, tied ones once.
        shape: of the model.
        seq_length: of the training.
    """
    looked_up = 0 if shape.tie_embeddings else shape.vocab_size * shape.hidden_size
    looked_up += shape.max_position_embeddings * shape.hidden_size if shape.family == "gpt" else 0
    return 6.0 * (num_parameters - looked_up) + 12.0 * shape.num_layers * shape.hidden_size * seq_length


def learning_rate(settings: Settings, iteration: int) -> float:
    """Of the iteration that follows `iteration` others: warm-up in a line from 0, then a cosine down to `min_lr`.

    As Megatron-LM d98e8a64 has it (megatron/core/optimizer_param_scheduler.py): the first iteration of a warm-up
    learns nothing.
    """
    warmup, last = settings.lr_warmup_iters, settings.lr_decay_iters or settings.train_iters
    if warmup and iteration <= warmup:
        return settings.lr * iteration / warmup
    done = min(1.0, (iteration - warmup) / (last - warmup))
    return settings.min_lr + 0.5 * (math.cos(math.pi * done) + 1.0) * (settings.lr - settings.min_lr)


class Figures:
    """Where the figures of one training go. Of one rank; the others have none.

    Args:
        output: folder of the training.
        iteration: after which it goes on.
        train_iters: its last one.
    """

    def __init__(self, output: Path, iteration: int, train_iters: int) -> None:
        self._path, self._train_iters = output / "metrics.jsonl", train_iters
        self._drop_after(iteration)
        self._board: Any = None
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(output / "tensorboard"), purge_step=iteration + 1)

    def add(self, values: dict[str, Any]) -> None:
        """Write one line, and show it: on a terminal in place of the one before."""
        append_line(self._path, values)
        for name, value in values.items():
            if self._board is not None and name != "iteration" and value is not None:
                self._board.add_scalar(name, value, values["iteration"])
        text = f"iteration {values['iteration']}/{self._train_iters}: " + ", ".join(
            f"{name} {value:,.4g}" for name, value in values.items() if value is not None and name in SHOWN
        )
        self.say(text, stays="tokens_per_second" not in values)

    def say(self, text: str, stays: bool = True) -> None:
        """One line on stderr; on a terminal the next one replaces it, unless it stays."""
        terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[K{text}" if terminal else text)
        sys.stderr.write("\n" if stays or not terminal else "")
        sys.stderr.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _drop_after(self, iteration: int) -> None:
        """Drop the lines of later iterations: they come again; and one that a crash cut off."""
        if not self._path.exists():
            return
        lines = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        kept = [line for line in lines if json.loads(line)["iteration"] <= iteration]
        with AtomicFile(self._path) as file:
            file.write(b"".join(kept))


SHOWN = {"loss", "lr", "grad_norm", "tokens_per_second", "mfu", "valid_loss", "test_loss"}
