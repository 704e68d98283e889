"""Where a dataset is cut into prefixes: before the document that would be too much for one.

Only the documents' lengths decide, in the order of the source: not units, workers, or what was interrupted when. A
prefix ends before the document that would make its ``.bin`` larger than the limit; one that is larger has a prefix of
its own. Documents without tokens never begin a prefix, unless it is the first: of them alone no ``.bin`` can be made
that Megatron opens. A prefix of `MAX_DOCUMENTS` is full whatever they hold.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from dataprep.errors import OutputError
from dataprep.indexed import MAX_SEQUENCES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Offsets

MAX_DOCUMENTS = MAX_SEQUENCES - 1
"""Of a prefix: its boundaries, one more, are counted as int32, see `indexed`."""

MAX_PREFIXES = 99_999
"""Of a dataset: their names have five digits."""


class Cuts:
    """The prefixes so far, in 16 bytes of memory for each.

    Args:
        max_tokens: of a prefix, unless one document is larger.
        by_unit: every unit that has tokens begins a prefix.

    Attributes:
        num_documents, num_tokens: so far.
    """

    def __init__(self, max_tokens: int = 2**62, by_unit: bool = False) -> None:
        self._max_tokens, self.by_unit = max_tokens, by_unit
        self._is_full = False
        self._documents, self._tokens = array("q", [0]), array("q", [0])
        self.num_documents = self.num_tokens = 0

    def __len__(self) -> int:
        """How many prefixes."""
        return len(self._tokens)

    def tokens(self, number: int) -> tuple[int, int]:
        """Where a prefix begins and ends, so far, in the tokens of all."""
        return self._tokens[number], self._tokens[number + 1] if number + 1 < len(self) else self.num_tokens

    def documents(self, number: int) -> tuple[int, int]:
        """The same in documents."""
        return self._documents[number], self._documents[number + 1] if number + 1 < len(self) else self.num_documents

    def add(self, lengths: Offsets) -> None:
        """The next documents: int64[k], their lengths in tokens.

        Raises:
            OutputError: there are too many prefixes.
        """
        if not len(lengths):
            return
        if self._is_full and lengths.any():
            self._cut(self.num_documents + int(np.argmax(lengths > 0)), self.num_tokens)
            self._is_full = False
        ends = np.cumsum(lengths, dtype=np.int64) + self.num_tokens
        reached = self.num_tokens
        while True:
            start = self._tokens[-1]
            number = int(np.searchsorted(ends, max(start + self._max_tokens, reached), "right"))
            full = self._documents[-1] + MAX_DOCUMENTS - self.num_documents
            if min(number, full) >= len(ends):
                break
            before = int(ends[min(number, full) - 1]) if min(number, full) else self.num_tokens
            if number < full and before == start:  # the first one with tokens: it belongs here, however long it is
                reached = int(ends[number])
            else:
                self._cut(self.num_documents + min(number, full), before)
                reached = before
        self.num_documents += len(ends)
        self.num_tokens = int(ends[-1])

    def end_unit(self) -> None:
        """The documents since the last one were a unit."""
        self._is_full = self.by_unit and self.num_tokens > self._tokens[-1]

    @property
    def is_full(self) -> bool:
        """Whether no more tokens will be added to the last prefix, as far as is known."""
        return self._is_full

    def _cut(self, document: int, token: int) -> None:
        if len(self) == MAX_PREFIXES:
            raise OutputError(
                f"the first {document:,} documents are {MAX_PREFIXES:,} prefixes already, which is the most that a "
                "dataset may have; run again with a larger --set output.max_prefix_bytes"
            )
        self._documents.append(document)
        self._tokens.append(token)

    def split(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Tokens [start, stop) of all as (number of a prefix, start, stop) in each of them that has some."""
        number = bisect_right(self._tokens, start) - 1
        while start < stop:
            first, end = self.tokens(number)
            if (end := min(stop, end)) > start:
                yield number, start - first, end - first
            start, number = max(start, end), number + 1

    def mark(self) -> tuple[int, int, int, bool]:
        """A state to come back to."""
        return len(self), self.num_documents, self.num_tokens, self._is_full

    def undo(self, mark: tuple[int, int, int, bool]) -> None:
        """Forget what was added since."""
        count, self.num_documents, self.num_tokens, self._is_full = mark
        del self._documents[count:], self._tokens[count:]
