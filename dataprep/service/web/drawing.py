"""What templates cannot say shortly: the bars of a histogram, and tokens as coloured pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from dataprep.service.web.showing import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dataprep.service.viewing.answers import Bin
    from dataprep.service.viewing.readings import Token

WIDTH, HEIGHT = 720, 200
"""Of the bars, in the units of the drawing."""

COLOURS = 6
"""Of tokens, one after the other; a token is told from its neighbours by its edges, too."""

MOST_WIDTH = 44.0
"""Of a bar: two or three look lost otherwise."""

NAMED = 7
"""Bars that have a name below them, at most."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin: where its bars stand, and what is said of it.

    Attributes:
        middle: of the bin; the bars are left and right of it.
        width: of each bar.
        documents, tokens: heights of the bars.
        share_documents, share_tokens: 0 to 1.
        name: below it; empty where there is no room.
        lengths: of the documents in it, for people.
        bin: what was counted.
    """

    middle: float
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
                middle=round((number + 0.5) * step, 2),
                width=round(min(0.4 * step, MOST_WIDTH), 2),
                documents=_height(of_documents, most),
                tokens=_height(of_tokens, most),
                share_documents=of_documents,
                share_tokens=of_tokens,
                name=f"{each.first:,}" if number % every == 0 else "",
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
    found, parts, num_bytes = [], list[Markup](), 0
    for place, token in enumerate(tokens):
        span = _span(token, first + place)
        if token.hex is None or token.character is None:
            found.append(span)
            continue
        parts.append(span)  # of one character, which stands above them
        num_bytes += len(bytes.fromhex(token.hex))
        if num_bytes >= len(token.character.encode()):
            above = escape(plain(token.character))
            found.append(Markup("<ruby>{}<rt>{}</rt></ruby>").format(Markup("").join(parts), above))
            parts, num_bytes = [], 0
    return Markup("").join([*found, *parts])


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
