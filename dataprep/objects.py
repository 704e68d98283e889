"""Object stores and other file systems, by fsspec: list, and read a range.

Their credentials are found as their own tools find them (``AWS_PROFILE``, ``AWS_ENDPOINT_URL``,
``GOOGLE_APPLICATION_CREDENTIALS``, ...); fsspec's settings by environment hold, see `ANONYMOUS`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dataprep import web
from dataprep.errors import DataprepError, SourceError, SpecError
from dataprep.web import Pause, TransientError, persist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REQUEST_BYTES = 16 << 20
"""What is asked for at once."""

LOOK_SECONDS = 0.5
"""How often who waits for a store looks whether to stop: its package tries again by itself, for minutes."""

ANONYMOUS = {"s3": "FSSPEC_S3_ANON=true", "gs": "FSSPEC_GS_TOKEN=anon"}
"""What to set to read a public bucket without credentials: fsspec's settings by environment."""

PACKAGES = {"s3": "dataprep-llm[s3]", "s3a": "dataprep-llm[s3]", "gs": "dataprep-llm[gcs]", "gcs": "dataprep-llm[gcs]"}


@dataclass(frozen=True)
class Found:
    """A file: its address, its size, and what tells one content from another ('' where the store does not say)."""

    url: str
    num_bytes: int
    etag: str


def open_store(url: str, **options: Any) -> tuple[Any, str]:
    """The file system of an address, and the path in it.

    Raises:
        SpecError: no such file system, or its package is not installed.
        SourceError: offline; or the server of a file system that connects at once cannot be reached.
    """
    import fsspec

    web.check_online(url)
    scheme = urlsplit(url).scheme
    try:
        store, path = fsspec.core.url_to_fs(url, **_times(scheme), **options)
    except ImportError as error:
        package = PACKAGES.get(scheme)
        hint = f"pip install '{package}'" if package else str(error)
        raise SpecError(f"{url}: reading {scheme}:// needs a package more: {hint}") from error
    except ValueError as error:
        raise SpecError(f"{url}: {error}") from error
    except OSError as error:
        raise SourceError(f"cannot open {url}: {error}; check the address, and the network") from error
    return store, path


def _times(scheme: str) -> dict[str, Any]:
    """How long a store may say nothing, unless fsspec's settings say it.

    gcsfs has no time of its own (2026.10). s3fs has 5 s to connect and 15 s to read (2026.9), adlfs 20 s and 60 s.
    """
    import fsspec

    names = ("gs", "gcs")
    if scheme not in names or any("requests_timeout" in fsspec.config.conf.get(name, {}) for name in names):
        return {}
    import aiohttp

    seconds = web.timeout_seconds()
    return {"requests_timeout": aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds)}


def find(url: str) -> list[Found]:
    """The files that an address, a folder or a glob names.

    Raises:
        SpecError: none.
        SourceError: no permission, no network.
    """
    store, path = open_store(url)
    scheme = urlsplit(url).scheme

    def look() -> list[Found]:
        store.invalidate_cache()
        if set(path) & set("*?["):
            found = store.glob(path, detail=True)
        elif store.isfile(path):
            found = {path: store.info(path)}
        else:
            found = store.find(path, detail=True)
        return [
            Found(f"{scheme}://{name.lstrip('/')}" if scheme != "file" else f"file://{name}", info["size"], _etag(info))
            for name, info in found.items()
            if info["type"] == "file" and not name.endswith("/")
        ]

    found: list[Found] = persist(lambda: _translated(look, url), url, Pause())
    if not found:
        raise SpecError(f"{url} names no file")
    return found


def blocks(url: str, start: int, stop: int, etag: str | None, pause: Pause) -> Iterator[bytes]:
    """The bytes of a file from `start` to `stop`, some at a time.

    Raises:
        TransientError: the connection broke.
        SourceError: it is gone, forbidden, or has changed (`etag`).
        Cancelled: the pause was stopped.
    """
    store, path = open_store(url)

    def ask(method: str, **arguments: Any) -> Any:
        return _translated(lambda: _ask(store, method, path, pause, **arguments), url)

    def check_same() -> None:
        store.invalidate_cache()
        if etag and _etag(ask("info")) != etag:
            raise SourceError(f"{url} changed since it was listed; run the same command again")

    check_same()
    while start < stop:
        end = min(start + REQUEST_BYTES, stop)
        block = ask("cat_file", start=start, end=end)
        if len(block) != end - start:
            raise TransientError(f"asked for {end - start:,} bytes, got {len(block):,}")
        yield block
        start = end
    check_same()


def _ask(store: Any, method: str, path: str, pause: Pause, **arguments: Any) -> Any:
    """Call a store, and let go of what it does once the pause is stopped, as far as its package can be interrupted."""
    import fsspec.asyn

    if not isinstance(store, fsspec.asyn.AsyncFileSystem):
        return getattr(store, method)(path, **arguments)
    future = asyncio.run_coroutine_threadsafe(getattr(store, f"_{method}")(path, **arguments), store.loop)
    try:
        while not concurrent.futures.wait([future], LOOK_SECONDS).done:
            pause.check()
        return future.result()
    finally:
        future.cancel()


def _etag(info: dict[str, Any]) -> str:
    for key in ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified"):
        if info.get(key):
            return str(info[key]).strip('"')
    return ""


def _translated(call: Callable[[], Any], url: str) -> Any:
    try:
        return call()
    except FileNotFoundError as error:
        raise SourceError(f"{url} does not exist (or the bucket hides it from you): check the address") from error
    except (DataprepError, TransientError):
        raise
    except Exception as error:  # the error trees of the stores have no common root
        if _is_refusal(error):
            public = ANONYMOUS.get(urlsplit(url).scheme)
            hint = f", or set {public} for a public bucket" if public else ""
            said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise SourceError(f"{url}: {said}; give credentials as for the store's own tools{hint}") from error
        if isinstance(error, ValueError):  # a request that the store's package refuses to send
            raise SourceError(f"{url}: {error}; check the address") from error
        raise TransientError(f"{type(error).__name__}: {error}") from error


def _is_refusal(error: Exception) -> bool:
    """Whether a store wants other credentials (as s3fs 2026.9, botocore 1.43, gcsfs 2026.10 say it)."""
    return (
        isinstance(error, PermissionError)
        or type(error).__name__ == "NoCredentialsError"
        or getattr(error, "code", None) in (401, 403)
        or (isinstance(error, OSError) and str(error).startswith("Forbidden"))
    )
