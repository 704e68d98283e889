"""A corpus fetched whole, without a tokenizer: the verb `download`, and what has to be here before units are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dataprep import contents, objects
from dataprep.errors import SpecError
from dataprep.layout import RawFolder
from dataprep.planning import resolve_corpus
from dataprep.sources import remember
from dataprep.specs import HubSource, Runtime, parse_settings
from dataprep.stages import download as stage
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.specs import Corpus, Listing
    from dataprep.watcher import Watcher


def download(
    corpus: str | Sequence[str],
    output: str | Path = "data",
    settings: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> Listing:
    """Fetch a corpus, for any tokenizer; what is there already is not fetched again.

    Args:
        corpus, output, settings: see `planning.resolve`.
        watcher: is told how it gets on.

    Returns:
        The files, at the paths where they lie.

    Raises:
        SpecError: the request is wrong.
        SourceError: some files cannot be had; the others are there.
    """
    given = parse_settings(list(settings))
    for namespace in sorted(set(given) - {"source", "reader", "runtime"}):
        raise SpecError(f"--set {namespace}.*: has no effect on a download, which is for any tokenizer; leave it out")
    runtime = Runtime.from_json(given.get("runtime", {}), "runtime settings")
    if not runtime.keep_raw:
        raise SpecError("runtime.keep_raw=false: what is downloaded only to be removed; leave it out")
    found, listing = resolve_corpus(corpus, output, given)
    fetch(found, listing, runtime, watcher or Silent())
    return listing


def fetch(corpus: Corpus, listing: Listing, runtime: Runtime, watcher: Watcher) -> None:
    """Fetch all files of a listing, and the texts behind ids.

    Raises:
        SpecError: a package that the texts need is not installed.
        SourceError: some files or texts cannot be had; the others are there.
        OutputError: the file system refuses.
    """
    texts = corpus.source.contents if isinstance(corpus.source, HubSource) and listing.ids else None
    if texts is not None:
        objects.open_store(texts.url, anon=True)  # a package that is missing is said before hours of work
    remember(corpus.source, listing)
    watcher.stage("download", sum(file.num_bytes for file in listing.files if file.url is not None))
    stage.run(corpus, listing, runtime, lambda n: watcher(Progress(source_bytes=n)))
    if texts is not None and listing.raw is not None:
        watcher.stage("texts", 0)
        contents.run(
            RawFolder(Path(listing.raw)),
            listing.files,
            texts,
            runtime.connections,
            lambda n: watcher(Progress(documents=n)),
        )
