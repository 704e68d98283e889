"""Documents of pairs as a source for torchtitan's loader; numpy only, torchtitan only where it calls.

Order, sharding over ranks, packing and resuming are torchtitan's loader's: documents are shuffled anew in each epoch,
every data-parallel rank has its own, and a checkpoint holds where it was. A document's last token is no input, its
first no label; packed documents keep positions of their own, by which attention does not cross their ends. Of several
prefixes, each is packed by itself and whole rows are drawn by weight, so that weights are shares of tokens.

For torchtitan b5bcd76c (2026-08-21), components/data; its release 0.3.0 is older and has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import SpecError
from dataprep.indexed import IndexedDataset
from dataprep.samples import split_ranges

if TYPE_CHECKING:
    import numpy.typing as npt

    from dataprep.samples import SplitPart
    from dataprep.train.job import Job


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents [start, stop) of a prefix that holds `num_documents`, and their share of the tokens of their split."""

    prefix: str
    num_documents: int
    start: int
    stop: int
    weight: float


def split_rows(job: Job, part: SplitPart) -> tuple[Rows, ...]:
    """The documents of one split, by Megatron's rounding; prefixes that have none are left out.

    The same documents as Megatron's where each is one sequence, as in all that dataprep writes.
    """
    if job.data.own:
        whole = [(each, (0, each.num_documents)) for each in job.data.own.get(part, ())]
    else:
        ranges = [(each, split_ranges(job.train.split, each.num_documents)) for each in job.data.parts]
        whole = [(each, found[part]) for each, found in ranges if part in found]
    return tuple(
        Rows(each.prefix, each.num_documents, start, stop, each.weight) for each, (start, stop) in whole if stop > start
    )


class PairSource:
    """Documents of a pair, each by its number: what torchtitan calls a RandomAccessDataSource.

    Reads through memory maps, so that a million documents cost nothing until they are asked for.

    Args:
        rows: which documents.

    Raises:
        FormatError: not a readable pair.
        SpecError: it holds another number of documents than when the job was made.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._pair = IndexedDataset(rows.prefix)
        if self._pair.num_documents != rows.num_documents:
            raise SpecError(
                f"{rows.prefix} holds {self._pair.num_documents} documents, and held {rows.num_documents} when the job "
                "was made: it is another pair; run dataprep train again"
            )

    def __len__(self) -> int:
        return self._rows.stop - self._rows.start

    def __getitem__(self, index: int) -> npt.NDArray[np.int64]:
        """int64[tokens] of a document, BOS and EOD among them as they were written.

        Raises:
            IndexError: no such document.
            FormatError: the pair is broken, or has become shorter.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return self._pair.document(self._rows.start + index).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSourceConfig:
    """What torchtitan calls a SourceConfig."""

    rows: Rows

    def build(self, *, dataset_iteration_policy: object) -> PairSource:
        """Open the pair; shuffling and sharding follow behind it."""
        del dataset_iteration_policy
        return PairSource(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftConfig:
    """Documents to inputs and labels: what torchtitan calls a SampleProcessor.Config."""

    def build(self, *, context: object) -> Any:
        """The function of a document and a random generator; None where nothing is to be learnt."""
        from torchtitan.components.data import TextSequence

        del context

        def shift(tokens: npt.NDArray[np.int64], rng: object) -> Any:
            del rng
            return TextSequence(input_ids=tokens[:-1], labels=tokens[1:]) if len(tokens) > 1 else None

        return shift


def make_dataset(rows: tuple[Rows, ...]) -> Any:
    """torchtitan's configuration of a dataset: packed rows of several prefixes, drawn by weight."""
    from torchtitan.components.data import (
        ConcatThenSplitPackingConfig,
        DatasetMixConfig,
        SingleDatasetConfig,
        WeightedDataset,
    )

    packed = [
        ConcatThenSplitPackingConfig(
            dataset=SingleDatasetConfig(
                source=PairSourceConfig(rows=each),
                processor=ShiftConfig(),
                post_filters=(lambda sample: sample is not None,),
            )
        )
        for each in rows
    ]
    if len(packed) == 1:
        return packed[0]
    pairs = zip(packed, rows, strict=True)
    return DatasetMixConfig(
        datasets=tuple(WeightedDataset(dataset=dataset, weight=each.weight) for dataset, each in pairs)
    )
