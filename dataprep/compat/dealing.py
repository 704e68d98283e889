"""The order of Megatron's partitions: documents dealt out to N files one by one, and those put behind each other.

0 1 2 3 4 5 6   dealt to 3:   0 3 6 | 1 4 | 2 5
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.errors import OutputError
from dataprep.indexed import Index, bin_path, idx_path
from dataprep.reshaping.selections import BLOCK_DOCUMENTS, Drawn, open_bin, read_documents, write_pair
from dataprep.stages.verify import verify
from dataprep.storage import copy_range, explain, make_folder, write_all
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.batches import Mask, Offsets
    from dataprep.manifest import DatasetManifest
    from dataprep.watcher import Watcher


PIECE_TOKENS = 4 << 20
"""Tokens dealt out at a time: 16 MiB."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Every `number`-th document from `first` on; a draw, see `selections.Drawn`."""

    first: int
    number: int

    def chosen(self, start: int, stop: int) -> Mask:
        """bool[stop - start]."""
        turns: Mask = np.arange(start, stop) % self.number == self.first
        return turns


@dataclass(frozen=True, slots=True)
class Dealt:
    """A selection whose tokens lie in a file of their own already: all partitions are dealt out in one pass."""

    drawn: Drawn
    part: Path

    @property
    def prefix(self) -> Path:
        return self.drawn.prefix

    @property
    def num_documents(self) -> int:
        return self.drawn.num_documents

    @property
    def num_sequences(self) -> int:
        return self.drawn.num_sequences

    @property
    def num_bytes(self) -> int:
        return self.drawn.num_bytes

    def lengths(self) -> Iterator[npt.NDArray[np.int32]]:
        return self.drawn.lengths()

    def ends(self) -> Iterator[Offsets]:
        return self.drawn.ends()

    def copy(self, target: int, watcher: Watcher) -> None:
        with self.part.open("rb", buffering=0) as file:
            copy_range(file.fileno(), target, 0, self.num_bytes)
        watcher(Progress(source_bytes=self.num_bytes))


def deal(source: Path, manifest: DatasetManifest, number: int, target: Path, watcher: Watcher) -> DatasetManifest:
    """Write the documents of a pair in another order.

    Args:
        source: prefix of the pair.
        manifest: of it.
        number: how many files to deal to.
        target: prefix of the pair to write; beside it the parts are kept until it is there.

    Returns:
        The manifest with the new checksums. Its provenance stays that of the documents before they were dealt.

    Raises:
        OutputError: the file system refuses.
    """
    make_folder(target.parent)
    size = bin_path(source).stat().st_size
    watcher.stage("deal", 2 * size)
    parts = [target.with_name(f"part-{i:05d}.bin") for i in range(number)]
    _scatter(source, parts, watcher)
    dealt = [Dealt(Drawn.of(source, Turn(i, number), watcher), part) for i, part in enumerate(parts)]
    for path in (bin_path(target), idx_path(target)):
        path.unlink(missing_ok=True)
    idx, _ = write_pair(target, manifest.recipe.dtype, dealt, watcher)
    watcher.stage("verify", size)
    report = verify(target, progress=lambda n: watcher(Progress(source_bytes=n)))
    if not report.ok:
        raise OutputError(f"{target} is not what was written: {report.problems[0].message}; run again")
    return manifest.model_copy(
        update={
            "prefixes": (report.entry(target.name, manifest.recipe.dtype, idx.num_bytes, idx.checksum),),
            "verification": {**report.to_json(), "prefix": target.name},
        }
    )


def _scatter(source: Path, parts: Sequence[Path], watcher: Watcher) -> None:
    """Deal the tokens out; one file each."""
    index = Index(idx_path(source))
    with contextlib.ExitStack() as stack:
        with explain(parts[0], "create"):
            files = [stack.enter_context(part.open("wb", buffering=0)) for part in parts]
        data = stack.enter_context(open_bin(source))
        for first in range(0, index.num_documents, BLOCK_DOCUMENTS):
            last = min(first + BLOCK_DOCUMENTS, index.num_documents)
            places = read_documents(index, first, last)[2]
            for start in range(0, int(places[-1]), PIECE_TOKENS):
                ids = np.fromfile(data, index.dtype, min(PIECE_TOKENS, int(places[-1]) - start))
                # Tokens of each document in this piece.
                here: Offsets = np.diff(np.minimum(np.maximum(places - start, 0), len(ids)))
                for turn, file in enumerate(files):
                    keep = np.repeat(Turn(turn, len(files)).chosen(first, last), here)
                    with explain(parts[turn], "write"):
                        write_all(file.fileno(), ids[keep])
                watcher(Progress(source_bytes=ids.nbytes))
