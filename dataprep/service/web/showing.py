"""Templates, and how numbers, times and sizes are written in them.

Templates escape what they are given, and get no names of their own: a misspelt one is an error, not an empty place.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, JSONResponse, Response

from dataprep import __version__
from dataprep.meters import short_number, short_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import HTTPConnection

HERE = Path(__file__).parent

STATIC = HERE / "static"
"""Files that are sent as they are."""

API = "/api/"
"""What the paths of the API begin with: an error there is JSON."""

NOBODY_KNOWS = "\u2013"
"""What stands in the place of a value that there is none of: a dash."""

TITLES = {
    400: "That request makes no sense",
    401: "Log in first",
    403: "That is not allowed",
    404: "Nothing is here",
    405: "That cannot be done here",
    413: "That is too much",
    422: "That request makes no sense",
    429: "Too many tries",
    500: "Something went wrong",
    503: "Too busy",
}
"""What a page about an error is called."""


def page(
    connection: HTTPConnection,
    template: str,
    /,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> HTMLResponse:
    """A page made from a template.

    The template gets, beside `context`: ``csrf``, the value that forms carry; ``read_only``; ``logged_in``, whether
    there is a session to end; ``has_jobs``; and ``path``, of the page.

    Args:
        connection: the request.
        template: file name in templates/.
        status: of the response.
        headers: of the response, beside those that all have.
        context: what the template shows.
    """
    settings, session = connection.app.state.settings, connection.scope.get("state", {}).get("session")
    shown = {
        "csrf": session.csrf if session is not None else "",
        "read_only": settings.read_only,
        "logged_in": settings.token is not None and session is not None,
        "has_jobs": settings.jobs is not None,
        "path": connection.scope["path"],
        "version": __version__,
    }
    return HTMLResponse(templates().get_template(template).render(shown | context), status, headers)


def problem(connection: HTTPConnection, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """What is answered to a request that cannot be done: a page, or JSON where a program asked.

    Args:
        connection: the request.
        status: of the response.
        detail: what is wrong and what to do, in a sentence.
        headers: of the response, beside those that all have.
    """
    if connection.scope["path"].startswith(API):
        return JSONResponse({"detail": detail}, status, headers)
    title = TITLES.get(status, "That did not work")
    return page(connection, "error.html", status, headers, code=status, title=title, detail=detail)


@cache
def templates() -> Environment:
    """The templates, each read once."""
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_visible,
    )
    env.filters.update(
        number=number,
        short=short,
        size=size,
        duration=duration,
        when=when,
        ago=ago,
        until=until,
        rate=rate,
        plain=plain,
        json=as_json,
        at=at,
    )
    env.globals.update(static=static)
    return env


@cache
def static(name: str) -> str:
    """The address of a static file; another one whenever it changes, so that browsers may keep it for ever."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def as_json(value: Any) -> str:
    """JSON for people; autoescape writes it into the page."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def number(value: int | None) -> str:
    """1,234,567; a dash where nobody knows."""
    return NOBODY_KNOWS if value is None else f"{value:,}"


def short(value: float | None) -> str:
    """1.23 M; a dash where nobody knows."""
    return NOBODY_KNOWS if value is None else short_number(value).strip()


def size(value: float | None) -> str:
    """Bytes as 1.23 GB; a dash where nobody knows."""
    return NOBODY_KNOWS if value is None else f"{short_number(value)}B"


def rate(value: float | None) -> str:
    """Bytes per second as 12.3 MB/s; a dash where nobody knows."""
    return NOBODY_KNOWS if value is None else f"{size(value)}/s"


def duration(seconds: float | None) -> str:
    """5 min; a dash where nobody knows."""
    return NOBODY_KNOWS if seconds is None else short_time(seconds)


@lru_cache(maxsize=10_000)
def when(value: str | datetime | None) -> str:
    """2026-11-21 15:49 UTC; a dash where nobody knows."""
    moment = _moment(value)
    return NOBODY_KNOWS if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def at(value: str | None, zone: str = "UTC") -> str:
    """Sun 22 Nov 2026, 02:30, as clocks of a time zone show it; a dash where nobody knows."""
    moment = _moment(value)
    return NOBODY_KNOWS if moment is None else f"{moment.astimezone(ZoneInfo(zone)):%a %d %b %Y, %H:%M}"


def ago(value: str | datetime | None) -> str:
    """5 min ago, or in 5 min; a dash where nobody knows."""
    moment = _moment(value)
    if moment is None:
        return NOBODY_KNOWS
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{short_time(seconds)} ago" if seconds > 0 else f"in {short_time(-seconds)}"


def until(started: str, ended: str) -> str:
    """How long it is from one time to another: 5 min; a dash where nobody knows."""
    begin, end = _moment(started), _moment(ended)
    return NOBODY_KNOWS if begin is None or end is None else short_time((end - begin).total_seconds())


def plain(text: str) -> str:
    """A text whose characters are all to be seen: what moves, hides or turns others around is written as its number."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def _visible(value: Any) -> Any:
    """What a template writes: whoever wrote a text, a file's name or a log, moves and hides nothing on a page."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _moment(value: str | datetime | None) -> datetime | None:
    if not value:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None  # of a damaged file
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
