"""What changes, as it changes: server-sent events, from one look at the files for all who listen.

https://html.spec.whatwg.org/multipage/server-sent-events.html is the format. Somebody looks only while anybody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from dataprep.errors import BusyError
from dataprep.specs import Model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dataprep.service.state import Seen, State

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the files are looked at."""

QUIET_SECONDS = 15.0
"""After how long without news a listener is sent a comment, so that proxies keep the connection, and lost ones end."""

MOST = 500
"""Listeners at a time."""


class RunNews(Model):
    """How a run that goes on gets on.

    Attributes:
        page: where its page is.
        state: see `state.Line`.
        stage: of the work.
        share: of the stage that is done, 0 to 1; None: nobody knows.
    """

    page: str
    state: str
    stage: str
    share: float | None


class News(Model):
    """An event: something is another.

    Attributes:
        digest: of all that there is to see.
        num_runs: there are.
        going: the runs that go on, the first 100 of them.
    """

    digest: str
    num_runs: int
    going: tuple[RunNews, ...]


class Events:
    """Tells listeners what changes. Lives in one event loop.

    Args:
        state: what is looked at.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._listeners = set[asyncio.Queue[str]]()
        self._looking: asyncio.Task[None] | None = None
        self._is_over = False

    def close(self) -> None:
        """End all connections: the server is about to stop."""
        self._is_over = True
        for queue in self._listeners:
            _put(queue, "")

    def listen(self) -> AsyncIterator[str]:
        """The events from now on, as text; the first one tells how it stands.

        Raises:
            BusyError: too many listen.
        """
        if len(self._listeners) >= MOST:
            raise BusyError(f"{MOST} listen already; ask for /api/v1/runs every few seconds instead")
        return self._told(asyncio.Queue[str](maxsize=1))  # who is slow misses what is old

    async def _told(self, queue: asyncio.Queue[str]) -> AsyncIterator[str]:
        self._listeners.add(queue)
        try:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            last = await self._event()
            yield last
            while not self._is_over:
                try:
                    text = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                if text and text != last:
                    last = text
                    yield text
        finally:
            self._listeners.discard(queue)

    async def _look(self) -> None:
        before = ""
        while self._listeners and not self._is_over:
            try:
                event = await self._event()
            except OSError as error:
                log.warning("cannot look at what the pages show: %s", error)
                event = before
            if event != before:
                before = event
                for queue in self._listeners:
                    _put(queue, event)
            await asyncio.sleep(LOOK_SECONDS)

    async def _event(self) -> str:
        return text_of(await run_in_threadpool(lambda: news(self._state.seen())))


def news(seen: Seen) -> News:
    """What is told of what was seen."""
    going = tuple(
        RunNews(
            page=line.page,
            state=line.state,
            stage=line.progress.stage if line.progress is not None else "",
            share=line.share,
        )
        for line in seen.going[:100]
    )
    return News(digest=seen.digest, num_runs=len(seen.lines), going=going)


def text_of(event: News) -> str:
    """An event as it is sent."""
    return f"event: state\nid: {event.digest}\ndata: {event.model_dump_json()}\n\n"


def _put(queue: asyncio.Queue[str], text: str) -> None:
    with contextlib.suppress(asyncio.QueueEmpty):
        queue.get_nowait()
    queue.put_nowait(text)
