"""uvicorn with the limits of a server that strangers can reach.

Beside those of the guard: a connection that does not come to a whole request in `HEAD_SECONDS` is closed, however
slowly it sends, and so is one that takes nothing of its answer for `SEND_SECONDS`; there are at most `CONNECTIONS` of
them; what a head may hold while it comes, h11 limits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dataprep.errors import OutputError

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from dataprep.service.web.settings import Settings

log = logging.getLogger(__name__)

HEAD_SECONDS = 15.0
"""From the opening of a connection, or the end of an answer, to the end of the next request's head."""

SEND_SECONDS = 60.0
"""In which somebody has to take something of an answer that is waiting."""

CONNECTIONS = 1000
"""At a time, where the system allows so many open files. Who comes then takes the place of the one that has waited
longest without a request; if all are being answered, 503 is the answer."""

BACKLOG = 1024
"""Connections that nobody has accepted yet; so many are accepted in one go."""

FILES = 300
"""Open files that are no connections."""

FEW = 64
"""The backlog where the system allows few open files."""

STOP_SECONDS = 3
"""How long answers that are being sent are waited for when the server stops."""


class Patience(H11Protocol):
    """A connection that has to come to a request, and take its answer, in time. uvicorn waits for both for ever.

    Each server has a class of its own, see `make_server`.
    """

    _waiting: dict[Patience, None]  # those without a request, the oldest first
    _head: asyncio.TimerHandle | None = None
    _send: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        waiting = self._waiting
        while waiting and len(self.connections) >= cast("int", self.config.limit_concurrency):
            oldest = next(iter(waiting))
            oldest._rest()
            oldest._give_up()
            self.connections.discard(oldest)  # now, and not when asyncio gets to it: who asks may be turned away before
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering:
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering:  # else the next request was here already
            self._wait_for_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send = self.loop.call_later(SEND_SECONDS, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send is not None:
            self._send.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest()
        if self._send is not None:
            self._send.cancel()

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _wait_for_head(self) -> None:
        self._rest()
        self._waiting[self] = None
        self._head = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _rest(self) -> None:
        self._waiting.pop(self, None)
        if self._head is not None:
            self._head.cancel()

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


class Server(uvicorn.Server):
    """A server of the application that ends its events when it is told to stop, and not after a time."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; uvicorn's handler of signals."""
        app: FastAPI = self.config.app  # type: ignore[assignment]
        app.state.events.close()
        super().handle_exit(sig, frame)


def make_server(app: FastAPI) -> Server:
    """A server for the application; `run` with the sockets of `bind` runs it until it is told to stop."""
    connections, backlog = room()
    config: dict[str, Any] = {
        "http": type("Patience", (Patience,), {"_waiting": {}}),
        "ws": "none",
        "lifespan": "on",
        "limit_concurrency": connections,
        "backlog": backlog,
        # What a proxy says of its clients is believed where somebody says which proxy; uvicorn reads that variable.
        "proxy_headers": "FORWARDED_ALLOW_IPS" in os.environ,
        "timeout_keep_alive": int(HEAD_SECONDS) + 1,  # ours is the one that counts
        "timeout_graceful_shutdown": STOP_SECONDS,
        "server_header": False,
        "access_log": False,
        "log_config": None,
    }
    return Server(uvicorn.Config(app, **config))


def room() -> tuple[int, int]:
    """How many connections, and how large a backlog, the limit of open files allows; raises it as far as that may be.

    Where a server runs out of them, asyncio cannot accept, and says so thousands of times a second.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + BACKLOG + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return CONNECTIONS, BACKLOG
    return max(FEW, min(CONNECTIONS, soft - FILES - FEW)), FEW


def bind(settings: Settings) -> list[socket.socket]:
    """The sockets that a server listens on: of all addresses of the name that it binds to.

    Raises:
        OutputError: none can be had.
    """
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except OSError as error:
        raise OutputError(
            f"cannot listen on {settings.host}: {error.strerror or error}; choose another --host"
        ) from error
    sockets: list[socket.socket] = []
    port = settings.port
    try:
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((str(address[0]), port, *address[2:]))
            sock.listen(BACKLOG)  # who comes before the server is up, waits
            port = sock.getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        hint = "stop what uses it, or choose another --port" if port else "choose another --host"
        raise OutputError(f"cannot listen on {settings.host}:{port}: {error.strerror or error}; {hint}") from error
    return sockets
