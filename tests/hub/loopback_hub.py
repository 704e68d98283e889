"""A Hugging Face hub on loopback: what hf.co answers its clients, and faults on demand. The fixture is `hub`.

Small files are answered at /resolve, LFS files by a redirect to a signed URL on another origin (localhost in place of
127.0.0.1), which shows whether a client takes its token along.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from loopback_handler import ANSWERS, CHANGES, DROPS, RANGES, Handler, Request
from loopback_repository import Content, Repo, Source


@dataclass(eq=False)  # two alike are two
class Fault:
    """What goes wrong, with which requests, and how often it did. See LoopbackHub.fault."""

    what: str
    match: str = "*"
    method: str = "GET"
    side: str | None = None
    at: int | None = None
    times: int = 1
    seconds: float = 60
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    shift: int = 4096
    fired: int = 0

    def concerns(self, request: Request) -> bool:
        hit = fnmatch.fnmatchcase(request.path, self.match) and self.method in {request.method, "*"}
        return hit and self.side in {None, request.side}


class LoopbackHub(socketserver.ThreadingTCPServer):
    """The server; see the module and tests/hub/test_loopback.py."""

    allow_reuse_address = True
    request_queue_size = 128
    page_size = 1000  # entries of a page of /tree
    rate_bytes_per_second: float | None = None  # of all bodies of files together
    signed_seconds: float | None = None  # how long a URL of the CDN is good; None: until expire()
    resolve_cache = False  # answer small files by a relative 307, as hf.co does since 2025

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.tokens: set[str] = set()
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.errors: list[BaseException | None] = []
        self.repos: dict[tuple[str, str], Repo] = {}
        self.plain_files: dict[str, tuple[Content, dict[str, str]]] = {}
        self.signatures: dict[str, tuple[str, float]] = {}
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._bodies, self._free_at, self._signed = 0, 0.0, 0
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="loopback-hub")
        self._thread.start()

    def add(
        self,
        kind: str,
        name: str,
        files: dict[str, Source],
        *,
        gated: bool = False,
        private: bool = False,
        branch: str = "main",
        lfs: set[str] | None = None,
        lfs_min_bytes: int = 1,
    ) -> Repo:
        """A repository with one commit; `lfs` names the LFS files, in place of the rule."""
        if kind not in {"datasets", "models"}:
            raise ValueError(f"kind: expected datasets or models, found {kind!r}")
        repo = Repo(kind, name, gated=gated, private=private, lfs=lfs, lfs_min_bytes=lfs_min_bytes)
        repo.commit(files, branch)
        self.repos[kind, name] = repo
        return repo

    def plain(self, path: str, content: Source, etag: str | None = "", last_modified: str | None = None) -> str:
        """The URL of a file outside any repository, new or replaced; an etag of None sends none."""
        held = Content(content)
        etag = f'"{held.md5}"' if etag == "" else etag
        headers = {"ETag": etag, "Last-Modified": last_modified}
        self.plain_files[path] = held, {name: value for name, value in headers.items() if value is not None}
        return self.url + quote(path)

    def fault(self, what: str, match: str = "*", **details) -> Fault:
        """Let the next `times` requests that `match` (a glob of the unquoted path), `method` and `side` go wrong.

        close, reset, stall (for `seconds`, then close): without `at` before any answer, else after `at` bytes of the
        body. short: a body of `at` bytes, and headers that say so. corrupt: 16 bytes at `at`. status: `status` with
        `headers`. ignore_range; wrong_range, lying_range: bytes `shift` away, told or not. html. redirect_loop.
        A fault waits for a request that can show it: one with more than `at` bytes, one for a part of a file. With
        times=-1 it stays until it is removed from `faults`.
        """
        if what not in ANSWERS | DROPS | RANGES | CHANGES:
            raise ValueError(f"what: unknown fault {what!r}")
        if what in CHANGES:
            details.setdefault("at", 0)
        fault = Fault(what, match, **details)
        with self._lock:
            self.faults.append(fault)
        return fault

    def take(self, request: Request, kinds: set[str], size: int | None = None) -> Fault | None:
        """The first fault of these kinds, used up by one; `size` of the body, None before there is one."""
        with self._lock:
            for fault in self.faults:
                fits = fault.at is None if size is None else fault.at is not None and size > fault.at
                if fault.what in kinds and fits and fault.concerns(request):
                    fault.fired += 1
                    if fault.fired == fault.times:
                        self.faults.remove(fault)
                    return fault
        return None

    def served(self, path: str | None = None) -> int:
        """Bytes sent of files, or of one file, on whichever side."""
        log = list(self.requests)
        return sum(request.body_bytes for request in log if request.data and path in {None, request.file})

    def sign(self, path: str) -> str:
        with self._lock:
            self._signed += 1
            signature = hashlib.sha256(f"{self.port} {self._signed}".encode()).hexdigest()
            good = float("inf") if self.signed_seconds is None else time.monotonic() + self.signed_seconds
            self.signatures[signature] = path, good
        return signature

    def expire(self) -> None:
        """Every signed URL given out so far is refused from now on."""
        with self._lock:
            self.signatures.clear()

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """While a body is sent; without this, an idle minute would be credit for a burst."""
        with self._lock:
            if not self._bodies:
                self._free_at = max(self._free_at, time.monotonic())
            self._bodies += 1
        try:
            yield
        finally:
            with self._lock:
                self._bodies -= 1

    def turn(self, left: int) -> int:
        """How many bytes may go, once they may."""
        rate = self.rate_bytes_per_second
        if not rate:
            return min(left, 1 << 20)
        count = min(left, max(1024, min(1 << 18, int(rate / 50))))
        with self._lock:
            now = time.monotonic()
            # A turn missed by little is caught up with: waits end late, and the rate is to hold on average.
            self._free_at = max(self._free_at, now - 0.25) + count / rate
            wait = self._free_at - now
        if wait > 0:
            self.closing.wait(wait)
        return count

    def get_request(self):
        connection, address = super().get_request()
        with self._lock:
            self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request):
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):  # a client may go when it likes
            self.errors.append(error)

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self._thread.join()
