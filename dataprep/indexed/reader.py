"""Reading a pair through memory maps; numpy only."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from dataprep.errors import FormatError
from dataprep.indexed.header import CHUNK, HEADER, bin_path, idx_path, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dataprep.batches import Offsets


Field = Literal["sequence_lengths", "sequence_pointers", "document_indices"]


class Index:
    """What an ``.idx`` says, through a memory map; there need be no ``.bin``. For its attributes see `IndexedDataset`.

    Raises:
        FormatError: missing, or not what it claims to be.
    """

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self._file = _Mapped(path)
        raw = self._file.data
        n, d = header.num_sequences, header.num_boundaries
        self.path = path
        self.dtype = header.dtype
        self.sequence_lengths = np.frombuffer(raw, "<i4", n, HEADER.size)
        self.sequence_pointers = np.frombuffer(raw, "<i8", n, HEADER.size + 4 * n)
        self.document_indices = np.frombuffer(raw, "<i8", d, HEADER.size + 12 * n)
        self.num_documents = max(0, d - 1)

    def read(self, field: Field, start: int, stop: int) -> npt.NDArray[Any]:
        """Elements [start, stop) of one of the three arrays, cut at its end, read and not mapped: a copy.

        A mapped page counts as memory of the process for as long as the map lives; a pass over a large index reads.

        Raises:
            FormatError: the file has become shorter.
        """
        whole: npt.NDArray[Any] = getattr(self, field)
        start, stop = min(start, len(whole)), min(stop, len(whole))
        position = HEADER.size + {"sequence_lengths": 0, "sequence_pointers": 4, "document_indices": 12}[field] * len(
            self.sequence_lengths
        )
        found = np.fromfile(self.path, whole.dtype, stop - start, offset=position + start * whole.itemsize)
        if len(found) != stop - start:
            raise FormatError(f"{self.path}: expected {field} up to {stop}, found an end after {start + len(found)}")
        return found

    def check(self) -> None:
        """See that all of the file is still there; the three arrays reach to its end.

        Raises:
            FormatError: it has become shorter.
        """
        self._file.check()

    def __reduce__(self) -> tuple[type[Index], tuple[Path]]:
        return type(self), (self.path,)

    def chunks(self, field: Field) -> Iterator[npt.NDArray[Any]]:
        """One of the three arrays, `CHUNK` elements at a time; see `read`."""
        for start in range(0, len(getattr(self, field)), CHUNK):
            yield self.read(field, start, start + CHUNK)

    def length_chunks(self) -> Iterator[Offsets]:
        """The lengths of all documents, int64[<= CHUNK] at a time; see `document_lengths`."""
        for start in range(0, self.num_documents, CHUNK):
            yield self.document_lengths(start, min(start + CHUNK, self.num_documents))

    def document_lengths(self, start: int, stop: int) -> Offsets:
        """int64[stop - start], tokens of documents [start, stop); 0 for a boundary without a sequence.

        Raises:
            FormatError: the boundaries are broken, or the file has become shorter.
        """
        self.check()
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
    views and stay valid after the dataset is gone. A dataset is pickled as its prefix and opened again.

    Published files never change; should somebody cut one short while it is open (as a writer that starts anew at the
    same prefix does), the next access raises. To touch a view from before then is to die by SIGBUS, as with any map.

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
        self._file = _Mapped(bin_path(self.prefix))
        data = self._file.data
        if data.nbytes % self.dtype.itemsize:
            raise FormatError(
                f"{bin_path(self.prefix)}: {data.nbytes} bytes are not a whole number of {self.dtype.name}"
            )
        self.tokens = data.view(self.dtype)
        self.num_tokens = len(self.tokens)

    def __len__(self) -> int:
        return len(self.sequence_lengths)

    def __reduce__(self) -> tuple[type[IndexedDataset], tuple[Path]]:
        return type(self), (self.prefix,)

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
            FormatError: the index points outside the ``.bin``, or one of the two has become shorter.
        """
        self.index.check()
        self._file.check()
        if isinstance(index, slice):
            return [self._sequence(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        return self._sequence(index)

    def _sequence(self, index: int) -> npt.NDArray[Any]:
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
            FormatError: see `__getitem__`.
        """
        self.index.check()
        if not 0 <= i < self.num_documents:
            raise IndexError(f"document {i} of {self.num_documents}")
        parts = self[int(self.document_indices[i]) : int(self.document_indices[i + 1])]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def document_lengths(self, start: int, stop: int) -> Offsets:
        """int64[stop - start], tokens of documents [start, stop); 0 for a boundary without a sequence."""
        return self.index.document_lengths(start, stop)


class _Mapped:
    """A file mapped for reading, as uint8[its size]; an array made of it keeps the map alive, and nothing else ends it.

    Raises:
        FormatError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                # An empty file cannot be mapped.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.seek(0, 2) else None
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        self.data: npt.NDArray[np.uint8] = np.frombuffer(b"" if self._map is None else self._map, np.uint8)

    def check(self) -> None:
        """Ask how long the file is now (0.5 us): a mapped byte that is no more kills the process that touches it.

        Raises:
            FormatError: it has become shorter.
        """
        if self._map is not None and self._map.size() < len(self.data):
            raise FormatError(
                f"{self._path}: expected {len(self.data)} bytes, as when it was opened, found {self._map.size()}"
            )
