"""Where lengths and pointers contradict each other: whether what was chosen is right there.

That most documents end with the EOD says nothing of the few sequences about which the two disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.repairs.case import NAME_EOD
from dataprep.repairs.evidence import FEW, scan
from dataprep.repairs.sequences import Rising, lasts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.repairs.arrays import Arrays
    from dataprep.repairs.case import Case
    from dataprep.repairs.evidence import Evidence
    from dataprep.repairs.measures import Measures
    from dataprep.repairs.readings import Reading

    Flags = npt.NDArray[np.bool_]

WINDOW = 1 << 16
"""Sequences looked at together: a dozen arrays of 8 bytes each, in several passes at once."""


def check_contested(case: Case, arrays: Arrays, measures: Measures, reading: Reading, evidence: Evidence) -> None:
    """Hold a reading to the EODs wherever lengths and pointers contradict each other.

    At the end of a document it has to stand, and not also where the other array has that end. Where documents have no
    EOD, and within them, it must be plain that the other array is the wrong one.

    Raises:
        FormatError: it does not stand there, or nothing tells.
    """
    agrees = reading.dtype.itemsize in measures.pointer_items or not arrays.is_whole("sequence_pointers")
    if agrees or reading.kind not in ("lengths", "pointers"):
        return
    what = "lengths and pointers contradict each other about the end of sequence"
    among = " of those with tokens" if measures.num_empty else ""
    eod = evidence.eod if evidence.is_supported or evidence.num_ends < FEW else None  # of a few, a guess only refuses
    first = 0
    for some in _contests(arrays, reading, case.bin_bytes, eod is not None):
        if some.is_open.any():
            number = first + int(some.is_open.argmax())
            advice = NAME_EOD if case.known.eod is None else ""
            raise case.refusal(("pointers", f"{what} {number}{among}, and nothing tells which are right"), advice)
        first += len(some.is_open)
    if eod is None:
        return
    found = _first_wrong(case, arrays, reading, eod)
    if found is not None:
        number, is_end = found
        where = (
            f"by the {reading.kind} the EOD {eod} does not stand there" if is_end else f"the EOD {eod} stands at both"
        )
        raise case.refusal(("pointers", f"{what} {number}{among}, and {where}"), "")
    missing, elsewhere = evidence.num_ends - evidence.num_with_eod, evidence.num_eods - evidence.num_with_eod
    if reading.kind == "pointers" and missing and elsewhere:  # many pointers in a row may be wrong by the same
        text = f"by the pointers {missing} of {evidence.num_ends} documents do not end with the EOD {eod}"
        raise case.refusal(("pointers", f"{what}s, and {text}, which stands elsewhere {elsewhere} times"), "")


@dataclass(frozen=True, slots=True)
class _Contests:
    """What is contested of some sequences with tokens.

    Attributes:
        is_open: bool, of each: its end is contested, and nothing tells.
        ends: numbers of the last tokens of documents whose end is contested.
        inside, beyond: those that the other array has instead, in the same sequence and in the next one.
    """

    is_open: Flags
    ends: Offsets
    inside: Offsets
    beyond: Offsets


def _first_wrong(case: Case, arrays: Arrays, reading: Reading, eod: int) -> tuple[int, bool] | None:
    """A contested end of a document at which no EOD stands, or for which one stands where the other array has it.

    Returns:
        The number of the sequence, and whether the former.
    """

    def contests() -> Iterator[_Contests]:
        return _contests(arrays, reading, case.bin_bytes, True)

    ends = Rising(some.ends for some in contests())
    inside, beyond = Rising(some.inside for some in contests()), Rising(some.beyond for some in contests())
    case.watcher.stage("examine", case.bin_bytes)
    for first, piece in scan(case.bin, reading.dtype, case.watcher):
        stop = first + len(piece)
        for numbers, is_end, is_next in ((ends, True, False), (inside, False, False), (beyond, False, True)):
            places = numbers.take(stop)
            wrong = places[(piece[places - first] == eod) != is_end]
            if len(wrong):
                return _sequence_at(reading, int(wrong[0])) - is_next, is_end
    return None


def _sequence_at(reading: Reading, position: int) -> int:
    """The number of the sequence that holds a token."""
    number = start = 0
    for lengths in reading.sequences.lengths():
        stops = np.cumsum(lengths) + start
        if position < int(stops[-1]):
            return number + int(np.searchsorted(stops, position, side="right"))
        number, start = number + len(lengths), int(stops[-1])
    raise AssertionError(position)


def _contests(arrays: Arrays, reading: Reading, bin_bytes: int, has_eod: bool) -> Iterator[_Contests]:
    """For the sequences with tokens, a piece at a time."""
    size, seen, start = reading.dtype.itemsize, 0, 0
    numbers = Rising(lasts(reading.sequences))
    for lengths, pointers in _windows(arrays, bin_bytes):
        steps = np.diff(pointers)
        differs = steps != lengths * size
        if reading.kind == "pointers":  # a single wrong length leaves its neighbours alone
            is_open = differs[:-1] & differs[1:]
            starts, ends, next_ends = (pointers[i : i + len(is_open)] // size for i in range(3))
            others = starts + lengths[:-1]
        else:  # a pointer that could be one
            ends = np.cumsum(lengths[:-1]) + start
            starts, next_ends = ends - lengths[:-1], ends + lengths[1:]
            follows = pointers[1:-1]
            is_open = differs[:-1] & (follows != ends * size) & (follows % size == 0)
            is_open &= (steps[:-1] > 0) & (steps[1:] > 0)
            others = np.where(follows % size == 0, follows // size, ends)
            start = int(ends[-1])
        has_tokens = ends > starts
        starts, ends, next_ends, others = (each[has_tokens] for each in (starts, ends, next_ends, others))
        touched = (differs[:-1] | differs[1:])[has_tokens]  # its end, or the start of the next
        is_last = np.zeros(len(ends), np.bool_)
        is_last[numbers.take(seen + len(ends)) - seen] = True
        is_told = is_last & has_eod
        inside = is_told & (starts < others) & (others < ends)
        beyond = is_told & (ends < others) & (others < next_ends)
        yield _Contests(
            is_open[has_tokens] & ~is_told, *(x - 1 for x in (ends[touched & is_told], others[inside], others[beyond]))
        )
        seen += len(ends)


def _windows(arrays: Arrays, bin_bytes: int) -> Iterator[tuple[Offsets, Offsets]]:
    """Lengths of some sequences and of the next one; their pointers and the next two. Behind all, the file ends.

    The first pointer is 0, whatever the index says.
    """
    is_first = True
    ahead, places = np.empty(0, np.int64), np.empty(0, np.int64)
    both = zip(arrays.pieces("sequence_lengths"), arrays.pieces("sequence_pointers"), strict=True)
    for start, lengths, pointers in ((i, *piece) for piece in both for i in range(0, len(piece[0]), WINDOW)):
        ahead = np.concatenate([ahead, lengths[start : start + WINDOW]])
        places = np.concatenate([places, pointers[start : start + WINDOW]])
        if is_first:
            places[:1], is_first = 0, False
        if len(ahead) > 2:
            yield ahead[:-1], places
            ahead, places = ahead[-2:], places[-2:]
    yield np.append(ahead, 0), np.append(places, [bin_bytes, bin_bytes])
