"""Writing a pair: the ``.bin`` as it comes, the ``.idx`` from lengths kept in a scratch file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, Self

import numpy as np

from dataprep.errors import EncodeError
from dataprep.indexed.header import CHUNK, CODES, Header, bin_path, idx_path
from dataprep.storage import AtomicFile, explain, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.batches import Offsets, TokenBatch


def write_index(
    file: AtomicFile,
    header: Header,
    lengths: Callable[[], Iterable[npt.NDArray[np.int32]]],
    boundaries: Iterable[Offsets],
) -> None:
    """Write a whole ``.idx`` from arrays that come in pieces of any size; the pointers follow from the lengths.

    Args:
        file: where to.
        header: its counts are those of all pieces together.
        lengths: gives the sequence lengths, int32, from the start; called twice.
        boundaries: the document boundaries, int64, the first 0 among them.
    """
    item_size = header.dtype.itemsize
    file.write(header.pack())
    for piece in lengths():
        file.write(piece.astype("<i4", copy=False))
    position = num_sequences = num_boundaries = 0
    for piece in lengths():
        ends = np.cumsum(piece, dtype=np.int64) * item_size + position
        if len(ends):
            file.write(np.concatenate([[position], ends[:-1]]).astype("<i8"))
            position = int(ends[-1])
            num_sequences += len(ends)
    for bounds in boundaries:
        file.write(bounds.astype("<i8", copy=False))
        num_boundaries += len(bounds)
    assert (num_sequences, num_boundaries) == (header.num_sequences, header.num_boundaries)


class IndexWriter:
    """Collects document lengths in a scratch file and writes the ``.idx`` from them.

    Args:
        folder: where the scratch file goes.
        empty_sequences: a document without tokens is a sequence without tokens, not a boundary without a sequence.
        name: of the scratch file, which outlives the process then, for `move` to go on with; None: it never has a name
            and vanishes with the process.
    """

    def __init__(self, folder: Path, empty_sequences: bool = False, name: str | None = None) -> None:
        self._shortest = 0 if empty_sequences else 1
        with explain(folder, "create a scratch file in"):
            if name is None:
                self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            else:
                self._file = open(os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)  # noqa: SIM115
        self._folder = folder
        self.num_documents = 0
        self.num_sequences = 0
        self.num_tokens = 0

    def add(self, lengths: Offsets) -> None:
        """Append int64[k] document lengths in tokens.

        Raises:
            EncodeError: a document is longer than 2**31 - 1 tokens.
        """
        if len(lengths) and int(lengths.max()) > 2**31 - 1:
            raise EncodeError(f"a document of {int(lengths.max())} tokens: the index holds at most {2**31 - 1}")
        with explain(self._folder, "write a scratch file in"):
            write_all(self._file.fileno(), lengths.astype("<i4"))
        self.num_documents += len(lengths)
        self.num_sequences += int(np.count_nonzero(lengths >= self._shortest))
        self.num_tokens += int(lengths.sum())

    def move(self, num_documents: int, num_sequences: int, num_tokens: int) -> None:
        """Go on behind the first so many documents; the counts are what they were then.

        What the file holds behind them stays, and is written over: nothing that may still have it open is to find
        itself behind its end.
        """
        with explain(self._folder, "go back in a scratch file in"):
            self._file.seek(4 * num_documents)
        self.num_documents, self.num_sequences, self.num_tokens = num_documents, num_sequences, num_tokens

    def chunks(self, documents: tuple[int, int] | None = None) -> Iterator[npt.NDArray[np.int32]]:
        """The lengths again, int32[<= CHUNK] at a time, of all documents or of [start, stop)."""
        first, stop = documents or (0, self.num_documents)
        for start in range(first, stop, CHUNK):
            count = min(CHUNK, stop - start)
            yield np.frombuffer(os.pread(self._file.fileno(), 4 * count, 4 * start), "<i4")

    def write(self, file: AtomicFile, dtype: str, documents: tuple[int, int] | None = None) -> None:
        """Write the whole ``.idx`` for tokens of this dtype ("uint16" or "int32").

        Args:
            file: where to.
            dtype: of the tokens.
            documents: [start, stop) of those that are in it; None: all.
        """
        span = documents or (0, self.num_documents)
        num_sequences = self.num_sequences
        if documents is not None:
            num_sequences = sum(int(np.count_nonzero(some >= self._shortest)) for some in self.chunks(span))
        write_index(
            file,
            Header(CODES[dtype], num_sequences, span[1] - span[0] + 1),
            lambda: (lengths[lengths >= self._shortest] for lengths in self.chunks(span)),
            self._boundaries(span),
        )

    def _boundaries(self, documents: tuple[int, int]) -> Iterator[Offsets]:
        sequence = 0
        yield np.zeros(1, np.int64)
        for lengths in self.chunks(documents):
            ends: Offsets = np.cumsum(lengths >= self._shortest, dtype=np.int64) + sequence
            yield ends
            sequence = int(ends[-1])

    def sync(self) -> None:
        """Make a named scratch file durable."""
        with explain(self._folder, "write a scratch file in"):
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class IndexedWriter:
    """Writes one pair: the ``.bin`` as it comes, the ``.idx`` on `commit`; neither has its name before.

    Use as a context manager: what was not committed is removed.

    Args:
        prefix: path of the pair without suffix.
        dtype: "uint16" or "int32".
        durable: see `AtomicFile`.
        empty_sequences: see `IndexWriter`.

    Raises:
        OutputError: the file system refuses.
    """

    def __init__(
        self, prefix: Path, dtype: Literal["uint16", "int32"], durable: bool = True, empty_sequences: bool = False
    ) -> None:
        self.prefix = prefix
        self.dtype = dtype
        self.durable = durable
        self.bin = AtomicFile(bin_path(prefix), durable)
        with contextlib.ExitStack() as stack:
            stack.callback(self.bin.discard)
            self.index = IndexWriter(prefix.parent, empty_sequences)
            stack.pop_all()

    def append(self, batch: TokenBatch) -> None:
        """Append documents whose ids have the dtype already."""
        assert batch.ids.dtype.name == self.dtype
        self.bin.write(batch.ids)
        self.index.add(batch.lengths)

    def mark(self) -> Mark:
        """A point to come back to."""
        return Mark(self.bin.mark(), (self.index.num_documents, self.index.num_sequences, self.index.num_tokens))

    def undo(self, mark: Mark) -> None:
        """Forget what was appended since the mark."""
        self.bin.undo(mark.bin)
        self.index.move(*mark.counts)

    def rename(self, prefix: Path) -> None:
        """Be called otherwise once it is committed, in the same folder."""
        self.prefix, self.bin.path = prefix, bin_path(prefix)

    def commit(self) -> AtomicFile:
        """Give both files their names, the ``.idx`` last; returns the closed ``.idx`` for its size and checksum."""
        self.bin.commit()
        with AtomicFile(idx_path(self.prefix), self.durable) as idx:
            self.index.write(idx, self.dtype)
        return idx

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bin.discard()
        self.index.close()


@dataclass(frozen=True, slots=True)
class Mark:
    """A state of an `IndexedWriter`: of its ``.bin``, and the counts of its index."""

    bin: tuple[int, Any]
    counts: tuple[int, int, int]
