"""The order in which Megatron draws from several prefixes, in numpy: its blends, sample by sample.

    weights        0.2, 0.3, 0.5 of prefixes 0, 1, 2
    sample         0   1   2   3   4   5   6   7   8   9
    dataset_index  2   1   0   2   1   2   2   0   1   2       always the prefix that is furthest behind its weight
    dataset_sample_index  0  0  0  1  1  2  3  1  2  4         how many were drawn from that one before

Equal to BlendedDataset and BlendedMegatronDatasetBuilder of megatron-core 0.16.1 (megatron/core/datasets:
blended_megatron_dataset_builder.py, `_get_size_per_split_per_dataset`; blended_dataset.py; helpers.cpp,
`build_blending_indices` and `build_exhaustive_blending_indices`), down to the rounding of their sums: ties are
decided by the last bit of a double. That holds for helpers.cpp compiled for x86-64; a compiler that joins a product
and a difference into one instruction, as it may for ARM, rounds otherwise, and may part ways with itself here.

Each draw depends on all before it. Still the order is found in many places at once: how often each prefix was drawn
before sample s is all but known from s and the weights, so that stretches start from a guess, run side by side, and
are run again where the one before them did not end as guessed. What comes out is what one after the other gives.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Float64s = npt.NDArray[np.float64]
    Int16s = npt.NDArray[np.int16]
    Int64s = npt.NDArray[np.int64]

SURPLUS = 0.005
"""What a prefix is asked for beyond its share of the samples (megatron-core 0.16.1, `mid_level_dataset_surplus`)."""

MAX_PREFIXES = 32766
"""Of one blend: Megatron numbers them in int16, and asserts fewer than 32767."""

STRETCH = 1024
"""Samples of one of the stretches that run side by side; a longer one is guessed wrong less often for its length."""

ABREAST = 4096
"""Stretches side by side: more outgrow the processor's caches, fewer are slower for each call into numpy."""

BLOCK = 1 << 16
"""Samples between two counts of what was drawn, from which `BlendOrder.locate` counts on."""


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights that add up to about 1, rounded as Megatron rounds them.

    Raises:
        SpecError: one is not a positive number, or there are none, or too many.
    """
    if not 1 <= len(weights) <= MAX_PREFIXES:
        raise SpecError(f"a blend of {len(weights)} prefixes: Megatron takes 1 to {MAX_PREFIXES}")
    for weight in weights:
        if not 0 < weight < math.inf:
            raise SpecError(f"a weight of {weight}: expected a positive number; leave out a prefix that is not wanted")
    array = np.array(weights, dtype=np.float64)
    found: list[float] = (array / np.sum(array)).tolist()
    if not (min(found) > 0 and sum(found) < math.inf):
        raise SpecError(f"weights of {min(weights)} to {max(weights)} are too far apart to be added up")
    return found


def ask_prefixes(weights: Sequence[float], num_samples: int, surplus: float = SURPLUS) -> list[int]:
    """How many samples each prefix of a blend is asked for, as `num_samples` of a `samples.Sampling`.

    Args:
        weights: as the user gives them.
        num_samples: that the training asks for, of all prefixes together.
        surplus: what is asked for beyond the share. 0: the share, rounded up; these add up to the blend's size.

    Raises:
        SpecError: weights that Megatron does not take.
    """
    return [math.ceil(math.ceil(num_samples * weight) * (1 + surplus)) for weight in normalized(weights)]


class BlendOrder:
    """Which sample of which prefix each sample of a blend is.

    Nothing is computed before it is asked for. `pieces` needs little memory; the attributes hold all that there is.

    Args:
        weights: as the user gives them; Megatron normalizes them twice, and so does this.
        size: samples, see `of_weights`.

    Attributes:
        weights: as Megatron's BlendedDataset keeps them; whole numbers where each prefix is drawn from to its end.

    Raises:
        SpecError: weights that Megatron does not take.
    """

    weights: list[float] | list[int]

    def __init__(self, weights: Sequence[float], size: int) -> None:
        self.weights = normalized(normalized(weights))
        self._size = size
        self._limits: Float64s | None = None

    @classmethod
    def of_weights(cls, weights: Sequence[float], num_samples: int) -> BlendOrder:
        """The blend for a training that asks for so many samples; it has a few more, since shares are rounded up."""
        return cls(weights, sum(ask_prefixes(weights, num_samples, 0.0)))

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], num_samples: int | None) -> BlendOrder:
        """The blend of prefixes without weights, which share by the samples that one epoch of each makes.

        Args:
            lengths: those samples.
            num_samples: that the training asks for; at most all are drawn. None: all, each once.

        Raises:
            SpecError: a prefix without samples.
        """
        for number, length in enumerate(lengths):
            if length < 1:
                raise SpecError(f"prefix {number} of a blend without weights makes no samples; Megatron stops there")
        found = cls(lengths, sum(lengths) if num_samples is None else min(num_samples, sum(lengths)))
        if num_samples is None:
            found.weights = list(lengths)
            found._limits = np.array(lengths, np.float64)
        else:
            found.weights = normalized(lengths)
        return found

    def __len__(self) -> int:
        return self._size

    def pieces(self) -> Iterator[tuple[Int16s, Int64s]]:
        """The two indices of Megatron's.

        Yields:
            int16[n] `dataset_index` and int64[n] `dataset_sample_index` of the next samples, n at most 4 Mi.
        """
        drawn = np.zeros(len(self.weights), np.int64)
        for piece in self._draws():
            numbers = np.empty(len(piece), np.int64)
            order = np.argsort(piece, kind="stable")
            counts = np.bincount(piece, minlength=len(drawn))
            ends = np.cumsum(counts)
            numbers[order] = np.arange(len(piece)) + np.repeat(drawn - ends + counts, counts)
            drawn += counts
            yield piece, numbers

    @cached_property
    def dataset_index(self) -> Int16s:
        """int16[len]: which prefix."""
        found, position = np.empty(len(self), np.int16), 0
        for piece in self._draws():
            found[position : position + len(piece)] = piece
            position += len(piece)
        return found

    @cached_property
    def dataset_sample_index(self) -> Int64s:
        """int64[len]: how many were drawn from that prefix before, the place in its `shuffle_index`."""
        found, position = np.empty(len(self), np.int64), 0
        for _, piece in self.pieces():
            found[position : position + len(piece)] = piece
            position += len(piece)
        return found

    def locate(self, k: int) -> tuple[int, int]:
        """Prefix and sample of it of the k-th sample; holds 2 bytes for each sample in memory.

        Raises:
            SpecError: no such sample.
        """
        if not 0 <= k < len(self):
            raise SpecError(f"sample {k} of a blend of {len(self)}")
        prefix, block = int(self.dataset_index[k]), k // BLOCK
        later = np.count_nonzero(self.dataset_index[block * BLOCK : k] == prefix)
        return prefix, int(self._counts[block, prefix]) + int(later)

    @cached_property
    def _counts(self) -> Int64s:
        """int64[blocks, prefixes]: drawn from each before each block."""
        width = len(self.weights)
        found = np.zeros((-(-len(self) // BLOCK) + 1, width), np.int64)
        for block in range(len(found) - 1):
            found[block + 1] = np.bincount(self.dataset_index[block * BLOCK : (block + 1) * BLOCK], minlength=width)
        return np.cumsum(found, axis=0)

    def _draws(self) -> Iterator[Int16s]:
        shares = np.array(self.weights, np.float64)
        if self._limits is not None:
            shares /= float(sum(self.weights))
        drawn = np.zeros(len(shares))
        abreast = max(16, min(ABREAST, (ABREAST << 6) // len(shares)))
        for first in range(0, len(self), abreast * STRETCH):
            count = min(abreast * STRETCH, len(self) - first)
            picks, drawn = _draw(shares, self._limits, first, drawn, -(-count // STRETCH))
            yield picks[:count]


def _draw(
    shares: Float64s, limits: Float64s | None, first: int, drawn: Float64s, stretches: int
) -> tuple[Int16s, Float64s]:
    """The prefixes of samples `first` and on, and what is drawn of each when they are.

    Args:
        shares: float64[prefixes], they add up to 1.
        limits: float64[prefixes], how many samples each has; None: as many as are asked for.
        first: the first sample.
        drawn: float64[prefixes], what is drawn of each before it.
        stretches: how many times `STRETCH` samples.

    Returns:
        int16[stretches * STRETCH] and float64[prefixes].
    """
    starts = first + STRETCH * np.arange(stretches, dtype=np.float64)
    before = _guess(shares, starts)
    before[0] = drawn
    after = np.empty_like(before)
    picks = np.empty((stretches, STRETCH), np.int16)
    wrong = np.arange(stretches)
    while len(wrong):
        counts = before[wrong]
        picks[wrong] = _run(shares, limits, starts[wrong], counts).T
        after[wrong] = counts
        wrong = np.flatnonzero((before[1:] != after[:-1]).any(axis=1)) + 1
        before[wrong] = after[wrong - 1]  # the first of them is right from now on, and most are
    return picks.reshape(-1), after[-1]


def _guess(shares: Float64s, starts: Float64s) -> Float64s:
    """What is drawn of each prefix before some samples, or nearly: float64[samples, prefixes].

    The share of one sample less, rounded down, and one more for those that lose most by that. With two prefixes it
    is right, with fifty for three of four.
    """
    quotas = np.maximum(starts - 1, 0)[:, None] * shares
    found = np.floor(quotas)
    ranks = np.argsort(np.argsort(found - quotas, axis=1, kind="stable"), axis=1, kind="stable")
    left: Any = starts - found.sum(axis=1)
    guess: Float64s = found + (ranks < left[:, None])
    return guess


def _run(shares: Float64s, limits: Float64s | None, starts: Float64s, counts: Float64s) -> Int16s:
    """Draw `STRETCH` samples in each of several places.

    Args:
        shares, limits: see `_draw`.
        starts: float64[places], the first sample of each.
        counts: float64[places, prefixes], what is drawn before; advanced.

    Returns:
        int16[STRETCH, places].
    """
    found = np.empty((STRETCH, len(starts)), np.int16)
    errors, picks = np.empty_like(counts), np.empty(len(starts), np.intp)
    flat, rows = counts.reshape(-1), np.arange(len(starts)) * len(shares)
    for step in range(STRETCH):
        samples = np.maximum(starts + step, 1.0)
        np.multiply(samples[:, None], shares, out=errors)
        errors -= counts
        if limits is not None:
            errors[counts >= limits] = -np.inf
        errors.argmax(axis=1, out=picks)  # of equal ones the first
        found[step] = picks
        picks += rows
        flat[picks] += 1
    return found
