"""The samples of a training, straight from ``.bin/.idx``, in the very order that Megatron draws them in.

    iteration i, 2 ranks, micro batch 2, global batch 8; consumed = 8 i
    samples     consumed + | 0 1 | 2 3 | 4 5 | 6 7 |
    rank                   |  0  |  1  |  0  |  1  |        one micro batch after the other, as Megatron deals them out

Any sample can be had at any time, so that the place of a training in its data is one integer, the samples consumed,
and going on is no more than to begin there, with any number of ranks. No torch here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CHUNK, IndexedDataset, bin_path, idx_path
from dataprep.manifest import is_of, manifest_of
from dataprep.mixing import BlendOrder, ask_prefixes
from dataprep.samples import SampleOrder, Sampling, split_ranges
from dataprep.storage import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dataprep.manifest import Manifest
    from dataprep.samples import SplitPart
    from dataprep.train.builtin.settings import Settings

    Int64s = npt.NDArray[np.int64]


class Samples:
    """All samples of one part of the split, of one prefix or a blend, as Megatron would draw them.

    Args:
        settings: of the training.
        part: train, valid or test.
        num_samples: how many are asked for.

    Raises:
        SpecError: Megatron would hang or fail on them, see `SampleOrder`.
        FormatError: not a readable pair.
    """

    def __init__(self, settings: Settings, part: SplitPart, num_samples: int) -> None:
        weights = [weight for _, weight in settings.data]
        single = len(weights) == 1
        asked = [num_samples] if single else ask_prefixes(weights, num_samples)
        self._blend = None if single else BlendOrder.of_weights(weights, num_samples)
        self._pairs = [IndexedDataset(prefix) for prefix, _ in settings.data]
        self._orders = [
            SampleOrder(pair.index, Sampling(settings.seq_length, settings.seed, settings.split, part, number))
            for pair, number in zip(self._pairs, asked, strict=True)
        ]
        self._vocab_size = settings.shape.vocab_size

    def __len__(self) -> int:
        return len(self._orders[0]) if self._blend is None else len(self._blend)

    def __getitem__(self, k: int) -> Int64s:
        """The k-th sample that is drawn: int64[seq_length + 1], a copy.

        Raises:
            SpecError: no such sample.
            FormatError: a token of it is none of the model's.
        """
        number, k = (0, k) if self._blend is None else self._blend.locate(k)
        pair = self._pairs[number]
        parts = [pair[i][first : first + count] for i, first, count in self._orders[number].pieces(k).tolist()]
        tokens: Int64s = np.concatenate(parts).astype(np.int64)
        check_ids(tokens, self._vocab_size, pair.prefix)
        return tokens

    def micro_batches(self, consumed: int, settings: Settings, rank: int, num_ranks: int) -> Iterator[Int64s]:
        """What one rank does of the global batch that begins at sample `consumed`.

        Yields:
            int64[micro_batch_size, seq_length + 1].
        """
        size = settings.micro_batch_size
        for first in range(rank * size, settings.global_batch_size, size * num_ranks):
            yield np.stack([self[consumed + first + i] for i in range(size)])


def parts_of(settings: Settings) -> dict[SplitPart, Samples]:
    """The parts that a training draws from: train, and valid and test where it evaluates and they have a share."""
    held = split_ranges(settings.split, CHUNK)
    numbers: dict[SplitPart, int] = {"train": settings.train_iters * settings.global_batch_size}
    if settings.eval_iters:
        size = settings.eval_iters * settings.global_batch_size
        numbers |= {part: size for part in held if part != "train"}
    return {part: Samples(settings, part, number) for part, number in numbers.items()}


def check_ids(tokens: npt.NDArray[Any], vocab_size: int, prefix: Path) -> None:
    """See that each token is a row of the embedding; on a GPU the training would die far from the cause.

    Raises:
        FormatError: one is not.
    """
    low, high = int(tokens.min(initial=0)), int(tokens.max(initial=0))
    if low < 0 or high >= vocab_size:
        raise FormatError(
            f"{prefix}: holds the token {low if low < 0 else high}, and the model has tokens 0 to {vocab_size - 1}; "
            f"give it the vocabulary of the tokenizer that made the data, or run: dataprep verify {prefix}"
        )


def checked(settings: Settings, num_ranks: int, scans: bool = True) -> list[Manifest | None]:
    """See, before anything is started, that the training can be done with this data on so many ranks.

    Args:
        settings: of the training.
        num_ranks: on all machines together.
        scans: read all tokens of pairs without a manifest, which would say what they are; one rank is enough.

    Returns:
        For each prefix its manifest, if there is one.

    Raises:
        SpecError: the batch cannot be dealt out, or tokenizers do not fit the model or each other.
        FormatError: not a readable pair, or not the one of its manifest.
    """
    batch, micro = settings.global_batch_size, settings.micro_batch_size
    if batch % (micro * num_ranks):
        raise SpecError(
            f"a global batch of {batch} cannot be dealt out to {num_ranks} ranks in micro batches of {micro}; "
            f"--global-batch has to be a multiple of {micro * num_ranks}"
        )
    manifests = [_checked_pair(Path(prefix), settings.shape.vocab_size, scans) for prefix, _ in settings.data]
    files = {str(m.tokenizer.files): m.tokenizer.name for m in manifests if m is not None and m.tokenizer is not None}
    if len(files) > 1:
        raise SpecError(f"the data is of several tokenizers: {', '.join(files.values())}; a model knows one")
    return manifests


def _checked_pair(prefix: Path, vocab_size: int, scans: bool) -> Manifest | None:
    pair, manifest = IndexedDataset(prefix), manifest_of(prefix)
    if manifest is not None and not is_of(manifest, prefix):
        raise FormatError(f"{prefix}: its manifest speaks of other files; run: dataprep verify {prefix}")
    if manifest is not None and manifest.tokenizer is not None:
        needed = manifest.tokenizer.vocab_size
        if needed > vocab_size:
            raise SpecError(
                f"{prefix}: its tokenizer {manifest.tokenizer.name} has {needed} tokens, and the model {vocab_size}"
            )
    elif scans:
        for start in range(0, pair.num_tokens, CHUNK):
            check_ids(pair.tokens[start : start + CHUNK], vocab_size, prefix)
    return manifest


def fingerprint(settings: Settings, manifests: list[Manifest | None]) -> list[dict[str, Any]]:
    """What the data is, wherever it lies: for each prefix its weight and checksums, as plain JSON values.

    A pair without a manifest is known by its index and the size of its ``.bin``.
    """
    found = []
    for (text, weight), manifest in zip(settings.data, manifests, strict=True):
        prefix = Path(text)
        entry = next((e.files for e in manifest.prefixes if e.name == prefix.name), None) if manifest else None
        if entry is not None:
            sums = {"bin": entry.bin_checksum, "idx": entry.idx_checksum}
        else:
            sums = {"bin": f"{bin_path(prefix).stat().st_size} bytes", "idx": checksum(idx_path(prefix))}
        found.append({"weight": weight, **sums})
    return found
