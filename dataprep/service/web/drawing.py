"""What templates cannot say shortly: the bars of a histogram, and tokens as coloured pieces."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from markupsafe import Markup

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


@dataclass(frozen=True, slots=True)
class Level:
    """A line across the bars: where it is, from the top, and the share that it stands for."""

    height: float
    name: str


def levels(drawn: Sequence[Bar]) -> list[Level]:
    """Lines at whole shares, two to four of them below the longest bar."""
    most = max((share for bar in drawn for share in (bar.share_documents, bar.share_tokens)), default=0.0)
    step = next((each for each in (0.01, 0.02, 0.05, 0.1, 0.2) if most < 5 * each), 0.25)
    count = int(most / step + 1e-9)
    return [Level(round(HEIGHT * (1 - k * step / most), 2), f"{100 * k * step:.0f} %") for k in range(1, count + 1)]


def _height(share: float, most: float) -> float:
    """At least a line, where there is anything."""
    return round(max(1.5, HEIGHT * share / most), 2) if share else 0.0


def spans(tokens: Iterable[Token], first: int = 0) -> Markup:
    """Tokens as pieces of a text; each says its id and its number.

    Plain strings, and `escape` by name: Markup's own way takes five times as long, and a page has 2,000 tokens.

    Args:
        tokens: in their order.
        first: number of the first one, in its document.
    """
    found, parts, num_bytes = list[str](), list[str](), 0
    for number, token in enumerate(tokens, first):
        span = _span(token, number)
        if token.hex is None or token.character is None:
            found.append(span)
            continue
        parts.append(span)  # of one character, which stands above them
        num_bytes += len(bytes.fromhex(token.hex))
        if num_bytes >= len(token.character.encode()):
            found.append(f"<ruby>{''.join(parts)}<rt>{_safe(token.character)}</rt></ruby>")
            parts, num_bytes = [], 0
    return Markup("".join([*found, *parts]))


def _span(token: Token, number: int) -> str:
    colour = f"t{number % COLOURS}"
    title = f'data-id="{token.id}" title="id {token.id}, token {number}'
    if token.kind == "id":
        return f'<span class="t {colour}" {title}">{token.id}</span> '
    if token.kind == "unknown":
        return f'<span class="t odd" {title}, not in the vocabulary">&lt;{token.id}&gt;</span>'
    if token.hex is not None:
        part = f", a part of {_safe(token.character)}" if token.character else ""
        return f'<span class="t {colour} cut" {title}: bytes {token.hex}{part}">{token.hex}</span>'
    kind = "special" if token.kind == "special" else colour
    return f'<span class="t {kind}" {title}">{_seen(token.text or "")}</span>'


def _seen(text: str) -> str:
    """The text of a token, with signs for what would not be seen."""
    shown = _safe(text) or "<i>\u2205</i>"
    if text.isprintable():
        return shown
    return shown.replace("\n", "<i>\u21b5</i>\n").replace("\t", "<i>\u21e5</i>\t")


def _safe(text: str) -> str:
    """For HTML, and for quotes there; with all characters to be seen."""
    return escape(text if text.isprintable() else plain(text), quote=True)
