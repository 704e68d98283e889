"""The order of Megatron's partitions: documents dealt out to N files one by one, and those put behind each other.

0 1 2 3 4 5 6   dealt to 3:   0 3 6 | 1 4 | 2 5
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from dataprep.batches import TokenBatch, offsets_of
from dataprep.errors import OutputError
from dataprep.indexed import CHUNK, IndexedDataset, IndexedWriter, bin_path
from dataprep.manifest import PairFiles
from dataprep.stages.verify import verify
from dataprep.storage import make_folder
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataprep.manifest import DatasetManifest
    from dataprep.watcher import Watcher

BATCH_TOKENS = 4 << 20
"""Tokens handled at a time: 16 MiB, unless one document is longer."""


def deal(source: Path, manifest: DatasetManifest, number: int, target: Path, watcher: Watcher) -> DatasetManifest:
    """Write the documents of a pair in another order.

    Args:
        source: prefix of a pair with one sequence for each document at the most.
        manifest: of it.
        number: how many files to deal to.
        target: prefix of the pair to write; beside it the parts are kept until it is there.

    Returns:
        The manifest with the new checksums, and without provenance: its run lengths would be of one document each.
    """
    recipe = manifest.recipe
    make_folder(target.parent)
    pair = IndexedDataset(source)
    watcher.stage("deal", 2 * pair.tokens.nbytes)
    parts = [target.with_name(f"part-{i:05d}") for i in range(number)]
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(IndexedWriter(part, recipe.dtype, False, recipe.writes_empty_sequences))
            for part in parts
        ]
        first = 0
        for batch in batches(pair):
            turns = (np.arange(len(batch)) + first) % number
            for turn in range(number):
                writers[turn].append(batch.select(turns == turn))
            first += len(batch)
            watcher(Progress(source_bytes=batch.ids.nbytes))
        for writer in writers:
            writer.commit()
    with IndexedWriter(target, recipe.dtype, empty_sequences=recipe.writes_empty_sequences) as whole:
        for part in parts:
            for batch in batches(IndexedDataset(part)):
                whole.append(batch)
                watcher(Progress(source_bytes=batch.ids.nbytes))
        idx = whole.commit()
    watcher.stage("verify", whole.bin.num_bytes + idx.num_bytes)
    report = verify(
        target, parts=[(whole.bin.num_bytes, whole.bin.checksum)], progress=lambda n: watcher(Progress(source_bytes=n))
    )
    if not report.ok:
        raise OutputError(f"{target} is not what was written: {report.errors[0]}; run again")
    files = PairFiles(
        bin_bytes=whole.bin.num_bytes,
        bin_checksum=whole.bin.checksum,
        idx_bytes=idx.num_bytes,
        idx_checksum=idx.checksum,
    )
    entry = manifest.prefixes[0].model_copy(update={"name": target.name, "files": files})
    return manifest.model_copy(
        update={"prefixes": (entry,), "provenance": (), "verification": report.named(target.name).to_json()}
    )


def batches(pair: IndexedDataset) -> Iterator[TokenBatch]:
    """All documents in order, `BATCH_TOKENS` or one document at a time; read, not mapped."""
    with bin_path(pair.prefix).open("rb", buffering=0) as file:
        for start in range(0, pair.num_documents, CHUNK):
            offsets = offsets_of(pair.document_lengths(start, min(start + CHUNK, pair.num_documents)))
            first = 0
            while first < len(offsets) - 1:
                fitting = int(np.searchsorted(offsets, offsets[first] + BATCH_TOKENS, side="right")) - 1
                last = max(first + 1, fitting)
                count = int(offsets[last] - offsets[first])
                ids = np.fromfile(file, pair.dtype, count)
                assert len(ids) == count
                yield TokenBatch(ids, offsets[first : last + 1] - offsets[first])
                first = last
