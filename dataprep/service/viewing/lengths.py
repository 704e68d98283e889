"""How long the documents of a dataset are, by its indices; of a very large one by a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataprep.indexed import CHUNK, Index, idx_path
from dataprep.inspection.lengths import LengthCounts
from dataprep.service.viewing.answers import Bin, LengthsDetail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dataprep.batches import Offsets
    from dataprep.manifest import Lengths

MOST_DOCUMENTS = 10_000_000
"""Documents whose lengths are read, in 0.2 s. Of more, blocks at even distances are."""

MOST_PAIRS = 200
"""Pairs that are opened, at even distances: a version may have one for every day."""

BLOCK = CHUNK // 16
"""Documents of a block."""


def measure(prefixes: Sequence[Path], known: Lengths | None, num_documents: int) -> LengthsDetail | None:
    """Count the lengths of the documents of some pairs.

    Args:
        prefixes: of the pairs; their files are held to be whole.
        known: exact quantiles of all of them together, if somebody states them.
        num_documents: of all of them together.

    Returns:
        None where there are no documents.

    Raises:
        FormatError: an index is broken.
    """
    step = -(-len(prefixes) // MOST_PAIRS)
    indices = [Index(idx_path(prefix)) for prefix in prefixes[::step]] if step else []
    found = LengthCounts.of(_some(indices))
    counted = int(found.counts.sum())
    if not counted:
        return None
    scale = num_documents / counted
    bins = tuple(
        Bin(
            first=each["from"],
            last=each["to"],
            num_documents=round(each["num_documents"] * scale),
            num_tokens=round(each["num_tokens"] * scale),
        )
        for each in found.bins()
    )
    return LengthsDetail(num_documents=num_documents, num_counted=counted, lengths=known or found.summary(), bins=bins)


def _some(indices: Sequence[Index]) -> Iterator[Offsets]:
    """The lengths of all documents, or of blocks of them at even distances; the first and the last among them."""
    total = sum(index.num_documents for index in indices)
    for index in indices:
        count = index.num_documents
        wanted = -(-count * MOST_DOCUMENTS // (total * BLOCK)) if total > MOST_DOCUMENTS else -(-count // BLOCK)
        starts = range(0, count, BLOCK)
        if wanted < len(starts):
            last = max(0, count - BLOCK)
            starts = [last * i // max(1, wanted - 1) for i in range(wanted)]  # type: ignore[assignment]
        for start in starts:
            yield index.document_lengths(start, min(start + BLOCK, count))
