"""Files by their addresses: HTTP, and the object stores that `objects` reaches.

Such a source states a size, and perhaps an ETag, which tells contents apart but proves nothing. So the sha256 of what
came is noted on first use, in the receipt and in the manifest; who knows it before writes ``source.sha256``.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dataprep import objects, web
from dataprep.errors import SourceError, SpecError
from dataprep.layout import RawFolder
from dataprep.readers import format_by_name
from dataprep.sources.repos import is_extra, is_inside, matcher
from dataprep.specs import Listing, SourceFile
from dataprep.web import Pause, persist

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.objects import Found
    from dataprep.specs import ReaderSpec, UrlsSource


def list_urls(source: UrlsSource, reader: ReaderSpec, output: Path) -> Listing:
    """The files that addresses name.

    Raises:
        SpecError: one is no address; they name no file, or two of the same name.
        SourceError: one cannot be reached, or does not say its size.
    """
    found = {one.url: one for url in source.urls for one in _look(url)}
    folder = _common_folder(list(found))
    if not folder:
        raise SpecError(f"{', '.join(list(found)[:5])}: addresses of several places; make a corpus of each")
    named: dict[str, Found] = {}
    for url, one in found.items():
        name = _name(url, folder)
        if name in named:
            raise SpecError(f"{named[name].url} and {url} are both called {name}; make two corpora of them")
        named[name] = one
    excluded, given = matcher(source.exclude), set(source.urls)
    kept = {
        name: one
        for name, one in named.items()
        if one.num_bytes and not excluded(name) and (one.url in given or not is_extra(name))
    }
    if not kept:
        raise SpecError(
            f"no file is left of {', '.join(source.urls)} without empty ones and source.exclude: "
            f"{', '.join(source.exclude)}"
        )
    unknown = set(source.sha256) - set(kept)
    if unknown:
        raise SpecError(f"source.sha256 names {', '.join(sorted(unknown))}; there are {', '.join(sorted(kept)[:20])}")
    identity = "\n".join(f"{one.url} {one.num_bytes} {one.etag}" for _, one in sorted(kept.items()))
    raw = RawFolder.of(output, urlsplit(folder).netloc, identity)
    files = tuple(_describe(name, one, source.sha256.get(name), raw, reader) for name, one in sorted(kept.items()))
    return Listing(files=files, origin=folder, raw=str(raw.path))


def _common_folder(urls: list[str]) -> str:
    columns = zip(*(_path(url).split("/")[:-1] for url in urls), strict=False)
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)
    return "".join(f"{parts[0]}/" for parts in same)


def _describe(name: str, one: Found, sha256: str | None, raw: RawFolder, reader: ReaderSpec) -> SourceFile:
    if not is_inside(name):
        raise SourceError(f"{one.url}: a file of that name cannot be stored safely")
    kind, compression = format_by_name(name, one.url, reader)
    stated = f"sha256:{sha256}" if sha256 else f"etag:{one.etag}" if one.etag else None
    return SourceFile(
        name=name,
        path=str(raw.files / name),
        url=one.url,
        num_bytes=one.num_bytes,
        format=kind,
        compression=compression,
        checksum=stated,
    )


def _path(url: str) -> str:
    """An address without query; names in object stores are literal."""
    return url.partition("?")[0].partition("#")[0] if urlsplit(url).scheme in ("http", "https") else url


def _name(url: str, folder: str) -> str:
    name = _path(url)[len(folder) :]
    name = unquote(name) if urlsplit(url).scheme in ("http", "https") else name
    if not name:
        raise SpecError(f"{url} ends without the name of a file")
    return name


def _look(url: str) -> list[Found]:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise SpecError(f"{url} is no address: {error}") from error
    if parts.password is not None:
        raise SpecError(f"{url}: no password in an address, please: it would stand in the records of the run")
    if not parts.netloc and parts.scheme != "file":
        what = "host" if parts.scheme in ("http", "https") else "bucket or host"
        raise SpecError(f"{url} is no address: it names no {what} after {parts.scheme}://")
    if parts.scheme not in ("http", "https"):
        return objects.find(url)
    if "*" in parts.path:
        raise SpecError(f"{url}: HTTP has no listing, so an address cannot be a glob; give every file's address")
    return [persist(lambda: _head(url), url, Pause())]


def _head(url: str) -> Found:
    """Size and ETag of a file, by a request for its first byte: some servers answer HEAD wrongly or not at all."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with (
            web.transient(),
            web.client().stream(
                "GET", url, headers=web.PLAIN | {"Range": "bytes=0-0"}, timeout=web.timeout_seconds()
            ) as response,
        ):
            web.raise_for_status(response)
    except HfHubHTTPError as error:
        if error.response.status_code == 416:  # of nothing, there is no first byte
            return objects.Found(url, 0, "")
        raise SourceError(f"cannot fetch {url}: {web.status_of(error.response)}; check the address") from error
    except web.address_errors() as error:
        raise SpecError(f"{url} is no address: {error}") from error
    total = re.fullmatch(r"bytes 0-0/(\d+)", response.headers.get("content-range", ""))
    length = total[1] if total else response.headers.get("content-length") if response.status_code == 200 else None
    if length is None:
        raise SourceError(f"{url}: the server does not say how long the file is; download it and name the local file")
    etag = response.headers.get("etag", "")
    etag = "" if etag.startswith("W/") else etag
    return objects.Found(url, int(length), etag or response.headers.get("last-modified", ""))
