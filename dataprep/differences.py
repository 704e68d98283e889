"""Where two pairs part: the first document that differs, how many do, and whether the same ones lie elsewhere.

Two pairs are the same if they hold the same documents in the same order, cut into the same sequences, whatever the
dtype of their ids. That is told by comparing all of both, and not by the checksums that manifests state: a copy that
was damaged has the manifest of the original.

1. The indices are compared in step, up to the first document with another length or other sequences.
2. The ids are compared up to there, or to the first that differs: all of them, if the pairs are the same.
3. All documents from the first that differs on are hashed, 8 bytes for each: how many differ in place, and how many are
   in one of both only. Among a billion documents two that differ have one hash with a probability of 3 %.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import xxhash

from dataprep.definitions import define, load
from dataprep.errors import DataprepError, FormatError
from dataprep.indexed import CHUNK, Index, bin_path, idx_path
from dataprep.inspection.decoding import Decoder
from dataprep.inspection.provenance import source_of
from dataprep.manifest import is_of, readable_manifest
from dataprep.prefixes import find_prefix
from dataprep.reshaping.inputs import HARMLESS, index_problem
from dataprep.reshaping.parting import Places
from dataprep.reshaping.selections import BLOCK_DOCUMENTS, open_bin, read_documents
from dataprep.storage import COPY_BYTES
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from typing import BinaryIO

    import numpy.typing as npt

    from dataprep.definitions import Definition
    from dataprep.indexed.reader import Field
    from dataprep.watcher import Watcher

    Hashes = npt.NDArray[np.uint64]

BEFORE, AFTER = 8, 16
"""Ids that are shown: so many before the first that differs, and so many from it on."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The document at which two pairs part, in one of them.

    Attributes:
        num_tokens: of the document.
        start: number of the first id that is shown, in the document.
        ids: around the first that differs.
        text: the same decoded, where a tokenizer is known.
        file, first_row, last_row: where the document is from, as far as a manifest knows.
    """

    num_tokens: int
    start: int
    ids: tuple[int, ...]
    text: str | None
    file: str | None
    first_row: int | None
    last_row: int | None


@dataclass(frozen=True, slots=True)
class First:
    """Where two pairs part.

    Attributes:
        document: its number, in both.
        token: the first id that differs, counted in the document; None if the ids are the same and only cut into
            other sequences.
        a, b: the document in both; None in one that ended before.
    """

    document: int
    token: int | None
    a: Excerpt | None
    b: Excerpt | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What two pairs have in common.

    Attributes:
        relation: ``same``; ``beginning``: the shorter is what the other begins with; ``reordered``: the same documents
            in another order; ``different``.
        a, b: prefix, dtype and counts of both.
        first: where they part, unless they are the same.
        num_differing: documents that are not the same as the one of their number in the other pair, which has one.
        num_only_a, num_only_b: documents that are nowhere in the other pair, each as often as it is there too often.
    """

    relation: Literal["same", "beginning", "reordered", "different"]
    a: dict[str, Any]
    b: dict[str, Any]
    first: First | None = None
    num_differing: int = 0
    num_only_a: int = 0
    num_only_b: int = 0

    @property
    def same(self) -> bool:
        """The same documents in the same order; their dtypes may differ."""
        return self.relation == "same"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"same": self.same, **asdict(self)}


class _Side:
    """One of the two pairs; its index is right.

    Raises:
        FormatError: it is not.
    """

    def __init__(self, name: str | Path) -> None:
        self.prefix = find_prefix(name)
        problem = index_problem(self.prefix, {*HARMLESS, "manifest"})
        if problem is not None:
            raise FormatError(f"{self.prefix} is broken: {problem}. Look closer with: dataprep verify {self.prefix}")
        self.index = Index(idx_path(self.prefix))
        self.dtype = self.index.dtype
        self.place = Places(self.prefix)
        self.num_documents = self.index.num_documents
        self.manifest, _ = readable_manifest(self.prefix)  # it is not needed to compare

    def counts(self) -> dict[str, Any]:
        return {
            "prefix": str(self.prefix),
            "dtype": self.dtype.name,
            "num_documents": self.num_documents,
            "num_sequences": len(self.index.sequence_lengths),
            "num_tokens": self.place.num_tokens,
        }

    def blocks(self, start: int, count: int) -> Iterator[npt.NDArray[Any]]:
        """Ids [start, start + count), in pieces that the next one overwrites."""
        size = COPY_BYTES // 8  # the same count for all dtypes
        buffer = np.empty(size, self.dtype)
        with open_bin(self.prefix) as file:
            file.seek(start * self.dtype.itemsize)
            while count:
                wanted = buffer[: min(size, count)]
                _fill(file, memoryview(cast("bytes", wanted)).cast("B"))
                yield wanted
                count -= len(wanted)


def _fill(file: FileIO, view: memoryview) -> None:
    while view:
        found = file.readinto(view)
        if not found:
            raise FormatError(f"{file.name} ended early; was it changed meanwhile?")
        view = view[found:]


def diff(a: str | Path, b: str | Path, tokenizer: str | None = None, watcher: Watcher | None = None) -> Difference:
    """Compare two pairs, document by document.

    Args:
        a, b: their prefixes.
        tokenizer: decodes what is shown; None: that of the manifests, if there are any.
        watcher: is told how it gets on.

    Raises:
        SpecError: no such pair or tokenizer.
        FormatError: one of them is broken.
    """
    watcher = watcher or Silent()
    definition = _named(tokenizer) if tokenizer is not None else None
    one, other = _Side(a), _Side(b)
    counts = one.counts(), other.counts()
    shorter = min(one.num_documents, other.num_documents)
    to_read = sum(4 * len(side.index.sequence_lengths) + 8 * side.num_documents for side in (one, other))
    watcher.stage("compare the indices", to_read)
    document = _first_uneven(one, other, watcher)
    num_even = one.place(document)
    watcher.stage("compare", num_even * (one.dtype.itemsize + other.dtype.itemsize))
    token = _first_unequal(one, other, (0, 0), num_even, watcher)
    if token < num_even:
        document = one.place.last_at(token)
    elif document == one.num_documents == other.num_documents:
        return Difference("same", *counts)
    first = _first(one, other, document, definition)
    if document == shorter:
        return Difference("beginning", *counts, first, 0, one.num_documents - shorter, other.num_documents - shorter)
    left = _left(one, document) + _left(other, document)
    watcher.stage("hash", left)
    dtype = None if one.dtype == other.dtype else np.promote_types(one.dtype, other.dtype)
    hashes, others = (_hashes(side, document, dtype, watcher) for side in (one, other))
    both = min(len(hashes), len(others))
    num_differing = int(np.count_nonzero(hashes[:both] != others[:both]))
    hashes.sort()
    others.sort()
    shared = _num_shared(hashes, others)
    only = len(hashes) - shared, len(others) - shared
    return Difference("different" if any(only) else "reordered", *counts, first, num_differing, *only)


def _left(side: _Side, document: int) -> int:
    """Bytes from a document on."""
    return (side.place.num_tokens - side.place(document)) * side.dtype.itemsize


def _first_uneven(one: _Side, other: _Side, watcher: Watcher) -> int:
    """The first document of another length or of other sequences; the number of those of the shorter without one."""
    sequence = _first_unequal_number(one.index, other.index, "sequence_lengths", watcher)
    boundary = _first_unequal_number(one.index, other.index, "document_indices", watcher)
    of_sequence = bisect_right(one.index.document_indices, sequence) - 1
    return min(one.num_documents, other.num_documents, boundary - 1, of_sequence)


def _first_unequal_number(one: Index, other: Index, field: Field, watcher: Watcher) -> int:
    """The first place at which two arrays differ, or the end of the shorter."""
    length = min(len(getattr(one, field)), len(getattr(other, field)))
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        numbers, others = one.read(field, start, stop), other.read(field, start, stop)
        if not np.array_equal(numbers, others):
            return start + int(np.flatnonzero(numbers != others)[0])
        watcher(Progress(source_bytes=numbers.nbytes + others.nbytes))
    return length


def _first_unequal(one: _Side, other: _Side, starts: tuple[int, int], count: int, watcher: Watcher) -> int:
    """How many ids are equal from these places on, of `count`."""
    done = 0
    for ids, others in zip(one.blocks(starts[0], count), other.blocks(starts[1], count), strict=True):
        if not np.array_equal(ids, others):
            return done + int(np.flatnonzero(ids != others)[0])
        done += len(ids)
        watcher(Progress(source_bytes=ids.nbytes + others.nbytes))
    return done


def _first(one: _Side, other: _Side, document: int, definition: Definition | None) -> First:
    """What is to be shown of the document at which two pairs part."""
    sides = [side if document < side.num_documents else None for side in (one, other)]
    token: int | None = 0
    if all(sides):
        starts = one.place(document), other.place(document)
        lengths = one.place(document + 1) - starts[0], other.place(document + 1) - starts[1]
        token = _first_unequal(one, other, starts, min(lengths), Silent())
        token = None if token == lengths[0] == lengths[1] else token
    definitions = [definition or _of_manifest(side) for side in (one, other)]
    known = next((each for each in definitions if each is not None), None)
    excerpts = [
        _excerpt(side, document, token or 0, own or known) if side is not None else None
        for side, own in zip(sides, definitions, strict=True)
    ]
    return First(document, token, *excerpts)


def _excerpt(side: _Side, document: int, token: int, definition: Definition | None) -> Excerpt:
    place, stop = side.place(document), side.place(document + 1)
    start = max(0, token - BEFORE)
    blocks = side.blocks(place + start, min(token + AFTER, stop - place) - start)
    ids = tuple(i for block in blocks for i in block.tolist())
    text = Decoder(definition).text(list(ids)) if definition is not None else None
    known = side.manifest is not None and is_of(side.manifest, side.prefix)
    found = source_of(side.manifest, document) if side.manifest is not None and known else None
    if found is None:
        return Excerpt(stop - place, start, ids, text, None, None, None)
    return Excerpt(stop - place, start, ids, text, found["file"], found["first_row"], found["last_row"])


def _named(tokenizer: str) -> Definition:
    from dataprep.catalog import find_tokenizer

    spec, place = find_tokenizer(tokenizer, {})
    return define(spec.type, place, spec.merges)


def _of_manifest(side: _Side) -> Definition | None:
    """The tokenizer that a manifest names, if it is still there."""
    if side.manifest is not None and side.manifest.tokenizer is not None:
        with contextlib.suppress(DataprepError):
            return load(side.manifest.tokenizer)
    return None


def _hashes(side: _Side, start: int, dtype: np.dtype[Any] | None, watcher: Watcher) -> Hashes:
    """uint64 of each document from `start` on: of its ids, as this dtype, and of how it is cut into sequences."""
    found = np.empty(side.num_documents - start, np.uint64)
    size = side.dtype.itemsize
    with bin_path(side.prefix).open("rb", buffering=COPY_BYTES) as file:
        file.seek(side.place(start) * size)
        for first in range(start, side.num_documents, BLOCK_DOCUMENTS):
            last = min(first + BLOCK_DOCUMENTS, side.num_documents)
            bounds, lengths, places = read_documents(side.index, first, last)
            sizes = np.diff(places) * size
            ids = (_hash(file, num_bytes, side.dtype, dtype) for num_bytes in sizes.tolist())
            hashes = np.fromiter(ids, np.uint64, last - first)
            bounds = bounds - bounds[0]
            for i in np.flatnonzero(np.diff(bounds) != 1).tolist():
                cuts = lengths[bounds[i] : bounds[i + 1]]
                hashes[i] ^= np.uint64(xxhash.xxh3_64_intdigest(cuts.tobytes(), seed=len(cuts) + 1))
            found[first - start : last - start] = hashes
            watcher(Progress(source_bytes=int(sizes.sum())))
    return found


def _hash(file: BinaryIO, num_bytes: int, have: np.dtype[Any], want: np.dtype[Any] | None) -> int:
    """Of the next bytes of a file, as another dtype if one is wanted; in pieces, since a document may be gigabytes."""
    if num_bytes <= COPY_BYTES:
        data = file.read(num_bytes)
        return xxhash.xxh3_64_intdigest(data if want is None else np.frombuffer(data, have).astype(want).tobytes())
    digest = xxhash.xxh3_64()
    while num_bytes:
        data = file.read(min(num_bytes, COPY_BYTES))
        if not data:
            raise FormatError(f"{file.name} ended early; was it changed meanwhile?")
        num_bytes -= len(data)
        digest.update(data if want is None else np.frombuffer(data, have).astype(want).tobytes())
    return digest.intdigest()


def _num_shared(one: Hashes, other: Hashes) -> int:
    """How many values two sorted arrays have in common, each as often as both have it."""
    shared = start = 0
    while start < len(one):
        last = one[min(start + CHUNK, len(one)) - 1]
        stop = int(np.searchsorted(one, last, side="right"))
        low, high = np.searchsorted(other, one[start]), np.searchsorted(other, last, side="right")
        values, counts = np.unique(one[start:stop], return_counts=True)
        theirs, times = np.unique(other[low:high], return_counts=True)
        _, mine, yours = np.intersect1d(values, theirs, assume_unique=True, return_indices=True)
        shared += int(np.minimum(counts[mine], times[yours]).sum())
        start = stop
    return shared
