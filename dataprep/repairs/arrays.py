"""An ``.idx`` in whatever state: what its header says, and its arrays as far as they are there.

Nothing is refused here, and nothing is believed: `indexed` reads what is sound.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from dataprep.errors import FormatError
from dataprep.indexed import CHUNK, HEADER, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataprep.batches import Offsets

Field = Literal["sequence_lengths", "sequence_pointers", "document_indices"]


@dataclass(frozen=True, slots=True)
class Arrays:
    """Where the three arrays of an ``.idx`` lie if it holds these counts.

    Attributes:
        path: of the ``.idx``.
        num_bytes: its size.
        order: ``<``, or ``>`` for an index written on a big-endian machine.
        num_sequences, num_boundaries: the counts.
    """

    path: Path
    num_bytes: int
    order: Literal["<", ">"]
    num_sequences: int
    num_boundaries: int

    @property
    def end(self) -> int:
        """Bytes of the index without modes."""
        return HEADER.size + 12 * self.num_sequences + 8 * self.num_boundaries

    def _place(self, field: Field) -> tuple[int, int, int]:
        """Position in bytes, count, and bytes of an element."""
        n = self.num_sequences
        return {
            "sequence_lengths": (HEADER.size, n, 4),
            "sequence_pointers": (HEADER.size + 4 * n, n, 8),
            "document_indices": (HEADER.size + 12 * n, self.num_boundaries, 8),
        }[field]

    def num_there(self, field: Field) -> int:
        """How many elements the file holds."""
        position, count, size = self._place(field)
        return max(0, min(count, (self.num_bytes - position) // size))

    def is_whole(self, field: Field) -> bool:
        return self.num_there(field) == self._place(field)[1]

    def pieces(self, field: Field) -> Iterator[Offsets]:
        """What there is of an array, int64[<= CHUNK] at a time, read and not mapped.

        Raises:
            FormatError: the file has become shorter.
        """
        position, _, size = self._place(field)
        there = self.num_there(field)
        for start in range(0, there, CHUNK):
            count = min(CHUNK, there - start)
            found = np.fromfile(self.path, f"{self.order}i{size}", count, offset=position + start * size)
            if len(found) != count:
                raise FormatError(f"{self.path}: became shorter while it was read; run the same command again")
            yield found.astype(np.int64)


@dataclass(frozen=True, slots=True)
class RawHeader:
    """The first 34 bytes of an ``.idx``, and its size."""

    path: Path
    num_bytes: int
    magic: bytes
    version: int
    code: int
    num_sequences: int
    num_boundaries: int
    order: Literal["<", ">"]

    def arrays(self, num_sequences: int, num_boundaries: int) -> Arrays:
        return Arrays(self.path, self.num_bytes, self.order, num_sequences, num_boundaries)


def read_raw(path: Path) -> RawHeader | None:
    """The header of an ``.idx`` as it is; None where there is none, or less than a header.

    Raises:
        FormatError: it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise FormatError(f"{path} is no file")
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    if len(head) < HEADER.size:
        return None
    little, big = _unpack(path, size, head, "<"), _unpack(path, size, head, ">")
    is_big = big.version == VERSION and size >= big.arrays(big.num_sequences, big.num_boundaries).end
    return big if is_big else little


def _unpack(path: Path, size: int, head: bytes, order: Literal["<", ">"]) -> RawHeader:
    magic, version, code, sequences, boundaries = struct.unpack(f"{order}9sQBQQ", head)
    return RawHeader(path, size, magic, version, code, sequences, boundaries, order)
