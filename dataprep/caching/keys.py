"""What Megatron calls its index caches: the md5 of a description, which is kept beside the arrays.

    <md5>-GPTDataset-<part>-description.txt       of a prefix
                           -document_index.npy -sample_index.npy -shuffle_index.npy
    <md5>-BlendedDataset-<part>-description.txt   of a blend
                               -dataset_index.npy -dataset_sample_index.npy

The description holds everything as text: the path as the training spells it, the split as it is written. Another
spelling of the same is another cache.
Source: megatron-core 0.16.1, megatron/core/datasets: megatron_dataset.py, gpt_dataset.py, blended_dataset.py,
blended_megatron_dataset_config.py (`convert_split_vector_to_split_matrix`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.samples import parse_split

if TYPE_CHECKING:
    from dataprep.samples import SplitPart

ARRAYS = {
    "GPTDataset": ("document_index", "sample_index", "shuffle_index"),
    "BlendedDataset": ("dataset_index", "dataset_sample_index"),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One cache by name.

    Attributes:
        kind: Megatron's class: ``GPTDataset`` or ``BlendedDataset``.
        part: of the split.
        value: the description, in Megatron's order of fields.
    """

    kind: str
    part: SplitPart
    value: dict[str, Any]

    @property
    def description(self) -> str:
        """The text of the description, byte for byte."""
        return json.dumps(self.value, indent=4)

    def file(self, folder: Path, suffix: str) -> Path:
        """One of its files, as ``description.txt``."""
        digest = hashlib.md5(self.description.encode("utf-8"), usedforsecurity=False).hexdigest()
        return folder / f"{digest}-{self.kind}-{self.part}-{suffix}"


def split_matrix(split: str | None) -> list[tuple[float, float] | None] | None:
    """Where each part begins and ends, of 1; None for a part without a share, and for no split.

    The first begins at the whole number 0, as it does in Megatron's description.
    """
    if split is None:
        return None
    ends = list(itertools.accumulate(parse_split(split), initial=0))
    return [(first, last) if last > first else None for first, last in itertools.pairwise(ends)]


def pair_key(  # noqa: PLR0913 - the fields of a description
    prefix: str,
    num_samples: int | None,
    part: SplitPart,
    seed: int,
    seq_length: int,
    split: str | None,
    tokenizer: dict[str, Any],
) -> Key:
    """The cache of one part of one pair; see `caching.cache` for what the arguments are."""
    return Key(
        "GPTDataset",
        part,
        {
            "class": "GPTDataset",
            "dataset_path": prefix,
            "num_samples": num_samples,
            "index_split": part,
            "random_seed": seed,
            "sequence_length": seq_length,
            "split": split,
            "split_matrix": split_matrix(split),
            "tokenizer": tokenizer,
        },
    )


def blend_key(datasets: list[Key], weights: list[float] | list[int], size: int | None) -> Key:
    """The cache of one part of a blend.

    Args:
        datasets: the caches it blends, at least one.
        weights: as `mixing.BlendOrder` has them.
        size: samples. None: each prefix is drawn from to its end.
    """
    part = datasets[0].part
    value = {
        "class": "BlendedDataset",
        "datasets": [key.value for key in datasets],
        "split": part,
        "weights": weights,
        "size": size,
    }
    return Key("BlendedDataset", part, value)
