"""Whether Megatron's ``--split`` gives every part of it something to train on; the arithmetic is that of `samples`.

A part with no token hangs Megatron, however few samples are wanted of it, and if it is 0: `GPTDataset._get_num_epochs`
adds 0 tokens until there are enough for the one that samples have beyond their length. Only where no number is wanted,
as for valid under --full-validation, is the part made without samples.
Source: Megatron-LM d98e8a64, megatron/core/datasets/gpt_dataset.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dataprep.checks.documents import PIECE
from dataprep.checks.report import Place
from dataprep.samples import SPLIT, split_ranges

if TYPE_CHECKING:
    from dataprep.checks.index import Sound
    from dataprep.checks.report import Report
    from dataprep.indexed import Index


def check_split(sound: Sound, split: str | None, seq_length: int | None, report: Report) -> None:
    """Note the parts that Megatron would hang on, and those that hold less than one sample.

    Args:
        sound: the index.
        split: None: Megatron's default.
        seq_length: tokens of a sample; None: not looked at.
        report: where to.

    Raises:
        SpecError: not a split.
    """
    index, split = sound.index, SPLIT if split is None else split
    place = Place(str(index.path))
    for part, (first, stop) in split_ranges(split, len(index.sequence_lengths)).items():
        tokens = num_tokens(index, first, stop)
        held = f"{part} of --split {split} has {stop - first} sequences with {tokens} tokens"
        if not tokens:
            report.add("split-empty", place, f"expected tokens, but {held}")
        elif seq_length is not None and tokens < seq_length + 1:
            report.add("split-short", place, f"expected {seq_length + 1} tokens for a sample, but {held}")


def num_tokens(index: Index, first: int, stop: int) -> int:
    """Tokens of the sequences [first, stop)."""
    total = 0
    for start in range(first, stop, PIECE):
        total += int(index.read("sequence_lengths", start, min(stop, start + PIECE)).sum(dtype=np.int64))
    return total
