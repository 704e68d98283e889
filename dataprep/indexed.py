r"""The indexed dataset: Megatron's ``.bin``/``.idx`` pair. This docstring is the byte specification.

``.bin`` is the tokens, little-endian, one after the other, nothing else. ``.idx``, little-endian, unaligned:

    offset           bytes  field
    0                9      magic ``MMIDIDX\0\0``
    9                8      u64 version, 1
    17               1      u8 dtype code: uint8 1, int8 2, int16 3, int32 4, int64 5, float64 6, float32 7, uint16 8
    18               8      u64 n, number of sequences
    26               8      u64 d, number of document boundaries = documents + 1
    34               4 n    int32 sequence_lengths: tokens per sequence
    34 + 4 n         8 n    int64 sequence_pointers: BYTE position in the .bin; exclusive sum of lengths * item size
    34 + 12 n        8 d    int64 document_indices: the sequence each document starts at; first 0, last n
    34 + 12 n + 8 d  n      int8 sequence_modes, only multimodal data; nothing in the header says so

Source: Megatron-LM d98e8a64, megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `_IndexReader`.
The names `sequence_lengths`, `sequence_pointers` and `document_indices` are Megatron's.

We write exactly one sequence per document; a document without tokens is a boundary without a sequence.
Example, int32, documents [7 8] [] [9]: lengths [2 1], pointers [0 8], boundaries [0 1 1 2], .bin 12 bytes.

Limits: a sequence holds at most 2**31 - 1 tokens (int32); a prefix should hold fewer than 2**31 sequences
(Megatron's sample index is int32). The writer keeps nothing per document in memory.

Not here: whether a pair is *right* (`stages.verify`).
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np

from dataprep.errors import EncodeError, FormatError
from dataprep.storage import AtomicFile, explain, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dataprep.batches import Offsets, TokenBatch

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
CODES = {np.dtype(kind).name: code for code, kind in DTYPES.items()}
CHUNK = 1 << 20
"""Documents handled at a time while an index is written or merged: 4 to 8 MiB."""


def bin_path(prefix: Path) -> Path:
    """``prefix.bin``; a dot inside the prefix's name is no suffix."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """``prefix.idx``."""
    return prefix.with_name(f"{prefix.name}.idx")


@dataclass(frozen=True, slots=True)
class Header:
    """The first 34 bytes of an ``.idx``.

    Attributes:
        code: dtype code as found, known or not.
        num_sequences: n.
        num_boundaries: d, documents + 1.
    """

    code: int
    num_sequences: int
    num_boundaries: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self.code]).newbyteorder("<")

    @property
    def num_bytes(self) -> int:
        """Size of an index without modes."""
        return HEADER.size + 12 * self.num_sequences + 8 * self.num_boundaries

    def pack(self) -> bytes:
        return HEADER.pack(MAGIC, VERSION, self.code, self.num_sequences, self.num_boundaries)


def read_header(path: Path) -> Header:
    """Read and check the header of an ``.idx``.

    Raises:
        FormatError: missing, too short, wrong magic, version or dtype code, or a size that the counts exclude.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        size = path.stat().st_size
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    if len(head) < HEADER.size:
        raise FormatError(f"{path}: expected a header of {HEADER.size} bytes, found a file of {len(head)}")
    magic, version, code, sequences, boundaries = HEADER.unpack(head)
    if magic[:8] == b"TNTIDX\x00\x00":
        raise FormatError(
            f"{path}: expected {MAGIC!r}, found TNTIDX, the old 'lazy' or 'cached' format; rebuild it from the text"
        )
    if magic != MAGIC:
        raise FormatError(f"{path}: byte 0: expected {MAGIC!r}, found {magic!r}; this is not a Megatron index")
    if version != VERSION:
        raise FormatError(f"{path}: byte 9: expected version {VERSION}, found {version}")
    if code in (9, 10):
        raise FormatError(
            f"{path}: byte 17: dtype code {code} is fairseq's uint{32 if code == 9 else 64}; Megatron cannot read it"
        )
    if code not in DTYPES:
        raise FormatError(f"{path}: byte 17: expected a dtype code of 1 to 8, found {code}")
    header = Header(code, sequences, boundaries)
    if size not in (header.num_bytes, header.num_bytes + sequences):
        if size == 26 + 12 * sequences:
            raise FormatError(f"{path}: fairseq's layout (no document boundaries); Megatron cannot read it")
        raise FormatError(
            f"{path}: expected {header.num_bytes} bytes for {sequences} sequences and {boundaries} boundaries, "
            f"found {size}"
        )
    return header


class Index:
    """What an ``.idx`` says, through a memory map; there need be no ``.bin``. For its attributes see `IndexedDataset`.

    Raises:
        FormatError: missing, or not what it claims to be.
    """

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        raw = _map(path)
        n, d = header.num_sequences, header.num_boundaries
        self.path = path
        self.dtype = header.dtype
        self.sequence_lengths = np.frombuffer(raw, "<i4", n, HEADER.size)
        self.sequence_pointers = np.frombuffer(raw, "<i8", n, HEADER.size + 4 * n)
        self.document_indices = np.frombuffer(raw, "<i8", d, HEADER.size + 12 * n)
        self.num_documents = max(0, d - 1)

    def document_lengths(self, start: int, stop: int) -> Offsets:
        """int64[stop - start], tokens of documents [start, stop); 0 for a boundary without a sequence."""
        bounds = self.document_indices[start : stop + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        if first < 0 or last > len(self.sequence_lengths) or (np.diff(bounds) < 0).any():
            prefix = self.path.with_suffix("")
            raise FormatError(f"{prefix}: the document boundaries are broken; run: dataprep verify {prefix}")
        ends = np.zeros(last - first + 1, dtype=np.int64)
        np.cumsum(self.sequence_lengths[first:last], out=ends[1:])
        lengths: Offsets = np.diff(ends[bounds - first])
        return lengths


class IndexedDataset:
    """Reads a pair through memory maps; numpy only.

    ``len(ds)`` and ``ds[i]`` count sequences, as Megatron does; for what dataprep writes, and for any
    document-level dataset without empty documents, that is the same as documents. Arrays are read-only
    views and stay valid after the dataset is gone.

    Attributes:
        prefix: path without ``.bin``.
        dtype: of the tokens.
        sequence_lengths: int32[n].
        sequence_pointers: int64[n], bytes.
        document_indices: int64[documents + 1].
        num_documents: boundaries without a sequence among them.
        tokens: dtype[num_tokens], the whole ``.bin``.

    Raises:
        FormatError: on opening, if either file is missing or cannot be what it claims; `dataprep verify` says more.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = Path(prefix)
        self.index = Index(idx_path(self.prefix))
        self.dtype = self.index.dtype
        self.sequence_lengths = self.index.sequence_lengths
        self.sequence_pointers = self.index.sequence_pointers
        self.document_indices = self.index.document_indices
        self.num_documents = self.index.num_documents
        data = _map(bin_path(self.prefix))
        if data.nbytes % self.dtype.itemsize:
            raise FormatError(
                f"{bin_path(self.prefix)}: {data.nbytes} bytes are not a whole number of {self.dtype.name}"
            )
        self.tokens = data.view(self.dtype)
        self.num_tokens = len(self.tokens)

    def __len__(self) -> int:
        return len(self.sequence_lengths)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """int32[n], tokens of each sequence; Megatron's `sequence_lengths`."""
        return self.sequence_lengths

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[npt.NDArray[Any]]: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """One sequence as a view, or a list of them for a slice.

        Raises:
            IndexError: no such sequence.
            FormatError: the index points outside the ``.bin``.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        start, remainder = divmod(int(self.sequence_pointers[index]), self.dtype.itemsize)
        stop = start + int(self.sequence_lengths[index])
        if remainder or start < 0 or stop < start or stop > len(self.tokens):
            raise FormatError(
                f"{self.prefix}: sequence {index} lies outside the .bin; run: dataprep verify {self.prefix}"
            )
        return self.tokens[start:stop]

    def document(self, i: int) -> npt.NDArray[Any]:
        """All tokens of document i, a view where it is one sequence (as in all we write), else a copy.

        Raises:
            IndexError: no such document.
        """
        if not 0 <= i < self.num_documents:
            raise IndexError(f"document {i} of {self.num_documents}")
        parts = self[int(self.document_indices[i]) : int(self.document_indices[i + 1])]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def document_lengths(self, start: int, stop: int) -> Offsets:
        """int64[stop - start], tokens of documents [start, stop); 0 for a boundary without a sequence."""
        return self.index.document_lengths(start, stop)


def _map(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error


class IndexWriter:
    """Collects document lengths in an unnamed scratch file and writes the ``.idx`` from them.

    Args:
        folder: where the scratch file goes; it never has a name and vanishes with the process.
    """

    def __init__(self, folder: Path) -> None:
        with explain(folder, "create a scratch file in"):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._folder = folder
        self.num_documents = 0
        self.num_sequences = 0
        self.num_tokens = 0

    def add(self, lengths: Offsets) -> None:
        """Append int64[k] document lengths in tokens; 0 is a boundary without a sequence.

        Raises:
            EncodeError: a document is longer than 2**31 - 1 tokens.
        """
        if len(lengths) and int(lengths.max()) > 2**31 - 1:
            raise EncodeError(f"a document of {int(lengths.max())} tokens: the index holds at most {2**31 - 1}")
        with explain(self._folder, "write a scratch file in"):
            write_all(self._file.fileno(), lengths.astype("<i4"))
        self.num_documents += len(lengths)
        self.num_sequences += int(np.count_nonzero(lengths))
        self.num_tokens += int(lengths.sum())

    def add_index(self, index: Index) -> None:
        """Append all documents of an ``.idx``."""
        for start in range(0, index.num_documents, CHUNK):
            self.add(index.document_lengths(start, min(start + CHUNK, index.num_documents)))

    def truncate(self, num_documents: int, num_sequences: int, num_tokens: int) -> None:
        """Forget all documents but the first; the counts are what they were then."""
        with explain(self._folder, "cut a scratch file in"):
            os.ftruncate(self._file.fileno(), 4 * num_documents)
            self._file.seek(4 * num_documents)
        self.num_documents, self.num_sequences, self.num_tokens = num_documents, num_sequences, num_tokens

    def chunks(self) -> Iterator[npt.NDArray[np.int32]]:
        """The lengths again, int32[<= CHUNK] at a time."""
        for start in range(0, self.num_documents, CHUNK):
            count = min(CHUNK, self.num_documents - start)
            yield np.frombuffer(os.pread(self._file.fileno(), 4 * count, 4 * start), "<i4")

    def write(self, file: AtomicFile, dtype: str) -> None:
        """Write the whole ``.idx`` for tokens of this dtype ("uint16" or "int32")."""
        item_size = np.dtype(dtype).itemsize
        file.write(Header(CODES[dtype], self.num_sequences, self.num_documents + 1).pack())
        for lengths in self.chunks():
            file.write(lengths[lengths > 0])
        position = 0
        for lengths in self.chunks():
            ends = np.cumsum(lengths[lengths > 0], dtype=np.int64) * item_size + position
            if len(ends):
                file.write(np.concatenate([[position], ends[:-1]]).astype("<i8"))
                position = int(ends[-1])
        sequence = 0
        file.write(np.zeros(1, "<i8"))
        for lengths in self.chunks():
            ends = np.cumsum(lengths > 0, dtype=np.int64) + sequence
            file.write(ends.astype("<i8"))
            sequence = int(ends[-1])

    def close(self) -> None:
        self._file.close()


class IndexedWriter:
    """Writes one pair: the ``.bin`` as it comes, the ``.idx`` on `commit`; neither has its name before.

    Use as a context manager: what was not committed is removed.

    Args:
        prefix: path of the pair without suffix.
        dtype: "uint16" or "int32".
        durable: see `AtomicFile`.

    Raises:
        OutputError: the file system refuses.
    """

    def __init__(self, prefix: Path, dtype: Literal["uint16", "int32"], durable: bool = True) -> None:
        self.prefix = prefix
        self.dtype = dtype
        self.durable = durable
        self.bin = AtomicFile(bin_path(prefix), durable)
        with contextlib.ExitStack() as stack:
            stack.callback(self.bin.discard)
            self.index = IndexWriter(prefix.parent)
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
        self.index.truncate(*mark.counts)

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
