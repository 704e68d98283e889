"""One pass over the tokens of a pair: how often each id stands where, and which documents are the same.

Memory: a table of the ids that occur (below `LIMIT`), and 8 bytes for each of the first `MOST_DOCUMENTS` documents,
twice that while the repeated ones are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dataprep.errors import FormatError
from dataprep.indexed import CHUNK, bin_path
from dataprep.inspection.lengths import document_ends
from dataprep.storage import COPY_BYTES
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from io import RawIOBase

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.indexed import IndexedDataset
    from dataprep.watcher import Watcher

    Counts = npt.NDArray[np.int64]

LIMIT = 1 << 22
"""Ids from here on, and negative ones, are counted together: the largest vocabularies have 2**18 ids, a damaged file
any up to 2**31."""

MOST_DOCUMENTS = 1 << 26
"""Documents that are compared with each other: a gigabyte while repeated ones are looked for."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which documents are the same, token for token, by their xxh3_64; without those that hold no tokens.

    Attributes:
        num_compared: the first so many documents were.
        first: int64[k], for each text that is there more than once, its first document, most copies first.
        copies: int64[k], documents that are this text.
        lengths: int64[k], tokens of one of them.
    """

    num_compared: int
    first: Counts
    copies: Counts
    lengths: Counts

    @property
    def num_documents(self) -> int:
        """Documents that are the same as an earlier one."""
        return int((self.copies - 1).sum())

    @property
    def num_tokens(self) -> int:
        """Of these documents."""
        return int(((self.copies - 1) * self.lengths).sum())


@dataclass(frozen=True, slots=True)
class Census:
    """What was counted; the tables have one entry for each id up to the largest that occurs.

    Attributes:
        counts: int64[v], how often each id occurs.
        begins, ends: int64[v], how many documents begin, and end, with it.
        lone: int64[v], how many documents are this one token.
        num_outside: tokens that are negative or not below `LIMIT`, and not in the tables.
        repeats: documents that are the same.
    """

    counts: Counts
    begins: Counts
    ends: Counts
    lone: Counts
    num_outside: int
    repeats: Repeats

    @property
    def num_distinct(self) -> int:
        return int(np.count_nonzero(self.counts))


def take(pair: IndexedDataset, watcher: Watcher | None = None) -> Census:
    """Count all tokens of a pair; they are integers.

    Raises:
        FormatError: the index is broken, or the ``.bin`` became shorter.
    """
    watcher = watcher or Silent()
    path = bin_path(pair.prefix)
    watcher.stage("inspect", pair.tokens.nbytes)
    counter = _Counter(pair)
    view = memoryview(bytearray(COPY_BYTES))
    with path.open("rb", buffering=0) as file:
        left = pair.tokens.nbytes
        while left:
            count = _fill(file, view[:left])
            if count < min(left, COPY_BYTES):
                raise FormatError(f"{path} became shorter; run: dataprep verify {pair.prefix}")
            counter.add(view[:count])
            left -= count
            watcher(Progress(source_bytes=count))
    return counter.result()


def _fill(file: RawIOBase, view: memoryview) -> int:
    """Read until the view is full or the file ends."""
    total = 0
    while total < len(view) and (count := file.readinto(view[total:])):
        total += count
    return total


class _Table:
    """How often each id occurred; as long as the largest one."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def add(self, ids: npt.NDArray[Any]) -> None:
        more = np.bincount(ids)
        if len(more) > len(self._counts):
            self._counts, more = more, self._counts
        self._counts[: len(more)] += more

    def __len__(self) -> int:
        return len(self._counts)

    def result(self, size: int) -> Counts:
        """The counts, with as many entries."""
        return np.concatenate([self._counts, np.zeros(size - len(self._counts), np.int64)])


class _Counter:
    """Takes the tokens block by block, wherever documents begin and end."""

    def __init__(self, pair: IndexedDataset) -> None:
        self._pair = pair
        self._documents = _Ends(pair)
        self._position = 0
        self._start = 0  # of the document that is not yet at its end
        self._open = xxhash.xxh3_64()
        self._hashes = np.empty(min(pair.num_documents, MOST_DOCUMENTS), np.uint64)
        self._num_hashed = 0
        self._counts, self._begins, self._ends, self._lone = _Table(), _Table(), _Table(), _Table()
        self._num_outside = 0
        dtype = pair.dtype
        self._unsigned = np.dtype(f"<u{dtype.itemsize}")
        self._largest = min(int(np.iinfo(dtype).max), LIMIT - 1)  # of the ids that are counted one by one

    def add(self, view: memoryview) -> None:
        """Count the next block, a whole number of tokens."""
        ids = np.frombuffer(view, self._pair.dtype)
        ends = self._documents.take(self._position + len(ids)) - self._position
        starts = np.concatenate([[self._start - self._position], ends])
        lengths = np.diff(starts)
        begun = starts[np.append(lengths > 0, starts[-1] < len(ids)) & (starts >= 0)]
        inside = self._inside(ids)
        self._num_outside += len(ids) - len(inside)
        self._counts.add(inside)
        self._begins.add(self._inside(ids[begun]))
        self._ends.add(self._inside(ids[ends[lengths > 0] - 1]))
        self._lone.add(self._inside(ids[ends[lengths == 1] - 1]))
        self._hash(view, ends * self._pair.dtype.itemsize)
        self._start = self._position + int(starts[-1])
        self._position += len(ids)

    def _inside(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Those that the tables count; nearly always all of them, as one maximum tells: negative ones are large."""
        unsigned = ids.view(self._unsigned)
        return ids if int(unsigned.max(initial=0)) <= self._largest else ids[unsigned <= self._largest]

    def _hash(self, view: memoryview, ends: Offsets) -> None:
        """Hash the documents that end in this block; `ends` are bytes of it.

        One call for each (0.15 us). Hashing all tokens at once in numpy takes 2 ns for each token: more than that for
        documents of 75 tokens or more.
        """
        ends = ends[: len(self._hashes) - self._num_hashed]
        if not len(ends):
            self._open.update(view)
            return
        cuts = ends.tolist()
        self._open.update(view[: cuts[0]])
        digest = xxhash.xxh3_64_intdigest
        stop = self._num_hashed + len(cuts)
        self._hashes[self._num_hashed] = self._open.intdigest()
        self._hashes[self._num_hashed + 1 : stop] = np.fromiter(
            (digest(view[first:last]) for first, last in pairwise(cuts)), np.uint64, len(cuts) - 1
        )
        self._num_hashed = stop
        self._open = xxhash.xxh3_64(view[cuts[-1] :])

    def result(self) -> Census:
        """What was counted, once all blocks were."""
        size = len(self._counts)
        return Census(
            self._counts.result(size),
            self._begins.result(size),
            self._ends.result(size),
            self._lone.result(size),
            self._num_outside,
            _repeats(self._pair, self._hashes[: self._num_hashed]),
        )


class _Ends:
    """The token numbers at which documents end, in order, taken some at a time."""

    def __init__(self, pair: IndexedDataset) -> None:
        self._chunks = document_ends(pair)
        self._ends = np.empty(0, np.int64)

    def take(self, stop: int) -> Offsets:
        """All that are left and not larger than `stop`."""
        found = []
        while True:
            cut = int(np.searchsorted(self._ends, stop, side="right"))
            found.append(self._ends[:cut])
            self._ends = self._ends[cut:]
            if len(self._ends):
                return np.concatenate(found)
            self._ends = next(self._chunks, self._ends)
            if not len(self._ends):
                return np.concatenate(found)


def _repeats(pair: IndexedDataset, hashes: npt.NDArray[np.uint64]) -> Repeats:
    ordered = np.sort(hashes)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    first, copies = np.full(len(repeated), len(hashes)), np.zeros(len(repeated), np.int64)
    for start in range(0, len(hashes) if len(repeated) else 0, CHUNK):
        chunk = hashes[start : start + CHUNK]
        place = np.minimum(np.searchsorted(repeated, chunk), len(repeated) - 1)
        here = np.flatnonzero(repeated[place] == chunk)
        np.add.at(copies, place[here], 1)
        np.minimum.at(first, place[here], here + start)
    lengths = _lengths(pair, first)
    order = np.lexsort([first, -copies])
    order = order[lengths[order] > 0]
    return Repeats(len(hashes), first[order], copies[order], lengths[order])


def _lengths(pair: IndexedDataset, documents: Counts) -> Counts:
    """Tokens of some documents, in any order."""
    starts, stops = (_positions(pair, pair.document_indices[documents + more]) for more in (0, 1))
    return stops - starts


def _positions(pair: IndexedDataset, sequences: Counts) -> Counts:
    """The token numbers at which sequences begin; of the one behind the last, where that ends."""
    last = len(pair) - 1
    found = pair.sequence_pointers[np.minimum(sequences, last)] // pair.dtype.itemsize
    found[sequences > last] = pair.num_tokens
    return found
