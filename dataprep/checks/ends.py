"""How documents end and begin, and which special tokens stand inside them: judged by the counts of a `Tally`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.checks.report import Place
from dataprep.checks.tally import NEVER
from dataprep.indexed import bin_path

if TYPE_CHECKING:
    from dataprep.checks.index import Sound
    from dataprep.checks.known import Known
    from dataprep.checks.report import Report
    from dataprep.checks.tally import Tally

SURE = 0.99
"""Share of a sample at which an id that nobody named is taken for the EOD, against the one that was named."""


@dataclass(frozen=True, slots=True)
class Likely:
    """What a sample of the documents ends and begins with most often.

    Attributes:
        eod, bos: ids, each at more than half of the sample.
        eod_share: at how much of it.
        largest: id at the start of the ``.bin``.
    """

    eod: int | None
    bos: int | None
    eod_share: float
    largest: int


def place_of(sound: Sound, token: int) -> Place:
    """Where a token is: its byte in the ``.bin``, its sequence, its document."""
    index, total, first = sound.index, 0, 0
    path, byte = str(bin_path(sound.prefix)), token * sound.index.dtype.itemsize
    if token == NEVER:
        return Place(path)
    for lengths in index.chunks("sequence_lengths"):
        ends = np.cumsum(lengths, dtype=np.int64) + total
        if token < ends[-1]:
            first += int(np.searchsorted(ends, token, "right"))
            break
        total, first = int(ends[-1]), first + len(lengths)
    document = first
    if not sound.by_sequence:
        document = sum(int(np.count_nonzero(bounds <= first)) for bounds in index.chunks("document_indices")) - 1
    return Place(path, byte=byte, sequence=first, document=document)


def check_ends(sound: Sound, tally: Tally, ids: tuple[Known, Likely, int | None], report: Report) -> None:
    """Judge how documents end; `ids` is what is known, what is likely, and the EOD that was counted."""
    known, likely, eod = ids
    place = Place(str(bin_path(sound.prefix)))
    if eod is None:
        if not known.has_none and tally.num_documents > 1:
            report.add("eod-unclear", place, "no id ends more than half of the documents")
        return
    inside = tally.counts[eod] - tally.num_ends
    if known.eod is None and inside > tally.num_ends:
        often = f"the id {eod} ends most documents, but stands {inside} times inside them: a word, no EOD"
        report.add("eod-unclear", place, often)
        return
    report.eod_id, report.num_with_eod, report.num_eod_inside = eod, tally.num_ends, inside
    code = None
    if tally.num_ends < tally.num_documents and not known.has_none:
        code, message = _why_missing(tally, known, likely, eod)
        report.add(code, place_of(sound, tally.first_missing), message)
    if inside and code != "eod-misplaced":
        cause = "documents begin with it" if likely.bos == eod else "it was in their text, or documents were joined"
        message = f"the EOD {eod} stands {inside} times elsewhere than at the end: {cause}"
        report.add("eod-inside", place_of(sound, tally.first_inside), message)


def _why_missing(tally: Tally, known: Known, likely: Likely, eod: int) -> tuple[str, str]:
    """Code and message for documents without the EOD."""
    total, ends = tally.num_documents, tally.num_ends
    message = f"{total - ends} of {total} documents do not end with {eod}"
    if known.eod is None:
        return "eod-unclear", f"{message}, which ends the others"
    if ends * 2 < total:
        other = likely.eod if likely.eod != eod else None
        often = tally.counts[other] if other is not None else 0
        sure = other in known.specials or (likely.eod_share > SURE and often < 2 * total)  # more often: a word
        if other is not None and sure:
            found = (
                f"{likely.eod_share:.0%} of a sample end with {other}, which stands {often} times in {total} documents"
            )
            return "eod-other", f"expected documents to end with {eod}, {ends} do; {found}"
        if tally.counts[eod] * 2 >= total and likely.bos != eod:
            inside = tally.counts[eod] - ends
            return "eod-misplaced", f"{message}, but it stands {inside} times inside: .bin and .idx are not of one run"
    if known.is_certain:
        return "eod-missing", message
    return "eod-unclear", f"{message}, the tokenizer's EOD"


def check_begins(sound: Sound, tally: Tally, ids: tuple[Known, int | None], report: Report) -> None:
    """Judge how documents begin; `ids` is what is known, and the BOS that was counted."""
    known, bos = ids
    if bos is None:
        return
    report.bos_id, report.num_with_bos = bos, tally.num_begins
    if known.bos is not None and 0 < tally.num_begins < tally.num_documents:
        message = f"{tally.num_begins} of {tally.num_documents} documents begin with the BOS {bos}, the others do not"
        report.add("bos-mixed", Place(str(bin_path(sound.prefix))), message)


def check_specials(sound: Sound, tally: Tally, ids: tuple[Known, int | None], report: Report) -> None:
    """Count special tokens inside documents; `ids` is what is known, and the EOD, which has a rule of its own."""
    known, eod = ids
    specials = known.specials - {eod}
    if not specials:
        return
    inside = {id_: number for id_, number in tally.counts.items() if id_ in specials}
    if known.bos in inside:
        inside[known.bos] -= tally.num_begins
    report.num_specials_inside = sum(inside.values())
    if report.num_specials_inside:
        often = sorted(((number, id_) for id_, number in inside.items() if number), reverse=True)[:5]
        shown = ", ".join(f"{id_} {number} times" for number, id_ in often)
        report.add(
            "specials-inside", Place(str(bin_path(sound.prefix))), f"inside documents stand special ids: {shown}"
        )
