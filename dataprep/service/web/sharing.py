"""What many ask for is made once: pages and answers of the API are the same for all who look at the same time.

An answer is kept for `KEPT_SECONDS`, and no longer than what was seen last is what it was made of: who is told by an
event that something is another, and asks for it, gets what is new. The pages of two people differ in one place only,
the code that their forms carry: they are made with another text there, which is replaced for each.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from dataprep.service.web.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dataprep.service.state import Seen, State

KEPT_SECONDS = 2.0
"""How old an answer may be where nothing tells that it is another: a log grows without a word."""

LIBRARY_SECONDS = 10.0
"""The same of what is said of datasets, which do not change."""

MOST = 100
"""Answers that are kept, of up to some MB each."""

OWN = ("/login", "/healthz", "/static/", "/favicon.ico", "/api/v1/events")
"""What is each one's own, never ends, or takes no time."""

LIBRARY = ("/datasets", "/api/v1/datasets")
"""What does not change as runs get on, but when one begins or ends."""

Key = tuple[str, str, bytes, str, bool]


class _Answer:
    """An answer that is made, or is being made.

    Attributes:
        messages: of ASGI; nobody who waits for them is waited for.
        since: when it was begun, by a clock that only grows.
        seen: by then.
    """

    def __init__(self, make: Callable[[_Answer], Coroutine[Any, Any, list[Message]]], seen: Seen | None) -> None:
        self.since, self.seen = time.monotonic(), seen
        self.messages = asyncio.create_task(make(self))


class Sharing:
    """Gives one answer to all who ask for the same at the same time. An ASGI middleware, behind the guard.

    Args:
        app: what makes the answers.
        state: what tells that something is another.
    """

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app, self._state = app, state
        self._code = secrets.token_hex(32)  # as long as the codes of sessions
        self._known: dict[Key, _Answer] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith(OWN):
            try:
                await self._app(scope, receive, send)
            finally:
                if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
                    self._known.clear()  # something may be another
            return
        session: Session | None = scope["state"]["session"]
        code = (self._code if session is None else session.csrf).encode()
        for message in await self._messages(scope, session is not None):
            if message["type"] == "http.response.start":
                await send({**message, "headers": list(message["headers"])})  # the guard adds to them
            else:
                await send({**message, "body": message.get("body", b"").replace(self._code.encode(), code)})

    async def _messages(self, scope: Scope, has_session: bool) -> list[Message]:
        host = Headers(scope=scope).get("host", "")  # it stands in addresses that some are sent on to
        key = (host, scope["path"], scope["query_string"], scope["scheme"], has_session)
        known = self._known.get(key)
        if known is None or not self._holds(known, scope["path"]):
            session = Session("", self._code) if has_session else None
            asked = {**scope, "state": {**scope["state"], "session": session}}
            known = self._known[key] = _Answer(lambda answer: self._made(answer, asked), self._state.last)
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        is_kept = False
        try:
            found = await asyncio.shield(known.messages)
            is_kept = found[0]["status"] == 200
            return found
        finally:
            if known.messages.done() and not is_kept and self._known.get(key) is known:
                del self._known[key]  # what is not there may be there in a moment

    def _holds(self, answer: _Answer, path: str) -> bool:
        seen, last, age = answer.seen, self._state.last, time.monotonic() - answer.since
        if seen is None or last is None:
            return seen is last and age <= KEPT_SECONDS
        if path.startswith(LIBRARY):
            return age <= LIBRARY_SECONDS and seen.settled == last.settled
        return age <= KEPT_SECONDS and seen.digest == last.digest

    async def _made(self, answer: _Answer, scope: Scope) -> list[Message]:
        answer.seen = await run_in_threadpool(self._state.seen)
        found: list[Message] = []
        asked = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Message:
            return asked.pop() if asked else await asyncio.Event().wait()  # type: ignore[return-value]  # for ever

        async def send(message: Message) -> None:
            found.append(message)

        await self._app(scope, receive, send)
        return found
