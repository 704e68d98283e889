"""Where a document came from, to the record: what the manifest counts, and which records a run put aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import orjson

from dataprep.inspection.provenance import source_of
from dataprep.service.viewing.kept import Kept, stamp
from dataprep.service.viewing.readings import Origin

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.manifest import DatasetManifest

    Records = dict[str, npt.NDArray[np.int64]]

MOST_BYTES = 1 << 24
"""Of a file of rejects that is read for it: some 50,000 of them."""


class Origins:
    """Where documents came from."""

    def __init__(self) -> None:
        self._rejected: Kept[Records] = Kept(8)

    def find(self, manifest: DatasetManifest, number: int, rejects: Path | None) -> Origin | None:
        """Where a document came from; None: nobody knows.

        A manifest counts what became of consecutive records, and does not list those that became nothing. Which those
        are follows from the rejects, as long as no record was empty.

        Args:
            manifest: of the dataset.
            number: of the document in it.
            rejects: the file of the records that its run put aside, if there is one; None: it lies elsewhere.
        """
        found = source_of(manifest, number)
        if found is None:
            return None
        first, last = found["first_row"], found["last_row"]
        if first != last and rejects is not None and (row := self._row(manifest, number, rejects)) is not None:
            first = last = row
        return Origin(
            file=found["file"],
            first_record=first + 1,
            last_record=last + 1,
            corpus=found["corpus"],
            url=found.get("url"),
            origin=found.get("origin"),
        )

    def _row(self, manifest: DatasetManifest, number: int, rejects: Path) -> int | None:
        """The record that a document was, counted from 0; None: that does not follow."""
        located = manifest.locate(number)
        if located is None or located[0].reader.group_rows != 1:
            return None
        recipe, span, place = located
        try:
            key = stamp(rejects)
            if key[2] > MOST_BYTES:
                return None
            known = self._rejected.get(key, lambda: _rejected(rejects.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # gone with its work folder, or damaged
        rows = known.get(recipe.files[span.file].name, np.zeros(0, np.int64)) - 1 - span.first_row
        rows = rows[(rows >= 0) & (rows < span.num_records)]
        if span.num_records - len(rows) != span.num_documents:
            return None
        before = rows - np.arange(len(rows))  # each rejected one, documents
        return span.first_row + place + int(np.searchsorted(before, place, side="right"))


def _rejected(data: bytes) -> Records:
    """The records of each file that were rejected, ascending, counted from 1.

    Raises:
        ValueError: a line stands for many records, or is no reject.
    """
    found: dict[str, list[int]] = {}
    for line in data.splitlines():
        value = orjson.loads(line)
        if value["count"] != 1:
            raise ValueError("a whole row group was rejected")
        found.setdefault(value["file"], []).append(value["record"])
    return {name: np.unique(np.array(records, np.int64)) for name, records in found.items()}
