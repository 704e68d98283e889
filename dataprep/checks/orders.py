"""Whether the arrays of an index cache are those that Megatron would write now: the same numbers in the same places.

They follow from the description, the lengths of the sequences and two options that the description does not name:
`add_extra_token_to_sequence` and, for valid, `drop_last_partial_validation_sequence`. A cache fits if it is what any
values of the two give, but see `_may_have_had_one_more`. Sizes come first, since most of what is stale shows there;
then every sample; then the shuffles.
Source: Megatron-LM d98e8a64, megatron/core/datasets/gpt_dataset.py and helpers.cpp (`build_sample_idx`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.checks.documents import PIECE
from dataprep.checks.splits import num_tokens
from dataprep.samples import PARTS, plan_samples, sample_starts, shuffled_samples, shuffled_sequences

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dataprep.checks.npy import NpyArray
    from dataprep.indexed import Index
    from dataprep.samples import Plan

MAX_EXACT = 1 << 25
"""Sequences of a part whose lengths are held in memory (128 MiB) to compute its samples; of more, the dates decide."""

MAX_SHUFFLED = 1 << 20
"""Places and samples that are shuffled again, in 0.1 s. More are taken in the order they have: whatever it is, the
samples that fit it are whole, and as many as Megatron would make."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a description asks for.

    Attributes:
        part: sequences [first, stop) that its split gives it now.
        num_tokens: that they have.
        seq_length: tokens that a sample trains on.
        num_samples: that the training asks for; None: an epoch.
        seed: of the shuffles.
        drops: whether a sample that the tokens do not fill is always left out.
    """

    part: tuple[int, int]
    num_tokens: int
    seq_length: int
    num_samples: int | None
    seed: int
    drops: bool

    @classmethod
    def read(cls, index: Index, value: dict[str, Any]) -> Order:
        """Read it.

        Args:
            index: of the pair.
            value: the description.

        Raises:
            KeyError, TypeError, ValueError, IndexError, OverflowError: not one of Megatron's.
        """
        n, split = len(index.sequence_lengths), value["index_split"]
        share = value["split_matrix"][PARTS.index(split)] if value["split_matrix"] else (0.0, 1.0)
        first, stop = round(share[0] * float(n)), round(share[1] * float(n))
        size, seed = int(value["sequence_length"]), int(value["random_seed"])
        wanted = None if value["num_samples"] is None else int(value["num_samples"])
        if not (0 <= first <= stop <= n and size >= 1 and 0 <= seed < 2**32 and (wanted is None or wanted >= 0)):
            raise ValueError(f"sequences {first} to {stop} of {n}, {wanted} samples of {size} tokens, seed {seed}")
        return cls((first, stop), num_tokens(index, first, stop), size, wanted, seed, split != "valid")

    def plans(self, num_found: int) -> Iterator[tuple[Plan, int]]:
        """What Megatron may make of it.

        Args:
            num_found: samples that the cache has.

        Yields:
            A plan, of that many samples if it may have them, and the tokens that a sample has beyond its length.
        """
        for extra in (1, 0):
            if not self.num_tokens and self.num_samples is not None and self.num_samples + extra:
                continue  # Megatron hangs
            plan = plan_samples(self.part, self.num_tokens, self.seq_length, self.num_samples, extra)
            if not self.drops and num_found == self._with_partial(plan.num_epochs, extra):
                plan = replace(plan, num_samples=num_found)
            yield plan, extra

    def _with_partial(self, epochs: int, extra: int) -> int:
        # Megatron counts in a C++ float, of 24 bits, and so may have samples behind the last token
        tokens = np.int64(epochs * self.num_tokens - extra).astype(np.float32)
        return max(0, math.ceil(tokens / np.int64(self.seq_length).astype(np.float32)))


def misfit(index: Index, arrays: dict[str, NpyArray], value: dict[str, Any], old: str | None) -> str | None:
    """Why Megatron would not write a cache now.

    Args:
        index: of the pair.
        arrays: the three of the cache.
        value: its description.
        old: what its date has against it; it decides on what is too large to compute, or may be either.

    Returns:
        None if it would.

    Raises:
        KeyError, TypeError, ValueError, IndexError, OverflowError: the description is not one of Megatron's.
    """
    order = Order.read(index, value)
    reasons: list[str] = []
    for plan, extra in order.plans(len(arrays["sample_index"]) - 1):
        reason = _wrong_size(arrays, order, plan)
        if reason is None and plan.stop - plan.start > MAX_EXACT:
            reason = old
        elif reason is None:
            reason = _wrong_sample(index, arrays, order, plan, extra) or _wrong_shuffle(arrays, order, plan)
        if reason is None:
            return reasons[0] if old and reasons and _may_have_had_one_more(index, arrays, order, plan) else None
        reasons.append(reason)
    return reasons[0] if reasons else "its part of the pair has no tokens now"


def _wrong_size(arrays: dict[str, NpyArray], order: Order, plan: Plan) -> str | None:
    places, rows, shuffled = (len(arrays[name]) for name in ("document_index", "sample_index", "shuffle_index"))
    epochs = f"{plan.num_epochs} epochs" if plan.num_epochs > 1 else "one epoch"
    if places != plan.num_places:
        held = plan.stop - plan.start
        return (
            f"it puts {places} sequences in order, and Megatron now takes {epochs} of {held}, {plan.num_places} in all"
        )
    if rows - 1 != shuffled:
        return f"it has {rows - 1} samples, and shuffles {shuffled}"
    if shuffled != plan.num_samples:
        made = f"{epochs} of {order.num_tokens} tokens, {plan.num_samples}"
        return f"it has {shuffled} samples of {order.seq_length} tokens, and Megatron would now make, of {made}"
    return None


def _wrong_sample(index: Index, arrays: dict[str, NpyArray], order: Order, plan: Plan, extra: int) -> str | None:
    documents, (first, stop) = arrays["document_index"], order.part
    low, high = stop, first - 1
    for place in range(0, len(documents), PIECE):
        piece = documents.read(place, place + PIECE)
        low, high = min(low, int(piece.min())), max(high, int(piece.max()))
    if len(documents) and (low, high) != (first, stop - 1):
        return f"it holds sequences {low} to {high}, and the pair now gives it {first} to {stop - 1}"
    wrong = next(_wrong_rows(index, arrays, order, plan, extra), None)
    if wrong is not None:
        return f"sample {max(wrong - 1, 0)} does not begin and end where the lengths of the sequences put it"
    return None


def _may_have_had_one_more(index: Index, arrays: dict[str, NpyArray], order: Order, plan: Plan) -> bool:
    """Whether a cache that fits without the extra token may be one with it, of which a sequence lost its last token.

    The two differ where a sample ends with a sequence: without the extra token it begins again there, with it at the
    next one. One such row may be what is left of a lost token, which Megatron would read behind the end; two are not.
    """
    return len(list(itertools.islice(_wrong_rows(index, arrays, order, plan, 1), 2))) < 2


def _wrong_rows(index: Index, arrays: dict[str, NpyArray], order: Order, plan: Plan, extra: int) -> Iterator[int]:
    """The rows of the sample index that are not what Megatron would write."""
    pieces, number = _ordered(arrays["document_index"], index.read("sequence_lengths", *order.part), order.part[0]), 0
    for rows in sample_starts(pieces, order.seq_length, plan.num_samples, extra):
        found = arrays["sample_index"].read(number, number + len(rows))
        if not np.array_equal(found, rows):
            yield from (number + (found != rows).any(axis=1).nonzero()[0]).tolist()
        number += len(rows)


def _ordered(documents: NpyArray, lengths: npt.NDArray[Any], first: int) -> Iterator[npt.NDArray[Any]]:
    for place in range(0, len(documents), PIECE):
        yield lengths[documents.read(place, place + PIECE).astype(np.int64) - first]


def _wrong_shuffle(arrays: dict[str, NpyArray], order: Order, plan: Plan) -> str | None:
    if plan.num_places + plan.num_samples > MAX_SHUFFLED:
        return None
    state = np.random.RandomState(order.seed)
    expected = {"document_index": shuffled_sequences(plan, state), "shuffle_index": shuffled_samples(plan, state)}
    for name, array in expected.items():
        if not np.array_equal(arrays[name].read(0, len(array)), array):
            return f"its {name} is in another order than Megatron would put it now"
    return None
