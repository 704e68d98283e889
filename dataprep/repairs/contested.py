"""Where lengths and pointers contradict each other: whether what was chosen is right there.

That most documents end with the EOD says nothing of the few sequences about which the two disagree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dataprep.repairs.case import NAME_EOD
from dataprep.repairs.evidence import FEW, examine
from dataprep.repairs.sequences import Rising, lasts, single

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


def check_contested(case: Case, arrays: Arrays, measures: Measures, reading: Reading, evidence: Evidence) -> None:
    """Hold a reading to the EOD at the end of each document about which lengths and pointers contradict each other.

    Where documents have no EOD, and within them, it must be plain that the other array is the wrong one.

    Raises:
        FormatError: it does not stand there, or nothing tells.
    """
    agrees = reading.dtype.itemsize in measures.pointer_items or not arrays.is_whole("sequence_pointers")
    if agrees or reading.kind not in ("lengths", "pointers"):
        return
    what = "lengths and pointers contradict each other about the end of sequence"
    among = " of those with tokens" if measures.num_empty else ""
    eod = evidence.eod if evidence.is_supported or evidence.num_ends < FEW else None  # of a few, a guess only refuses
    for first, _, is_open in _contested(arrays, reading, case.bin_bytes, eod is not None):
        if is_open.any():
            number = first + int(is_open.argmax())
            advice = NAME_EOD if case.known.eod is None else ""
            raise case.refusal(("pointers", f"{what} {number}{among}, and nothing tells which are right"), advice)
    number = -1 if eod is None else _first_without(case, arrays, reading, eod)
    if number >= 0:
        text = f"{what} {number}{among}, and by the {reading.kind} the EOD {eod} does not stand there"
        raise case.refusal(("pointers", text), "")


def _first_without(case: Case, arrays: Arrays, reading: Reading, eod: int) -> int:
    """The first contested end of a document at which the EOD does not stand; -1: there is none."""
    seen, missing = 0, -1
    pieces = _contested(arrays, reading, case.bin_bytes, True)
    numbers = Rising(np.flatnonzero(is_told) + first for first, is_told, _ in pieces)

    def each(is_end: Flags) -> None:
        nonlocal seen, missing
        contested = numbers.take(seen + len(is_end)) - seen
        wrong = contested[~is_end[contested]]
        if len(wrong) and missing < 0:
            missing = seen + int(wrong[0])
        seen += len(is_end)

    sequences = single(reading.sequences.num_sequences, reading.sequences.lengths)
    case.watcher.stage("examine", case.bin_bytes)
    examine(case.bin, replace(reading, sequences=sequences), eod, case.watcher, each)
    return missing


def _contested(arrays: Arrays, reading: Reading, bin_bytes: int, has_eod: bool) -> Iterator[tuple[int, Flags, Flags]]:
    """For the sequences with tokens, a piece at a time: number of the first; and of each, two things.

    Whether its end is contested, and the EOD has to tell; and whether it is, and nothing tells.
    """
    size, first = reading.dtype.itemsize, 0
    numbers, start = Rising(lasts(reading.sequences)), 0
    for lengths, pointers in _windows(arrays, bin_bytes):
        steps = np.diff(pointers)
        differs = steps != lengths * size
        if reading.kind == "pointers":  # a single wrong length leaves its neighbours alone
            is_open = differs[:-1] & differs[1:]
            lengths = steps // size
        else:  # a pointer that could be one
            ends = np.cumsum(lengths[:-1]) * size + start
            follows = pointers[1:-1]
            is_open = differs[:-1] & (follows != ends) & (follows % size == 0) & (steps[:-1] > 0) & (steps[1:] > 0)
            start = int(ends[-1])
        has_tokens = lengths[:-1] > 0
        touched = (differs[:-1] | differs[1:])[has_tokens]  # its end, or the start of the next
        is_open = is_open[has_tokens]
        is_last = np.zeros(len(touched), np.bool_)
        is_last[numbers.take(first + len(touched)) - first] = True
        is_told = is_last & has_eod
        yield first, touched & is_told, is_open & ~is_told
        first += len(touched)


def _windows(arrays: Arrays, bin_bytes: int) -> Iterator[tuple[Offsets, Offsets]]:
    """Lengths of some sequences and of the next one; their pointers and the next two. Behind all, the file ends.

    The first pointer is 0, whatever the index says.
    """
    is_first = True
    ahead, places = np.empty(0, np.int64), np.empty(0, np.int64)
    both = zip(arrays.pieces("sequence_lengths"), arrays.pieces("sequence_pointers"), strict=True)
    for lengths, pointers in both:
        ahead, places = np.concatenate([ahead, lengths]), np.concatenate([places, pointers])
        if is_first:
            places[:1], is_first = 0, False
        if len(ahead) > 2:
            yield ahead[:-1], places
            ahead, places = ahead[-2:], places[-2:]
    yield np.append(ahead, 0), np.append(places, [bin_bytes, bin_bytes])
