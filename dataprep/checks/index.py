"""Level ``index``: what the ``.idx`` and the sizes of the two files tell. Its arrays are read a piece at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep.checks.causes import eods_uncounted, other_width, pointer_cause
from dataprep.checks.documents import PIECE
from dataprep.checks.header import check_header, foreign, size_of
from dataprep.checks.report import Place
from dataprep.indexed import HEADER, Index, bin_path, idx_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dataprep.checks.report import Report


@dataclass(slots=True)
class Lengths:
    """What one pass over lengths and pointers found.

    Attributes:
        total: tokens.
        pointer: the first sequence whose pointer is not the sum of the lengths before it, if there is one.
        negative: the first sequence of a negative length, if there is one; `total` then means nothing.
        num_negative, num_empty: how many sequences.
    """

    total: int = 0
    pointer: int | None = None
    negative: int | None = None
    num_negative: int = 0
    num_empty: int = 0
    smallest: int = 2**31
    largest: int = -(2**31)


@dataclass(frozen=True, slots=True)
class Sound:
    """An index by which the tokens can be read.

    Attributes:
        by_sequence: every sequence is a document, or the boundaries are broken: they are not to be looked at.
    """

    prefix: Path
    index: Index
    by_sequence: bool


def check_index(
    prefix: Path, report: Report, progress: Callable[[int], None], keeps_empty: bool = False
) -> Sound | None:
    """Note all that is wrong with the ``.idx`` and the sizes.

    Args:
        prefix: path without ``.bin``.
        report: where to.
        progress: called with the bytes just read.
        keeps_empty: documents without tokens are meant.

    Returns:
        What it takes to read the tokens; None if the lengths do not fit the ``.bin``.

    Raises:
        FormatError: the file became shorter meanwhile.
    """
    header = check_header(prefix, report)
    size = size_of(bin_path(prefix), "missing-bin", report)
    if header is None:
        return None
    index = Index(idx_path(prefix))
    lengths = _read_lengths(index, progress)
    broken, num_filled = _check_boundaries(index, report, progress, keeps_empty)
    if lengths.negative is not None:
        _add_negative(index, lengths, report)
        return None
    report.num_tokens, report.min_length, report.max_length = lengths.total, lengths.smallest, lengths.largest
    report.mean_length = lengths.total / header.num_sequences
    if lengths.num_empty and not keeps_empty:
        report.add("sequences-empty", Place(str(index.path)), f"sequences without tokens: {lengths.num_empty}")
    if not lengths.total:
        report.add("no-tokens", Place(str(index.path)), "all sequences are empty")
    by_sequence = broken or header.num_sequences == num_filled == report.num_documents
    found = Sound(prefix, index, by_sequence)
    fits = _check_pointers(found, lengths, size, num_filled, report)
    return found if fits and lengths.total else None


def _read_lengths(index: Index, progress: Callable[[int], None]) -> Lengths:
    found, item_size = Lengths(), index.dtype.itemsize
    for start in range(0, len(index.sequence_lengths), PIECE):
        lengths = index.read("sequence_lengths", start, start + PIECE)
        pointers = index.read("sequence_pointers", start, start + PIECE)
        found.smallest, found.largest = min(found.smallest, int(lengths.min())), max(found.largest, int(lengths.max()))
        if found.smallest < 0:
            negative = lengths < 0
            found.num_negative += int(np.count_nonzero(negative))
            if found.negative is None:
                found.negative = start + int(negative.argmax())
        if found.smallest <= 0:
            found.num_empty += int(np.count_nonzero(lengths == 0))
        ends = np.empty(len(lengths) + 1, np.int64)
        ends[0] = 0
        np.cumsum(lengths, dtype=np.int64, out=ends[1:])
        ends += found.total
        found.total = int(ends[-1])
        ends *= item_size
        if found.pointer is None and not np.array_equal(ends[:-1], pointers):
            found.pointer = start + int((ends[:-1] != pointers).argmax())
        progress(12 * len(lengths))
    return found


def _add_negative(index: Index, lengths: Lengths, report: Report) -> None:
    assert lengths.negative is not None
    i, item_size = lengths.negative, index.dtype.itemsize
    around = index.read("sequence_pointers", i, i + 2)
    by_pointers, odd = divmod(int(around[-1]) - int(around[0]), item_size)
    cause = f"; by the pointers it has {by_pointers}" if by_pointers > 0 and not odd else ""
    more = f", and {lengths.num_negative - 1} more are negative" if lengths.num_negative > 1 else ""
    length = int(index.read("sequence_lengths", i, i + 1)[0])
    place = Place(str(index.path), byte=HEADER.size + 4 * i, sequence=i)
    report.add("length-negative", place, f"expected a length, found {length}{cause}{more}")


def _check_boundaries(
    index: Index, report: Report, progress: Callable[[int], None], keeps_empty: bool
) -> tuple[bool, int]:
    """Whether the document boundaries are broken, and how many documents hold sequences."""
    n, d = len(index.sequence_lengths), index.num_documents + 1
    start = HEADER.size + 12 * n
    first, last = int(index.read("document_indices", 0, 1)[0]), int(index.read("document_indices", d - 1, d)[0])
    order, num_empty, num_filled = None, 0, 0
    for i in range(0, d, PIECE):
        steps = np.diff(index.read("document_indices", i, i + PIECE + 1))
        filled = int(np.count_nonzero(steps))
        num_filled += filled
        num_empty += len(steps) - filled
        if order is None and len(steps) and int(steps.min()) < 0:
            order = i + 1 + int((steps < 0).argmax())
        progress(8 * len(steps))
    path = str(index.path)
    if first != 0:
        report.add("boundaries-start", Place(path, byte=start, document=0), f"expected 0, found {first}")
    if order is not None:
        before, after = index.read("document_indices", order - 1, order + 1).tolist()
        place = Place(path, byte=start + 8 * order, document=order)
        report.add("boundaries-order", place, f"expected {before} or more, found {after}")
    if last != n:
        cause = ": the last document was never ended" if order is None and first == 0 and last < n else ""
        report.add("boundaries-end", Place(path, byte=start + 8 * (d - 1)), f"expected {n}, found {last}{cause}")
    broken = first != 0 or order is not None or last != n
    if num_empty and not broken and not keeps_empty:
        report.add("documents-empty", Place(path), f"documents without a sequence: {num_empty}")
    if num_filled < n and not broken:
        report.add("sentence-level", Place(path), f"{n} sequences in {num_filled} documents")
    return broken, num_filled


def _check_pointers(sound: Sound, lengths: Lengths, size: int | None, num_filled: int, report: Report) -> bool:
    """Hold pointers and the size of the ``.bin``, None without one, to the lengths; whether lengths and size agree."""
    index, item_size = sound.index, sound.index.dtype.itemsize
    expected, first = lengths.total * item_size, lengths.pointer
    if first is None and size == expected:
        return True
    width = other_width(index, lengths.total, size)
    if width is not None:
        name = {1: "1 (uint8)", 2: "8 (uint16)", 4: "4 (int32)", 8: "5 (int64)"}[width]
        report.add(
            "dtype-width",
            Place(str(index.path), 17),
            f"the dtype code says {index.dtype.name}, pointers and the size of the .bin fit items of {width} bytes: "
            f"the code should be {name}, unless all lengths are wrong by the same factor",
        )
        return False
    slack = size - expected if size is not None else 0
    if first is not None:
        cause = pointer_cause(index, first)
        place = Place(str(index.path), byte=HEADER.size + 4 * len(index.sequence_lengths) + 8 * first, sequence=first)
        if slack and cause.shift == slack and first > 0:
            length = int(index.read("sequence_lengths", first - 1, first)[0])
            report.add(
                "pointers",
                place,
                f"{cause.text}, and the .bin is {slack} bytes longer than the lengths say: the length of sequence "
                f"{first - 1}, {length}, should be {length + slack // item_size}",
            )
            return False
        report.add("pointers", place, cause.text)
    if slack:
        _add_size(sound, (expected + slack, expected), num_filled, report)
    return size == expected


def _add_size(sound: Sound, sizes: tuple[int, int], num_filled: int, report: Report) -> None:
    """Name what is wrong with the size of the ``.bin``, found and expected."""
    size, expected = sizes
    item_size = sound.index.dtype.itemsize
    path, total = bin_path(sound.prefix), expected // item_size
    message = f"expected {expected} bytes for {total} tokens of {item_size} bytes, found {size}"
    width = next((width for width in (1, 2, 4, 8) if total * width == size), None)
    if width is not None:
        message = f"{message}, which {total} tokens of {width} bytes have: it is of another run than the .idx"
    elif size < expected:
        with path.open("rb") as file:
            kind = foreign(file.read(HEADER.size))
        message = f"{message}: it {f'is {kind}' if kind else 'was cut off, or the .idx is of a longer run'}"
    if size < expected:
        report.add("bin-size", Place(str(path), byte=size), message)
        return
    place = Place(str(path), byte=expected)
    eod = None
    if size - expected == item_size * num_filled:
        eod = eods_uncounted(path, sound.index, sound.by_sequence)
    if eod is not None:
        report.add(
            "eod-uncounted",
            Place(str(path)),
            f"{message}: one token more for each of {num_filled} documents, {eod}, which the lengths leave out, as "
            "Megatron-DeepSpeed's preprocess_data.py does",
        )
    else:
        cause = "" if width is not None else ": the .idx is of a shorter run, or what follows was appended"
        report.add("bin-tail", place, f"{message}{cause}")
