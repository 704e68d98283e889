"""Fetch one file whole: resumed, checked, and published under its name only then.

    claim    a part of its own, or one that a dead run left (taken by a rename: one winner); who finds a live one waits
    fill     GET from the part's end on, again and again; every new byte renews the patience. Large files come in
             pieces, side by side, and are written in order
    prove    size, and sha256 or git-sha1 where the source states one, or the sha256 of the first time; a wrong one
             starts anew
    publish  fsync, rename, receipt

What of a single answer is believed, see `requests`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections import deque
from concurrent.futures import wait
from typing import TYPE_CHECKING

from dataprep import web
from dataprep.digests import Digests
from dataprep.errors import SourceError, public
from dataprep.parts import BEAT_SECONDS, Part, Wanted, claim
from dataprep.receipts import Receipts
from dataprep.requests import Piece, RangesIgnoredError, Requests
from dataprep.storage import explain, make_folder
from dataprep.web import Patience, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from dataprep.connections import Connections
    from dataprep.layout import RawFolder
    from dataprep.receipts import Receipt
    from dataprep.requests import Sink
    from dataprep.web import Pause

log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
"""What one request of a large file asks for: a tenth of a second of a fast connection, and small beside a worker's
memory."""

WINDOW = 8
"""Pieces of a file under way or waiting in memory for their turn. As many large files are fetched at once as it takes
to keep all connections busy, and one more, so that none idles at the end of a file."""

CORRUPT_ATTEMPTS = 3
"""Whole downloads whose checksum is wrong before the source is called corrupt."""


class Fetcher:
    """Fetches files into one raw folder; its methods may be called from many threads.

    Args:
        folder: the raw folder.
        connections: what requests go over.
        pause: waits, and stops.
        report: called with the number of new bytes.
        patience: how often to try.

    Attributes:
        receipts: of the raw folder.
    """

    def __init__(
        self,
        folder: RawFolder,
        connections: Connections,
        pause: Pause,
        report: Callable[[int], None],
        patience: Patience | None = None,
    ) -> None:
        self._folder, self._connections, self._pause, self._report = folder, connections, pause, report
        self._patience = patience or Patience()
        self._numbers = itertools.count()
        self._large = threading.Semaphore(1 + -(-connections.number // WINDOW))
        self.receipts = Receipts(folder)

    def fetch(self, wanted: Wanted) -> Receipt:
        """Fetch a file, or find it fetched meanwhile by another process.

        Raises:
            SourceError: it cannot be had; what came of it is kept.
            OutputError: the file system refuses.
            Cancelled: the pause was stopped.
        """
        path = self._folder.files / wanted.name
        make_folder(path.parent)
        make_folder(self._folder.parts)
        while True:
            part = claim(self._folder, wanted, self._pause)
            if part is None:
                receipt = self._found(wanted, path)
                if receipt is not None:
                    return receipt
                continue
            with part:
                self._fill(wanted, part)
                if part.publish(path):
                    return self.receipts.add(wanted, part.sha256)

    def _found(self, wanted: Wanted, path: Path) -> Receipt | None:
        """The receipt of a file that lies there whole; a crash may have come between the file and its receipt."""
        receipt = self.receipts.get(wanted.name)
        stat = path.stat()
        if receipt is not None and receipt.fits(wanted) and receipt.mtime_ns == stat.st_mtime_ns:
            return receipt
        digests = Digests(wanted.num_bytes, wanted.checksum)
        with path.open("rb", buffering=0) as file:
            digests.read(file.fileno(), wanted.num_bytes)
        known = receipt.sha256 if receipt is not None and receipt.fits(wanted) else digests.sha256
        if stat.st_size == wanted.num_bytes and digests.agree() and digests.sha256 == known:
            return self.receipts.add(wanted, digests.sha256)
        with explain(path, "replace"):
            path.unlink(missing_ok=True)
        return None

    def _known(self, wanted: Wanted) -> str | None:
        """The sha256 that was noted when a file whose source proves nothing first came."""
        receipt = self.receipts.get(wanted.name)
        return receipt.sha256 if receipt is not None and receipt.fits(wanted) and not wanted.is_proven else None

    def _fill(self, wanted: Wanted, part: Part) -> None:
        requests, corrupt, number = Requests(wanted, self._pause, self._report), 0, next(self._numbers)
        known = self._known(wanted)
        while True:
            if part.position < part.stop:
                self._get(wanted, part, requests, number)
            if part.is_whole() and known in (None, part.sha256):
                return
            corrupt, sha256 = corrupt + 1, part.sha256
            part.restart()
            if corrupt >= CORRUPT_ATTEMPTS:
                if known is not None:
                    raise SourceError(
                        f"{wanted.url} is not what it was when it was first fetched, though it has the same size: "
                        f"sha256 {sha256}, then {known}. If the new content is meant, take another --output for it"
                    )
                raise SourceError(
                    f"cannot fetch {wanted.url}: the content that came is not what the source states "
                    f"({wanted.checksum}), {corrupt} times in a row. The copy at the source, or a proxy on the way, is "
                    "damaged; try another network or HF_ENDPOINT, or tell its owner"
                )
            log.info("%s: the content that came is not what it should be; fetching it again", public(wanted.url))

    def _get(self, wanted: Wanted, part: Part, requests: Requests, number: int) -> None:
        """Fetch what is missing of a file: in one request, or, of a large one, in pieces side by side."""
        if part.stop - part.position > PIECE_BYTES:
            _await(part, lambda seconds: self._large.acquire(timeout=seconds))
            try:
                self._side_by_side(wanted, part, requests, number)
                return
            except RangesIgnoredError as error:
                log.info("%s: %s; fetching it in one piece", public(wanted.url), error)
            finally:
                self._large.release()
        _result(part, self._connections.submit((number, 0), lambda: self._persist(part, wanted, requests)))

    def _side_by_side(self, wanted: Wanted, part: Part, requests: Requests, number: int) -> None:
        """Pieces are fetched side by side and written in order, so that a part is always a beginning of its file."""
        window: deque[tuple[Piece, Future[None]]] = deque()
        start = part.position
        try:
            while part.position < part.stop:
                while start < part.stop and len(window) < WINDOW:
                    piece = Piece(start, min(start + PIECE_BYTES, part.stop))
                    call = functools.partial(self._persist, piece, wanted, requests)
                    window.append((piece, self._connections.submit((number, start), call)))
                    start = piece.stop
                _result(part, window[0][1])
                self._keep(part, [window.popleft()[0]])
        finally:
            for _, future in window:
                future.cancel()
            _await(part, lambda seconds: not wait([future for _, future in window], seconds).not_done)
            self._keep(part, [piece for piece, _ in window])

    def _keep(self, part: Part, pieces: list[Piece]) -> None:
        """Write what came of pieces in order, up to the first byte that is missing."""
        for piece in pieces:
            if piece.start != part.position:
                return
            part.write(piece.data)

    def _persist(self, sink: Sink, wanted: Wanted, requests: Requests) -> None:
        """Ask until a range is whole; every new byte renews the patience."""
        failures, furthest = 0, sink.position
        while True:
            self._pause.wait()
            try:
                return requests.get(sink)
            except RangesIgnoredError:
                raise
            except TransientError as error:
                failures = 1 if sink.position > furthest else failures + 1
                furthest = max(furthest, sink.position)
                web.give_up_or_wait(error, wanted.url, failures, self._pause, self._patience)


def _await(part: Part, done: Callable[[float], bool]) -> None:
    """Wait until something is done that is waited for some seconds at a time; meanwhile others see the part alive."""
    while not done(BEAT_SECONDS):
        part.touch()


def _result(part: Part, future: Future[None]) -> None:
    _await(part, lambda seconds: not wait([future], seconds).not_done)
    future.result()
