"""Fetch one file whole: resumed, checked, and published under its name only then.

    claim    a part of its own, or one that a dead run left (taken by a rename: one winner); who finds a live one waits
    fill     GET from the part's end on, again and again; every new byte renews the patience
    prove    size, and sha256 or git-sha1 where the source states one; a wrong one starts anew
    publish  fsync, rename, receipt

Nothing is trusted: not a Content-Length, not a Content-Range, not a 200; what is published has been checked as a whole.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dataprep import hub, objects, web
from dataprep.errors import SourceError
from dataprep.parts import Digests, Part, Wanted, claim
from dataprep.storage import append_line, explain, make_folder
from dataprep.web import Patience, Pause, TransientError, asked_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dataprep.layout import RawFolder

CORRUPT_ATTEMPTS = 3
"""Whole downloads whose checksum is wrong before the source is called corrupt."""


@dataclass(frozen=True)
class Receipt:
    """What a fetched file is.

    Attributes:
        sha256: of its content, 64 hex digits.
        mtime_ns: when it was published: tells whether somebody has changed it since.
    """

    name: str
    num_bytes: int
    checksum: str | None
    sha256: str
    mtime_ns: int

    def fits(self, wanted: Wanted) -> bool:
        """Whether it is of this very content."""
        return (self.num_bytes, self.checksum) == (wanted.num_bytes, wanted.checksum)


def load_receipts(folder: RawFolder) -> dict[str, Receipt]:
    """The receipts of a raw folder, by name; the last one counts. A line that a crash cut off is left out."""
    found: dict[str, Receipt] = {}
    with contextlib.suppress(FileNotFoundError), folder.receipts.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                receipt = Receipt(**json.loads(line))
                found[receipt.name] = receipt
    return found


def write_receipt(folder: RawFolder, wanted: Wanted, sha256: str) -> Receipt:
    """Note what a file that was published is."""
    mtime_ns = (folder.files / wanted.name).stat().st_mtime_ns
    receipt = Receipt(wanted.name, wanted.num_bytes, wanted.checksum, sha256, mtime_ns)
    append_line(folder.receipts, receipt.__dict__)
    return receipt


class Fetcher:
    """Fetches files into one raw folder; its methods may be called from many threads.

    Args:
        folder: the raw folder.
        pause: waits, and stops.
        report: called with the number of new bytes.
        patience: how often to try.
    """

    def __init__(
        self, folder: RawFolder, pause: Pause, report: Callable[[int], None], patience: Patience | None = None
    ) -> None:
        self._folder, self._pause, self._report = folder, pause, report
        self._patience = patience or Patience()

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
        part = claim(self._folder, wanted, self._pause)
        if part is None:
            return self._found(wanted, path)
        with part:
            self._fill(wanted, part)
            part.publish(path)
        return write_receipt(self._folder, wanted, part.sha256)

    def _found(self, wanted: Wanted, path: Path) -> Receipt:
        """The receipt of a file that lies there whole; a crash may have come between the file and its receipt."""
        receipt = load_receipts(self._folder).get(wanted.name)
        if receipt is not None and receipt.fits(wanted) and receipt.mtime_ns == path.stat().st_mtime_ns:
            return receipt
        digests = Digests(wanted)
        with path.open("rb", buffering=0) as file:
            digests.read(file.fileno(), wanted.num_bytes)
        if path.stat().st_size == wanted.num_bytes and digests.agree(wanted.checksum):
            return write_receipt(self._folder, wanted, digests.sha256)
        with explain(path, "replace"):
            path.unlink(missing_ok=True)
        return self.fetch(wanted)

    def _fill(self, wanted: Wanted, part: Part) -> None:
        failures = corrupt = 0
        while True:
            self._pause.wait()
            before = part.num_bytes
            try:
                if part.num_bytes < wanted.num_bytes or wanted.num_bytes == 0:
                    self._get(wanted, part)
                if part.is_whole():
                    return
                corrupt += 1
                part.restart()
                reason = f"the content that came is not what the source states ({wanted.checksum})"
                if corrupt >= CORRUPT_ATTEMPTS:
                    raise SourceError(
                        f"cannot fetch {wanted.url}: {reason}, {corrupt} times in a row. The copy at the source, or "
                        "a proxy on the way, is damaged; try another network or HF_ENDPOINT, or tell its owner"
                    )
                raise TransientError(reason)
            except TransientError as error:
                failures = 1 if part.num_bytes > before else failures + 1
                web.give_up_or_wait(error, wanted.url, failures, self._pause, self._patience)

    def _get(self, wanted: Wanted, part: Part) -> None:
        """One request for the rest of a file.

        Raises:
            TransientError: it broke off, or the answer makes no sense.
            SourceError: the source refuses for good.
        """
        web.check_online(wanted.url)
        if urlsplit(wanted.url).scheme not in ("hf", "http", "https"):
            blocks = objects.blocks(wanted.url, part.num_bytes, wanted.num_bytes, _etag(wanted))
            self._take(blocks, wanted, part)
            return
        url, headers = hub.address(wanted.url) if wanted.url.startswith("hf:") else (wanted.url, web.PLAIN)
        if part.num_bytes:
            headers = headers | {"Range": f"bytes={part.num_bytes}-"}
        request = web.client().stream("GET", url, headers=headers, timeout=web.timeout_seconds(), follow_redirects=True)
        with _explained(wanted.url), web.transient(), request as response:
            self._check(response, wanted, part)
            self._take(response.iter_raw(), wanted, part)
        if part.num_bytes < wanted.num_bytes:
            raise TransientError(f"the connection was closed at byte {part.num_bytes:,} of {wanted.num_bytes:,}")

    def _take(self, blocks: Iterator[bytes], wanted: Wanted, part: Part) -> None:
        for block in blocks:
            if part.num_bytes + len(block) > wanted.num_bytes:
                part.restart()
                raise TransientError(f"more came than the {wanted.num_bytes:,} bytes expected")
            part.write(block)
            self._report(len(block))
            self._pause.wait()

    def _check(self, response: Any, wanted: Wanted, part: Part) -> None:
        """Make sure that an answer is of what was asked for."""
        if response.status_code >= 400:
            self._refused(response, part)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise TransientError(f"the answer is encoded as {response.headers['content-encoding']}; not what was asked")
        etag = _etag(wanted)
        if etag is not None and etag not in (response.headers.get("etag", etag), response.headers.get("last-modified")):
            raise SourceError(f"{wanted.url} changed since it was listed; run the same command again")
        if response.status_code == 206:
            found = response.headers.get("content-range", "")
            if found != f"bytes {part.num_bytes}-{wanted.num_bytes - 1}/{wanted.num_bytes}":
                raise TransientError(f"asked for bytes {part.num_bytes:,} to the end, got {found or 'no range'}")
            return
        length = response.headers.get("content-length")
        if length is not None and int(length) != wanted.num_bytes:
            kind = response.headers.get("content-type", "unknown")
            raise TransientError(f"expected {wanted.num_bytes:,} bytes, got {int(length):,} of type {kind}")
        if part.num_bytes:
            part.restart()  # the range was ignored

    def _refused(self, response: Any, part: Part) -> None:
        """An answer that is an error; at a store of files behind a redirect it may just have expired."""
        if response.status_code == 416:
            part.restart()
        expired = bool(response.history) and "x-error-code" not in response.headers
        if expired or response.status_code in (416, *web.TRANSIENT):
            reason = f"{response.status_code} {response.reason_phrase}".strip()
            raise TransientError(reason, asked_wait(response.headers))
        web.raise_for_status(response)


def peek(url: str, start: int, stop: int) -> bytes:
    """Bytes of a file afar, to look at: what comes is not proven, and not kept.

    Args:
        url: its address.
        start, stop: which bytes; all of them have to exist.

    Raises:
        SourceError: they cannot be had.
    """
    web.check_online(url)
    if urlsplit(url).scheme not in ("hf", "http", "https"):
        return web.persist(lambda: b"".join(objects.blocks(url, start, stop, None)), url, Pause())

    def get() -> bytes:
        where, headers = hub.address(url) if url.startswith("hf:") else (url, web.PLAIN)
        headers = headers | {"Range": f"bytes={start}-{stop - 1}"}
        with _explained(url), web.transient():
            response = web.client().get(where, headers=headers, timeout=web.timeout_seconds(), follow_redirects=True)
            web.raise_for_status(response)
        data: bytes = response.content
        data = data[start:stop] if response.status_code == 200 else data
        if len(data) != stop - start:
            raise TransientError(f"asked for {stop - start:,} bytes, got {len(data):,}")
        return data

    return web.persist(get, url, Pause())


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError

    if url.startswith("hf:"):
        with hub.explained(hub.split(url)[0]):
            yield
        return
    try:
        yield
    except HfHubHTTPError as error:
        if error.response.status_code in web.TRANSIENT:
            raise
        status = f"{error.response.status_code} {error.response.reason_phrase}"
        raise SourceError(f"cannot fetch {url}: {status}; check the address") from error


def _etag(wanted: Wanted) -> str | None:
    algorithm, _, value = (wanted.checksum or "").partition(":")
    return value if algorithm == "etag" else None
