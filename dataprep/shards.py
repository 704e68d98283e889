"""A unit's shards on disk: one, or of a long unit several pieces, each whole before the next is begun.

    <unit>.p0000  .bin .idx .rejects.jsonl .json    the first piece; the .json, written last, says where the next begins
    <unit>.p0001  .bin .idx .rejects.jsonl .json
    <unit>        .bin .idx .rejects.jsonl .json    the last one: all before it are there, the unit is done
    <unit>.tmp-attempts                             a byte for each attempt that has not come to an end

Where a piece ends follows from the content of the source (`readers.ranges`), so that what a name holds is always the
same, also when two workers do a unit at once. So whoever goes on with a unit takes the pieces that prove good, and
writes the others anew.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

from dataprep.errors import ClusterError
from dataprep.indexed import IndexedWriter, bin_path, idx_path
from dataprep.manifest import PairFiles, UnitManifest
from dataprep.storage import AtomicFile, checksum, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from dataprep.indexed import Mark
    from dataprep.layout import Layout
    from dataprep.manifest import Unit
    from dataprep.specs import Recipe

ATTEMPTS = 5
"""How often a unit may kill its worker, without a new piece, before the run gives up."""


class ShardWriter:
    """Writes the files of one shard but its manifest; none has its name before `commit`.

    Args:
        layout: where they lie.
        unit: the unit's key.
        recipe: what it is made by.

    Attributes:
        pair: the ``.bin`` and the ``.idx``.
        rejects: the file of rejects.

    Raises:
        OutputError: the file system refuses.
    """

    def __init__(self, layout: Layout, unit: str, recipe: Recipe) -> None:
        self._layout = layout
        empty = recipe.writes_empty_sequences
        self.pair = IndexedWriter(layout.shard(unit), recipe.dtype, durable=False, empty_sequences=empty)
        with contextlib.ExitStack() as stack:
            stack.push(self.pair)
            self.rejects = AtomicFile(layout.unit_rejects(unit), durable=False)
            stack.pop_all()

    def mark(self) -> tuple[Mark, tuple[int, Any]]:
        """A point to come back to."""
        return self.pair.mark(), self.rejects.mark()

    def undo(self, mark: tuple[Mark, tuple[int, Any]]) -> None:
        """Forget what was written since the mark."""
        self.pair.undo(mark[0])
        self.rejects.undo(mark[1])

    def commit(self, name: str) -> PairFiles:
        """Give the files their names: those of the unit, or of one of its pieces."""
        self.pair.rename(self._layout.shard(name))
        self.rejects.path = self._layout.unit_rejects(name)
        idx = self.pair.commit()
        self.rejects.commit()
        self.close()
        return PairFiles(
            bin_bytes=self.pair.bin.num_bytes,
            bin_checksum=self.pair.bin.checksum,
            idx_bytes=idx.num_bytes,
            idx_checksum=idx.checksum,
        )

    def close(self) -> None:
        """Remove what was not committed."""
        self.rejects.discard()
        self.pair.__exit__()


def load_done(layout: Layout, unit: str, digest: str) -> tuple[UnitManifest, ...] | None:
    """The shards of a unit that is done, in order; None: not done, of another recipe, or an index is not there whole.

    Their ``.bin`` may have gone into the merged one.
    """
    last = _load(layout, unit, digest)
    if last is None:
        return None
    shards: list[UnitManifest] = []
    for number in range(last.pieces):
        piece = _load(layout, layout.piece(unit, number), digest)
        if piece is None or not _follows(piece, shards):
            return None
        shards.append(piece)
    return (*shards, last) if _follows(last, shards) else None


def load_pieces(layout: Layout, unit: str, digest: str, may_use: Callable[[str], bool]) -> list[UnitManifest]:
    """The first pieces of a unit, up to one that is not there, that is not what was written, or may not be used.

    Args:
        may_use: whether the work of this engine may be used.
    """
    found: list[UnitManifest] = []
    while True:
        piece = _load(layout, layout.piece(unit, len(found)), digest)
        if piece is None or piece.end is None or not _follows(piece, found):
            return found
        if not may_use(piece.engine) or not is_whole(layout, piece):
            return found
        found.append(piece)


def _load(layout: Layout, name: str, digest: str) -> UnitManifest | None:
    try:
        manifest = UnitManifest.model_validate_json(layout.unit_manifest(name).read_bytes())
        size = idx_path(layout.shard(name)).stat().st_size
    except (OSError, ValueError):
        return None
    whole = size == manifest.files.idx_bytes
    return manifest if whole and manifest.recipe_digest == digest and manifest.unit == name else None


def _follows(shard: UnitManifest, before: Sequence[UnitManifest]) -> bool:
    """Whether a shard begins where those before it end."""
    end = before[-1].end if before else None
    return shard.pieces == len(before) and shard.begin == end and (end is not None or not before)


def has_index(layout: Layout, shard: UnitManifest) -> bool:
    """Whether the index and the rejects of a shard are what was written; a power failure may leave hollow files."""
    with contextlib.suppress(FileNotFoundError):
        if checksum(idx_path(layout.shard(shard.unit))) == shard.files.idx_checksum:
            known = shard.rejects_checksum if shard.counts.num_rejected else None
            return known is None or checksum(layout.unit_rejects(shard.unit)) == known
    return False


def is_whole(layout: Layout, shard: UnitManifest) -> bool:
    """Whether all files of a shard are what was written."""
    with contextlib.suppress(FileNotFoundError):
        return has_index(layout, shard) and checksum(bin_path(layout.shard(shard.unit))) == shard.files.bin_checksum
    return False


class Attempt:
    """An attempt at a unit. Use as a context manager: it leaves a mark for as long as it goes on.

    A worker that dies without a word leaves the mark behind, and Dask only knows which units it held.

    Args:
        layout: where the mark goes.
        unit: the unit.
        recipe: for the message.

    Raises:
        ClusterError: too many attempts before this one died.
        OutputError: the file system refuses.
    """

    def __init__(self, layout: Layout, unit: Unit, recipe: Recipe) -> None:
        self._path, self._unit, self._recipe = layout.attempts(unit.key), unit, recipe

    def __enter__(self) -> Self:
        with explain(self._path, "write"), self._path.open("ab", buffering=0) as file:
            file.write(b".")
            died = file.tell() - 1
        if died >= ATTEMPTS:
            self.__exit__()
            raise ClusterError(
                f"{self._name()}: its worker died {died} times without a word, most likely out of memory; lower "
                "runtime.memory, runtime.batch_bytes or runtime.workers and run the same command again: finished units "
                "are kept"
            )
        return self

    def progressed(self) -> None:
        """Forget the attempts that died: something new is done."""
        with explain(self._path, "cut"), contextlib.suppress(FileNotFoundError):
            os.truncate(self._path, 1)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what is left is swept, and follows an error that says more
            self._path.unlink()

    def _name(self) -> str:
        part, more = self._unit.slices[0], len(self._unit.slices) - 1
        file = self._recipe.files[part.file]
        if more:
            return f"{file.path} and {more} more files"
        places = {"parquet": "row groups", "arrow": "record batches or bytes"}.get(file.format, "bytes")
        return f"{file.path}, {places} {part.start} to {part.stop}"
