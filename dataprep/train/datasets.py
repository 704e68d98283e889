"""What the arguments of a training name: prefixes, folders and lists of them, with their weights."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import bin_path, idx_path, read_header
from dataprep.prefixes import find_prefixes
from dataprep.train.job import Part

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_LIST_BYTES = 1 << 26
"""Of a file for --data-args-path; what is larger is a corpus that was named by mistake."""


def read_parts(words: Sequence[str]) -> tuple[Part, ...]:
    """The prefixes that arguments name, with weights that add up to 1.

    Args:
        words: each ``PREFIX``, ``PREFIX=WEIGHT``, a folder of pairs, or a file for Megatron's --data-args-path. Without
            weights, and within a folder, each prefix has its share of the tokens.

    Raises:
        SpecError: there is no such pair, one is named twice, or only some have weights.
        FormatError: an index cannot be read.
    """
    named = [each for word in words for each in _read_word(word)]
    weights = [weight for _, weight in named]
    found: list[tuple[Part, float]] = []
    for text, weight in named:
        parts = [_part(path) for path in find_prefixes(text)]
        tokens = sum(part.num_tokens for part in parts)
        if not tokens:
            raise FormatError(f"{text} holds no tokens; Megatron hangs on it. Run: dataprep verify {text}")
        found += [
            (part, part.num_tokens if weight is None else weight * part.num_tokens / tokens)
            for part in parts
            if part.num_tokens
        ]
    if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
        raise SpecError(f"{' '.join(words)}: give all of them a weight, as PREFIX=0.3, or none")
    total = sum(weight for _, weight in found)
    result = tuple(part.model_copy(update={"weight": weight / total}) for part, weight in found)
    prefixes = [part.prefix for part in result]
    for prefix, count in Counter(prefixes).items():
        if count > 1:
            raise SpecError(f"{prefix} is named twice; give it once, with the sum of the weights")
    return result


def parse_data_path(text: str) -> list[str]:
    """Megatron's ``DATA_PATH`` as arguments: ``p`` or ``w1 p1 w2 p2`` become ``p`` or ``p1=w1``, ``p2=w2``.

    Raises:
        SpecError: neither.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"DATA_PATH={text}: {error}") from error
    if len(words) == 1 or not words or not _is_weight(words[0]):
        return words
    if len(words) % 2 or not all(map(_is_weight, words[::2])):
        raise SpecError(f"DATA_PATH={text}: expected a prefix, prefixes, or WEIGHT PREFIX WEIGHT PREFIX ...")
    return [f"{prefix}={weight}" for weight, prefix in zip(words[::2], words[1::2], strict=True)]


def _read_word(word: str) -> list[tuple[str, float | None]]:
    """Prefixes or folders, each with its weight."""
    path = Path(word)
    if path.is_file() and path.suffix not in (".bin", ".idx"):
        try:
            if path.stat().st_size > MAX_LIST_BYTES:
                raise SpecError(f"{word} is too large for a list of prefixes; text becomes a dataset by: dataprep run")
            words = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{word} is no list of weights and prefixes: {error}") from error
        return [each for part in parse_data_path(shlex.join(words)) for each in _read_word(part)]
    prefix, equals, weight = word.rpartition("=")
    if not equals or path.exists() or idx_path(path).exists() or bin_path(path).exists():
        return [(word, None)]
    if not _is_weight(weight):
        raise SpecError(f"{word}: expected PREFIX, PREFIX=WEIGHT with a weight above 0, or a variable as MBS=2")
    return [(prefix, float(weight))]


def _is_weight(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _part(path: Path) -> Part:
    header = read_header(idx_path(path))
    try:
        size = bin_path(path).stat().st_size
    except OSError as error:
        raise FormatError(f"cannot read {bin_path(path)}: {error.strerror}") from error
    return Part(
        prefix=settled(path),
        weight=1.0,
        num_documents=header.num_boundaries - 1,
        num_sequences=header.num_sequences,
        num_tokens=size // header.dtype.itemsize,
        dtype=header.dtype.name,
    )


def settled(path: Path) -> str:
    """The path as a training should name it: absolute, and of the dataset itself.

    A link that stands for the newest dataset will stand for another one, and Megatron would read that through the
    index caches of this one. Other links, by which a site names its file systems, stay.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if os.path.islink(folder):
        folder = os.path.normpath(os.path.join(os.path.dirname(folder), os.readlink(folder)))
    return os.path.join(folder, name)
