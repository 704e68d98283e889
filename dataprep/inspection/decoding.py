"""Ids back to text, for people: special tokens as they are written, and what is no token as its number."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from dataprep.definitions import Definition

SPACE = "\u2581"
"""What SentencePiece, and a tokenizer.json made from it, writes for a space."""


BYTE = re.compile("<0x([0-9A-F]{2})>")
"""What both write for a byte that no other token holds."""

WINDOW = 8
"""Tokens before one that may decide how it reads, where only the tokenizer itself knows how its tokens are joined."""

UNKNOWN, ORDINARY, SPECIAL = range(3)

_SHOWN = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTES = {chr(byte): byte for byte in _SHOWN} | {
    chr(256 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in _SHOWN)
}
"""The byte that each character of a byte-level token stands for. Source: openai/gpt-2, src/encoder.py."""


class Decoder:
    """Turns ids of one tokenizer back to text. Opening it takes as long as opening the tokenizer.

    Any id is taken: one that the tokenizer does not have reads ``<70000>``.

    Args:
        definition: of the tokenizer.
    """

    _token: Callable[[int], str | None]
    _decode: Callable[[list[int]], str]
    _decode_many: Callable[[list[list[int]]], list[str]]
    _is_joined = False  # whether a text is the bytes of its tokens, and no more
    _is_spaced = False  # whether it is their texts with `SPACE` and `BYTE` read, but for a space at the start

    def __init__(self, definition: Definition) -> None:
        self._size = definition.vocab_size
        self._specials: set[int] = set()
        if definition.type == "Llama2Tokenizer":
            model = definition.sentencepiece
            self._token, self._decode, self._decode_many = model.id_to_piece, model.decode, model.decode
            self._specials = set(definition.specials.values())  # of which its own decode shows nothing
            self._is_spaced, self._has_bytes = True, True
        else:
            import tokenizers

            tokenizer = tokenizers.Tokenizer.from_str(definition.text("encode"))
            self._token, self._decode = tokenizer.id_to_token, partial(tokenizer.decode, skip_special_tokens=False)
            self._decode_many = partial(tokenizer.decode_batch, skip_special_tokens=False)
            decoder = definition.config.get("decoder") or {}
            words = json.dumps(decoder, ensure_ascii=False)
            self._is_joined = decoder.get("type") == "ByteLevel"
            self._is_spaced, self._has_bytes = SPACE in words, '"ByteFallback"' in words

    def text(self, ids: Sequence[int]) -> str:
        """The text of consecutive tokens."""
        kinds = {number: self._kind(number) for number in set(ids)}
        parts = []
        for kind, run in groupby(ids, key=kinds.__getitem__):
            if kind == "ordinary":
                parts.append(self._decode(list(run)))
            else:
                parts += [str(self._token(number)) if kind == "special" else f"<{number}>" for number in run]
        return "".join(parts)

    def texts(self, documents: Sequence[npt.NDArray[Any]]) -> list[str]:
        """The texts of many documents, each an array of ids: what `text` gives of each, on all processors."""
        plain = [bool((self._kinds(ids) == ORDINARY).all()) for ids in documents]
        decode = self._join if self._is_joined else self._decode_many
        found = iter(decode([ids.tolist() for ids, alike in zip(documents, plain, strict=True) if alike]))
        return [next(found) if alike else self.text(ids.tolist()) for ids, alike in zip(documents, plain, strict=True)]

    def _join(self, documents: list[list[int]]) -> list[str]:
        """What `_decode_many` gives of byte-level tokens, many times as fast."""
        piece = self._pieces.__getitem__
        return [b"".join(map(piece, ids)).decode("utf-8", "replace") for ids in documents]

    @cached_property
    def _pieces(self) -> list[bytes]:
        """The bytes of each byte-level token; those of its text where that is none, as an added token's may be.

        Source: huggingface/tokenizers, pre_tokenizers/byte_level.rs, `decode_chain`.
        """
        return [self._bytes(number) for number in range(self._size)]

    def pieces(self, ids: Sequence[int], begins: bool = True) -> list[bytes]:
        """What each of consecutive tokens is of their text, as UTF-8; one may hold a part of a character.

        Joined they are what `text` gives, as long as that is text. Where only the tokenizer itself knows how its tokens
        are joined (WordPiece), a token is what it adds to the `WINDOW` before it.

        Args:
            ids: the tokens.
            begins: whether a document begins with them: some tokenizers leave out the space before its first word.
        """
        kinds = {number: self._kind(number) for number in set(ids)}
        found: list[bytes] = []
        for kind, run in groupby(ids, key=kinds.__getitem__):
            numbers = list(run)
            if kind != "ordinary":
                found += [self.text([number]).encode() for number in numbers]
            elif self._is_joined or self._is_spaced:
                each = {number: self._bytes(number) for number in set(numbers)}
                pieces = [each[number] for number in numbers]
                found += self._without_space(numbers, pieces) if self._is_spaced and (begins or found) else pieces
            else:
                found += self._added(numbers)
        return found

    def _bytes(self, number: int) -> bytes:
        token = self._token(number) or ""
        if self._is_joined:
            return bytes(map(BYTES.__getitem__, token)) if BYTES.keys() >= set(token) else token.encode()
        byte = BYTE.fullmatch(token) if self._has_bytes else None
        return bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode()

    def _without_space(self, numbers: list[int], pieces: list[bytes]) -> list[bytes]:
        """The same without the spaces at the start that the tokenizer's own decode leaves out."""
        count = next((i for i, piece in enumerate(pieces) if piece.strip(b" ")), len(pieces))
        count += count < len(pieces) and _is_whole(pieces[count])
        drop = len(b"".join(pieces[:count])) - len(self._decode(numbers[:count]).encode()) if count else 0
        found = []
        for piece in pieces:
            cut = min(max(0, drop), len(piece) - len(piece.lstrip(b" ")))
            found.append(piece[cut:])
            drop -= cut
        return found

    def _added(self, numbers: list[int]) -> list[bytes]:
        found = []
        for i, number in enumerate(numbers):
            before = numbers[max(0, i - WINDOW) : i]
            old, new = self._decode(before) if before else "", self._decode([*before, number])
            found.append((new[len(old) :] if new.startswith(old) else self.piece(number)).encode())
        return found

    def knows(self, ids: npt.NDArray[Any]) -> bool:
        """Whether the tokenizer has all of these tokens."""
        return bool((self._kinds(ids) != UNKNOWN).all())

    def _kinds(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        inside = (ids >= 0) & (ids < self._size)
        return np.where(inside, self._table[np.where(inside, ids, 0)], UNKNOWN).astype(np.int8)

    @cached_property
    def _table(self) -> npt.NDArray[np.int8]:
        kinds = {"unknown": UNKNOWN, "ordinary": ORDINARY, "special": SPECIAL}
        return np.array([kinds[self._kind(number)] for number in range(self._size)], np.int8)

    def num_unknown(self, ids: Sequence[int]) -> int:
        """How many of these tokens the tokenizer does not have."""
        counts = Counter(ids)
        return sum(count for number, count in counts.items() if self._kind(number) == "unknown")

    def piece(self, number: int) -> str:
        """The text of one token, as it reads in the middle of a line."""
        token = None if self._kind(number) == "unknown" else self._token(number)
        return token.replace(SPACE, " ") if token is not None and SPACE in token else self.text([number])

    def has(self, number: int) -> bool:
        """Whether the tokenizer has this token."""
        return self._kind(number) != "unknown"

    def _kind(self, number: int) -> str:
        if not 0 <= number < self._size or self._token(number) is None:
            return "unknown"
        return "special" if number in self._specials else "ordinary"


def _is_whole(data: bytes) -> bool:
    """Whether these bytes are whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
