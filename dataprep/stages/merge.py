"""Shards -> one pair: each shard is appended as soon as its turn comes, while later units are still worked.

    shard .bin   -> merged .bin    copied in the kernel; every 256 MiB synced, and only then are the shards removed
    shard .idx   -> lengths        kept, with manifest and rejects, until the dataset is published
    rejects      -> rejects        with rows and lines that count from the start of their file

Order is the plan's, so the result does not depend on which unit was done first, and what is merged is always the
first so many units: the next run finds by their checksums how many (`supply`), and goes on behind them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Self

from dataprep.errors import OutputError
from dataprep.indexed import Index, IndexWriter, bin_path, idx_path
from dataprep.manifest import Counts, Span
from dataprep.storage import AtomicFile, copy_range, explain, make_folder, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from dataprep.layout import Layout
    from dataprep.manifest import UnitManifest
    from dataprep.specs import Recipe

FLUSH_BYTES = 256 << 20
"""Sync after this much: the fsync at the end finds little left to do, and shards go while the rest is worked."""


class Merger:
    """Builds the pair in `Layout.merged`. Use as a context manager.

    Args:
        layout: where it and the shards lie.
        recipe: what it is made by.
        num_kept: bytes at the start of the ``.bin`` of an earlier run that are the shards of the first units; what is
            behind them goes.

    Attributes:
        num_bytes: of the ``.bin`` so far.
        counts: of all units so far.
        spans: provenance of all units so far.
        parts: end of each shard in the ``.bin``, in bytes, with its checksum.
        source_bytes: what there was to read for the units so far.
        first_reject: where the first rejected record stood, and why it was rejected; for a message.
    """

    def __init__(self, layout: Layout, recipe: Recipe, num_kept: int) -> None:
        self._layout = layout
        self._recipe = recipe
        self._num_kept = num_kept
        self._path = bin_path(layout.merged_prefix)
        self._unsynced: list[str] = []
        self._flushed = 0
        self._ends: dict[int, tuple[int, int]] = {}
        self.num_bytes = 0
        self.counts = Counts()
        self.spans: list[Span] = []
        self.parts: list[tuple[int, str]] = []
        self.source_bytes = 0
        self.first_reject = ""

    def __enter__(self) -> Self:
        layout = self._layout
        make_folder(layout.merged)
        if layout.work.stat().st_dev != layout.output.stat().st_dev:
            raise OutputError(
                f"{layout.work} lies on another file system than {layout.output}, where the dataset is to appear by a "
                "rename; make both one, or choose another --output"
            )
        with explain(layout.merged, "clear"):
            for path in layout.merged.iterdir():
                if path != self._path:  # an index or a manifest of a run that died later than we start
                    path.unlink()
        with explain(layout.rejects, "clear"):
            shutil.rmtree(layout.rejects, ignore_errors=True)  # all rejects of the units are written anew
        make_folder(layout.rejects)
        with explain(self._path, "open"), contextlib.ExitStack() as stack:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            self._bin = stack.enter_context(open(fd, "r+b", buffering=0))
            os.ftruncate(fd, self._num_kept)
            os.lseek(fd, self._num_kept, os.SEEK_SET)
            self._index = IndexWriter(layout.merged, self._recipe.writes_empty_sequences)
            stack.callback(self._index.close)
            self._files = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # it was closed before, or follows an error that says more
            self._files.close()

    def lengths(self) -> Iterator[npt.NDArray[np.int32]]:
        """Document lengths in tokens, some at a time."""
        return self._index.chunks()

    def append(self, unit: UnitManifest, source_bytes: int) -> None:
        """Append the shard of the next unit of the plan.

        Raises:
            FormatError: the shard is not readable.
            OutputError: the file system refuses.
        """
        shard = self._layout.shard(unit.unit)
        self._index.add_index(Index(idx_path(shard)))
        if self.num_bytes >= self._num_kept:
            self._copy(bin_path(shard), unit.files.bin_bytes)
        self.num_bytes += unit.files.bin_bytes
        self.parts.append((self.num_bytes, unit.files.bin_checksum))
        starts = []
        document = self.counts.num_documents
        for part in unit.slices:
            row, line = self._ends.get(part.file, (0, 0))
            starts.append((row, line))
            span = Span(first_row=row, first_document=document, **part.model_dump(exclude={"num_lines"}))
            self._add_span(span)
            self._ends[part.file] = (row + part.num_records, line + part.num_lines)
            document += part.num_documents
        self._move_rejects(unit, starts)
        self.counts = self.counts + unit.counts
        self.source_bytes += source_bytes
        self._unsynced.append(unit.unit)
        if self.num_bytes - self._flushed > FLUSH_BYTES:
            self._flush()

    def _add_span(self, span: Span) -> None:
        """Add the provenance of a slice, or of the next piece of the same slice."""
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.file, last.start, last.stop) == (span.file, span.start, span.stop):
            more = {name: getattr(last, name) + getattr(span, name) for name in ("num_records", "num_documents")}
            self.spans[-1] = last.model_copy(update=more)
        else:
            self.spans.append(span)

    def _copy(self, source: Path, num_bytes: int) -> None:
        with explain(self._path, f"copy {source.name} to"):
            fd = os.open(source, os.O_RDONLY)
            try:
                copy_range(fd, self._bin.fileno(), 0, num_bytes)
            finally:
                os.close(fd)

    def _flush(self) -> None:
        """Make durable what is merged, its name too; then its shards may go."""
        with explain(self._path, "write"):
            os.fdatasync(self._bin.fileno())
            sync_folder(self._layout.merged)
            sync_folder(self._layout.work)
        self._flushed = self.num_bytes
        if self._recipe.limit is None:  # a limit's units are looked for one by one, in their shards
            for key in self._unsynced:
                path = bin_path(self._layout.shard(key))
                with explain(path, "remove"):
                    path.unlink(missing_ok=True)
        self._unsynced.clear()

    def _move_rejects(self, unit: UnitManifest, starts: list[tuple[int, int]]) -> None:
        """Rewrite a unit's rejects with record and line numbers that count from the start of the file, from 1.

        Args:
            starts: for each slice of the unit, the records and lines of its file before it.
        """
        if not unit.counts.num_rejected:
            return
        with (
            self._layout.unit_rejects(unit.unit).open(encoding="utf-8") as lines,
            AtomicFile(self._layout.rejects / f"{unit.unit}.jsonl", durable=False) as file,
        ):
            for text in lines:
                value: dict[str, Any] = json.loads(text)
                row, line = starts[value.pop("part")]
                value["record"] = value.pop("row") + row + 1
                value["line"] = value["line"] + line + 1 if value["line"] >= 0 else None
                self.first_reject = self.first_reject or _describe(value)
                file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")

    def finish(self) -> tuple[int, str]:
        """Make the ``.bin`` durable and write the index; returns size and checksum of the ``.idx``."""
        with explain(self._path, "finish"):
            os.fsync(self._bin.fileno())
            self._bin.close()  # network file systems report a failed write here
        with AtomicFile(idx_path(self._layout.merged_prefix)) as idx:
            self._index.write(idx, self._recipe.dtype)
        return idx.num_bytes, idx.checksum


def _describe(reject: dict[str, Any]) -> str:
    place = [f"{reject['file']}"]
    place += [f"line {reject['line']}"] if reject["line"] else [f"record {reject['record']}"]
    place += [f"row group {reject['group']}"] if reject["group"] is not None else []
    place += [f"byte {reject['byte_offset']}"] if reject["byte_offset"] is not None else []
    detail = f" ({reject['detail']})" if reject["detail"] else ""
    return f"{', '.join(place)}: {reject['reason']}{detail}"
