"""Prefixes and weights as Megatron reads them from its command line, and as ours does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

Blend = tuple[tuple[str, ...], tuple[float, ...] | None]


def parse_prefixes(texts: Sequence[str]) -> Blend:
    """``PREFIX`` or ``PREFIX=WEIGHT``, each; the text of a prefix stays as it is.

    Raises:
        SpecError: some have a weight, and some have none.
    """
    found = [_parse(text) for text in texts]
    weights = tuple(weight for _, weight in found if weight is not None)
    if 0 < len(weights) < len(found):
        bare = next(prefix for prefix, weight in found if weight is None)
        raise SpecError(f"{bare} has no weight, and others have one: expected PREFIX=WEIGHT for all, or for none")
    return tuple(prefix for prefix, _ in found), weights or None


def _parse(text: str) -> tuple[str, float | None]:
    prefix, sign, weight = text.rpartition("=")
    if sign and not os.path.isfile(f"{text}.idx"):
        with contextlib.suppress(ValueError):
            return prefix, float(weight)
    return text, None


def read_data_args(path: str | Path) -> Blend:
    """The file of --data-args-path: what --data-path has, parted by white space.

    Megatron takes the words for weights and prefixes in turn if there is an even number of them and each second one
    is a number (megatron-core 0.16.1, megatron/core/datasets/utils.py, `get_blend_from_list`).

    Raises:
        SpecError: it cannot be read, is empty, or has some weights.
    """
    try:
        words = Path(path).read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read --data-args-path {path}: {error}") from error
    if not words:
        raise SpecError(f"--data-args-path {path} is empty: expected weights and prefixes")
    if len(words) % 2:
        return tuple(words), None
    weights = []
    for word in words[::2]:
        with contextlib.suppress(ValueError):
            weights.append(float(word))
    if not weights:
        return tuple(words), None
    if len(weights) < len(words) // 2:
        raise SpecError(f"--data-args-path {path}: {len(weights)} weights for {len(words) // 2} prefixes")
    return tuple(words[1::2]), tuple(weights)
