"""What stands before all routes: who may ask, which changes are meant, and the headers that every answer has.

    Host            without a token, only names of this machine: a page elsewhere may have its name point here
    who             ``Authorization: Bearer``, or the cookie of a login; all but the login page, static files and
                    ``/healthz`` needs one of them, if there is a token
    a change        (whatever is not GET, HEAD or OPTIONS) is refused in a read-only server, where a browser says that
                    another site sends it, and without the session's code, which forms and scripts send, and which
                    a program with a token does without
    its size        `MOST_HEAD_BYTES` of headers, `MOST_BYTES` of body in `BODY_SECONDS`

A route that is added is behind all of this, whatever it forgets.
"""

from __future__ import annotations

import asyncio
import logging
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dataprep.service.web.sessions import Session, Sessions, Tries, same
from dataprep.service.web.showing import API, plain, problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dataprep.service.web.settings import Settings

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 20
"""Of the body of a request."""

MOST_HEAD_BYTES = 32 << 10
"""Of its headers, with the address."""

BODY_SECONDS = 15.0
"""For the body of a request to be there."""

LOGIN, LOGOUT = "/login", "/logout"
SAFE = ("GET", "HEAD", "OPTIONS")
CSRF_HEADER = "x-csrf-token"
PROGRAMS = (API, "/metrics")
"""What programs ask for: they are told that they need a token, and not sent to a form."""

HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # not less: browsers then send forms without their origin
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""What every answer carries. https://owasp.org/www-project-secure-headers/ says what each is for."""


class Refused(Exception):  # noqa: N818 - an answer, and no error of ours
    """The request is answered here."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class Guard:
    """Answers what may not pass, and passes on the rest. An ASGI middleware.

    Args:
        app: what is behind it.
        settings: of the server.
        sessions: of those who logged in.
        tries: wrong tokens so far.
    """

    def __init__(self, app: ASGIApp, settings: Settings, sessions: Sessions, tries: Tries) -> None:
        self._app, self._settings, self._sessions, self._tries = app, settings, sessions, tries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope.setdefault("state", {})["session"] = None
        answer = Answer(send, cookie_name(self._settings.port), scope)
        try:
            body = await self._admit(request)
            await self._app(scope, receive if body is None else replay(body, receive), answer)
        except Refused as refused:
            await refused.response(scope, receive, answer)
        except Exception:  # the last one who can answer: whatever a route raises is logged, and its client is told
            log.exception("%s %s failed", scope["method"], plain(scope["path"]))
            if answer.begun:
                raise  # the connection is cut, so that nobody takes the half for the whole
            detail = "The server made a mistake, and its log says which."
            await problem(request, 500, detail)(scope, receive, answer)

    async def _admit(self, request: Request) -> bytes | None:
        """Let a request pass, with its session; returns its body, where that had to be looked at."""
        check_head(request)
        self._check_host(request)
        is_program = self._identify(request)
        if request.method in SAFE:
            return None
        if self._settings.read_only and request.url.path not in (LOGIN, LOGOUT):
            raise refusal(request, 403, "This server shows, and changes nothing: it was started with --read-only.")
        check_origin(request)
        body = await read_body(request)
        if request.url.path != LOGIN and not is_program:
            self._check_form(request, body)
        return body

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        mine = {"localhost", "127.0.0.1", "::1", self._settings.host.lower()}
        if self._settings.token is None and name not in mine:
            detail = "This server answers to localhost and 127.0.0.1 only: it was started without a token."
            raise refusal(request, 400, detail)

    def _identify(self, request: Request) -> bool:
        """Find out who asks; True: a program with the token, that no other site can make send anything."""
        state = request.scope["state"]
        found = state["session"] = self._sessions.find(cookie(request.headers, cookie_name(self._settings.port)))
        if self._settings.token is None:
            state["session"] = found or self._sessions.new()
            return False
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            self._check_token(request, text.strip())
            return True
        if found is None and not is_public(request.url.path):
            raise Refused(ask(request))
        return False

    def _check_token(self, request: Request, text: str) -> None:
        address = request.client.host if request.client is not None else ""
        if wait := self._tries.seconds_left(address):
            raise refusal(request, 429, "Too many wrong tokens came from your address.", {"retry-after": str(wait)})
        if not self._sessions.is_token(text):
            self._tries.wrong(address)
            headers = {"www-authenticate": 'Bearer error="invalid_token"'}
            raise refusal(request, 401, "That is not the token of this server.", headers)

    def _check_form(self, request: Request, body: bytes) -> None:
        session: Session | None = request.scope["state"]["session"]
        sent = request.headers.get(CSRF_HEADER) or form(request.headers, body).get("csrf", "")
        if session is None or session.fresh or not same(sent, session.csrf):
            detail = (
                "The page that this came from is too old, or not of this server; load it again and repeat. "
                f"A program sends the token (Authorization: Bearer), or its session's code ({CSRF_HEADER})."
            )
            raise refusal(request, 403, detail)


class Answer:
    """Sends a response with the headers that all have, and the cookie of a session that is new.

    Args:
        send: where it goes.
        cookie: its name.
        scope: of the request.
    """

    def __init__(self, send: Send, cookie: str, scope: Scope) -> None:
        self._send, self._cookie, self._scope = send, cookie, scope
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            session = self._scope["state"]["session"]
            if session is not None and session.fresh and headers.get("content-type", "").startswith("text/html"):
                headers.append("set-cookie", set_cookie(self._cookie, session, self._scope["scheme"]))
        await self._send(message)


def cookie_name(port: int) -> str:
    """What the cookie is called: browsers send the cookies of one port to all ports of a host."""
    return f"dataprep-{port}"


def set_cookie(name: str, session: Session | None, scheme: str) -> str:
    """The header that gives a browser its session, or takes it away."""
    value, age = ("", "; Max-Age=0") if session is None else (session.cookie, "")
    secure = "; Secure" if scheme == "https" else ""
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{age}{secure}"


def cookie(headers: Headers, name: str) -> str | None:
    """A cookie that was sent."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None


def is_public(path: str) -> bool:
    """Whether a path is for those, too, who have not logged in."""
    return path in (LOGIN, "/healthz", "/favicon.ico") or path.startswith("/static/")


def refusal(request: Request, status: int, detail: str, headers: dict[str, str] | None = None) -> Refused:
    """The answer to a request that may not pass."""
    return Refused(problem(request, status, detail, headers))


def ask(request: Request) -> Response:
    """Tell somebody unknown how to log in."""
    path = request.url.path
    if path.startswith(PROGRAMS) or request.method not in SAFE:
        detail = "This server wants its token: send it as Authorization: Bearer <token>, or log in at /login."
        return problem(request, 401, detail, {"www-authenticate": "Bearer"})
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{LOGIN}?next={quote(path + query, safe='')}", 303)


def check_head(request: Request) -> None:
    """Refuse headers that nobody needs who means well; h11 limits only those that come in pieces."""
    scope = request.scope
    address = len(scope["query_string"]) + len(scope.get("raw_path", b""))
    if sum(len(name) + len(value) for name, value in scope["headers"]) + address > MOST_HEAD_BYTES:
        detail = f"The headers of a request, with its address, may have {MOST_HEAD_BYTES:,} bytes."
        raise refusal(request, 431, detail, {"connection": "close"})
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        # What stands behind its end for a proxy, which believed the other one, would be a request of somebody else.
        # https://www.rfc-editor.org/rfc/rfc9112#section-6.1 asks for the connection to be closed.
        detail = "The request says in two ways how long it is."
        raise refusal(request, 400, detail, {"connection": "close"})


def check_origin(request: Request) -> None:
    """Refuse what a browser says that another site sends."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    try:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:
        foreign = True
    if foreign or site not in ("same-origin", "none"):
        detail = "Another site sent this. If it was you, through a proxy: it has to pass on the Host it was asked for."
        raise refusal(request, 403, detail)


async def read_body(request: Request) -> bytes:
    """The body of a request, if it is neither too large nor too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    detail = f"A request may have {MOST_BYTES:,} bytes."
                    raise refusal(request, 413, detail, {"connection": "close"})
    except TimeoutError:
        detail = f"The request was not here after {BODY_SECONDS:.0f} seconds."
        raise refusal(request, 408, detail, {"connection": "close"}) from None
    return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """What gives a body again that was read already."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def form(headers: Headers, body: bytes) -> dict[str, str]:
    """The fields of a form; a field that stands there twice has its last value, as in Starlette."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return {}
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        return {}
