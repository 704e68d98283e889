"""What is wrong with an index, in words: (code, text), the code as `verify` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dataprep.indexed import DTYPES, HEADER, MAGIC, VERSION
from dataprep.repairs.readings import item_size
from dataprep.storage import COPY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataprep.repairs.arrays import Arrays, RawHeader
    from dataprep.repairs.measures import Measures
    from dataprep.repairs.readings import Reading

    Finding = tuple[str, str]


MODES = 16
"""What could be the mode of a sequence of multimodal data is below this; those in use are 0 and 1."""


def missing(path: Path) -> Finding:
    """There is no header."""
    if not path.exists():
        return "missing-idx", f"{path} does not exist"
    return "idx-short", f"{path} is shorter than a header of {HEADER.size} bytes"


def foreign(header: RawHeader) -> Finding | None:
    """It is another format's."""
    if header.magic.startswith(b"TNTIDX\x00\x00"):
        return "format-foreign", f"{header.path} is a TNTIDX, the old 'lazy' or 'cached' format"
    n, size = header.num_sequences, header.num_bytes
    if size == HEADER.size - 8 + 12 * n and header.num_boundaries > size:
        return "format-foreign", f"{header.path} has fairseq's layout, without document boundaries"
    return None


def contradiction(header: RawHeader, arrays: Arrays, measures: Measures, bin_bytes: int) -> Finding:
    """Why no reading is possible."""
    path, size = arrays.path, item_size(header.code)
    if header.magic != MAGIC:
        return "magic", f"{path} begins with {header.magic!r}, and the rest of it is no index"
    if not arrays.num_sequences:
        return "no-sequences", f"{path} counts no sequences"
    if not arrays.is_whole("sequence_lengths"):
        return "idx-size", f"{path} ends within its {arrays.num_sequences} lengths"
    if measures.num_negative:
        text = f"{path}: sequence {measures.first_negative} has a negative length, and the pointers do not tell better"
        return "length-negative", text
    if not measures.num_tokens:
        return "no-tokens", f"{path}: all sequences are empty"
    wanted = f" of {size} bytes, which are {measures.num_tokens * size} bytes" if size else ""
    return "bin-size", f"{path} counts {measures.num_tokens} tokens{wanted}; the .bin holds {bin_bytes} bytes"


def undecided(candidates: list[Reading], bin_bytes: int) -> Finding:
    """Why none of the possible readings is believed."""
    tail = next((reading for reading in candidates if reading.kind == "tail"), None)
    if tail is not None:
        behind = bin_bytes - tail.num_bytes
        text = f"the .bin goes on for {behind} bytes behind the last sequence"
        return "bin-tail", f"{text}: documents, perhaps, that the .idx does not know; no EOD proves that they are none"
    if any(reading.kind == "pointers" for reading in candidates):
        return "pointers", "lengths and pointers contradict each other, and the .bin does not say which are right"
    return "bin-size", "the sizes allow several ways to read the .bin, and its ids do not say which is right"


def broken_bounds(arrays: Arrays, measures: Measures) -> Finding:
    """What is wrong with the document boundaries."""
    path, n, d = arrays.path, arrays.num_sequences, arrays.num_boundaries
    if not d:
        return "no-documents", f"{path} counts no document boundaries"
    if measures.num_bounds < d:
        return "idx-size", f"{path} ends within its document boundaries"
    if measures.first_bound:
        return "boundaries-start", f"{path}: the document boundaries do not begin at 0"
    if not measures.rises:
        return "boundaries-order", f"{path}: the document boundaries fall"
    return "boundaries-end", f"{path}: the document boundaries do not end at {n}, the number of sequences"


def differences(
    header: RawHeader, arrays: Arrays, measures: Measures, reading: Reading, bin_bytes: int
) -> Iterator[Finding]:
    """What of the files is not as the right reading has it, document boundaries apart."""
    yield from _in_header(header, arrays, reading)
    yield from _in_size(header, arrays)
    yield from _in_arrays(arrays, measures, reading)
    if bin_bytes > reading.num_bytes:
        behind = bin_bytes - reading.num_bytes
        yield "bin-tail", f"the .bin went on for {behind} bytes behind the last document; they were cut off"
    empty = arrays.num_sequences - reading.sequences.num_sequences
    if empty:
        yield "sequences-empty", f"{empty} sequences without tokens were dropped"


def _in_header(header: RawHeader, arrays: Arrays, reading: Reading) -> Iterator[Finding]:
    if header.magic != MAGIC:
        yield "magic", f"{header.path} began with {header.magic!r}"
    if header.order == ">":
        yield "version", f"{header.path} was big-endian"
    elif header.version != VERSION:
        yield "version", f"{header.path} was of version {header.version}"
    size = reading.dtype.itemsize
    name = np.dtype(DTYPES[header.code]).name if header.code in DTYPES else "nothing"
    if item_size(header.code) != size:
        yield (
            "dtype-width" if header.code in DTYPES else "dtype-code",
            f"the dtype code {header.code} said {name}; by the sizes an item has {size} bytes",
        )
    elif name.startswith("float"):
        yield "dtype-float", f"the dtype code {header.code} said {name}; these are whole numbers"
    counts, found = (header.num_sequences, header.num_boundaries), (arrays.num_sequences, arrays.num_boundaries)
    if counts != found:
        yield "idx-size", f"the header counted {counts[0]} sequences, {counts[1]} boundaries; there are {found}"


def modes(header: RawHeader, arrays: Arrays) -> Finding | None:
    """What stands behind the arrays tells sequences apart: not to be thrown away."""
    over = header.num_bytes - arrays.end
    if over != arrays.num_sequences or not _are_modes(header.path, arrays.end):
        return None
    text = f"the {over} bytes behind its arrays look like the modes of multimodal data, and repair writes text"
    return "idx-tail", text


def _in_size(header: RawHeader, arrays: Arrays) -> Iterator[Finding]:
    over = header.num_bytes - arrays.end
    if over < 0:
        yield "idx-size", f"{header.path} was {-over} bytes too short; what was missing was computed"
    if over > 0:
        yield "idx-tail", f"{header.path} went on for {over} bytes behind its arrays; they were cut off"


def _are_modes(path: Path, start: int) -> bool:
    """Whether the bytes from there on tell sequences apart as modes would."""
    seen: set[int] = set()
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(COPY_BYTES):
            seen |= set(np.unique(np.frombuffer(block, np.uint8)).tolist())
    return len(seen) > 1 and max(seen) < MODES


def _in_arrays(arrays: Arrays, measures: Measures, reading: Reading) -> Iterator[Finding]:
    size = reading.dtype.itemsize
    if reading.kind == "eod-uncounted":
        more = reading.num_tokens - (measures.num_tokens or 0)
        yield "eod-uncounted", f"{more} documents ended with an EOD that their length did not count; now it does"
    elif reading.kind == "pointers":
        code = "length-negative" if measures.num_negative else "pointers"
        wrong = arrays.num_sequences - 1 - measures.num_agreeing[size]
        yield code, f"the lengths of about {max(1, wrong)} sequences were not what the pointers and the .bin say"
    elif size not in measures.pointer_items and arrays.is_whole("sequence_pointers"):
        number, expected, found = _first_wrong(arrays, size)
        text = f"sequence {number} starts at byte {expected}, its pointer said {found}; all were computed anew"
        yield "pointers", text


def _first_wrong(arrays: Arrays, size: int) -> tuple[int, int, int]:
    """The first sequence whose pointer is wrong, where it starts, and what the pointer says."""
    number = position = 0
    both = zip(arrays.pieces("sequence_lengths"), arrays.pieces("sequence_pointers"), strict=True)
    for lengths, pointers in both:
        ends = np.cumsum(lengths) * size + position
        starts = ends - lengths * size
        wrong = np.flatnonzero(starts != pointers)
        if len(wrong):
            return number + int(wrong[0]), int(starts[wrong[0]]), int(pointers[wrong[0]])
        number, position = number + len(lengths), int(ends[-1])
    raise AssertionError("the pointers are right")
