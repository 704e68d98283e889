"""What a pair must have been by its index, however damaged, and the ``.bin``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dataprep.indexed import DTYPES, idx_path
from dataprep.repairs import choice, findings
from dataprep.repairs.case import NAME_EOD, Unusable
from dataprep.repairs.contested import check_contested
from dataprep.repairs.eods import find_bounds
from dataprep.repairs.measures import choose
from dataprep.repairs.readings import is_single, item_size, readings
from dataprep.repairs.sequences import Sequences, single

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Offsets
    from dataprep.repairs.arrays import Arrays
    from dataprep.repairs.case import Case
    from dataprep.repairs.evidence import Evidence, Ids
    from dataprep.repairs.findings import Finding
    from dataprep.repairs.measures import Measures
    from dataprep.repairs.readings import Reading


def by_index(case: Case) -> tuple[Reading, Sequences, Ids]:
    """How the ``.bin`` is to be read, what the new index holds, and what was seen of the ids.

    Raises:
        Unusable: the index cannot be believed.
        FormatError: nothing can be proven.
    """
    header = case.header
    if header is None:
        raise Unusable(findings.missing(idx_path(case.prefix)))
    stranger = findings.foreign(header)
    if stranger is not None:
        raise Unusable(stranger)
    arrays, measures = choose(header, case.bin_bytes)
    candidates = readings(header, arrays, measures, case.bin_bytes)
    borne, is_open = choice.choose(candidates, case.examine)
    if borne is None:
        if candidates:
            finding = findings.undecided(candidates, case.bin_bytes)
        else:
            finding = findings.contradiction(header, arrays, measures, case.bin_bytes)
        if is_open:
            away = f"move {idx_path(case.prefix)} away to have it rebuilt from the EODs alone"
            raise case.refusal(finding, NAME_EOD if case.known.eod is None else away)
        _keep_sound(case, arrays, measures, finding)
        raise Unusable(finding)
    reading, evidence = choice.turn(borne, case.examine, case.known.eod)
    _check_odd(case, reading, evidence)
    check_contested(case, arrays, measures, reading, evidence)
    modes = findings.modes(header, arrays)
    if modes is not None:
        raise case.refusal(modes, f"if they are none, cut them off a copy: truncate -s {arrays.end}")
    for code, text in findings.differences(header, arrays, measures, reading, case.bin_bytes):
        case.change(code, text)
    case.note_order(reading)
    return reading, _bounded(case, reading, evidence, arrays, measures), evidence.ids


def _check_odd(case: Case, reading: Reading, evidence: Evidence) -> None:
    """Refuse to cut off a part of a token that may have come in anywhere: all behind it would be other tokens."""
    behind = case.bin_bytes - reading.num_bytes
    if reading.kind != "tail" or behind >= reading.dtype.itemsize or evidence.is_alike:
        return
    text = f"the .bin has {behind} bytes more than its tokens; that they are its last, no EOD of all documents proves"
    away = f"if they are, cut them off a copy: truncate -s {reading.num_bytes}; else copy both files again"
    raise case.refusal(("bin-tail", text), away if case.known.eod is not None else f"{NAME_EOD}, or {away}")


def _keep_sound(case: Case, arrays: Arrays, measures: Measures, finding: Finding) -> None:
    """Refuse to throw away an index that mostly agrees with itself: the ``.bin`` may be another's, or cut off."""
    assert case.header is not None
    agreeing = measures.num_agreeing.get(item_size(case.header.code) or 0, 0)
    if measures.num_tokens and arrays.is_whole("sequence_pointers") and agreeing * 2 >= arrays.num_sequences - 1:
        named = "" if case.known.eod is not None else ", with --eod ID"
        advice = f"copy both files again; or move the .idx away to go by the EODs in the .bin alone{named}"
        raise case.refusal(finding, advice)


def _bounded(case: Case, reading: Reading, evidence: Evidence, arrays: Arrays, measures: Measures) -> Sequences:
    """The sequences with document boundaries that hold."""
    if measures.shift is not None:
        _check_ends(case, evidence)
        _check_bounds(case, reading, evidence, arrays, measures)
        if measures.shift:
            case.change("boundaries-start", f"the document boundaries began at {measures.shift}, and not at 0")
        return reading.sequences
    code, text = findings.broken_bounds(arrays, measures)
    if is_single(arrays, measures):
        _check_ends(case, evidence)
        case.change(code, f"{text}; there are as many documents as sequences: one each")
        return reading.sequences
    sequences = single(reading.sequences.num_sequences, reading.sequences.lengths)
    if evidence.is_proof:
        case.proven_eod = case.known.eod
        case.change(code, f"{text}; each sequence ends with the EOD {evidence.eod}, and became a document")
    elif case.known.eod is not None:
        sequences = _bounded_by_eods(case, replace(reading, sequences=sequences), case.known.eod, (code, text))
    else:
        finding = (code, f"{text}, and not every sequence is a document")
        raise case.refusal(finding, f"{NAME_EOD}, if documents end with one")
    lost = arrays.num_boundaries - 1 - sequences.num_documents
    some = f"{lost} documents without tokens" if lost > 0 else "documents without tokens, if there were any,"
    case.warnings.append(f"{some} are gone: where they were is not known")
    return sequences


def _check_bounds(case: Case, reading: Reading, evidence: Evidence, arrays: Arrays, measures: Measures) -> None:
    """Refuse boundaries that can be right, but most likely are not: the EOD ends sequences within documents.

    That is so where they were those of documents of one sequence each, or where something else is damaged and
    documents have no sequence. A pair of which nothing is to be written is left alone.
    """
    assert case.header is not None
    one_each = arrays.num_sequences + 1
    is_other = one_each in (arrays.num_boundaries, case.header.num_boundaries) and measures.num_own < one_each
    num_empty = reading.sequences.num_documents - evidence.num_ends if case.changes else 0
    usual = DTYPES.get(case.header.code) in (np.uint16, np.int32)
    is_written = case.changes or case.known.documents or case.known.dtype is not None or not usual
    if not ((is_written and is_other) or num_empty) or evidence.num_eods == evidence.num_with_eod:
        return
    whole = single(reading.sequences.num_sequences, reading.sequences.lengths)
    found = case.examine(replace(reading, sequences=whole))
    if is_other and found.is_alike:
        text = f"there are, or were, as many documents as sequences, and each of these ends with the EOD {evidence.eod}"
        raise case.refusal(("boundaries-order", f"{text}; yet by the boundaries they are not one each"), "")
    if num_empty and found.num_with_eod > evidence.num_with_eod:
        text = (
            f"{found.num_with_eod - evidence.num_with_eod} sequences within documents end with the EOD {evidence.eod}"
        )
        raise case.refusal(("boundaries-order", f"{text}, and by the boundaries {num_empty} documents are empty"), "")


def _bounded_by_eods(case: Case, reading: Reading, eod: int, finding: Finding) -> Sequences:
    """The sequences as documents that end wherever one ends with the EOD."""
    code, text = finding
    found = find_bounds(case.bin, reading, eod, case.scratch, case.watcher)
    if not found.is_whole:
        text = f"{text}, and the EOD {eod} stands inside sequences as well, or not at the end of the last one"
        raise case.refusal((code, text), "")
    case.proven_eod = eod
    case.change(code, f"{text}; a document was made to end wherever a sequence ends with the EOD {eod}")

    def boundaries() -> Iterator[Offsets]:
        yield np.zeros(1, np.int64)
        yield from found.bounds.pieces()

    return Sequences(reading.sequences.num_sequences, found.bounds.count, reading.sequences.lengths, boundaries)


def _check_ends(case: Case, evidence: Evidence) -> None:
    """Hold the documents to the EOD that is known."""
    if case.known.eod is None:
        return
    missing = evidence.num_ends - evidence.num_with_eod
    if not missing:
        case.proven_eod = case.known.eod
        return
    text = f"{missing} of {evidence.num_ends} documents do not end with the EOD {case.known.eod}"
    if evidence.is_supported:
        case.warnings.append(f"{text}; they were left so")
        return
    advice = f"name another with --eod, or move {idx_path(case.prefix)} away to have it rebuilt from the EODs"
    raise case.refusal(("eod-missing", f"{text}: the .idx may be of another .bin"), advice)
