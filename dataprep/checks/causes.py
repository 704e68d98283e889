"""Why pointers or sizes are wrong, as far as the numbers themselves tell: the few mistakes that writers make."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.checks.documents import PIECE, Documents
from dataprep.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.indexed import Index

    Guess = Callable[["Piece"], npt.NDArray[Any]]

PEEKS = 200
"""Documents looked at, one read each, where a guess has to be confirmed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive sequences: their numbers, starts and ends in tokens by the lengths, and their pointers."""

    numbers: Offsets
    starts: Offsets
    ends: Offsets
    pointers: Offsets


@dataclass(frozen=True, slots=True)
class Cause:
    """What is wrong with the pointers.

    Attributes:
        shift: bytes by which all from the first wrong one on are too large, if it is the same for all.
    """

    text: str
    shift: int | None


def _pieces(index: Index) -> Iterator[Piece]:
    total = 0
    for start in range(0, len(index.sequence_lengths), PIECE):
        ends = np.cumsum(index.read("sequence_lengths", start, start + PIECE), dtype=np.int64) + total
        starts = np.concatenate([[total], ends[:-1]])
        numbers = np.arange(start, start + len(ends))
        yield Piece(numbers, starts, ends, index.read("sequence_pointers", start, start + PIECE))
        total = int(ends[-1])


def other_width(index: Index, total: int, size: int | None) -> int | None:
    """The item size, another than the dtype's, that pointers and the size of the ``.bin`` both fit."""
    for width in (2, 4, 1, 8):
        if width != index.dtype.itemsize and total and total * width == size:
            fits = all(np.array_equal(piece.starts * width, piece.pointers) for piece in _pieces(index))
            return width if fits else None
    return None


def pointer_cause(index: Index, first: int) -> Cause:
    """Say how the pointers came to be wrong, from sequence `first` on.

    Returns:
        Expected, found, how many are wrong, and the cause if it is a known one.
    """
    size = index.dtype.itemsize
    guesses: dict[str, Guess] = {
        "summed as int32, they wrapped around at 2**31; the lengths are not touched by that": lambda p: (
            p.starts * size
        ).astype(np.int32),
        "they wrapped around at 2**32; the lengths are not touched by that": lambda p: p.starts * size & (2**32 - 1),
        "they are the ends of the sequences, not their starts": lambda p: p.ends * size,
        "they count a token more for each sequence, an EOD that the lengths leave out": lambda p: (
            (p.starts + p.numbers) * size
        ),
        **{
            f"they are those of items of {width} bytes": lambda p, width=width: p.starts * width  # type: ignore[misc]
            for width in (1, 2, 4, 8)
            if width != size
        },
    }
    shift: int | None = None
    constant, wrong, seen = True, 0, (0, 0)
    for piece in _pieces(index):
        expected = piece.starts * size
        after = (piece.pointers - expected)[max(0, first - int(piece.numbers[0])) :]
        wrong += int(np.count_nonzero(after))
        if shift is None and len(after):
            shift, seen = int(after[0]), (int(expected[-len(after)]), int(piece.pointers[-len(after)]))
        constant = constant and not (after != shift).any()
        guesses = {text: guess for text, guess in guesses.items() if np.array_equal(guess(piece), piece.pointers)}
    cause = next(iter(guesses), None)
    if cause is None and constant and wrong > 1:
        cause = f"all from here on are shifted by {shift} bytes"
    text = (
        f"expected byte {seen[0]} by the lengths, found {seen[1]}; {wrong} of {len(index.sequence_lengths)} are wrong"
    )
    return Cause(f"{text}: {cause}" if cause else text, shift if constant else None)


def eods_uncounted(path: Path, index: Index, by_sequence: bool) -> int | None:
    """The id that ends every document of the ``.bin`` if the lengths leave one token out for each; None if none does.

    Args:
        path: the ``.bin``.
        index: its lengths count all tokens but the EODs.
        by_sequence: as in `Documents`.
    """
    some = index.read("sequence_lengths", 0, PIECE)
    stop = int(some.sum(dtype=np.int64))
    ends = Documents(index, by_sequence).take(stop)[1:].tolist()
    if len(some) == len(index.sequence_lengths):
        ends.append(stop)
    with path.open("rb") as file:
        found = {int(read_tokens(file.fileno(), end + i, 1, index.dtype)[0]) for i, end in enumerate(ends[:PEEKS])}
    return found.pop() if len(found) == 1 and len(ends) > 1 else None


def read_tokens(fd: int, number: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Some tokens of an open ``.bin``.

    Raises:
        FormatError: it has become shorter.
    """
    data = os.pread(fd, count * dtype.itemsize, number * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise FormatError(f"the .bin ends before token {number + count}, and had it a moment ago")
    return np.frombuffer(data, dtype)
