"""Which of the possible readings of a pair is right: the one that the ids and the ends of the documents bear out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dataprep.repairs.evidence import ENOUGH
from dataprep.repairs.readings import tells_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.repairs.evidence import Evidence
    from dataprep.repairs.readings import Reading

    Examine = Callable[[Reading], Evidence]
    Borne = tuple[Reading, Evidence]


def choose(candidates: list[Reading], examine: Examine) -> tuple[Borne | None, bool]:
    """The one reading that is borne out, if there is one; and whether another could not be ruled out instead.

    Where lengths and pointers contradict each other, and either could be right, all are compared: sentences of a
    document may part at one or the other. Else a reading by which every document ends with the EOD needs no comparison.
    """
    has_pointers = any(reading.kind == "pointers" for reading in candidates)
    seen: list[Borne] = []
    for reading in candidates:
        evidence = examine(reading)
        seen.append((reading, evidence))
        if evidence.is_proof and not has_pointers and _is_borne_out(reading, evidence, conflict=False):
            return seen[-1], False
    conflict = any(reading.kind == "pointers" and evidence.ids.are_ids for reading, evidence in seen)
    borne = [one for one in seen if _is_borne_out(*one, conflict)]
    proven, supported = ([one for one in borne if getattr(one[1], name)] for name in ("is_proof", "is_supported"))
    best = proven or supported or borne
    if len(best) != 1:
        return None, bool(best) or conflict
    others = [evidence for reading, evidence in seen if reading is not best[0][0] and evidence.is_supported]
    is_open = conflict and any(other.is_proof or not proven for other in others)
    return (None, True) if is_open else (best[0], False)


def _is_borne_out(reading: Reading, evidence: Evidence, conflict: bool) -> bool:
    """Whether the ``.bin`` says nothing else; in a conflict, whether it says so."""
    if not evidence.ids.are_ids and not reading.is_coded:
        return False
    if reading.kind == "lengths" and reading.is_certain and not conflict:
        return True
    if not evidence.ids.are_ids:
        return False
    if reading.kind == "lengths":
        if not reading.is_certain:  # neither the dtype code nor the pointers say so
            return evidence.is_proof and evidence.num_ends >= ENOUGH
        return evidence.is_proof or (evidence.is_supported and evidence.is_known)
    if reading.kind == "tail":
        if evidence.tail_eods and not reading.is_certain:  # documents behind: the .idx may be of a shorter run
            return evidence.tail_is_zero and evidence.is_proof  # or zeros, and 0 is the EOD
        return reading.is_certain or evidence.is_supported
    if reading.kind == "eod-uncounted":
        return evidence.is_proof and evidence.num_ends >= ENOUGH
    return evidence.is_proof or (reading.is_certain and (evidence.eod is None or evidence.is_supported))


def turn(borne: Borne, examine: Examine, eod: int | None) -> Borne:
    """The same, or in the other byte order where that, and only that, gives ids, or documents that end with the EOD.

    Args:
        borne: what was chosen.
        examine: reads the ``.bin``.
        eod: the id that ends documents, where it is known and not guessed: a guess fits either order, and so does an
            id that is the same turned around, such as 0.
    """
    reading, evidence = borne
    no_ids = evidence.ids.are_no_numbers and reading.dtype.itemsize > 2
    no_ends = eod is not None and not evidence.is_supported
    if (
        reading.dtype.itemsize == 1
        or not (no_ids or no_ends)
        or (eod is not None and not tells_order(eod, reading.dtype))
    ):
        return borne
    turned = replace(reading, dtype=reading.dtype.newbyteorder(">"))
    other = examine(turned)
    better = other.ids.are_ids and (other.is_supported if eod is not None else no_ids)
    return (turned, other) if better else borne
