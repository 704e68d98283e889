"""Documents of a pair that another one is to hold, and how that is written: nothing of either is ever whole in memory.

A `Run` is consecutive documents: one range of the ``.bin``, copied in the kernel. `Drawn` documents were chosen at
random: they are read in blocks, and what is not wanted is left out. Both give the lengths of their sequences, and for
each document its end: the number of the sequence behind its last one, counted from the first sequence taken.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

import numpy as np
import xxhash

from dataprep.errors import FormatError
from dataprep.indexed import CHUNK, CODES, Header, Index, bin_path, idx_path, write_index
from dataprep.storage import COPY_BYTES, AtomicFile, copy_range, explain, write_all
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import FileIO

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.watcher import Watcher

    Lengths = npt.NDArray[np.int32]

N = TypeVar("N", bound=np.generic)

STEP_BYTES = 256 << 20
"""Copied between two reports of progress."""

BLOCK_DOCUMENTS = 1 << 13
"""Documents looked at together where only some are taken: small enough for documents of thousands of sequences."""

READ_BYTES = 8 << 20
GAP_BYTES = 256 << 10
"""Bytes between two documents that are read and thrown away rather than read around: one more read takes as long."""


class Selection(Protocol):
    """Some documents of one pair, in its order.

    Attributes:
        prefix: of the pair.
        num_documents, num_sequences, num_bytes: how much they are.
    """

    @property
    def prefix(self) -> Path: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

    def lengths(self) -> Iterator[Lengths]:
        """int32 pieces; each call starts anew."""

    def ends(self) -> Iterator[Offsets]:
        """int64 pieces; each call starts anew."""

    def copy(self, target: int, watcher: Watcher) -> str | None:
        """Append the tokens to an open file; returns their checksum if they came through memory."""


@dataclass(frozen=True, slots=True)
class Run:
    """Documents [start, stop) of a pair whose index is right.

    Attributes:
        first_sequence, last_sequence: the sequences [first, last) they are.
        first_byte, last_byte: where those lie.
    """

    prefix: Path
    start: int
    stop: int
    first_sequence: int
    last_sequence: int
    first_byte: int
    last_byte: int

    @classmethod
    def of(cls, prefix: Path, start: int = 0, stop: int | None = None) -> Self:
        """Documents [start, stop) of a pair; to its end if there is no stop."""
        index = Index(idx_path(prefix))
        stop = index.num_documents if stop is None else stop
        first, last = int(index.document_indices[start]), int(index.document_indices[stop])
        return cls(prefix, start, stop, first, last, _byte(index, first), _byte(index, last))

    @property
    def num_documents(self) -> int:
        return self.stop - self.start

    @property
    def num_sequences(self) -> int:
        return self.last_sequence - self.first_sequence

    @property
    def num_bytes(self) -> int:
        return self.last_byte - self.first_byte

    def lengths(self) -> Iterator[Lengths]:
        index = Index(idx_path(self.prefix))
        for first in range(self.first_sequence, self.last_sequence, CHUNK):
            yield index.read("sequence_lengths", first, min(first + CHUNK, self.last_sequence))

    def ends(self) -> Iterator[Offsets]:
        index = Index(idx_path(self.prefix))
        for first in range(self.start + 1, self.stop + 1, CHUNK):
            yield index.read("document_indices", first, min(first + CHUNK, self.stop + 1)) - self.first_sequence

    def copy(self, target: int, watcher: Watcher) -> None:
        with open_bin(self.prefix) as source:
            for first in range(self.first_byte, self.last_byte, STEP_BYTES):
                last = min(first + STEP_BYTES, self.last_byte)
                _copy_with_holes(source.fileno(), target, first, last)
                watcher(Progress(source_bytes=last - first))


def _byte(index: Index, sequence: int) -> int:
    """Where a sequence begins, also the one behind the last."""
    if not sequence:
        return 0
    pointer = int(index.read("sequence_pointers", sequence - 1, sequence)[0])
    return pointer + int(index.read("sequence_lengths", sequence - 1, sequence)[0]) * index.dtype.itemsize


def _copy_with_holes(source: int, target: int, start: int, stop: int) -> None:
    """Append bytes [start, stop) of a file to another; what the one has no blocks for, the other gets none for."""
    while start < stop:
        try:
            data = min(os.lseek(source, start, os.SEEK_DATA), stop)
        except OSError as error:
            data = stop if error.errno == errno.ENXIO else start  # nothing but a hole; or holes are not known here
        if data > start:
            os.ftruncate(target, os.lseek(target, data - start, os.SEEK_CUR))
            start = data
            continue
        try:
            hole = min(os.lseek(source, start, os.SEEK_HOLE), stop)
        except OSError:
            hole = stop
        copy_range(source, target, start, hole)
        start = hole


class Choice(Protocol):
    """Says which documents are taken: `draws.Draw` does."""

    def chosen(self, start: int, stop: int) -> npt.NDArray[np.bool_]: ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """The documents of a pair that a draw takes."""

    prefix: Path
    draw: Choice
    num_documents: int
    num_sequences: int
    num_bytes: int

    @classmethod
    def of(cls, prefix: Path, draw: Choice, watcher: Watcher) -> Self:
        documents = sequences = num_bytes = last = 0
        for block in _blocks(prefix, draw):
            watcher(Progress(source_bytes=8 * (block.first - last)))
            last = block.first
            documents += int(np.count_nonzero(block.taken))
            sequences += int(block.counts[block.taken].sum())
            num_bytes += int((block.stops - block.starts).sum())
        return cls(prefix, draw, documents, sequences, num_bytes)

    def runs(self) -> Iterator[tuple[int, int]]:
        """The documents, as ranges [start, stop)."""
        for block in _blocks(self.prefix, self.draw):
            edges = np.flatnonzero(np.diff(np.concatenate([[False], block.taken, [False]])))
            for start, stop in edges.reshape(-1, 2) + block.first:
                yield int(start), int(stop)

    def lengths(self) -> Iterator[Lengths]:
        for block in _blocks(self.prefix, self.draw):
            yield block.lengths[np.repeat(block.taken, block.counts)]

    def ends(self) -> Iterator[Offsets]:
        before = 0
        for block in _blocks(self.prefix, self.draw):
            ends = np.cumsum(block.counts[block.taken], dtype=np.int64) + before
            yield ends
            before = int(ends[-1])

    def copy(self, target: int, watcher: Watcher) -> str:
        digest = xxhash.xxh3_128()
        with open_bin(self.prefix) as source:
            for block in _blocks(self.prefix, self.draw):
                for data in _gather(source.fileno(), block.starts, block.stops, block.item_size):
                    write_all(target, data)
                    digest.update(memoryview(cast("bytes", data)))
                    watcher(Progress(source_bytes=data.nbytes))
        return f"xxh3_128:{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive documents, of which at least one is taken.

    Attributes:
        first: number of the first of them.
        taken: bool, which are taken.
        counts: int64, sequences of each.
        lengths: int32, tokens of each sequence.
        starts, stops: int64, bytes of those that are taken.
        item_size: bytes of a token.
    """

    first: int
    taken: npt.NDArray[np.bool_]
    counts: Offsets
    lengths: Lengths
    starts: Offsets
    stops: Offsets
    item_size: int


def _blocks(prefix: Path, draw: Choice) -> Iterator[_Block]:
    index = Index(idx_path(prefix))
    item_size = index.dtype.itemsize
    for first in range(0, index.num_documents, BLOCK_DOCUMENTS):
        last = min(first + BLOCK_DOCUMENTS, index.num_documents)
        taken = draw.chosen(first, last)
        if taken.any():
            bounds, lengths, places = read_documents(index, first, last)
            places = places * item_size + _byte(index, int(bounds[0]))
            yield _Block(first, taken, np.diff(bounds), lengths, places[:-1][taken], places[1:][taken], item_size)


def read_documents(index: Index, first: int, last: int) -> tuple[Offsets, Lengths, Offsets]:
    """Of documents [first, last): boundaries, lengths of the sequences, and tokens before each boundary."""
    bounds = index.read("document_indices", first, last + 1)
    lengths = index.read("sequence_lengths", int(bounds[0]), int(bounds[-1]))
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    return bounds, lengths, sums[bounds - bounds[0]]


def document_lengths(prefix: Path) -> Iterator[Offsets]:
    """int64 pieces: the tokens of all documents of a pair whose index is right."""
    index = Index(idx_path(prefix))
    for first in range(0, index.num_documents, BLOCK_DOCUMENTS):
        yield np.diff(read_documents(index, first, min(first + BLOCK_DOCUMENTS, index.num_documents))[2])


def _gather(source: int, starts: Offsets, stops: Offsets, item_size: int) -> Iterator[npt.NDArray[Any]]:
    """The bytes [starts, stops) of a file, joined, in pieces; the ranges are in order and hold whole tokens."""
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES) + 1
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(starts)], strict=True):
        for first in range(int(starts[low]), int(stops[high - 1]), READ_BYTES):
            size = min(READ_BYTES, int(stops[high - 1]) - first)
            found = os.pread(source, size, first)
            if len(found) != size:
                raise OSError(errno.EIO, f"the file ends at byte {first + len(found)}, expected {first + size}")
            data = np.frombuffer(found, f"<u{item_size}")
            edges = np.zeros(len(data) + 1, np.int8)
            np.add.at(edges, np.clip(starts[low:high] - first, 0, size) // item_size, 1)
            np.add.at(edges, np.clip(stops[low:high] - first, 0, size) // item_size, -1)
            yield data[np.cumsum(edges[:-1], dtype=np.int8).astype(bool)]


def write_pair(
    prefix: Path, dtype: str, selections: Sequence[Selection], watcher: Watcher
) -> tuple[AtomicFile, list[str | None]]:
    """Write a pair of some documents of others, all of this dtype.

    Returns:
        The index, closed, for its size and checksum; and for each selection what its `copy` returned.

    Raises:
        OutputError: the file system refuses, or an input ends early.
        FormatError: the index of an input was changed since its documents were selected.
    """
    path, checksums = bin_path(prefix), []
    with explain(path, "write"), path.open("xb", buffering=0) as target:
        for selection in selections:
            with explain(path, f"copy {bin_path(selection.prefix)} to"):
                checksums.append(selection.copy(target.fileno(), watcher))
        os.fsync(target.fileno())
    num_sequences = sum(selection.num_sequences for selection in selections)
    header = Header(CODES[dtype], num_sequences, sum(selection.num_documents for selection in selections) + 1)

    def lengths() -> Iterator[Lengths]:
        pieces = (_exactly(each.num_sequences, each.lengths(), each.prefix) for each in selections)
        return told(chain.from_iterable(pieces), watcher)

    with AtomicFile(idx_path(prefix)) as idx:
        write_index(idx, header, lengths, told(_ends(selections), watcher))
    return idx, checksums


def steps(selections: Iterable[Selection]) -> int:
    """What `write_pair` tells a watcher, all together: bytes copied, and bytes read to write the index."""
    return sum(each.num_bytes + 8 * each.num_sequences + 8 * each.num_documents for each in selections)


def told(pieces: Iterable[npt.NDArray[N]], watcher: Watcher) -> Iterator[npt.NDArray[N]]:
    """The same arrays; the watcher is told of their bytes."""
    for piece in pieces:
        watcher(Progress(source_bytes=piece.nbytes))
        yield piece


def _ends(selections: Sequence[Selection]) -> Iterator[Offsets]:
    """The document boundaries of all together."""
    before = 0
    yield np.zeros(1, np.int64)
    for selection in selections:
        for piece in _exactly(selection.num_documents, selection.ends(), selection.prefix):
            yield piece + before
        before += selection.num_sequences


def _exactly(number: int, pieces: Iterable[npt.NDArray[N]], prefix: Path) -> Iterator[npt.NDArray[N]]:
    """The same arrays, which together have so many elements.

    Raises:
        FormatError: they have not.
    """
    found = 0
    for piece in pieces:
        found += len(piece)
        yield piece
    if found != number:
        raise FormatError(f"{idx_path(prefix)} was changed meanwhile: {number:,} entries became {found:,}; run again")


def open_bin(prefix: Path) -> FileIO:
    """The ``.bin`` of a pair, unbuffered.

    Raises:
        FormatError: it cannot be read.
    """
    try:
        return bin_path(prefix).open("rb", buffering=0)
    except OSError as error:
        raise FormatError(f"cannot read {bin_path(prefix)}: {error.strerror}") from error


def stretches(prefix: Path, ends: Sequence[int], watcher: Watcher) -> tuple[list[str], str]:
    """Checksums of the stretches of a ``.bin`` that end at these bytes, in order, and of all of it, by one reading.

    Raises:
        FormatError: it cannot be read, or ends early.
    """
    whole, found, position = xxhash.xxh3_128(), [], 0
    view = memoryview(bytearray(COPY_BYTES))
    with open_bin(prefix) as file:
        for end in ends:
            part = xxhash.xxh3_128()
            while position < end:
                count = file.readinto(view[: min(COPY_BYTES, end - position)])
                if not count:
                    raise FormatError(f"{bin_path(prefix)} ends at byte {position}, expected {end}")
                whole.update(view[:count])
                part.update(view[:count])
                position += count
                watcher(Progress(source_bytes=count))
            found.append(f"xxh3_128:{part.hexdigest()}")
    return found, f"xxh3_128:{whole.hexdigest()}"
