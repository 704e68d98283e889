"""Shards -> one pair: each unit has its place as soon as all before it are done, while later ones are still worked.

    shard .bin   -> .bin      copied in ranges by `copies.copy`, wherever units are worked, each made durable there
    shard .idx   -> lengths   read by the driver, and written behind one another
    rejects      -> rejects   with rows and lines that count from the start of their file

    num_bytes        all units so far have their places in the .bin, or in those of several prefixes, see `cuts`
      | take         ranges that are to be copied
    copied           all ranges up to here are durable: their units go into the journal, and then their shards go

Order is the plan's, so the result does not depend on which unit was done first, and what is merged for good is always
the first so many units: the next run finds them by the journal and the checksums in it, and goes on behind them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dataprep import journal
from dataprep.copies import Copy
from dataprep.errors import OutputError
from dataprep.indexed import Index, IndexWriter, bin_path, idx_path
from dataprep.storage import AtomicFile, checksum, explain, make_folder, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.journal import Merged
    from dataprep.layout import Layout
    from dataprep.manifest import Unit, UnitManifest
    from dataprep.specs import Recipe

FLUSH_BYTES = 64 << 20
"""Ranges that are copied begin and end at multiples of this, but for the end of a file; it is itself one of any page
and stripe: about what two workers make in a second."""

MAX_WAITING = 1000
"""Units that wait for a range to be full, and their shards with them; so many are copied without."""


class Merger:
    """Builds the pair in `Layout.staged`. Use as a context manager.

    Nothing is cut before the end: a writer that lost its claim, and does not know yet, may have the same files open,
    and writes the same bytes to the same places.

    Args:
        layout: where it and the shards lie.
        recipe: what it is made by.
        merged: what an earlier run merged, see `journal.resume`; becomes the sum of all units so far.
        fence: called before anything is removed or cut; raises if another has taken over.

    Attributes:
        merged: all units so far.
        first_reject: where the first rejected record stood, and why it was rejected; for a message.
    """

    def __init__(
        self, layout: Layout, recipe: Recipe, merged: Merged, fence: Callable[[], None] = lambda: None
    ) -> None:
        self._layout, self._recipe, self._fence = layout, recipe, fence
        self.merged = merged
        self.first_reject = ""
        self._width = np.dtype(recipe.dtype).itemsize
        self._number = 0  # of the prefix that is copied to
        self._pieces: deque[tuple[Path, int, int]] = deque()
        self._taken = self._durable = merged.num_bytes
        self._copies: deque[Copy] = deque()
        self._copied: set[Copy] = set()
        self._waiting: deque[tuple[int, bytes, list[str]]] = deque()

    def __enter__(self) -> Self:
        layout, merged = self._layout, self.merged
        for folder in (layout.staged, layout.rejects):
            make_folder(folder)
        if layout.work.stat().st_dev != layout.output.stat().st_dev:
            raise OutputError(
                f"{layout.work} lies on another file system than {layout.output}, where the dataset is to appear by a "
                "rename; make both one, or choose another --output"
            )
        self._fence()
        with explain(layout.staged, "clear"):
            for path in layout.staged.iterdir():
                if path.suffix != ".bin":  # an index or a manifest of a run that died later than we start
                    path.unlink()
        with contextlib.ExitStack() as stack:
            self._rejects = stack.enter_context(_open(layout.all_rejects))
            with explain(layout.all_rejects, "open"):
                os.lseek(self._rejects, merged.num_rejects_bytes, os.SEEK_SET)
                if merged.num_rejects_bytes:
                    with layout.all_rejects.open("rb") as lines:
                        self.first_reject = _describe(json.loads(lines.readline()))
            self._index = IndexWriter(layout.merged, self._recipe.writes_empty_sequences, layout.lengths.name)
            stack.callback(self._index.close)
            counts = merged.counts
            self._index.move(counts.num_documents, counts.num_sequences, counts.num_tokens)
            self._files = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def lengths(self) -> Iterator[npt.NDArray[np.int32]]:
        """Document lengths in tokens, some at a time."""
        return self._index.chunks()

    def append(self, unit: Unit, shards: Sequence[UnitManifest]) -> None:
        """Give the next unit of the plan its place.

        Raises:
            FormatError: a shard is not readable.
            OutputError: the file system refuses.
        """
        merged, layout = self.merged, self._layout
        document, reject = self._index.num_documents, merged.num_rejects_bytes
        num_rejects = 0
        for shard in shards:
            prefix = layout.shard(shard.unit)
            for lengths in Index(idx_path(prefix)).length_chunks():
                self._index.add(lengths)
                merged.cuts.add(lengths)
            num_rejects += self._move_rejects(shard)
            if shard.files.bin_bytes:
                self._pieces.append((bin_path(prefix), 0, shard.files.bin_bytes))
            merged.add_shard(shard)
        merged.add_unit(unit.num_bytes, num_rejects)
        if self._recipe.limit is None:  # a limit's units are looked for one by one, in their shards
            receipt = journal.Receipt(
                unit=unit.key,
                source_bytes=unit.num_bytes,
                shards=tuple(shards),
                lengths=checksum(layout.lengths, span=(4 * document, 4 * self._index.num_documents)),
                rejects=(num_rejects, checksum(layout.all_rejects, span=(reject, reject + num_rejects))),
            )
            line = receipt.model_dump_json().encode() + b"\n"
            self._waiting.append((merged.num_bytes, line, [shard.unit for shard in shards]))

    def take(self, last: bool = False) -> Iterator[Copy]:
        """Ranges that are to be copied now, each once; the caller says when one is `copied`.

        Args:
            last: no unit follows.
        """
        while self._taken < self.merged.num_bytes:
            first, end = self._file()
            start = self._taken - first
            if start % FLUSH_BYTES and self._copies:
                return  # it begins on a page that another one ends on
            stop = (start // FLUSH_BYTES + 1) * FLUSH_BYTES
            if stop > end - first:
                is_open = self._number + 1 == len(self.merged.cuts) and not self.merged.cuts.is_full
                if is_open and not last and (self._copies or len(self._waiting) < MAX_WAITING):
                    return
                stop = end - first
            path = bin_path(self._layout.growing(self._number))
            is_linked = self.merged.cuts.by_unit and not start and self._link(path, end - first)
            stop = end - first if is_linked else stop
            with explain(path, "lengthen"), _open(path) as file:
                if os.fstat(file).st_size < stop:
                    os.ftruncate(file, stop)
            pieces = () if is_linked else tuple(self._next_pieces(stop - start))
            item = Copy(path, start, stop, pieces)
            self._taken = first + stop
            self._copies.append(item)
            yield item

    def _file(self) -> tuple[int, int]:
        """Where the prefix that the next byte belongs to begins and ends so far, in the bytes of all."""
        while True:
            first, end = (self._width * token for token in self.merged.cuts.tokens(self._number))
            if self._taken < end:
                return first, end
            self._number += 1

    def _link(self, path: Path, size: int) -> bool:
        """Make a whole shard the ``.bin`` of a prefix, if it is one; there is nothing to copy then.

        A link, so that the shard is there until the journal says that it may go.
        """
        with explain(path, "begin"):
            path.unlink(missing_ok=True)  # of a run that died; perhaps a shard's other name, which nothing is to change
        source, start, stop = self._pieces[0]
        if (start, stop) != (0, size):
            return False
        with contextlib.suppress(OSError):  # without links, it is copied
            os.link(source, path)
            self._pieces.popleft()
            return True
        return False

    def _next_pieces(self, num_bytes: int) -> Iterator[tuple[Path, int, int]]:
        while num_bytes:
            path, start, stop = self._pieces.popleft()
            if stop - start > num_bytes:
                self._pieces.appendleft((path, start + num_bytes, stop))
                stop = start + num_bytes
            num_bytes -= stop - start
            yield path, start, stop

    def copied(self, item: Copy) -> None:
        """A range is durable; where all before it are, too, its units are merged for good, and their shards go.

        Raises:
            OutputError: the file system refuses.
        """
        self._copied.add(item)
        while self._copies and self._copies[0] in self._copied:
            first = self._copies.popleft()
            self._copied.remove(first)
            self._durable += first.stop - first.start
        self._flush()

    def _flush(self) -> None:
        """Note the units of which all bytes are durable; then their shards may go."""
        lines, shards = [], []
        while self._waiting and self._waiting[0][0] <= self._durable:
            _, line, names = self._waiting.popleft()
            lines.append(line)
            shards += names
        if not lines:
            return
        layout = self._layout
        with explain(layout.merged, "write"):
            os.fdatasync(self._rejects)
            self._index.sync()
            for folder in (layout.staged, layout.merged, layout.rejects, layout.work):
                sync_folder(folder)
        journal.append(layout, b"".join(lines))
        self._fence()
        for name in shards:
            _remove_shard(layout, name)

    def _move_rejects(self, shard: UnitManifest) -> int:
        """Rewrite a shard's rejects with record and line numbers that count from the start of the file, from 1.

        Returns:
            How many bytes they take.
        """
        if not shard.counts.num_rejected:
            return 0
        places = self.merged.places(shard.slices)
        num_bytes = 0
        path = self._layout.unit_rejects(shard.unit)
        with explain(path, "rewrite"), path.open(encoding="utf-8") as lines:
            for text in lines:
                value: dict[str, Any] = json.loads(text)
                row, line = places[value.pop("part")]
                value["record"] = value.pop("row") + row + 1
                value["line"] = value["line"] + line + 1 if value["line"] >= 0 else None
                self.first_reject = self.first_reject or _describe(value)
                data = json.dumps(value, ensure_ascii=False).encode() + b"\n"
                write_all(self._rejects, data)
                num_bytes += len(data)
        return num_bytes

    def finish(self) -> list[tuple[str, int, str]]:
        """Cut the files to their size and write the indices.

        Returns:
            For each prefix: its name, and size and checksum of its ``.idx``.
        """
        merged, layout = self.merged, self._layout
        assert self._durable == merged.num_bytes == self._width * merged.cuts.num_tokens
        self._flush()
        self._fence()
        with explain(layout.all_rejects, "finish"):
            os.ftruncate(self._rejects, merged.num_rejects_bytes)
            if merged.num_rejects_bytes:
                os.fsync(self._rejects)
            else:
                layout.all_rejects.unlink(missing_ok=True)
        found, count = [], len(merged.cuts)
        for number in range(count):
            start, stop = merged.cuts.tokens(number)
            with explain(path := bin_path(layout.growing(number)), "finish"), _open(path) as file:
                os.ftruncate(file, self._width * (stop - start))
                os.fsync(file)
                name = layout.name(number) if count > 1 else layout.stem
                if name != layout.growing(number).name:
                    os.rename(path, bin_path(layout.staged / name))
            with AtomicFile(idx_path(layout.staged / name)) as idx:
                self._index.write(idx, self._recipe.dtype, merged.cuts.documents(number) if count > 1 else None)
            found.append((name, idx.num_bytes, idx.checksum))
        self._remove_others({bin_path(layout.staged / name).name for name, _, _ in found})
        return found

    def _remove_others(self, names: set[str]) -> None:
        """Remove what is no part of the dataset: prefixes of an earlier run that this one does not have."""
        with explain(self._layout.staged, "clear"):
            for path in self._layout.staged.glob("*.bin"):
                if path.name not in names:
                    path.unlink()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    """A file to read and write, made if there is none, and kept as it is if there is one."""
    with explain(path, "open"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):  # what was written was synced, which says what is wrong
            os.close(fd)


def _remove_shard(layout: Layout, name: str) -> None:
    """Remove all files of a shard."""
    prefix = layout.shard(name)
    with explain(prefix, "remove"):
        for path in (bin_path(prefix), idx_path(prefix), layout.unit_rejects(name), layout.unit_manifest(name)):
            path.unlink(missing_ok=True)


def _describe(reject: dict[str, Any]) -> str:
    place = [f"{reject['file']}"]
    place += [f"line {reject['line']}"] if reject["line"] else [f"record {reject['record']}"]
    place += [f"row group {reject['group']}"] if reject["group"] is not None else []
    place += [f"byte {reject['byte_offset']}"] if reject["byte_offset"] is not None else []
    detail = f" ({reject['detail']})" if reject["detail"] else ""
    return f"{', '.join(place)}: {reject['reason']}{detail}"
