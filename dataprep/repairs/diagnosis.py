"""What is wrong with a pair, and what it must have been: the one reading that the files themselves prove.

    sizes       which readings are possible at all                                `readings`
    the .bin    which of them its ids and the ends of its documents bear out       `evidence`, `choice`
    EODs        where no index can be believed, and the EOD is known               `eods`

Whatever stays open is refused. Nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.checks.report import Expected
from dataprep.errors import EncodeError
from dataprep.indexed import CODES, MAX_SEQUENCES, idx_path
from dataprep.repairs.case import Case, Unusable
from dataprep.repairs.eods import by_eods
from dataprep.repairs.indices import by_index
from dataprep.repairs.sequences import cuts, joined
from dataprep.storage import checksum

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.repairs.case import Change, Dtype, Known
    from dataprep.repairs.evidence import Ids
    from dataprep.repairs.readings import Reading
    from dataprep.repairs.sequences import Sequences
    from dataprep.watcher import Watcher

RESHAPED = {"sentence-level", "sequences-empty"}
"""Changes after which an index is not the one that was published."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a pair must have been, and what is to become of it.

    Attributes:
        reading: how the ``.bin`` is to be read.
        sequences: what the new index holds.
        dtype: of the new ``.bin``.
        changes: what differs; none: the pair is sound.
        warnings: what the user has to know.
        cuts: the (document, sequence) at which the new pairs begin, and the end; none: all fits into one.
        bin_checksum: of the tokens as they were read, little-endian.
        expect: what the new pairs have to fit.
        idx_checksum: that the new index must have, where it has to be the one that was published.
    """

    reading: Reading
    sequences: Sequences
    dtype: Dtype
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    cuts: tuple[tuple[int, int], ...]
    bin_checksum: str
    expect: Expected
    idx_checksum: str | None

    def to_json(self) -> dict[str, Any]:
        """What was done, as plain JSON values."""
        return {"changes": [change.to_json() for change in self.changes], "warnings": list(self.warnings)}


def diagnose(prefix: Path, known: Known, scratch: Path, watcher: Watcher) -> Diagnosis:
    """Find out what a pair must have been.

    Args:
        prefix: of the pair.
        known: what is known from elsewhere.
        scratch: folder for scratch files without names.
        watcher: told of the bytes read.

    Raises:
        FormatError: it cannot be proven; says what, and what would help.
        EncodeError: an id does not fit the dtype that is wanted.
    """
    case = Case(prefix, known, scratch, watcher)
    try:
        reading, sequences, ids = by_index(case)
    except Unusable as reason:
        reading, sequences, ids = by_eods(case, reason.finding)
    _check_ids(case, ids)
    _check_published(case, sequences, reading, ids)
    if known.documents:
        sequences = _join(case, sequences)
    dtype = _choose_dtype(case, reading, ids)
    parts = _cut(case, sequences)
    published, idx_checksum = known.published, None
    if published is not None and published.dtype == dtype and not any(c.code in RESHAPED for c in case.changes):
        idx_checksum = published.files.idx_checksum
    changes, warnings = tuple(case.changes), tuple(case.warnings)
    is_other = np.dtype(dtype).itemsize != reading.dtype.itemsize  # else a dtype too small was so before
    expect = Expected(vocab_size=known.vocab_size if is_other else None, eod_id=case.proven_eod)
    return Diagnosis(reading, sequences, dtype, changes, warnings, parts, ids.checksum, expect, idx_checksum)


def _check_ids(case: Case, ids: Ids) -> None:
    """Refuse what no reading makes ids of."""
    size = case.known.vocab_size
    if ids.smallest < 0:
        raise case.refusal(("id-negative", f"{case.bin} holds the id {ids.smallest}"))
    if not ids.are_ids and any(change.code.startswith("dtype") for change in case.changes):
        code = case.header.code if case.header is not None else 0
        text = f"the dtype code is {code}, and as whole numbers {case.bin} holds {ids.largest}: no id"
        raise case.refusal(("dtype-code", text), "build the dataset again")
    if size is not None and ids.largest >= size:
        raise case.refusal(("id-range", f"{case.bin} holds the id {ids.largest}, the vocabulary has {size}"))


def _check_published(case: Case, sequences: Sequences, reading: Reading, ids: Ids) -> None:
    """Hold documents and tokens to the manifest."""
    published = case.known.published
    if published is None:
        return
    for what, expected, found in (
        ("documents", published.num_documents, sequences.num_documents),
        ("tokens", published.num_tokens, reading.num_tokens),
        ("checksum of .bin", published.files.bin_checksum, ids.checksum),
    ):
        if expected != found:
            raise case.refusal(("manifest", f"{what}: the manifest says {expected}, found {found}"))
    if not case.changes and checksum(idx_path(case.prefix)) != published.files.idx_checksum:
        raise case.refusal(("manifest", "the .idx is sound, and another than the manifest says"))


def _join(case: Case, sequences: Sequences) -> Sequences:
    whole = joined(sequences)
    before, after, count = sequences.num_sequences, whole.num_sequences, sequences.num_documents
    if before == after:
        return sequences
    case.change("sentence-level", f"{before} sequences of {count} documents became {after}, one for each document")
    return whole


def _choose_dtype(case: Case, reading: Reading, ids: Ids) -> Dtype:
    """That of the new ``.bin``."""
    size, code = reading.dtype.itemsize, case.header.code if case.header is not None else 0
    dtype: Dtype = case.known.dtype or ("uint16" if size <= 2 else "int32")
    if ids.largest > np.iinfo(dtype).max:
        raise EncodeError(f"{case.bin} holds the id {ids.largest}, which {dtype} cannot hold; nothing was written")
    if size != np.dtype(dtype).itemsize:
        case.change("dtype", f"every token of {size} bytes became {dtype}; the largest id is {ids.largest}")
    elif reading.kind != "eods" and code == CODES["int16"]:
        case.change("dtype-unusual", f"the dtype code {code}, int16, became {CODES[dtype]}, {dtype}")
    return dtype


def _cut(case: Case, sequences: Sequences) -> tuple[tuple[int, int], ...]:
    if sequences.num_sequences <= MAX_SEQUENCES:
        return ()
    found = tuple(cuts(sequences, MAX_SEQUENCES))
    case.change("too-many", f"{sequences.num_sequences} sequences were split into {len(found) - 1} pairs")
    return found
