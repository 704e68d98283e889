"""Documents drawn at random: which, by a seed alone, in no memory, whatever their number.

Every number has a key, 64 bits that depend on it and on the seed only; drawn are those with the smallest keys. No two
numbers have the same key, so that exactly as many are drawn as were asked for; and of two draws with one seed the
smaller is a part of the larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

BLOCK = 1 << 16
"""Numbers looked at together: half a megabyte of keys, which stays in the processor's cache."""

_BINS = 1 << 16


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw of some of the numbers from 0 on.

    Attributes:
        seed: which draw.
        limit: the largest key that is drawn.
    """

    seed: int
    limit: int

    @classmethod
    def of(cls, seed: int, total: int, count: int, progress: Callable[[int], None] | None = None) -> Self:
        """A draw of `count`, at least one, of the numbers below `total`; `progress` is called with how many were seen.

        All numbers are seen twice.
        """
        progress = progress or (lambda count: None)
        assert 0 < count <= total
        counts = np.zeros(_BINS, np.int64)
        for start in range(0, total, BLOCK):
            keys = _keys(seed, start, min(start + BLOCK, total))
            counts += np.bincount((keys >> np.uint64(48)).astype(np.int64), minlength=_BINS)
            progress(len(keys))
        ends = np.cumsum(counts)
        last = int(np.searchsorted(ends, count))  # the bin that holds the largest key drawn
        found = []
        for start in range(0, total, BLOCK):
            keys = _keys(seed, start, min(start + BLOCK, total))
            found.append(keys[keys >> np.uint64(48) == last])
            progress(len(keys))
        rank = count - int(ends[last] - counts[last]) - 1
        return cls(seed, int(np.sort(np.concatenate(found))[rank]))

    def chosen(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """bool[stop - start]: which of the numbers [start, stop) are drawn."""
        return _keys(self.seed, start, stop) <= np.uint64(self.limit)


def _keys(seed: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """SplitMix64 of a state that the seed decides, at places [start, stop): a permutation of all 64-bit numbers.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the constants are those
    of the implementation by Vigna, prng.di.unimi.it/splitmix64.c.
    """
    state = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
    return _mix(state + np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ values >> np.uint64(31)
    return mixed
