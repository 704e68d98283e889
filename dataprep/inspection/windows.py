"""Some tokens of one document, read and not mapped: for a server, which must live when a file is cut or removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import Index, bin_path, idx_path

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    import numpy.typing as npt

MOST_SEQUENCES = 1 << 20
"""Sequences of a document that are looked at; ours have one, sentence-level ones some hundreds."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a document, or a sequence, lies.

    Attributes:
        prefix: of the pair.
        dtype: of its tokens.
        start: its first token in the ``.bin``.
        num_tokens: of it.
    """

    prefix: Path
    dtype: np.dtype[Any]
    start: int
    num_tokens: int

    def read(self, first: int, count: int, file: BinaryIO | None = None) -> npt.NDArray[Any]:
        """Some of its tokens, fewer at its end: a copy.

        Args:
            first: of its tokens.
            count: of them.
            file: the ``.bin``, if it is open already, at its beginning.

        Raises:
            FormatError: the ``.bin`` does not hold them.
        """
        count = max(0, min(count, self.num_tokens - first))
        path, size = bin_path(self.prefix), self.dtype.itemsize
        try:
            found = np.fromfile(path if file is None else file, self.dtype, count, offset=(self.start + first) * size)
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        if len(found) != count:
            raise FormatError(f"{path} is shorter than its index says; run: dataprep verify {self.prefix}")
        return found


def open_index(prefix: Path) -> Index:
    """The index of a pair whose tokens are integers.

    Raises:
        FormatError: it cannot be read, or they are not.
    """
    index = Index(idx_path(prefix))
    if index.dtype.kind not in "iu":
        raise FormatError(f"{prefix}: {index.dtype.name} is no token id; run: dataprep verify {prefix}")
    return index


def document_extent(index: Index, document: int) -> Extent:
    """Where a document lies.

    Raises:
        SpecError: it has too many sequences.
        FormatError: the index is broken.
    """
    bounds = index.read("document_indices", document, document + 2).tolist()
    if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] <= len(index.sequence_lengths):
        raise _broken(index)
    if bounds[1] - bounds[0] > MOST_SEQUENCES:
        raise SpecError(f"document {document} of {index.path.with_suffix('')} has {bounds[1] - bounds[0]:,} sequences")
    return _extent(index, *bounds)


def sequence_extent(index: Index, sequence: int) -> Extent:
    """Where a sequence lies.

    Raises:
        FormatError: the index is broken.
    """
    return _extent(index, sequence, sequence + 1)


def documents_of(index: Index, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64[n]: the document that each sequence belongs to; one pass over the boundaries."""
    found = np.full(len(sequences), -1, np.int64)
    for bounds in index.chunks("document_indices"):
        found += np.searchsorted(bounds, sequences, side="right")
    return found


def _extent(index: Index, first: int, stop: int) -> Extent:
    """Where consecutive sequences lie; they have to lie end to end."""
    size = index.dtype.itemsize
    lengths = index.read("sequence_lengths", first, stop).astype(np.int64)
    pointers = index.read("sequence_pointers", first, stop)
    ends = pointers + lengths * size
    start = int(pointers[0]) if len(pointers) else 0
    if lengths.min(initial=0) < 0 or start < 0 or start % size or not np.array_equal(ends[:-1], pointers[1:]):
        raise _broken(index)
    return Extent(index.path.with_suffix(""), index.dtype, start // size, int(lengths.sum()))


def _broken(index: Index) -> FormatError:
    prefix = index.path.with_suffix("")
    return FormatError(f"{prefix}: the index is broken; run: dataprep verify {prefix}")
