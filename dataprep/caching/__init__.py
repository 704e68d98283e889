"""Megatron's index caches, built before the training and without it: no torch, no compiler, no GPU.

    keys     what a cache is called
    arrays   what it holds
    files    how it comes to be there

The files are byte for byte those of GPTDataset, BlendedDataset and BlendedMegatronDatasetBuilder of megatron-core
0.16.1 with their defaults (the last, partial sample is dropped; a sample has one token more than it trains on).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import __version__
from dataprep.caching.arrays import BlendArrays, PairArrays
from dataprep.caching.files import CacheFiles, Content
from dataprep.caching.keys import blend_key, pair_key
from dataprep.errors import SpecError
from dataprep.indexed import Index, idx_path
from dataprep.mixing import BlendOrder, ask_prefixes, normalized
from dataprep.samples import PARTS, SEED, Sampling, part_range, split_ranges
from dataprep.watcher import Silent

if TYPE_CHECKING:
    from dataprep.caching.files import State
    from dataprep.caching.keys import Key
    from dataprep.samples import SplitPart
    from dataprep.watcher import Watcher


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What of a training decides its caches; the names are those of Megatron's flags.

    Attributes:
        prefixes: spelled as the training spells them: the text is part of a cache's name.
        weights: of the prefixes; None: none are given.
        seq_length: tokens a sample trains on.
        num_samples: of each part that is to be cached, how many the training asks for; None: one epoch.
        tokenizer: its identifiers, see `identifiers`.
        seed: of the shuffles.
        split: as the training spells it. None: the prefixes are of one part alone, as with --train-data-path.
        data_cache_path: as the training spells it. None: each prefix has its own folder, and a blend no cache.

    Raises:
        SpecError: a value that Megatron does not take.
    """

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None
    seq_length: int
    num_samples: dict[SplitPart, int | None]
    tokenizer: dict[str, Any]
    seed: int = SEED
    split: str | None = None
    data_cache_path: str | None = None

    def __post_init__(self) -> None:
        Sampling(self.seq_length, self.seed, self.split or "1")
        if not self.prefixes or not all(self.prefixes):
            raise SpecError("no prefix, or an empty one: expected the paths of pairs without .bin")
        if self.weights is not None:
            if len(self.weights) != len(self.prefixes):
                raise SpecError(f"{len(self.prefixes)} prefixes and {len(self.weights)} weights")
            normalized(self.weights)
        for part, wanted in self.num_samples.items():
            if part not in PARTS or (wanted is not None and wanted < 0):
                raise SpecError(f"{wanted} samples of {part}: expected 0 or more, of train, valid or test")
            if wanted is None and self.weights is not None and not self._is_plain:
                raise SpecError(f"{part}: a blend with weights needs a number of samples")
        if self.split is None and len(self.num_samples) != 1:
            raise SpecError("without a split, the prefixes are of one part: name one number of samples")

    @property
    def parts(self) -> tuple[SplitPart, ...]:
        """Those that are cached and have a share of the split, in Megatron's order."""
        shares = PARTS if self.split is None else tuple(split_ranges(self.split, 1 << 30))
        return tuple(part for part in shares if part in self.num_samples)

    @property
    def _is_plain(self) -> bool:
        """Whether there is nothing to blend: Megatron drops the weight of a single prefix if it is of one part."""
        return len(self.prefixes) == 1 and (self.weights is None or self.split is None)

    def asked(self, part: SplitPart) -> list[int | None]:
        """How many samples each prefix is asked for."""
        wanted = self.num_samples[part]
        if self._is_plain:
            return [wanted]
        if self.weights is None or wanted is None:
            return [None] * len(self.prefixes)
        return list(ask_prefixes(self.weights, wanted))

    def order(self, part: SplitPart, held: list[int]) -> BlendOrder | None:
        """How the prefixes are blended; None if they are not.

        Args:
            part: of the split.
            held: samples that each prefix makes.
        """
        wanted = self.num_samples[part]
        if self._is_plain:
            return None
        if self.weights is None or wanted is None:
            return BlendOrder.of_lengths(held, wanted)
        return BlendOrder.of_weights(self.weights, wanted)


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache that is there now.

    Attributes:
        part: of the split.
        prefix: whose; None: the blend's.
        num_samples: that it holds.
        num_epochs: of the prefix; None: of a blend.
        state: built, kept or replaced, see `CacheFiles.ensure`.
        path: of its description; the others lie beside it.
    """

    part: SplitPart
    prefix: str | None
    num_samples: int
    num_epochs: int | None
    state: State
    path: str


def cache(spec: CacheSpec, watcher: Watcher | None = None) -> tuple[Cache, ...]:
    """Build the index caches of a training, or prove those that are there.

    Args:
        spec: what decides them.
        watcher: is told how it gets on.

    Returns:
        For each part the prefixes in their order, then the blend.

    Raises:
        SpecError: Megatron would hang, or stop; nothing of that part and prefix was written.
        FormatError: a pair is broken.
        OutputError: the cache's folder refuses.
    """
    watcher, found = watcher or Silent(), []
    for prefix in spec.prefixes:
        if prefix != prefix.strip() or not os.path.isfile(f"{prefix}.idx"):
            raise SpecError(f"{prefix}.idx: there is no such file; a prefix is spelled as the training spells it")
    for part in spec.parts:
        built = [
            _cache_pair(spec, part, prefix, wanted, watcher)
            for prefix, wanted in zip(spec.prefixes, spec.asked(part), strict=True)
        ]
        found += [result for _, result in built]
        order = spec.order(part, [result.num_samples for _, result in built])
        if order is not None and spec.data_cache_path is not None:
            found.append(_cache_blend(spec, [key for key, _ in built], found[-len(built) :], order, watcher))
    return tuple(found)


def _cache_pair(
    spec: CacheSpec, part: SplitPart, prefix: str, wanted: int | None, watcher: Watcher
) -> tuple[Key, Cache]:
    content = Content.of(Path(prefix))
    index = Index(idx_path(Path(prefix)))
    span = part_range(index, "1", "train") if spec.split is None else part_range(index, spec.split, part)
    arrays = PairArrays(index, span, spec.seq_length, spec.seed, wanted)
    key = pair_key(prefix, wanted, part, spec.seed, spec.seq_length, spec.split, spec.tokenizer)
    own = os.path.join(prefix, "cache", "GPTDataset_indices")
    files = CacheFiles(key, Path(own if spec.data_cache_path is None else spec.data_cache_path), content)
    watcher.stage(f"{part} of {os.path.basename(prefix)}", arrays.work)
    state = files.ensure(arrays, __version__, watcher)
    return key, Cache(part, prefix, arrays.num_samples, arrays.plan.num_epochs, state, str(files.description))


def _cache_blend(spec: CacheSpec, keys: list[Key], built: list[Cache], order: BlendOrder, watcher: Watcher) -> Cache:
    part, held = keys[0].part, [result.num_samples for result in built]
    arrays = BlendArrays(order, held)
    size = None if spec.num_samples[part] is None else len(order)
    files = CacheFiles(blend_key(keys, order.weights, size), Path(spec.data_cache_path or "."), None)
    watcher.stage(f"{part} of the blend", arrays.work)
    state = files.ensure(arrays, __version__, watcher)
    return Cache(part, None, len(order), None, state, str(files.description))
