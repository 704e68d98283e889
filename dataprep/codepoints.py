"""Code points that engine and reference take differently, because they go by different versions of Unicode.

gigatoken 0.10 knows Unicode 17 (ICU4X 2.2). The tokenizers library 0.22 and 0.23 takes the classes of its
regular expressions from Unicode 16, and normalizes by Unicode 12. A letter of Unicode 17 is a letter to one of
them only, so the text around it is split elsewhere. The reference is right by definition, so a document that
holds one of these is encoded by the reference; see `encoders.Gigatoken`.

The tables were measured, not copied: every code point below U+40000 and U+E0000 to U+E01FF, within texts that
show how it was classed and normalized, by both libraries, for every scheme that gigatoken has. The first three
together came out as the 4,803 that Unicode 17 added. tests/test_codepoints.py measures again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dataprep.batches import Bytes, Offsets, TextBatch

LETTERS = """88F C5C CDC A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8
16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6E2 1E6E4-1E6E5 1E6E7-1E6ED
1E6F0-1E6F4 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"""
"""Letters and numbers: every scheme of a byte-level tokenizer sets them apart."""

MARKS = "1ACF-1ADD 1AE0-1AEB 10EFA-10EFB 11B60-11B67 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"
"""For schemes that say ``\\p{M}`` (o200k, Qwen3.5, DeepSeek)."""

SYMBOLS = """20C1 2B96 FBC3-FBD2 FD90-FD91 FDC8-FDCE 10ED0-10ED8 1CCFA-1CCFC 1CEBA-1CED0 1CEE0-1CEF0 1F6D8
1F777-1F77A 1F8D0-1F8D8 1FA54-1FA57 1FA8A 1FA8E 1FAC8 1FACD 1FAEA 1FAEF 1FBFA"""
"""For schemes that say ``\\p{P}`` or ``\\p{S}`` (DeepSeek)."""

NORMALIZED = """7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ADD 1AE0-1AEB 1DF6-1DFA A82C 105C9 105D2 105DA
105E4 10D24-10D27 10D69-10D6D 10EAB-10EAC 10EFA-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11382-11385
1138B 1138E 11390-11391 113B8 113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E 11839-1183A 11930 11935 11938
1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 1611E-16129 1612F 16D63 16D67-16D6A
16FF0-16FF1 1E08F 1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"""
"""For tokenizers with an NFC normalizer (Qwen): marks that are put in order, and the parts of new compositions."""

CHUNK = 1 << 20
"""Bytes looked at in one go: few enough to stay in the cache from one comparison to the next, enough calls saved."""


class Unsettled:
    """Finds the documents that hold a code point on which engine and reference differ.

    Reads 4 GB/s of English, 1.3 of Hindi, 2.9 of Chinese (one shared core, 2026-11; gigatoken: 0.3 to 0.4): only where
    two bytes begin such a code point are they looked at.

    Args:
        text: the tokenizer.json; says which properties of Unicode it uses.
    """

    def __init__(self, text: str) -> None:
        ranges = LETTERS
        if "p{M}" in text:
            ranges += " " + MARKS
        if "p{P}" in text or "p{S}" in text:
            ranges += " " + SYMBOLS
        if re.search(r'"type"\s*:\s*"NFC"', text):
            ranges += " " + NORMALIZED
        self.code_points = parse(ranges)
        self._member = np.zeros(0x110000, np.bool_)
        self._member[self.code_points] = True
        self._pair = np.zeros(1 << 16, np.bool_)
        self._seconds: dict[int, list[int]] = {}
        for lead, second in sorted({tuple(chr(code).encode()[:2]) for code in self.code_points}):
            self._pair[lead << 8 | second] = True
            self._seconds.setdefault(lead, []).append(second)

    def documents(self, batch: TextBatch) -> Offsets:
        """The documents of a batch that hold such a code point: int64[n], ascending."""
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        found = [
            self._positions(batch.values[start : min(start + CHUNK + 3, last)]) + start
            for start in range(first, last, CHUNK)
        ]
        positions = np.concatenate([some for some in found if len(some)] or [np.empty(0, np.int64)])
        documents: Offsets = np.unique(np.searchsorted(batch.offsets, positions, side="right") - 1)
        return documents

    def _positions(self, chunk: Bytes) -> Offsets:
        """Where in `chunk` such a code point begins; one that it cuts off is the next chunk's."""
        positions = np.flatnonzero(chunk[:-1] >= min(self._seconds))
        if len(positions) * 8 > len(chunk):  # many: a script whose letters begin so; narrow it down
            begins = np.zeros(len(chunk) - 1, np.bool_)
            for lead, seconds in self._seconds.items():
                leads = chunk[:-1] == lead
                if len(seconds) <= 4 and leads.any():
                    leads &= np.logical_or.reduce([chunk[1:] == second for second in seconds])
                begins |= leads
            positions = np.flatnonzero(begins)
        positions = positions[self._pair[chunk[positions].astype(np.uint16) << 8 | chunk[positions + 1]]]
        members: Offsets = positions[self._member[_decode(chunk, positions)]]
        return members


def parse(ranges: str) -> list[int]:
    """``"88F A7CE-A7CF"`` -> [0x88f, 0xa7ce, 0xa7cf]."""
    codes = set()
    for item in ranges.split():
        start, _, stop = item.partition("-")
        codes |= set(range(int(start, 16), int(stop or start, 16) + 1))
    return sorted(codes)


def _decode(chunk: Bytes, positions: Offsets) -> Offsets:
    """The code points of two to four bytes of UTF-8 that begin at `positions`; 0 for one that `chunk` cuts off."""
    lead = chunk[positions].astype(np.int64)
    length = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    code = lead & (0x7F >> length)
    for i in (1, 2, 3):
        byte = chunk[np.minimum(positions + i, len(chunk) - 1)] & np.int64(0x3F)
        code = np.where(i < length, code << 6 | byte, code)
    return np.where(positions + length <= len(chunk), code, 0)
