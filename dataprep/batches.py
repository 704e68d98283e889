"""The two values that travel through the pipeline: flat values and offsets, never a list of lists.

    TextBatch    values  uint8[num_bytes]    offsets int64[n + 1]     n documents as UTF-8
    TokenBatch   ids     uint16|int32[...]   offsets int64[n + 1]     the same n documents as ids

Document ``i`` is ``values[offsets[i]:offsets[i + 1]]``; ``offsets [0, 3, 3, 7]`` says that document 1
is empty. Both are views of buffers that somebody else filled (Arrow, the engine): treat them as
read-only. Nothing here loops over documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    Bytes = npt.NDArray[np.uint8]
    Offsets = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reject:
    """A source record that could not become a document.

    Attributes:
        file: name of the source file, as in the listing.
        reason: a stable word: ``not-json``, ``not-an-object``, ``missing-text``, ``null-text``,
            ``text-not-a-string``, ``invalid-utf8``, ``lone-surrogate``, ``too-long``, ``corrupt-row-group``,
            ``special-text``.
        row: 0-based record number within the slice that was read; the runner adds the slice's first row.
        offset: byte offset of the record in the (decompressed) file, or -1 where a file has rows only.
        line: 0-based physical line within the slice that was read, blank lines counted, or -1 as for `offset`; the
            runner adds the lines before the slice.
        group: parquet row group or Arrow record batch, or -1.
        count: how many records this stands for: 1, or all rows of a corrupt row group.
        detail: what exactly was wrong.
        record: the record itself as far as it is kept, see `RECORD_BYTES`.
    """

    file: str
    reason: str
    row: int
    offset: int = -1
    line: int = -1
    group: int = -1
    count: int = 1
    detail: str = ""
    record: bytes = b""


ALL = slice(None)

RECORD_BYTES = 1 << 16
"""A reject keeps this many bytes of its record; the rest is found by file and byte offset."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a slice can be read on from, and what of it lies before.

    Attributes:
        offset: of the next record in the (decompressed) file.
        num_rows: records of the slice before it.
        num_lines: newlines of the slice before it.
        place: of a compressed file, a byte on disk at which decompression can begin; 0 otherwise. Which one of several
            is the decompressor's matter, so it is not compared.
        place_offset: which byte of the decompressed file is there; not behind `offset`.
    """

    offset: int
    num_rows: int
    num_lines: int
    place: int = field(default=0, compare=False)
    place_offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Some consecutive records of one source file.

    Attributes:
        file: name of the source file, as in the listing.
        values: uint8[num_bytes], UTF-8 that has been validated.
        offsets: int64[num_documents + 1], ``offsets[0]`` may be > 0.
        rows: int64[num_documents], the record number of each document within its slice, strictly
            increasing; None where it is simply ``first_row + arange(num_documents)``.
        first_row: record number, within the slice, of the first record this batch accounts for.
        num_rows: records this batch accounts for: documents, rejects, and nothing else. With `reader.group_rows`
            that holds for all of a slice, not for each batch: a document comes with the batch that ends its group.
        rejects: the records that are no documents.
        num_lines: newlines of the source this batch accounts for, 0 for column files; over the batches of a file
            they add up to all there are.
        num_source_bytes: bytes of source this batch stands for (progress only).
        cursor: what follows this batch, where a piece of the slice ends with it; None elsewhere.
        restart: True at the start of a row group; see `undo`.
        undo: True says that the row group read since the last `restart` turned out corrupt: forget
            its documents and rejects; this batch holds one reject for the whole of it instead.
        group_rows: `reader.group_rows`; the next two are None where it is 1.
        joined: int64[num_documents], records that went into each document beside its first.
        empty_rows: int64[...], the records without text that were left out of their groups, increasing.
    """

    values: Bytes
    offsets: Offsets
    first_row: int
    num_rows: int
    file: str = ""
    rows: Offsets | None = None
    rejects: tuple[Reject, ...] = ()
    num_lines: int = 0
    num_source_bytes: int = 0
    cursor: Cursor | None = None
    restart: bool = False
    undo: bool = False
    group_rows: int = 1
    joined: Offsets | None = None
    empty_rows: Offsets | None = None

    @classmethod
    def of(
        cls,
        texts: Sequence[bytes],
        first_row: int = 0,
        num_rows: int | None = None,
        rows: Sequence[int] | None = None,
        rejects: Sequence[Reject] = (),
    ) -> TextBatch:
        """Separate texts, copied: for few, or where each was looked at anyway.

        Args:
            texts: UTF-8.
            num_rows: None: as many as there are texts.
            rows: record number of each text; None: they count from `first_row`.
        """
        return cls(
            values=np.frombuffer(b"".join(texts), np.uint8),
            offsets=offsets_of([len(text) for text in texts]),
            first_row=first_row,
            num_rows=len(texts) if num_rows is None else num_rows,
            rows=None if rows is None else np.array(rows, np.int64),
            rejects=tuple(rejects),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Offsets:
        """int64[num_documents], bytes of each document."""
        return np.diff(self.offsets)

    @property
    def num_text_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return int(self.offsets[-1] - self.offsets[0])

    def row_numbers(self) -> Offsets:
        """int64[num_documents], the record number of each document within its slice."""
        if self.rows is not None:
            return self.rows
        return np.arange(self.first_row, self.first_row + len(self), dtype=np.int64)

    @property
    def num_empty(self) -> int:
        """Records without text that were left out of their groups."""
        return 0 if self.empty_rows is None else len(self.empty_rows)

    def num_joined(self, which: Mask | slice = ALL) -> int:
        """Records that went into these documents beside the first of each."""
        return 0 if self.joined is None else int(self.joined[which].sum())

    def document(self, i: int) -> bytes:
        """The UTF-8 bytes of document i, copied."""
        return self.values[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def select(self, keep: Mask, rejects: tuple[Reject, ...] = ()) -> TextBatch:
        """The documents where `keep` is True, copied.

        Args:
            keep: bool[num_documents].
            rejects: what became of the documents that go, unless they are dropped on purpose.
        """
        values, offsets = _select(self.values, self.offsets, keep)
        rows = self.row_numbers()[keep]
        joined = None if self.joined is None else self.joined[keep]
        return replace(self, values=values, offsets=offsets, rows=rows, joined=joined, rejects=self.rejects + rejects)

    def head(self, count: int) -> TextBatch:
        """The first documents, and only the records up to the last of them; lines and source bytes stay as they are.

        Of a group they are its records; those that came with an earlier batch were accounted for there.
        """
        rows = self.row_numbers()[:count]
        end = int(rows[-1]) // self.group_rows * self.group_rows + self.group_rows if count else self.first_row
        end = min(end, self.first_row + self.num_rows)
        rejects = tuple(
            replace(reject, count=min(reject.count, end - reject.row)) for reject in self.rejects if reject.row < end
        )
        return replace(
            self,
            offsets=self.offsets[: count + 1],
            rows=rows,
            num_rows=end - self.first_row,
            rejects=rejects,
            joined=None if self.joined is None else self.joined[:count],
            empty_rows=None if self.empty_rows is None else self.empty_rows[self.empty_rows < end],
        )

    def to_arrow(self) -> pa.LargeStringArray:
        """The same documents as an Arrow large_string array; no copy."""
        import pyarrow as pa

        return pa.LargeStringArray.from_buffers(len(self), pa.py_buffer(self.offsets), pa.py_buffer(self.values))


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Documents as token ids.

    Attributes:
        ids: uint32[num_tokens] from an engine; uint16 or int32 once the policy was applied.
        offsets: int64[num_documents + 1], ``offsets[0] == 0``.
    """

    ids: npt.NDArray[np.uint32] | npt.NDArray[np.uint16] | npt.NDArray[np.int32]
    offsets: Offsets

    @classmethod
    def of(cls, documents: Sequence[npt.ArrayLike]) -> TokenBatch:
        """The ids of separate documents as one batch of uint32, copied."""
        ids = np.concatenate([np.empty(0, np.uint32), *(np.asarray(one, np.uint32) for one in documents)])
        return cls(ids, offsets_of([len(one) for one in documents]))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Offsets:
        """int64[num_documents], tokens of each document."""
        return np.diff(self.offsets)

    def select(self, keep: Mask) -> TokenBatch:
        """The documents where `keep` is True, copied; bool[num_documents]."""
        return TokenBatch(*_select(self.ids, self.offsets, keep))

    def replace(self, where: Mask, others: TokenBatch) -> TokenBatch:
        """The same documents, but those where `where` is True taken from `others`, copied.

        Args:
            where: bool[num_documents].
            others: as many documents as `where` is True, of the same dtype, in order.
        """
        lengths = self.lengths
        lengths[where] = others.lengths
        offsets = offsets_of(lengths)
        ids = np.empty(int(offsets[-1]), self.ids.dtype)
        ours = np.repeat(~where, lengths)
        ids[ours] = self.select(~where).ids
        ids[~ours] = others.ids
        return TokenBatch(ids, offsets)

    def head(self, count: int) -> TokenBatch:
        """The first documents, as views."""
        offsets = self.offsets[: count + 1]
        return TokenBatch(self.ids[: int(offsets[-1])], offsets)


def offsets_of(lengths: npt.ArrayLike) -> Offsets:
    """Lengths of n documents -> where each begins and the last ends: int64[n + 1], the first 0."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _select(values: npt.NDArray[Any], offsets: Offsets, keep: Mask) -> tuple[npt.NDArray[Any], Offsets]:
    """The runs of `values` where `keep` is True, one after the other, and their offsets from 0."""
    lengths = np.diff(offsets)
    kept = offsets_of(lengths[keep])
    if len(kept) * 16 < len(keep):  # a handful of many: do not mask megabytes for them
        parts = [values[offsets[i] : offsets[i + 1]] for i in np.flatnonzero(keep)]
        return (np.concatenate(parts) if parts else values[:0]), kept
    return values[offsets[0] : offsets[-1]][np.repeat(keep, lengths)], kept
