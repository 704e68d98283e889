"""What a diagnosis amounts to on disk: one new pair, or several where there are too many sequences for one.

How it is written, proven and given its name is the same as for all pairs made from pairs, see `reshaping.making`.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

import dataprep
from dataprep.checks.rules import RULES
from dataprep.errors import EncodeError, FormatError
from dataprep.indexed import HEADER, bin_path
from dataprep.inspection import length_summary
from dataprep.manifest import PairManifest
from dataprep.repairs.evidence import scan
from dataprep.repairs.sequences import document_lengths, part
from dataprep.reshaping.lineage import Lineage
from dataprep.reshaping.making import Copied, Outputs, check_free
from dataprep.reshaping.selections import Run, steps, stretches, write_pair
from dataprep.storage import write_all
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.manifest import Manifest
    from dataprep.repairs.diagnosis import Diagnosis
    from dataprep.repairs.sequences import Sequences
    from dataprep.storage import AtomicFile
    from dataprep.watcher import Watcher


@dataclass(frozen=True, slots=True)
class Mended:
    """Documents as a diagnosis has them; a `selections.Selection`.

    Attributes:
        prefix: of the pair that is repaired.
        source, dtype: of the tokens there, and of the new ones.
        sequences: of these documents.
        first_document, first_token: where they begin there.
        num_tokens: of theirs.
    """

    prefix: Path
    source: np.dtype[Any]
    dtype: np.dtype[Any]
    sequences: Sequences
    first_document: int
    first_token: int
    num_tokens: int

    @property
    def num_documents(self) -> int:
        return self.sequences.num_documents

    @property
    def num_sequences(self) -> int:
        return self.sequences.num_sequences

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.dtype.itemsize

    @property
    def is_copied(self) -> bool:
        """The bytes stay as they are."""
        return self.source.itemsize == self.dtype.itemsize and self.source.isnative

    def lengths(self) -> Iterator[npt.NDArray[np.int32]]:
        """int32 pieces; each call starts anew.

        Raises:
            EncodeError: one is longer than that.
        """
        for piece in self.sequences.lengths():
            if len(piece) and int(piece.max()) > np.iinfo(np.int32).max:
                raise EncodeError(f"{self.prefix}: a sequence of {int(piece.max())} tokens; an index holds 2147483647")
            yield piece.astype(np.int32)

    def ends(self) -> Iterator[Offsets]:
        """int64 pieces; each call starts anew."""
        boundaries = self.sequences.boundaries()
        yield next(boundaries)[1:]
        yield from boundaries

    def copy(self, target: int, watcher: Watcher) -> str | None:
        """Append the tokens to an open file; returns their checksum if they came through memory."""
        first, stop = self.first_token, self.first_token + self.num_tokens
        if self.is_copied:
            size = self.dtype.itemsize
            Run(self.prefix, 0, 0, 0, 0, first * size, stop * size).copy(target, watcher)
            return None
        digest = xxhash.xxh3_128()
        for start, ids in scan(bin_path(self.prefix), self.source, Silent()):
            wanted = ids[max(0, first - start) : max(0, stop - start)].astype(self.dtype)
            write_all(target, wanted)
            digest.update(wanted.data)
            watcher(Progress(source_bytes=wanted.nbytes))
        return f"xxh3_128:{digest.hexdigest()}"


def outputs_of(prefix: Path, diagnosis: Diagnosis, output: Path) -> dict[Path, Mended]:
    """The new pairs by their names.

    Raises:
        SpecError: something has one of the names.
    """
    source, dtype, sequences = diagnosis.reading.dtype, np.dtype(diagnosis.dtype), diagnosis.sequences
    whole = Mended(prefix, source, dtype, sequences, 0, 0, diagnosis.reading.num_tokens)
    found = {output: whole}
    if diagnosis.cuts:
        found, token = {}, 0
        for number, ((first, low), (stop, high)) in enumerate(pairwise(diagnosis.cuts)):
            some = part(sequences, first, stop, (low, high))
            num_tokens = sum(int(piece.sum()) for piece in some.lengths())
            name = output.with_name(f"{output.name}-{number:05d}")
            found[name] = Mended(prefix, source, dtype, some, first, token, num_tokens)
            token += num_tokens
    # parts of a split that was made before, and may have been longer, would pass for parts of this one
    parts = output.parent.glob(f"{glob.escape(output.name)}-{'[0-9]' * 5}.[bi][id][nx]")
    for name in {output, *found, *(path.with_suffix("") for path in parts)}:
        check_free(name)
    return found


def write(
    diagnosis: Diagnosis, output: Path, pairs: dict[Path, Mended], manifest: Manifest | None, watcher: Watcher
) -> tuple[str, ...]:
    """Write the new pairs, prove all of them, and give all of them their names.

    Args:
        diagnosis: what the old one must have been.
        output: what the user calls the new ones.
        pairs: see `outputs_of`.
        manifest: of the old one, if it has one.
        watcher: is told how it gets on.

    Returns:
        What `verify` warns of in them.

    Raises:
        OutputError: no room, or what was written is not what was read.
        FormatError: the manifest speaks of another index.
        EncodeError: a sequence is too long for an index. In all cases nothing has the new name.
    """
    warnings: list[str] = []
    with Outputs(output, sum(_num_bytes(pair) for pair in pairs.values())) as outputs:
        watcher.stage("write", steps(pairs.values()))
        written = {
            name: write_pair(outputs.private(name), diagnosis.dtype, (pair,), watcher) for name, pair in pairs.items()
        }
        _check_published(diagnosis, pairs, [idx for idx, _ in written.values()])
        checksums = _checksums(diagnosis, list(pairs.values()), [copied for _, (copied,) in written.values()])
        watcher.stage("verify", sum(pair.num_bytes for pair in pairs.values()))
        for (name, pair), checksum in zip(pairs.items(), checksums, strict=True):
            report = outputs.prove(name, [Copied(pair.prefix, pair.num_bytes, checksum)], watcher, diagnosis.expect)
            source = Path(os.path.abspath(pair.prefix))
            lineage = Lineage()
            lineage.add(source, manifest, [(pair.first_document, pair.first_document + pair.num_documents)])
            outputs.describe(
                name,
                PairManifest(
                    dataprep_version=dataprep.__version__,
                    command="repair",
                    options={"input": str(source), **diagnosis.to_json()},
                    recipes=tuple(lineage.recipes),
                    parts=tuple(lineage.parts),
                    prefixes=(
                        report.entry(name.name, diagnosis.dtype, written[name][0].num_bytes, written[name][0].checksum),
                    ),
                    lengths=length_summary(document_lengths(pair.sequences)),
                    verification=outputs.verification(name, report),
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                ),
            )
            warnings += report.named(str(name)).warnings
        outputs.publish(list(pairs))
    return tuple(dict.fromkeys(warnings))


def _num_bytes(pair: Mended) -> int:
    """Of the two files."""
    return pair.num_bytes + HEADER.size + 12 * pair.num_sequences + 8 * (pair.num_documents + 1)


def _checksums(diagnosis: Diagnosis, pairs: Sequence[Mended], copied: Sequence[str | None]) -> list[str]:
    """What every new ``.bin`` must have: of what went through memory, or of what was examined."""
    through_memory = [checksum for checksum in copied if checksum is not None]
    if through_memory or len(pairs) == 1:
        return through_memory or [diagnosis.bin_checksum]
    ends = [(pair.first_token + pair.num_tokens) * pair.source.itemsize for pair in pairs]
    return stretches(pairs[0].prefix, ends, Silent())[0]


def _check_published(diagnosis: Diagnosis, pairs: dict[Path, Mended], written: Sequence[AtomicFile]) -> None:
    """Hold the index to the manifest's, where it has to be the same."""
    if diagnosis.idx_checksum is None or len(written) > 1:
        return
    if written[0].checksum != diagnosis.idx_checksum:
        prefix = next(iter(pairs.values())).prefix
        text = f"mended in itself, its index would not be the one that was published; {RULES['manifest'].fix}"
        raise FormatError(f"{prefix} cannot be repaired: manifest: {text}")
