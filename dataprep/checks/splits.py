"""Whether Megatron's ``--split`` gives every part of it something to train on.

Megatron makes shares of the numbers, adds them up, and rounds share * sequences to the nearest, half to even, for both
ends of each part; GPT counts sequences, not documents. A part with no token hangs it, whatever is wanted of it:
`GPTDataset._get_num_epochs` adds 0 tokens until there are enough.
Source: Megatron-LM d98e8a64, megatron/core/datasets/blended_megatron_dataset_config.py, `parse_and_normalize_split` and
`convert_split_vector_to_split_matrix`; blended_megatron_dataset_builder.py, `_build_megatron_dataset_splits`.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dataprep.checks.documents import PIECE
from dataprep.checks.report import Place
from dataprep.errors import SpecError

if TYPE_CHECKING:
    from dataprep.checks.index import Sound
    from dataprep.checks.report import Report
    from dataprep.indexed import Index

NAMES = ("train", "valid", "test")

DEFAULT = "969, 30, 1"
"""What Megatron splits by if nobody says otherwise (megatron/training/arguments.py, ``--split``)."""


def ranges(split: str, num_sequences: int) -> list[tuple[int, int] | None]:
    """The sequences [first, stop) of train, valid and test; None for a part that Megatron does not build.

    Raises:
        SpecError: not a split that Megatron takes.
    """
    try:
        numbers = [float(number) for number in re.findall(r"[.0-9]+", split)]
    except ValueError:
        numbers = []
    if not 0 < len(numbers) <= len(NAMES) or not 0 < sum(numbers) < math.inf:
        raise SpecError(f"--split {split!r}: expected up to three shares that are not all 0, such as 969,30,1")
    weights = np.array([*numbers, 0.0, 0.0][: len(NAMES)], np.float64)
    shares = (weights / np.sum(weights)).tolist()
    ends = [0.0]
    for share in shares:
        ends.append(ends[-1] + share)
    return [
        (round(first * float(num_sequences)), round(stop * float(num_sequences))) if stop > first else None
        for first, stop in pairwise(ends)
    ]


def check_split(sound: Sound, split: str | None, seq_length: int | None, report: Report) -> None:
    """Note the parts that Megatron would hang on, and those that hold less than one sample.

    Args:
        sound: the index.
        split: None: Megatron's default.
        seq_length: tokens of a sample; None: not looked at.
        report: where to.
    """
    index, split = sound.index, DEFAULT if split is None else split
    place = Place(str(index.path))
    for name, part in zip(NAMES, ranges(split, len(index.sequence_lengths)), strict=True):
        if part is None:
            continue
        first, stop = part
        tokens = _num_tokens(index, first, stop)
        held = f"{name} of --split {split} has {max(0, stop - first)} sequences with {tokens} tokens"
        if not tokens:
            report.add("split-empty", place, f"expected tokens, but {held}")
        elif seq_length is not None and tokens < seq_length + 1:
            report.add("split-short", place, f"expected {seq_length + 1} tokens for a sample, but {held}")


def _num_tokens(index: Index, first: int, stop: int) -> int:
    total = 0
    for start in range(first, stop, PIECE):
        total += int(index.read("sequence_lengths", start, min(stop, start + PIECE)).sum(dtype=np.int64))
    return total
