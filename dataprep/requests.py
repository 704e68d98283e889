"""One request for a file, or for a range of it: what is asked, and which answers are believed.

Nothing is trusted: not a Content-Length, not a Content-Range, not a 200. What may pass is a TransientError, to be tried
again from where the last byte came; what will not is a SourceError.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from dataprep import hub, objects, web
from dataprep.digests import matches
from dataprep.errors import SourceError
from dataprep.parts import Wanted
from dataprep.web import Pause, TransientError, asked_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RangesIgnoredError(TransientError):
    """A server that answers with the whole file, whatever range was asked for."""


class Sink(Protocol):
    """Where the bytes of a range go.

    Attributes:
        position: of the next byte, in the file.
        stop: the end of the range.
    """

    @property
    def position(self) -> int: ...
    @property
    def stop(self) -> int: ...
    def write(self, data: bytes) -> None: ...
    def restart(self) -> None:
        """Forget what came."""


@dataclass
class Piece:
    """A range of a file, in memory."""

    start: int
    stop: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def position(self) -> int:
        return self.start + len(self.data)

    def write(self, data: bytes) -> None:
        self.data += data

    def restart(self) -> None:
        self.data.clear()


class Requests:
    """Requests for one file.

    Args:
        wanted: the file.
        pause: may stop them between two blocks.
        report: called with the number of new bytes.
    """

    def __init__(self, wanted: Wanted, pause: Pause, report: Callable[[int], None]) -> None:
        self._wanted, self._pause, self._report = wanted, pause, report
        self._direct: str | None = None

    def get(self, sink: Sink) -> None:
        """One request for what is missing of a range.

        Raises:
            TransientError: it broke off, or the answer makes no sense; what came is in the sink.
            SourceError: the source refuses for good, or the file has changed.
            Cancelled: the pause was stopped.
        """
        wanted = self._wanted
        web.check_online(wanted.url)
        if urlsplit(wanted.url).scheme not in ("hf", "http", "https"):
            self._take(objects.blocks(wanted.url, sink.position, sink.stop, _etag(wanted), self._pause), sink)
            return
        try:
            self._ask(sink, self._direct)
        except TransientError:
            self._direct = None  # it may have expired
            raise

    def _ask(self, sink: Sink, direct: str | None) -> None:
        wanted = self._wanted
        url, headers = (direct, web.PLAIN) if direct is not None else address(wanted.url)
        if sink.position or sink.stop < wanted.num_bytes:
            last = sink.stop - 1 if sink.stop < wanted.num_bytes else ""
            headers = headers | {"Range": f"bytes={sink.position}-{last}"}
        request = web.client().stream("GET", url, headers=headers, timeout=web.timeout_seconds(), follow_redirects=True)
        with explained(wanted.url), web.transient(), request as response:
            said = self._check(response, sink, direct is not None)
            if response.history and response.url.host != response.history[0].url.host:
                self._direct = str(response.url)  # a store of files, which asks for no token: other ranges go there
            with contextlib.ExitStack() as stack:
                if not said:
                    stack.callback(self._forget_short, sink)
                self._take(response.iter_raw(), sink)
        if sink.position < sink.stop:
            raise TransientError(f"the connection was closed at byte {sink.position:,} of {wanted.num_bytes:,}")

    def _forget_short(self, sink: Sink) -> None:
        if sink.position < sink.stop:  # it may have been anything, a page that asks to log in
            sink.restart()

    def _take(self, blocks: Iterator[bytes], sink: Sink) -> None:
        for block in blocks:
            if sink.position + len(block) > sink.stop:
                sink.restart()
                raise TransientError(f"more came than the bytes up to {sink.stop:,} that were expected")
            sink.write(block)
            self._report(len(block))
            self._pause.check()

    def _check(self, response: Any, sink: Sink, direct: bool) -> bool:
        """Make sure that an answer is of what was asked for; False: only if as much comes as the file has."""
        size = self._wanted.num_bytes
        if response.status_code >= 400:
            _refused(response, sink, direct)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise TransientError(f"the answer is encoded as {response.headers['content-encoding']}; not what was asked")
        _check_version(response, self._wanted)
        if response.status_code == 206:
            found = response.headers.get("content-range", "")
            if found != f"bytes {sink.position}-{sink.stop - 1}/{size}":
                raise TransientError(f"asked for bytes {sink.position:,} to {sink.stop:,}, got {found or 'no range'}")
            return True
        length = response.headers.get("content-length")
        if length is not None and int(length) != size:
            kind = response.headers.get("content-type", "unknown")
            raise TransientError(f"expected {size:,} bytes, got {int(length):,} of type {kind}")
        if isinstance(sink, Piece) and (sink.start, sink.stop) != (0, size):
            raise RangesIgnoredError("the server ignores ranges")
        if sink.position:
            if length is None:
                raise TransientError("asked for the rest of the file, got an answer without range and length")
            sink.restart()
        return length is not None


def _check_version(response: Any, wanted: Wanted) -> None:
    """Make sure that an answer is of the version that was listed, where the server tells versions apart."""
    etag = _etag(wanted)
    versions = {response.headers[key] for key in ("etag", "last-modified") if key in response.headers}
    if etag is not None and not versions:
        raise TransientError("the answer does not say of which version of the file it is")
    if etag is not None and etag not in versions:
        raise SourceError(f"{wanted.url} changed since it was listed; run the same command again")


def _refused(response: Any, sink: Sink, direct: bool) -> None:
    """An answer that is an error; at a store of files behind a redirect it may just have expired."""
    if response.status_code == 416:
        sink.restart()
    expired = (direct or bool(response.history)) and "x-error-code" not in response.headers
    if expired or response.status_code in (416, *web.TRANSIENT):
        response.read()
        raise TransientError(web.status_of(response), asked_wait(response.headers))
    web.raise_for_status(response)


def address(url: str) -> tuple[str, dict[str, str]]:
    """Where to fetch a file from, and the headers for it: a token for the hub, and for nobody else."""
    return hub.address(url) if url.startswith("hf:") else (url, web.PLAIN)


def read(wanted: Wanted) -> bytes:
    """A small file whole, in memory, checked against what its source states.

    Raises:
        SourceError: it cannot be had, or is not what its source states.
    """
    piece = Piece(0, wanted.num_bytes)
    requests = Requests(wanted, Pause(), lambda n: None)

    def get() -> None:
        requests.get(piece)
        if not matches(piece.data, wanted.checksum):
            piece.restart()
            raise TransientError("what came is not what the source states")

    web.persist(get, wanted.url, Pause())
    return bytes(piece.data)


def peek(url: str, num_bytes: int, start: int, stop: int) -> bytes:
    """Bytes of a file afar, to look at: what comes is not proven, and not kept.

    Args:
        url: its address.
        num_bytes: its size.
        start, stop: which bytes.

    Raises:
        SourceError: they cannot be had.
        RangesIgnoredError: only the whole file can be had.
    """
    piece = Piece(start, stop)
    requests = Requests(Wanted(url, url, num_bytes, None), Pause(), lambda n: None)
    ignored: list[RangesIgnoredError] = []

    def get() -> None:
        try:
            requests.get(piece)
        except RangesIgnoredError as error:
            ignored.append(error)

    web.persist(get, url, Pause())
    if ignored:
        raise ignored[0]
    return bytes(piece.data)


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn a refusal into an error that says what to do."""
    from huggingface_hub.errors import HfHubHTTPError

    if url.startswith("hf:"):
        with hub.explained(*hub.split(url)):
            yield
        return
    try:
        yield
    except HfHubHTTPError as error:
        if error.response.status_code in web.TRANSIENT:
            raise
        raise SourceError(f"cannot fetch {url}: {web.status_of(error.response)}; check the address") from error
    except web.address_errors() as error:  # of a redirect, say
        raise SourceError(f"cannot fetch {url}: {error}; check the address") from error


def _etag(wanted: Wanted) -> str | None:
    algorithm, _, value = (wanted.checksum or "").partition(":")
    return value if algorithm == "etag" else None
