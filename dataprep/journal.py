"""What is merged for good: one line for each unit, in plan order, and what all of them come to.

    receipts.jsonl   unit, manifests of its shards, checksums of its document lengths and of its rejects
    <stem>.bin       |
    lengths          | what the lines say of them is durable before the line is written, and the shards go after it
    rejects.jsonl    |

So a unit is in its shards, or it has a line here, or it is not done. A line is believed as far as the bytes bear it
out: `resume` reads all three files once, from their beginnings, and stops at the first byte that is not what it was.
"""

from __future__ import annotations

import contextlib
import functools
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, overload

import numpy as np
import xxhash
from pydantic import ValidationError

from dataprep.cuts import Cuts
from dataprep.indexed import CHUNK, bin_path
from dataprep.manifest import Counts, Span, UnitManifest
from dataprep.specs import Model
from dataprep.storage import COPY_BYTES, explain, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dataprep.layout import Layout
    from dataprep.manifest import SliceRows, Unit


class Receipt(Model):
    """One unit that is merged.

    Attributes:
        unit: its key.
        source_bytes: what there was to read for it.
        shards: their manifests, in the order of their documents.
        lengths: checksum of its document lengths, int32 each.
        rejects: bytes of its rejects as they were rewritten, and their checksum.
    """

    unit: str
    source_bytes: int
    shards: tuple[UnitManifest, ...]
    lengths: str
    rejects: tuple[int, str]


class Parts(Sequence[tuple[int, str]]):
    """The end of each shard in the ``.bin``, in bytes, and its checksum; 24 bytes of memory for each."""

    def __init__(self) -> None:
        self._ends = array("q")
        self._checksums = bytearray()

    def append(self, end: int, checksum: str) -> None:
        self._ends.append(end)
        self._checksums += bytes.fromhex(checksum.rpartition(":")[2])

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> tuple[int, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, str]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, str] | list[tuple[int, str]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return self._ends[i], f"xxh3_128:{self._checksums[16 * i : 16 * i + 16].hex()}"


class Merged:
    """What the units so far come to, in a few numbers for each of them.

    Attributes:
        num_units: how many units.
        num_bytes: of the ``.bin``.
        num_rejects_bytes: of the rejects.
        source_bytes: what there was to read.
        counts: what became of it.
        parts: see `Parts`.
        cuts: where prefixes begin; whoever adds units adds the lengths of their documents to it.

    Args:
        cuts: without documents.
    """

    def __init__(self, cuts: Cuts | None = None) -> None:
        self.cuts = cuts or Cuts()
        self.num_units = self.num_bytes = self.num_rejects_bytes = self.source_bytes = 0
        self.counts = Counts()
        self.parts = Parts()
        self._spans = array("q")
        self._file, self._rows, self._lines = -1, 0, 0

    def places(self, slices: Iterable[SliceRows]) -> list[tuple[int, int]]:
        """For each of the next slices, the records and lines of its file before it."""
        file, row, line = self._file, self._rows, self._lines
        found = []
        for part in slices:
            if part.file != file:
                file, row, line = part.file, 0, 0
            found.append((row, line))
            row, line = row + part.num_records, line + part.num_lines
        return found

    def add_shard(self, shard: UnitManifest) -> None:
        """Count the next shard."""
        document = self.counts.num_documents
        for part, (row, line) in zip(shard.slices, self.places(shard.slices), strict=True):
            self._add_slice(part, row, document)
            self._file, self._rows, self._lines = part.file, row + part.num_records, line + part.num_lines
            document += part.num_documents
        self.num_bytes += shard.files.bin_bytes
        self.parts.append(self.num_bytes, shard.files.bin_checksum)
        self.counts = self.counts + shard.counts

    def _add_slice(self, part: SliceRows, row: int, document: int) -> None:
        """A run length more, or more of the last one: where a slice came in several shards."""
        end = self._spans[-7:]
        if len(end) and end[:3] == array("q", (part.file, part.start, part.stop)):
            self._spans[-3] += part.num_records
            self._spans[-1] += part.num_documents
        else:
            place = (part.file, part.start, part.stop, row)
            self._spans.extend((*place, part.num_records, document, part.num_documents))

    def add_unit(self, source_bytes: int, num_rejects_bytes: int) -> None:
        """The shards since the last one were a unit, and the lengths of their documents were added to `cuts`."""
        self.cuts.end_unit()
        self.num_units += 1
        self.source_bytes += source_bytes
        self.num_rejects_bytes += num_rejects_bytes

    def spans(self) -> Iterator[Span]:
        """Provenance, in the order of the documents."""
        names = tuple(Span.model_fields)
        for start in range(0, len(self._spans), len(names)):
            yield Span(**dict(zip(names, self._spans[start : start + len(names)], strict=True)))


def append(layout: Layout, lines: bytes) -> None:
    """Write receipts behind the others, for good.

    Raises:
        OutputError: the file system refuses.
    """
    with explain(layout.receipts, "append to"), layout.receipts.open("ab", buffering=0) as file:
        write_all(file.fileno(), lines)
        os.fdatasync(file.fileno())


def cut(layout: Layout, num_bytes: int) -> None:
    """Forget the receipts behind the first so many bytes, for good."""
    with explain(layout.receipts, "cut back"), contextlib.suppress(FileNotFoundError):
        if layout.receipts.stat().st_size > num_bytes:
            with layout.receipts.open("r+b", buffering=0) as file:
                file.truncate(num_bytes)
                os.fdatasync(file.fileno())
            sync_folder(layout.merged)


def resume(layout: Layout, units: Iterable[Unit], digest: str, cuts: Cuts, may_use: Callable[[str], bool]) -> Merged:
    """Find out how many of the first units are merged, byte for byte; the journal forgets the others.

    Args:
        layout: where everything lies.
        units: of the plan, from the first on.
        digest: of the recipe.
        cuts: its own, without documents.
        may_use: whether what this engine made may be used.

    Raises:
        OutputError: the file system refuses.
    """
    merged, kept = Merged(cuts), 0
    lengths_path, rejects_path = layout.lengths, layout.all_rejects
    bins = functools.cache(lambda number: bin_path(layout.growing(number)))
    with (
        explain(layout.merged, "read what is merged in"),
        _Proof() as data,
        _Proof() as lengths,
        _Proof() as rejects,
        contextlib.suppress(FileNotFoundError),
        lengths_path.open("rb", COPY_BYTES) as file,
    ):
        for unit, (end, receipt) in zip(units, _read(layout.receipts), strict=False):
            ours = all(shard.recipe_digest == digest and may_use(shard.engine) for shard in receipt.shards)
            if receipt.unit != unit.key or not ours:
                break
            num_documents = sum(shard.counts.num_documents for shard in receipt.shards)
            if not (
                lengths.holds([(lengths_path, 4 * num_documents)], receipt.lengths)
                and rejects.holds([(rejects_path, receipt.rejects[0])], receipt.rejects[1])
            ):
                break
            mark = cuts.mark()
            for start in range(0, num_documents, CHUNK):
                count = min(CHUNK, num_documents - start)
                cuts.add(np.frombuffer(file.read(4 * count), "<i4").astype(np.int64))
            if not _is_there(bins, receipt.shards, merged, data):
                cuts.undo(mark)
                break
            for shard in receipt.shards:
                merged.add_shard(shard)
            merged.add_unit(receipt.source_bytes, receipt.rejects[0])
            kept = end
    cut(layout, kept)
    return merged


def _is_there(bins: Callable[[int], Path], shards: Iterable[UnitManifest], merged: Merged, data: _Proof) -> bool:
    """Whether the next shards are in the prefixes, whose cuts are known so far."""
    position = merged.num_bytes
    for shard in shards:
        width, stop = np.dtype(shard.dtype).itemsize, position + shard.files.bin_bytes
        pieces = [
            (bins(number), width * (end - start))
            for number, start, end in merged.cuts.split(position // width, stop // width)
        ]
        if sum(size for _, size in pieces) != stop - position or not data.holds(pieces, shard.files.bin_checksum):
            return False
        position = stop
    return True


def _read(path: Path) -> Iterator[tuple[int, Receipt]]:
    """The receipts up to the first line that is none, each with its end in bytes."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            try:
                receipt = Receipt.model_validate_json(line)
            except ValidationError:  # cut off by a crash
                return
            if not line.endswith(b"\n"):
                return
            yield end, receipt


class _Proof:
    """Compares files with checksums, each from its beginning on, in large blocks. Use as a context manager."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._path: Path | None = None
        self._buffer = memoryview(bytearray(COPY_BYTES))
        self._rest = self._buffer[:0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def holds(self, pieces: Iterable[tuple[Path, int]], checksum: str) -> bool:
        """Whether the next so many bytes of these files together have this checksum; a file that is not there has none.

        One file after the other: of one that another one followed, there are no next bytes.
        """
        digest = xxhash.xxh3_128()
        for path, size in pieces:
            num_bytes = size
            if num_bytes and path != self._path and not self._open(path):
                return False
            while num_bytes > 0:
                if not self._rest and not self._fill():
                    return False
                piece, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
                digest.update(piece)
                num_bytes -= len(piece)
        return f"xxh3_128:{digest.hexdigest()}" == checksum

    def _open(self, path: Path) -> bool:
        self._stack.close()
        self._path, self._rest = path, self._buffer[:0]
        try:
            self._file = self._stack.enter_context(path.open("rb", buffering=0))
        except FileNotFoundError:
            return False
        return True

    def _fill(self) -> bool:
        count = self._file.readinto(self._buffer)
        self._rest = self._buffer[: count or 0]
        return bool(count)
