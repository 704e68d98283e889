"""Shards -> one pair: each shard is appended as soon as its turn comes, while later units are still worked.

Order is the plan's, so the result does not depend on which unit was done first. A shard's bytes are copied in the
kernel. What was merged when a run died is merged again: copying is a hundredth of encoding.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Self

from dataprep.indexed import IndexedDataset, IndexedWriter
from dataprep.manifest import Counts, Span
from dataprep.storage import AtomicFile, explain, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from dataprep.layout import Layout
    from dataprep.manifest import UnitManifest
    from dataprep.specs import Recipe

FLUSH_BYTES = 256 << 20
"""Start writing to disk after this much, so that the fsync at the end finds little left to do."""


class Merger:
    """Builds the pair in `Layout.merged`, a folder without a final name.

    Attributes:
        counts: of all units so far.
        spans: provenance of all units so far.
        parts: end of each shard in the ``.bin``, in bytes, with its checksum.
        source_bytes: what there was to read for the units so far.
        first_reject: where the first rejected record stood, and why it was rejected; for a message.
    """

    def __init__(self, layout: Layout, recipe: Recipe) -> None:
        self._layout = layout
        self._recipe = recipe
        with explain(layout.merged, "clear"):
            shutil.rmtree(layout.merged, ignore_errors=True)
        make_folder(layout.merged)
        with explain(layout.rejects, "clear"):
            shutil.rmtree(layout.rejects, ignore_errors=True)  # all rejects of the units are written anew
        make_folder(layout.rejects)
        self._writer = IndexedWriter(layout.merged / layout.stem, recipe.dtype)
        self._flushed = 0
        self._ends: dict[int, tuple[int, int]] = {}
        self.counts = Counts()
        self.spans: list[Span] = []
        self.parts: list[tuple[int, str]] = []
        self.source_bytes = 0
        self.first_reject = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of the ``.bin`` so far."""
        return self._writer.bin.num_bytes

    def lengths(self) -> Iterator[npt.NDArray[np.int32]]:
        """Document lengths in tokens, some at a time."""
        return self._writer.index.chunks()

    def append(self, unit: UnitManifest, source_bytes: int) -> None:
        """Append the shard of the next unit of the plan.

        Raises:
            FormatError: the shard is not readable.
            OutputError: the file system refuses.
        """
        pair = IndexedDataset(self._layout.shard(unit.unit))
        self._writer.append_pair(pair, pair.num_documents)
        self.parts.append((self._writer.bin.num_bytes, unit.files.bin_checksum))
        starts = []
        document = self.counts.num_documents
        for part in unit.slices:
            row, line = self._ends.get(part.file, (0, 0))
            starts.append((row, line))
            self.spans.append(Span(first_row=row, first_document=document, **part.model_dump(exclude={"num_lines"})))
            self._ends[part.file] = (row + part.num_records, line + part.num_lines)
            document += part.num_documents
        self._move_rejects(unit, starts)
        self.counts = self.counts + unit.counts
        self.source_bytes += source_bytes
        if self._writer.bin.num_bytes - self._flushed > FLUSH_BYTES:
            self._flushed = self._writer.bin.num_bytes
            with explain(self._writer.bin.path, "write"):
                os.fdatasync(self._writer.bin.fd)

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
        """Write the index and give both files their names; returns size and checksum of the ``.idx``."""
        idx = self._writer.commit()
        return idx.num_bytes, idx.checksum

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._writer.__exit__(kind, *rest)
        if kind is not None:
            shutil.rmtree(self._layout.merged, ignore_errors=True)


def _describe(reject: dict[str, Any]) -> str:
    place = [f"{reject['file']}"]
    place += [f"line {reject['line']}"] if reject["line"] else [f"record {reject['record']}"]
    place += [f"row group {reject['group']}"] if reject["group"] is not None else []
    place += [f"byte {reject['byte_offset']}"] if reject["byte_offset"] is not None else []
    detail = f" ({reject['detail']})" if reject["detail"] else ""
    return f"{', '.join(place)}: {reject['reason']}{detail}"
