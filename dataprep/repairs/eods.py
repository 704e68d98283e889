"""Documents by the EODs in a ``.bin`` alone, where no index can be believed."""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.indexed import CHUNK, DTYPES, MAGIC
from dataprep.repairs.case import NAME_EOD
from dataprep.repairs.evidence import Ids, examine, scan
from dataprep.repairs.readings import TOKENS, Reading, tells_order
from dataprep.repairs.sequences import single
from dataprep.storage import explain, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.repairs.case import Case
    from dataprep.repairs.findings import Finding
    from dataprep.repairs.sequences import Sequences
    from dataprep.watcher import Watcher


class Spool:
    """int64 numbers in a file without a name, which goes with this object.

    Raises:
        OutputError: the folder refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with explain(folder, "create a scratch file in"):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self.count = 0

    def add(self, numbers: Offsets) -> None:
        with explain(self._folder, "write a scratch file in"):
            write_all(self._file.fileno(), np.ascontiguousarray(numbers, np.int64))
        self.count += len(numbers)

    def pieces(self) -> Iterator[Offsets]:
        """All of them again."""
        for start in range(0, self.count, CHUNK):
            count = min(CHUNK, self.count - start)
            yield np.frombuffer(os.pread(self._file.fileno(), 8 * count, 8 * start), np.int64)


@dataclass(frozen=True, slots=True)
class Documents:
    """What the EODs alone make of a ``.bin``.

    Attributes:
        dtype: by which they were found.
        ids: of all tokens.
        lengths: tokens of each document, its EOD among them.
        num_tokens: of all documents.
        num_left: tokens behind the last EOD.
    """

    dtype: np.dtype[Any]
    ids: Ids
    lengths: Spool
    num_tokens: int
    num_left: int

    def doubt(self, eod: int) -> str:
        """Why they cannot be believed; '' where they can."""
        size = self.dtype.itemsize
        if self.ids.are_halves:
            return "every second id is nearly 0: the .bin holds int32, not uint16"
        if not self.ids.are_ids:
            return f"as {self.dtype.name} the .bin holds {self.ids.smallest} to {self.ids.largest}: these are no ids"
        if not self.num_tokens:
            return f"the id {eod} stands nowhere in the .bin"
        if self.num_left:
            return (
                f"behind the last EOD, from byte {self.num_tokens * size} on, there are {self.num_left} tokens of a "
                f"document without an end: a copy cut there (truncate -s {self.num_tokens * size}) holds the others"
            )
        return ""


def find_documents(path: Path, dtype: np.dtype[Any], eod: int, scratch: Path, watcher: Watcher) -> Documents:
    """Cut a ``.bin`` behind every EOD.

    Args:
        path: of the ``.bin``.
        dtype: of its tokens; turned around where they are ids only then, and the EOD is another one then.
        eod: the id.
        scratch: folder for a scratch file without a name, 8 bytes for each document.
        watcher: told of the bytes read.
    """
    found = _find(path, dtype, eod, scratch, watcher)
    if tells_order(eod, dtype) and not (found.num_tokens and found.ids.are_ids):
        turned = _find(path, dtype.newbyteorder(">"), eod, scratch, watcher)
        if not turned.doubt(eod):
            return turned
    return found


def _find(path: Path, dtype: np.dtype[Any], eod: int, scratch: Path, watcher: Watcher) -> Documents:
    ids, lengths, end, count = Ids(), Spool(scratch), 0, 0
    watcher.stage("find documents", path.stat().st_size)
    for first, piece in scan(path, dtype, watcher):
        ids.add(piece)
        stops = np.flatnonzero(piece == eod) + first + 1
        lengths.add(np.diff(stops, prepend=end))
        end = int(stops[-1]) if len(stops) else end
        count = first + len(piece)
    return Documents(dtype, ids, lengths, end, count - end)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The sequences behind which a document ends.

    Attributes:
        bounds: their numbers.
        is_whole: the last one is among them, and the EOD stands nowhere but at their ends.
    """

    bounds: Spool
    is_whole: bool


def find_bounds(path: Path, reading: Reading, eod: int, scratch: Path, watcher: Watcher) -> Bounds:
    """Documents made of sequences, by the EOD.

    Args:
        path: of the ``.bin``.
        reading: its sequences, as a document each.
        eod: the id that documents end with.
        scratch, watcher: see `find_documents`.
    """
    bounds, seen = Spool(scratch), 0

    def each(is_end: npt.NDArray[np.bool_]) -> None:
        nonlocal seen
        bounds.add(np.flatnonzero(is_end) + seen + 1)
        seen += len(is_end)

    watcher.stage("find documents", path.stat().st_size)
    evidence = examine(path, reading, eod, watcher, each)
    return Bounds(bounds, evidence.ends_with_eod and evidence.num_eods == bounds.count)


def by_eods(case: Case, reason: Finding) -> tuple[Reading, Sequences, Ids]:
    """How the ``.bin`` is to be read, what the new index holds, and what was seen of the ids.

    Args:
        case: the pair.
        reason: why not by its index.

    Raises:
        FormatError: nothing can be proven.
    """
    eod, told, (code, text) = case.known.eod, _told_dtype(case), reason
    advice = [NAME_EOD] if eod is None else []
    advice += ["say with --dtype uint16 or --dtype int32 what the .bin holds"] if told is None else []
    if eod is None or told is None:
        raise case.refusal(reason, f"{', and '.join(advice)} to rebuild the index from the .bin alone")
    found = find_documents(case.bin, told, eod, case.scratch, case.watcher)
    doubt = found.doubt(eod)
    if doubt:
        raise case.refusal((code, f"{text}, and the EODs do not tell better: {doubt}"), "")
    count = found.lengths.count
    reading = Reading("eods", found.dtype, single(count, found.lengths.pieces), found.num_tokens, True)
    case.proven_eod = eod
    case.change(code, f"{text}; {count} documents were found by the EOD {eod} at their ends")
    case.note_order(reading)
    if case.bin_bytes > reading.num_bytes:
        stray = case.bin_bytes - reading.num_bytes
        case.change("bin-tail", f"the last {stray} bytes of the .bin are no token; they were cut off")
    if case.known.published is None:
        case.warnings.append(
            f"a document that held the EOD {eod} inside became several, sentences are not told apart, and documents "
            "without tokens are gone: the .bin alone does not tell them"
        )
    return reading, reading.sequences, found.ids


def _told_dtype(case: Case) -> np.dtype[Any] | None:
    """What the ``.bin`` holds, by what is left of the index, by the manifest, by the user, or by its ids."""
    published, header = case.known.published, case.header
    if header is not None and header.magic == MAGIC and header.code in (3, 4, 5, 8):  # bytes fit any file
        return TOKENS[np.dtype(DTYPES[header.code]).itemsize]
    name = published.dtype if published is not None else case.known.dtype
    return TOKENS[np.dtype(name).itemsize] if name is not None else _only_dtype(case)


def _only_dtype(case: Case) -> np.dtype[Any] | None:
    """Of uint16 and int32 the one by which a ``.bin`` holds ids, in either byte order; None if both may, or none."""
    case.watcher.stage("find the dtype", 3 * case.bin_bytes)
    possible = {}
    for dtype in (TOKENS[2], TOKENS[4], TOKENS[4].newbyteorder(">")):
        ids = Ids()
        for _, piece in scan(case.bin, dtype, case.watcher):
            ids.add(piece)
        if ids.are_ids:
            possible[dtype.itemsize] = TOKENS[dtype.itemsize]
    return next(iter(possible.values())) if len(possible) == 1 else None
