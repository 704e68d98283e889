"""What a corpus consists of: the sorted, complete list of its files.

    local    files of the user, on this machine or a mounted file system
    repos    files of a hub repository at one commit
    urls     files by their addresses: HTTP and object stores
    columns  what is in the first file, looked at from afar

Names are paths below the folder all files share: moving a corpus changes nothing, renaming a file does. Fetching is
`transfer`'s, reading the `readers`'.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import web
from dataprep.contents import load
from dataprep.errors import SourceError
from dataprep.layout import RawFolder
from dataprep.readers import format_by_name
from dataprep.sources.columns import choose_text
from dataprep.sources.local import anchor, check_same, check_unchanged, find_local, list_local, with_checksum
from dataprep.sources.repos import list_repo
from dataprep.sources.urls import list_urls
from dataprep.specs import FilesSource, HubSource, Listing, UrlsSource
from dataprep.storage import make_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Collection

    from dataprep.specs import Contents, ReaderSpec

log = logging.getLogger(__name__)

__all__ = [
    "anchor",
    "check_same",
    "check_unchanged",
    "find_local",
    "list_files",
    "remember",
    "with_checksum",
    "with_contents",
]


def list_files(
    source: FilesSource | HubSource | UrlsSource,
    reader: ReaderSpec,
    folder: Path,
    output: Path,
    only: Collection[str] | None = None,
) -> Listing:
    """All files of a source, sorted by name. Of those to be fetched, the path is where they will lie.

    Args:
        source: where the files are.
        reader: decides how the content is read; see `readers.detect`.
        folder: what relative paths start at.
        output: the folder the user named, below which fetched files lie.
        only: of the user's own files, the absolute paths of those that are read; None: all.

    Raises:
        SpecError: a path, glob or subset names nothing.
        SourceError: a file cannot be opened, or its format cannot be told; the source cannot be reached.
    """
    if isinstance(source, FilesSource):
        return Listing(files=list_local(source, reader, folder, only))
    if web.is_offline():
        listing = _remembered(source, reader, output)
    elif isinstance(source, UrlsSource):
        listing = list_urls(source, reader, output)
    else:
        listing = list_repo(source, reader, output)
    if isinstance(source, HubSource) and source.contents is not None:
        return with_contents(listing, source.contents)
    if listing.text is None and not web.is_offline() and listing.files[0].format != "text":
        text = choose_text(listing.files[0], reader).text
        if text != reader.text:
            log.info("the text is taken from %r, the only column of text; --set reader.text=NAME chooses another", text)
        listing = listing.model_copy(update={"text": text})
    return listing


def with_contents(listing: Listing, contents: Contents) -> Listing:
    """The texts instead of the ids, if they are here."""
    assert listing.raw is not None
    found = load(RawFolder(Path(listing.raw)), listing.files, contents)
    return listing.model_copy(update={"ids": True} if found is None else {"ids": False, "files": found})


def remember(source: FilesSource | HubSource | UrlsSource, listing: Listing) -> None:
    """Keep a listing beside the files, for runs without network; of texts behind ids, it is that of the ids."""
    if isinstance(source, FilesSource) or (isinstance(source, HubSource) and source.contents and not listing.ids):
        return
    assert listing.raw is not None
    raw = RawFolder(Path(listing.raw))
    make_folder(raw.path)
    write_json(raw.listing(_question(source)), listing.public().to_json())


def _question(source: HubSource | UrlsSource) -> dict[str, Any]:
    """What of a source its listing answers."""
    if isinstance(source, UrlsSource):
        return source.to_json()
    wanted = source.globs or [source.subset]
    return {"repo": [source.type, source.repo, source.revision], "wanted": [*wanted], "exclude": [*source.exclude]}


def _remembered(source: HubSource | UrlsSource, reader: ReaderSpec, output: Path) -> Listing:
    """The newest listing that an earlier run with network has kept of this source.

    Raises:
        SourceError: there is none.
    """
    found = sorted(RawFolder.listings(output, _question(source)), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        what = source.repo if isinstance(source, HubSource) else ", ".join(source.urls)
        raise SourceError(
            f"offline, and {output / 'raw'} holds no listing of {what}; run once without --offline and HF_HUB_OFFLINE, "
            f"for instance `dataprep download`, with the same --output"
        )
    try:
        value = json.loads(found[-1].read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{found[-1]} is damaged; run once without --offline and HF_HUB_OFFLINE") from error
    listing = Listing.from_json(value, str(found[-1])).moved(found[-1].parent)
    formats = [format_by_name(file.name, file.url or file.name, reader) for file in listing.files]
    files = zip(listing.files, formats, strict=True)
    told = (file.model_copy(update={"format": kind, "compression": container}) for file, (kind, container) in files)
    return listing.model_copy(update={"files": tuple(told)})
