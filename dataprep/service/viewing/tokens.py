"""Ids as pieces of text: each token as what it adds to it, also where several share one character."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from dataprep.definitions import load
from dataprep.errors import DataprepError
from dataprep.inspection.decoding import Decoder
from dataprep.service.viewing.kept import Kept
from dataprep.service.viewing.readings import Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.specs import TokenizerIdentity

MOST_DECODERS = 3
"""Tokenizers that are held open: one of 128,000 tokens takes 200 MB."""

MOST_TOKENS = 8
"""That share one character: four bytes have four, unless they are not the shortest."""


class Reader:
    """Reads the tokens of one tokenizer.

    Args:
        identity: of the tokenizer.

    Raises:
        SpecError: its files are not at hand.
    """

    def __init__(self, identity: TokenizerIdentity) -> None:
        definition = load(identity)
        self._decoder = Decoder(definition)
        self._specials = set(definition.specials.values())

    def tokens(self, ids: Sequence[int], before: int | None = None) -> tuple[tuple[Token, ...], bytes]:
        """Consecutive tokens, and their text as UTF-8, whose ends may be cut.

        Args:
            ids: the tokens.
            before: the token before them; None: a document begins with them.
        """
        begins = before is None
        pieces = self._decoder.pieces(ids if before is None else [before, *ids], begins)[not begins :]
        found = list(zip(ids, pieces, _characters(pieces), strict=True))
        known = {each: self._token(*each) for each in set(found)}
        return tuple(known[each] for each in found), b"".join(pieces)

    def _token(self, number: int, piece: bytes, character: str | None) -> Token:
        if not self._decoder.has(number):
            return Token(id=number, kind="unknown")
        kind: Literal["special", "ordinary"] = "special" if number in self._specials else "ordinary"
        text = _text(piece)
        if text is None:
            return Token(id=number, hex=piece.hex(" "), character=character, kind=kind)
        return Token(id=number, text=text, kind=kind)


class Readers:
    """The tokenizers that were asked for last, by what they are and not by what they are called."""

    def __init__(self) -> None:
        self._kept: Kept[Reader] = Kept(MOST_DECODERS)

    def find(self, identity: TokenizerIdentity) -> tuple[Reader | None, str]:
        """What reads the tokens of a tokenizer, or why nothing does, and how to mend that."""
        key = json.dumps([identity.type, identity.files, identity.identity], sort_keys=True)
        try:
            return self._kept.get(key, lambda: Reader(identity)), ""
        except DataprepError as error:
            return None, f"Only ids are shown: {error}"


def _text(data: bytes) -> str | None:
    """What bytes say, if they are whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _characters(pieces: Sequence[bytes]) -> list[str | None]:
    """For each piece that is no whole characters, the text that it and its neighbours are; None: they are none."""
    found: list[str | None] = [None] * len(pieces)
    start = 0
    while start < len(pieces):
        stop = start + 1
        if _text(pieces[start]) is None:
            while stop <= len(pieces) and stop - start <= MOST_TOKENS:
                if (text := _text(b"".join(pieces[start:stop]))) is not None:
                    found[start:stop] = [text] * (stop - start)
                    break
                stop += 1
            else:
                stop = start + 1
        start = stop
    return found
