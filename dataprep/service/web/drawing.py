"""What templates cannot say shortly: the bars of a histogram, and tokens as coloured pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from dataprep.meters import short_number
from dataprep.service.web.showing import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dataprep.service.viewing.answers import Bin
    from dataprep.service.viewing.readings import Token

WIDTH, HEIGHT = 720, 200
"""Of the bars, in the units of the drawing."""

COLOURS = 6
"""Of tokens, one after the other; a token is told from its neighbours by its edges, too."""

NAMED = 12
"""Bars that have a name below them, at most."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin: where its bars stand, and what is said of it.

    Attributes:
        x, width: of the place for both bars; each has half of it.
        documents, tokens: heights of the bars.
        share_documents, share_tokens: 0 to 1.
        name: below it; empty where there is no room.
        lengths: of the documents in it, for people.
        bin: what was counted.
    """

    x: float
    width: float
    documents: float
    tokens: float
    share_documents: float
    share_tokens: float
    name: str
    lengths: str
    bin: Bin


def bars(bins: Sequence[Bin]) -> list[Bar]:
    """A bar of documents and one of tokens for each bin; the longest fills the height."""
    documents, tokens = (sum(getattr(each, name) for each in bins) for name in ("num_documents", "num_tokens"))
    shares = [(each.num_documents / max(1, documents), each.num_tokens / max(1, tokens)) for each in bins]
    most = max((share for pair in shares for share in pair), default=0.0) or 1.0
    step, every = WIDTH / max(1, len(bins)), -(-len(bins) // NAMED)
    found = []
    for number, (each, (of_documents, of_tokens)) in enumerate(zip(bins, shares, strict=True)):
        found.append(
            Bar(
                x=round(number * step, 2),
                width=round(step, 2),
                documents=_height(of_documents, most),
                tokens=_height(of_tokens, most),
                share_documents=of_documents,
                share_tokens=of_tokens,
                name=short_number(each.first).strip() if number % every == 0 else "",
                lengths=f"{each.first:,} to {each.last:,}" if each.last > each.first else f"{each.first:,}",
                bin=each,
            )
        )
    return found


def _height(share: float, most: float) -> float:
    """At least a line, where there is anything."""
    return round(max(1.5, HEIGHT * share / most), 2) if share else 0.0


def spans(tokens: Iterable[Token], first: int = 0) -> Markup:
    """Tokens as pieces of a text; each says its id and its number.

    Args:
        tokens: in their order.
        first: number of the first one, in its document.
    """
    return Markup("").join(_span(token, first + place) for place, token in enumerate(tokens))


def _span(token: Token, number: int) -> Markup:
    title = f"id {token.id}, token {number}"
    colour = f"t{number % COLOURS}"
    if token.kind == "id":
        return Markup('<span class="t {}" title="{}">{}</span> ').format(colour, title, token.id)
    if token.kind == "unknown":
        return Markup('<span class="t odd" data-id="{}" title="{}, not in the vocabulary">&lt;{}&gt;</span>').format(
            token.id, title, token.id
        )
    if token.hex is not None:
        part = f"{title}: bytes {token.hex}" + (f", a part of {plain(token.character)}" if token.character else "")
        return Markup('<span class="t {} cut" data-id="{}" title="{}">{}</span>').format(
            colour, token.id, part, token.hex
        )
    kind = "special" if token.kind == "special" else colour
    return Markup('<span class="t {}" data-id="{}" title="{}">{}</span>').format(kind, token.id, title, _seen(token))


def _seen(token: Token) -> Markup:
    """The text of a token, with signs for what would not be seen."""
    text = token.text or ""
    if not text:
        return Markup("<i>\u2205</i>")
    shown = escape(plain(text))
    if "\n" in text:
        shown = shown.replace("\n", Markup("<i>\u21b5</i>\n"))
    return shown.replace("\t", Markup("<i>\u21e5</i>\t")) if "\t" in text else shown
