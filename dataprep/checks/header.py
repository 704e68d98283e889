"""The first 34 bytes of an ``.idx`` and its size: whether it is one, and if not, what it is."""

from __future__ import annotations

import codecs
import stat
import struct
from typing import TYPE_CHECKING

from dataprep.checks.report import Place
from dataprep.indexed import DTYPES, HEADER, MAGIC, MAX_SEQUENCES, VERSION, Header, bin_path, idx_path

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.checks.report import Report

FOREIGN = {
    b"TNTIDX\x00\x00": "TNTIDX, the old 'lazy' or 'cached' index of fairseq and of Megatron-LM before 2023",
    b"\x93NUMPY": "a NumPy .npy array",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"\xfd7zXZ\x00": "an xz file",
    b"BZh": "a bzip2 file",
    b"PK\x03\x04": "a zip file, such as .npz or .pt",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow IPC file",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run `git lfs pull`",
    b"SQLite format 3\x00": "an SQLite database",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
    b"\x7fELF": "an executable",
}
"""How files begin that people take for an index."""

FORKS = {
    9: "fairseq's uint32",
    10: "fairseq's uint64",
}


def size_of(path: Path, missing: str, report: Report) -> int | None:
    """Size of a file that can be opened for reading; None with a problem noted if there is none."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            report.add("unreadable", Place(str(path)), "expected a file, found something else of that name")
            return None
        with path.open("rb"):
            return found.st_size
    except FileNotFoundError:
        report.add(missing, Place(str(path)), "there is no such file")
    except OSError as error:
        report.add("unreadable", Place(str(path)), f"cannot be read: {error.strerror or error}")
    return None


def foreign(head: bytes) -> str | None:
    """What kind of file begins like this, if it is a kind that people take for an index."""
    for begin, name in FOREIGN.items():
        if head.startswith(begin):
            return name
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # its last letter may be cut
    except UnicodeDecodeError:
        return None
    if not text or any(ord(letter) < 32 and letter not in "\t\n\r" for letter in text):
        return None
    return "JSON" if text.lstrip().startswith(("{", "[")) else "a text file"


def check_header(prefix: Path, report: Report) -> Header | None:
    """Check everything about the ``.idx`` that its first 34 bytes and its size tell.

    Returns:
        The header, if the three arrays lie where it says and the dtype is one of integers; else None.
    """
    path = idx_path(prefix)
    size = size_of(path, "missing-idx", report)
    header = _read(path, report) if size is not None and not _are_swapped(prefix, report) else None
    if header is None or size is None:
        return None
    sequences, boundaries = header.num_sequences, header.num_boundaries
    sound = _check_size(path, size, header, report)
    known = _check_code(path, header, report)
    if not sequences:
        report.add("no-sequences", Place(str(path), 18), "expected sequences, found none")
    if not boundaries:
        report.add("no-documents", Place(str(path), 26), "expected at least 1 document boundary, found none")
    if sequences > MAX_SEQUENCES and sound:
        report.add("too-many", Place(str(path), 18), f"expected at most {MAX_SEQUENCES} sequences, found {sequences}")
    if known:
        report.dtype = header.dtype.name
    if not (sound and known and sequences and boundaries):
        return None
    report.num_sequences, report.num_documents = sequences, boundaries - 1
    return header


def _are_swapped(prefix: Path, report: Report) -> bool:
    """Whether each of the two files has the other's name."""
    if is_index(idx_path(prefix)) or not is_index(bin_path(prefix)):
        return False
    report.add("swapped", Place(str(prefix)), "the .bin begins as an index does, and the .idx does not")
    return True


def is_index(path: Path) -> bool:
    """Whether a file begins as an index does; not, if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _read(path: Path, report: Report) -> Header | None:
    """The header, if this is an index."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    kind = None if MAGIC.startswith(head[: len(MAGIC)]) else foreign(head)
    if kind is not None:
        report.add("format-foreign", Place(str(path), 0), f"expected a Megatron index, found {kind}")
        return None
    if len(head) < HEADER.size:
        report.add("idx-short", Place(str(path)), f"expected a header of {HEADER.size} bytes, found {len(head)}")
        return None
    magic, version, code, sequences, boundaries = HEADER.unpack(head)
    if magic != MAGIC:
        cause = "this is no Megatron index" if any(head) else "a hole: it was never written, or lost"
        report.add("magic", Place(str(path), 0), f"expected {MAGIC!r}, found {magic!r}: {cause}")
        return None
    if version != VERSION:
        swapped = struct.unpack(">Q", head[9:17])[0] == VERSION
        cause = ": written by a big-endian machine" if swapped else ""
        report.add("version", Place(str(path), 9), f"expected version {VERSION}, found {version}{cause}")
        return None
    return Header(code, sequences, boundaries)


def _check_code(path: Path, header: Header, report: Report) -> bool:
    """Whether tokens of this dtype can be read."""
    place = Place(str(path), 17)
    if header.code in FORKS:
        report.add("format-foreign", place, f"dtype code {header.code} is {FORKS[header.code]}; Megatron has no such")
        return False
    if header.code not in DTYPES:
        report.add("dtype-code", place, f"expected dtype code 4 (int32) or 8 (uint16), found {header.code}")
        return False
    if header.dtype.kind == "f":
        report.add(
            "dtype-float",
            place,
            f"expected dtype code 4 (int32) or 8 (uint16), found {header.code}: {header.dtype.name} in Megatron-LM, "
            "others read another float; token ids are whole numbers",
        )
        return False
    if header.code not in (4, 8):
        report.add("dtype-unusual", place, f"Megatron writes int32 (4) or uint16 (8), found {header.dtype.name}")
    return True


def _check_size(path: Path, size: int, header: Header, report: Report) -> bool:
    """Whether all three arrays are there."""
    n, d = header.num_sequences, header.num_boundaries
    if size == header.num_bytes:
        return True
    if n and size == header.num_bytes + n:
        report.add(
            "idx-tail",
            Place(str(path), header.num_bytes),
            f"{n} bytes more than {n} sequences of text need: the modes of multimodal data, or stray bytes",
        )
        return True
    if size == 26 + 12 * n:
        report.add("format-foreign", Place(str(path)), "fairseq's index: it has no document boundaries")
        return False
    wanted = f"expected {header.num_bytes} bytes for {n} sequences and {d} document boundaries, found {size}"
    report.add("idx-size", Place(str(path), min(size, header.num_bytes)), f"{wanted}: {_size_cause(size, header)}")
    return False


def _size_cause(size: int, header: Header) -> str:
    """What may have happened to an index of the wrong size."""
    n, d = header.num_sequences, header.num_boundaries
    if size == HEADER.size:
        return "its writer stopped after the header, as Megatron's does at a sequence of more than 2**31 - 1 tokens"
    if size > header.num_bytes:
        cause = f"{size - header.num_bytes} bytes too many"
    else:
        ends = ((4 * n, "sequence_lengths"), (12 * n, "sequence_pointers"), (12 * n + 8 * d, "document_indices"))
        cause = "it ends in " + next(name for end, name in ends if size - HEADER.size < end)
    sequences, odd = divmod(size - HEADER.size - 8 * d, 12)
    if not odd and sequences > 0:
        return f"{cause}, or the count of sequences should be {sequences}"
    boundaries, odd = divmod(size - HEADER.size - 12 * n, 8)
    if not odd and boundaries > 0:
        return f"{cause}, or the count of document boundaries should be {boundaries}"
    return cause
