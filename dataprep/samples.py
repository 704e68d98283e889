"""The samples that Megatron trains on, in its order, in numpy: no torch, no Megatron, no compiler.

    split             train, valid and test are ranges of sequences, by Megatron's own rounding
    document_index    the sequences of one part, once for each epoch, shuffled
    sample_index      where each sample begins in the stream that they make, laid end to end
    shuffle_index     the order in which samples are drawn

    stream            | sequence 7 | sequence 2   | sequence 9 |      sample i: tokens [i * seq_length, .. + seq_length]
    samples           |--0--|--1--|--2--|--3--|--4--|                 the last token of one is the first of the next

Equal to GPTDataset of megatron-core 0.16.1 and of Megatron-LM d98e8a64 (megatron/core/datasets: gpt_dataset.py,
`_build_document_sample_shuffle_indices`; helpers.cpp, `build_sample_idx`; blended_megatron_dataset_config.py,
`parse_and_normalize_split`) with their defaults: the last, partial sample is dropped, and a sample has one token more
than `seq_length`, since inputs and labels are shifted by one. GPTDataset knows sequences only: of sentence-level data
it shuffles the sentences.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CHUNK
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from dataprep.indexed import Index
    from dataprep.watcher import Watcher

    Int64s = npt.NDArray[np.int64]

SplitPart = Literal["train", "valid", "test"]
PARTS: tuple[SplitPart, ...] = get_args(SplitPart)

SEED = 1234
"""Megatron's default of --seed (Megatron-LM d98e8a64, megatron/training/config/common_config.py)."""

SPLIT = "969, 30, 1"
"""Megatron's default of --split (Megatron-LM d98e8a64, megatron/training/arguments.py)."""

INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """What of a training decides its samples; the names are those of Megatron's flags.

    Attributes:
        seq_length: tokens a sample trains on.
        seed: of the shuffles.
        split: shares of train, valid and test.
        part: which of the three.
        num_samples: how many the training asks for: iterations times global batch size. None: one epoch.

    Raises:
        SpecError: a value that Megatron does not take.
    """

    seq_length: int
    seed: int = SEED
    split: str = SPLIT
    part: SplitPart = "train"
    num_samples: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.seq_length < INT32:
            raise SpecError(f"a sequence length of {self.seq_length}: Megatron takes 1 to {INT32 - 1}")
        if not 0 <= self.seed < 2**32:
            raise SpecError(f"a seed of {self.seed}: Megatron takes 0 to {2**32 - 1}")
        if self.part not in PARTS:
            raise SpecError(f"unknown part {self.part!r} of a split; expected one of {', '.join(PARTS)}")
        if self.num_samples is not None and self.num_samples < 1:
            raise SpecError(f"{self.num_samples} samples: expected 1 or more")
        parse_split(self.split)


def parse_split(split: str) -> list[float]:
    """The shares of train, valid and test, which add up to about 1.

    Raises:
        SpecError: not one to three numbers, or all of them 0.
    """
    numbers = []
    if re.fullmatch(r"\s*[.0-9]+\s*(,\s*[.0-9]+\s*){0,2}", split):
        with contextlib.suppress(ValueError):
            numbers = [float(text) for text in split.split(",")]
    if not 0 < sum(numbers) < math.inf:
        raise SpecError(f"a split of {split!r}: expected the shares of train, valid and test, as in {SPLIT!r}")
    shares = np.array(numbers + [0.0] * (len(PARTS) - len(numbers)))
    return [float(share) for share in shares / np.sum(shares)]


def split_ranges(split: str, num_sequences: int) -> dict[SplitPart, tuple[int, int]]:
    """The sequences [start, stop) of each part that has a share; halves are rounded to even, as Megatron does.

    Raises:
        SpecError: not a split.
    """
    ends = list(itertools.accumulate(parse_split(split), initial=0.0))
    return {
        part: (round(first * num_sequences), round(last * num_sequences))
        for part, first, last in zip(PARTS, ends, ends[1:], strict=False)
        if last > first
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """How large everything becomes.

    Attributes:
        start, stop: the sequences of the part.
        num_epochs: how often they are in the stream.
        num_samples: that it makes.
        num_early: samples that end before the last epoch begins, if that one is shuffled by itself; else None.
    """

    start: int
    stop: int
    num_epochs: int
    num_samples: int
    num_early: int | None

    @property
    def num_places(self) -> int:
        """Entries of the document index."""
        return (self.stop - self.start) * self.num_epochs

    @property
    def num_bytes(self) -> int:
        """Of memory: 4 for each place, 4 for each sequence and its length, 20 for each sample."""
        return 4 * self.num_places + 8 * (self.stop - self.start) + 20 * self.num_samples


def plan_samples(part: tuple[int, int], tokens: int, size: int, wanted: int | None, extra: int = 1) -> Plan:
    """Epochs and samples, by the arithmetic of GPTDataset.

    Args:
        part: its sequences [start, stop).
        tokens: that they have.
        size: tokens that a sample trains on.
        wanted: samples that the training asks for. None: one epoch.
        extra: tokens that a sample has beyond them: 1, or 0 without `add_extra_token_to_sequence`.

    Raises:
        ZeroDivisionError: samples of no tokens; Megatron hangs.
    """
    asked = 0 if wanted is None else wanted * size + extra
    epochs = 1 if asked <= tokens else -(-asked // tokens)
    early = None
    if wanted is not None and epochs > 1:
        before = ((epochs - 1) * tokens - extra) // size
        early = before if wanted - before < int(0.80 * ((tokens - extra) // size)) else None
    return Plan(*part, epochs, max(0, epochs * tokens - extra) // size, early)


def shuffled_sequences(plan: Plan, state: np.random.RandomState) -> npt.NDArray[np.int32]:
    """The document index; takes from `state` what Megatron takes for it."""
    separate = plan.num_early is not None
    found = np.tile(np.arange(plan.start, plan.stop, dtype=np.int32), plan.num_epochs)
    cut = len(found) - separate * (plan.stop - plan.start)
    state.shuffle(found[:cut])
    state.shuffle(found[cut:])
    return found


def sample_starts(
    pieces: Iterable[npt.NDArray[np.integer[Any]]], size: int, num_samples: int, extra: int = 1
) -> Iterator[Int64s]:
    """The sample index: for each multiple of the sequence length, which place of the stream holds it, and where in it.

    Args:
        pieces: lengths of the sequences in the order of the document index; none of the pieces is empty.
        size: tokens that a sample trains on.
        num_samples: samples; the last of them may end behind the stream.
        extra: tokens that a sample has beyond `size`: 1 or 0.

    Yields:
        int64[<= CHUNK, 2]: the next rows, `num_samples` + 1 in all.
    """
    position, place, number, last = 0, 0, 0, 0
    for lengths in pieces:
        ends = np.cumsum(lengths, dtype=np.int64) + position
        stop = min(num_samples, (int(ends[-1]) - extra) // size) + 1
        while number < stop:
            starts = np.arange(number, min(number + CHUNK, stop), dtype=np.int64) * size
            here = np.searchsorted(ends, starts + extra)
            found = np.stack([here + place, starts - ends[here] + lengths[here]], axis=1)
            if not number:
                found[0] = 0  # sequences without tokens before the first one with some are part of sample 0
            yield found
            number += len(found)
        position, place, last = int(ends[-1]), place + len(lengths), int(lengths[-1])
    while number <= num_samples:
        found = np.full((min(CHUNK, num_samples + 1 - number), 2), (place - 1, last - extra), np.int64)
        if not number:
            found[0] = 0
        yield found
        number += len(found)


def shuffled_samples(plan: Plan, state: np.random.RandomState) -> npt.NDArray[np.integer[Any]]:
    """The shuffle index; `state` is as `shuffled_sequences` left it."""
    dtype = np.dtype(np.uint32 if plan.num_samples < 2**32 - 2 else np.int64)
    numbers: npt.NDArray[np.integer[Any]] = np.arange(plan.num_samples, dtype=dtype)
    cut = plan.num_samples if plan.num_early is None else plan.num_early
    state.shuffle(numbers[:cut])
    state.shuffle(numbers[cut:])
    return numbers


class SampleOrder:
    """All samples of one part of a pair, in the order in which a training draws them.

    Takes 4 bytes of memory for each sequence and epoch, and 20 for each sample: less than Megatron takes.

    Args:
        index: of the pair.
        sampling: what the training asks for.
        watcher: is told how it gets on.

    Attributes:
        num_epochs: how often each sequence is in the stream.
        document_index: int32[num_epochs * sequences of the part], numbers of sequences of the pair.
        sample_index: int64[len + 1, 2], place in `document_index`, and token of the sequence there.
        shuffle_index: uint32[len] (int64 from 2**32 - 2 on), the sample that is drawn k-th.

    Raises:
        SpecError: Megatron would hang or fail before the first sample: a part is empty or too short, or there are
            too many sequences; or the order does not fit into memory.
        FormatError: the index is broken.
    """

    def __init__(self, index: Index, sampling: Sampling, watcher: Watcher | None = None) -> None:
        watcher = watcher or Silent()
        self._sampling, self._name = sampling, index.path.with_suffix("")
        start, stop = part_range(index, sampling.split, sampling.part)
        self._start, self._lengths = start, read_lengths(index, start, stop)
        plan = self._plan(start, stop)
        self.num_epochs = plan.num_epochs
        state = np.random.RandomState(sampling.seed)
        # To shuffle one takes about twice as long as to find it; numpy tells nothing meanwhile.
        watcher.stage("order of samples", 3 * plan.num_places + 3 * plan.num_samples)
        self.document_index = shuffled_sequences(plan, state)
        watcher(Progress(source_bytes=2 * plan.num_places))
        self.sample_index = self._found_samples(plan, watcher)
        self.shuffle_index = shuffled_samples(plan, state)
        watcher(Progress(source_bytes=2 * plan.num_samples))

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def pieces(self, k: int) -> Int64s:
        """What the k-th sample that is drawn is made of.

        Returns:
            int64[pieces, 3]: sequence, its first token in the sample, how many; in their order, `seq_length` + 1 tokens
            in all; none is empty.

        Raises:
            SpecError: no such sample.
        """
        if not 0 <= k < len(self):
            epochs = f"{self.num_epochs} epochs" if self.num_epochs > 1 else "one epoch"
            raise SpecError(
                f"sample {k}: {self._sampling.part} of {self._name} has samples 0 to {len(self) - 1} in {epochs}; for "
                "more, say with --num-samples how many the training asks for (iterations times global batch size)"
            )
        number = int(self.shuffle_index[k])
        (first, offset), (last, end) = self.sample_index[number : number + 2].tolist()
        sequences = self.document_index[first : last + 1].astype(np.int64)
        starts, stops = np.zeros(len(sequences), np.int64), self._lengths[sequences - self._start].astype(np.int64)
        starts[0], stops[-1] = offset, end + 1
        found: Int64s = np.stack([sequences, starts, stops - starts], axis=1)
        return found[stops > starts]

    def _plan(self, start: int, stop: int) -> Plan:
        size, tokens = self._sampling.seq_length, int(self._lengths.sum(dtype=np.int64))
        plan = plan_samples((start, stop), tokens, size, self._sampling.num_samples)
        epochs, samples = plan.num_epochs, plan.num_samples
        if not samples:
            part = self._sampling.part
            raise SpecError(
                f"{self._name}: {part} has {tokens} tokens, and a sample takes {size} and one more; choose a shorter "
                "--seq-length or another --split, or ask for more epochs with --num-samples"
            )
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if plan.num_bytes > memory or epochs > INT32:
            raise SpecError(
                f"{epochs} epochs of {stop - start} sequences, {samples} samples: their order takes "
                f"{plan.num_bytes / 1e9:,.0f} GB of memory (here are {memory / 1e9:,.0f}), and Megatron takes more; "
                "ask for fewer with --num-samples"
            )
        return plan

    def _found_samples(self, plan: Plan, watcher: Watcher) -> Int64s:
        found, number = np.empty((plan.num_samples + 1, 2), np.int64), 0
        for rows in sample_starts(self._ordered(plan, watcher), self._sampling.seq_length, plan.num_samples):
            found[number : number + len(rows)] = rows
            number += len(rows)
            watcher(Progress(source_bytes=len(rows)))
        return found

    def _ordered(self, plan: Plan, watcher: Watcher) -> Iterator[npt.NDArray[np.int32]]:
        """The lengths in the order of the document index."""
        for place in range(0, plan.num_places, CHUNK):
            lengths = self._lengths[self.document_index[place : place + CHUNK] - plan.start]
            yield lengths
            watcher(Progress(source_bytes=len(lengths)))


def part_range(index: Index, split: str, part: SplitPart) -> tuple[int, int]:
    """The sequences [start, stop) of a part of a pair; all parts have to hold tokens, or Megatron hangs.

    Raises:
        SpecError: one holds none; the split has no such part; there are too many sequences.
    """
    name, count = index.path.with_suffix(""), len(index.sequence_lengths)
    if count > INT32:
        raise SpecError(f"{name}: {count} sequences; Megatron counts them in int32, up to {INT32}")
    ranges = split_ranges(split, count)
    for each, (start, stop) in ranges.items():
        if not any(int(lengths.max(initial=0)) > 0 for lengths in _chunks(index, start, stop)):
            raise SpecError(
                f"{name}: the split {split!r} leaves no tokens to {each} ({stop - start} of {count} "
                "sequences), and Megatron hangs while it builds its index; choose another --split, as 1,0,0"
            )
    if part not in ranges:
        raise SpecError(f"the split {split!r} has no {part}")
    return ranges[part]


def read_lengths(index: Index, start: int, stop: int) -> npt.NDArray[np.int32]:
    """int32[stop - start], the tokens of sequences [start, stop).

    Raises:
        FormatError: one is below 0.
    """
    lengths = np.empty(stop - start, np.int32)
    for number, piece in enumerate(_chunks(index, start, stop)):
        if int(piece.min()) < 0:
            name = index.path.with_suffix("")
            raise FormatError(f"{name}: a length of {piece.min()}; run: dataprep verify {name}")
        lengths[number * CHUNK : number * CHUNK + len(piece)] = piece
    return lengths


def _chunks(index: Index, start: int, stop: int) -> Iterator[npt.NDArray[np.int32]]:
    """The lengths of sequences [start, stop), `CHUNK` at a time."""
    for first in range(start, stop, CHUNK):
        yield index.read("sequence_lengths", first, min(first + CHUNK, stop))
