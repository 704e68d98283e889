"""Where a pair is cut: the documents at which its parts begin, by documents, tokens or fractions of its tokens.

Nothing is read but what is looked at: the place of a document is two numbers of the index, and cuts are searched for.
A document without tokens belongs to the part of the one before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

from dataprep.errors import SpecError
from dataprep.indexed import Index, idx_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MAX_PARTS = 100_000
"""That the five digits of their names can count."""


LOOKS = 1 << 10
"""Places looked up before the index is mapped anew: each leaves up to 128 KiB that count as memory of the process."""


class Places:
    """Tokens before each document of a pair whose index is right, looked up one by one.

    Attributes:
        num_documents, num_tokens: of the pair.
    """

    def __init__(self, prefix: Path) -> None:
        self._index = Index(idx_path(prefix))
        self._looked_up = 0
        self.num_documents = self._index.num_documents
        self.num_tokens = 0
        if len(self._index.sequence_lengths):
            end = int(self._index.sequence_pointers[-1]) // self._index.dtype.itemsize
            self.num_tokens = end + int(self._index.sequence_lengths[-1])

    def __call__(self, document: int) -> int:
        self._looked_up += 1
        if not self._looked_up % LOOKS:
            self._index = Index(self._index.path)
        sequence = int(self._index.document_indices[document])
        if sequence == len(self._index.sequence_pointers):
            return self.num_tokens
        return int(self._index.sequence_pointers[sequence]) // self._index.dtype.itemsize

    def last_at(self, tokens: int) -> int:
        """The last document with at most so many tokens before it."""
        return bisect_right(range(self.num_documents + 1), tokens, key=self) - 1

    def nearest(self, tokens: Fraction) -> int:
        """The last document with as many tokens before it as is nearest to this; of two as near, the earlier."""
        above = bisect_left(range(self.num_documents), math.ceil(tokens), key=self)
        below = max(0, above - 1)
        return self.last_at(self(below if tokens - self(below) <= self(above) - tokens else above))


def by_documents(places: Places, count: int) -> list[int]:
    """The documents at which parts of so many begin, and the end.

    Raises:
        SpecError: fewer than one, or too many parts.
    """
    _check_count("documents", count, -(-places.num_documents // max(1, count)))
    return [*range(0, places.num_documents, count), places.num_documents]


def by_tokens(places: Places, count: int) -> list[int]:
    """The documents at which parts begin that hold at most so many tokens, or one document with tokens; and the end.

    Raises:
        SpecError: fewer than one, or too many parts.
    """
    _check_count("tokens", count, 1)
    cuts = [0]
    while cuts[-1] < places.num_documents:
        start = places(cuts[-1])
        first = places.last_at(start) + 1  # the end of the first document with tokens
        cuts.append(places.last_at(max(start + count, places(min(first, places.num_documents)))))
        _check_count("tokens", count, len(cuts) - 1)
    return cuts


def by_fractions(places: Places, shares: Sequence[Fraction]) -> list[int]:
    """The documents at which parts begin that hold these shares of the tokens, as nearly as may be; and the end."""
    ends = list(accumulate(shares))[:-1]
    return [0, *(places.nearest(places.num_tokens * end) for end in ends), places.num_documents]


def shares_of(fractions: str | Iterable[float | str | Fraction]) -> tuple[Fraction, ...]:
    """Fractions as they were written: ``0.9,0.1`` or ``1/3,2/3``.

    Raises:
        SpecError: no numbers, not above 0, or they do not add up to 1.
    """
    texts = fractions.split(",") if isinstance(fractions, str) else [str(value) for value in fractions]
    try:
        shares = tuple(Fraction(text.strip()) for text in texts)
    except (ValueError, ZeroDivisionError):
        raise SpecError(f"--fractions {','.join(texts)}: expected numbers, as in 0.9,0.1 or 1/3,2/3") from None
    if not shares or min(shares) <= 0:
        raise SpecError(f"--fractions {','.join(texts)}: each has to be above 0")
    if sum(shares) != 1:
        raise SpecError(f"--fractions {','.join(texts)} add up to {float(sum(shares)):.6g}, expected 1")
    return shares


def _check_count(what: str, count: int, num_parts: int) -> None:
    if count < 1:
        raise SpecError(f"--{what} {count}: expected at least 1")
    if num_parts > MAX_PARTS:
        raise SpecError(f"--{what} {count} makes more than {MAX_PARTS:,} pairs; choose a larger number")
