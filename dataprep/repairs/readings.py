"""The ways in which an index and a ``.bin`` can be understood.

    lengths         the lengths fill the .bin, whatever the pointers say
    eod-uncounted   they do once every document that holds a token gets one more: its EOD
    tail            lengths, pointers and dtype code agree, and the .bin goes on behind them
    pointers        the pointers fill the .bin, whatever the lengths say

Which of them is right, `choice` finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dataprep.indexed import DTYPES
from dataprep.repairs.measures import ITEM_SIZES
from dataprep.repairs.sequences import Sequences, document_lengths, single, with_eod, without_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataprep.batches import Offsets
    from dataprep.repairs.arrays import Arrays, RawHeader
    from dataprep.repairs.measures import Measures

Kind = Literal["lengths", "eod-uncounted", "tail", "pointers", "eods"]

TOKENS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<i4"), 8: np.dtype("<i8")}
"""How ids of each size are read: an id is never negative, so that two bytes hold 0 to 65535, whatever the code says."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to understand a pair.

    Attributes:
        kind: see the module; ``eods``: by the EODs alone, without an index.
        dtype: how the bytes of the ``.bin`` are ids.
        sequences: none of them without tokens.
        num_tokens: of the ``.bin``, from its start, that belong to them.
        is_certain: the sizes prove it, however documents end.
        is_coded: the dtype code says the same.
    """

    kind: Kind
    dtype: np.dtype[Any]
    sequences: Sequences
    num_tokens: int
    is_certain: bool
    is_coded: bool = True

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.dtype.itemsize


def item_size(code: int) -> int | None:
    """Bytes of an item by a dtype code; None for one that is unknown."""
    return np.dtype(DTYPES[code]).itemsize if code in DTYPES else None


def tells_order(id_: int, dtype: np.dtype[Any]) -> bool:
    """Whether an id is another one when its bytes are turned around: 0 is not."""
    data = id_.to_bytes(8, "little")[: dtype.itemsize]
    return data != data[::-1]


def is_single(arrays: Arrays, measures: Measures) -> bool:
    """Whether broken boundaries were those of documents of one sequence each.

    There are as many documents as sequences, and most boundaries that are there are what they would be then.
    """
    most = measures.num_own * 2 > measures.num_bounds or not measures.num_bounds
    return arrays.num_boundaries == arrays.num_sequences + 1 and most


def readings(header: RawHeader, arrays: Arrays, measures: Measures, bin_bytes: int) -> list[Reading]:
    """All that the sizes allow, the likeliest first.

    Where the document boundaries are broken, each sequence stands for a document.
    """
    size = item_size(header.code)
    by_lengths = _by_lengths(arrays, measures, bin_bytes, size)
    if by_lengths is not None and by_lengths.is_coded and size in measures.pointer_items:
        return [by_lengths]  # all agree: lengths, pointers, dtype code and .bin
    found = [
        by_lengths,
        _uncounted(arrays, measures, bin_bytes, size),
        *(_with_tail(arrays, measures, bin_bytes, item, size) for item in ITEM_SIZES[1:] if size in (item, None)),
        _by_pointers(arrays, measures, bin_bytes, size),
    ]
    return [reading for reading in found if reading is not None]


def _sequences(arrays: Arrays, measures: Measures) -> Sequences:
    def lengths() -> Iterator[Offsets]:
        return arrays.pieces("sequence_lengths")

    whole = _bounded(arrays, measures, lengths)
    return without_empty(whole) if measures.num_empty else whole


def _bounded(arrays: Arrays, measures: Measures, lengths: Callable[[], Iterator[Offsets]]) -> Sequences:
    """These sequences in the documents of the index; where its boundaries are broken, each is one."""
    n, shift = arrays.num_sequences, measures.shift
    if shift is None:
        return single(n, lengths)
    boundaries = lambda: (piece - shift for piece in arrays.pieces("document_indices"))  # noqa: E731
    return Sequences(n, arrays.num_boundaries - 1, lengths, boundaries)


def _by_lengths(arrays: Arrays, measures: Measures, bin_bytes: int, size: int | None) -> Reading | None:
    total = measures.num_tokens
    if not total or bin_bytes % total or bin_bytes // total not in ITEM_SIZES:
        return None
    item = bin_bytes // total
    if item not in measures.pointer_items and arrays.end > arrays.num_bytes:
        return None  # the index was cut off, and on top of that it is wrong
    certain = item == size or (item in measures.pointer_items and measures.pointers_tell)
    if item == 1 and not (item == size and item in measures.pointer_items and measures.pointers_tell):
        return None  # any bytes are numbers below 256: code, lengths, pointers and .bin have to agree
    return Reading("lengths", TOKENS[item], _sequences(arrays, measures), total, certain, item == size)


def _uncounted(arrays: Arrays, measures: Measures, bin_bytes: int, size: int | None) -> Reading | None:
    total = measures.num_tokens
    if not total or size in (None, 1) or (measures.shift is None and not is_single(arrays, measures)):
        return None
    more = bin_bytes // size - total
    sequences = _sequences(arrays, measures)
    if bin_bytes % size or not 0 < more <= sequences.num_documents:
        return None
    if more != sum(int(np.count_nonzero(piece)) for piece in document_lengths(sequences)):
        return None
    return Reading("eod-uncounted", TOKENS[size], with_eod(sequences), total + more, False)


def _with_tail(arrays: Arrays, measures: Measures, bin_bytes: int, item: int, size: int | None) -> Reading | None:
    total = measures.num_tokens
    agrees = item in measures.pointer_items and arrays.is_whole("sequence_pointers")
    if not total or not agrees or total * item >= bin_bytes:
        return None
    if not measures.last_length:
        return None  # what is behind may be the last sequence
    certain = bin_bytes - total * item < item
    return Reading("tail", TOKENS[item], _sequences(arrays, measures), total, certain, item == size)


def _by_pointers(arrays: Arrays, measures: Measures, bin_bytes: int, size: int | None) -> Reading | None:
    agrees = size in measures.pointer_items and not measures.num_negative  # the last length alone may be wrong then
    if (
        not measures.rising
        or size in (None, 1)
        or agrees
        or (measures.pointer_bits | bin_bytes) % size
        or not bin_bytes
    ):
        return None
    item = size

    def lengths() -> Iterator[Offsets]:
        last: Offsets | None = None
        for pointers in arrays.pieces("sequence_pointers"):
            yield np.diff(pointers if last is None else np.concatenate([last, pointers])) // item
            last = pointers[-1:]
        assert last is not None
        yield (bin_bytes - last) // item

    whole = _bounded(arrays, measures, lengths)
    last = bin_bytes - measures.last_pointer
    if (last == 0) != (measures.last_length == 0):
        return None  # a sequence without tokens has the length 0
    closes = measures.last_length < 0 or measures.last_length * item == last
    agreeing = measures.num_agreeing[item] * 2 >= arrays.num_sequences - 1
    filled = measures.num_tokens is not None and measures.num_tokens * item == bin_bytes
    return Reading(
        "pointers", TOKENS[item], without_empty(whole), bin_bytes // item, closes and agreeing and not filled
    )
