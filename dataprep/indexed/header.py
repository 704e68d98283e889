"""The first 34 bytes of an ``.idx``, and what they exclude."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
CODES = {np.dtype(kind).name: code for code, kind in DTYPES.items()}
MAX_SEQUENCES = 2**31 - 1
"""Of one pair: Megatron numbers them by int32 (megatron/core/datasets/gpt_dataset.py, `_build_document_index`)."""

CHUNK = 1 << 20
"""Documents handled at a time while an index is written or merged: 4 to 8 MiB."""


def bin_path(prefix: Path) -> Path:
    """``prefix.bin``; a dot inside the prefix's name is no suffix."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """``prefix.idx``."""
    return prefix.with_name(f"{prefix.name}.idx")


@dataclass(frozen=True, slots=True)
class Header:
    """The first 34 bytes of an ``.idx``.

    Attributes:
        code: dtype code as found, known or not.
        num_sequences: n.
        num_boundaries: d, documents + 1.
    """

    code: int
    num_sequences: int
    num_boundaries: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(DTYPES[self.code]).newbyteorder("<")

    @property
    def num_bytes(self) -> int:
        """Size of an index without modes."""
        return HEADER.size + 12 * self.num_sequences + 8 * self.num_boundaries

    def pack(self) -> bytes:
        return HEADER.pack(MAGIC, VERSION, self.code, self.num_sequences, self.num_boundaries)


def read_header(path: Path) -> Header:
    """Read and check the header of an ``.idx``.

    Raises:
        FormatError: missing, too short, wrong magic, version or dtype code, or a size that the counts exclude.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        size = path.stat().st_size
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    if len(head) < HEADER.size:
        raise FormatError(f"{path}: expected a header of {HEADER.size} bytes, found a file of {len(head)}")
    magic, version, code, sequences, boundaries = HEADER.unpack(head)
    if magic[:8] == b"TNTIDX\x00\x00":
        raise FormatError(
            f"{path}: expected {MAGIC!r}, found TNTIDX, the old 'lazy' or 'cached' format; rebuild it from the text"
        )
    if magic != MAGIC:
        raise FormatError(f"{path}: byte 0: expected {MAGIC!r}, found {magic!r}; this is not a Megatron index")
    if version != VERSION:
        raise FormatError(f"{path}: byte 9: expected version {VERSION}, found {version}")
    if code in (9, 10):
        raise FormatError(
            f"{path}: byte 17: dtype code {code} is fairseq's uint{32 if code == 9 else 64}; Megatron cannot read it"
        )
    if code not in DTYPES:
        raise FormatError(f"{path}: byte 17: expected a dtype code of 1 to 8, found {code}")
    header = Header(code, sequences, boundaries)
    if size not in (header.num_bytes, header.num_bytes + sequences):
        if size == 26 + 12 * sequences:
            raise FormatError(f"{path}: fairseq's layout (no document boundaries); Megatron cannot read it")
        raise FormatError(
            f"{path}: expected {header.num_bytes} bytes for {sequences} sequences and {boundaries} boundaries, "
            f"found {size}"
        )
    return header
