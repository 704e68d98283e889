"""What of a job's corpus is there, and finished: a file that may still be written to is left for the next run.

Nobody's clock is asked: a file is finished when it did not change between two looks, or when its writer says so by a
second file beside it (``done_marker``). Only files that are not known as they are need to be looked at twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep import catalog
from dataprep.errors import SourceError
from dataprep.sources import anchor, find_local
from dataprep.specs import FilesSource, parse_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dataprep.service.jobs import Job

Stamp = tuple[int, int]
"""Bytes and mtime, in nanoseconds, of a file."""


@dataclass(frozen=True)
class Found:
    """The files of a corpus.

    Attributes:
        folder: what relative paths of the corpus start at.
        only: of the user's own files, the absolute paths of those that are finished; None: the files are no such ones,
            and all are.
        waiting: names of those that are not, below what their paths have in common.
    """

    folder: Path
    only: frozenset[str] | None = None
    waiting: tuple[str, ...] = ()


def look(job: Job, before: Mapping[str, Stamp]) -> Found:
    """See which files of a job's corpus are finished.

    Args:
        job: whose corpus.
        before: files that were found finished before, as they were then; their names as in `versions.renamed`.

    Raises:
        SpecError: there is no such corpus, folder or file.
        SourceError: the file system refuses.
    """
    corpus, folder = catalog.find_corpus(job.corpus_arguments, parse_settings(job.settings))
    source = corpus.source
    if not isinstance(source, FilesSource):
        return Found(folder)
    root = anchor(source, folder)
    first = _stamps(source, folder, root)
    if job.done_marker is not None:
        files = {name: stamp for name, stamp in first.items() if not name.endswith(job.done_marker)}
        ready = {name for name in files if (root / f"{name}{job.done_marker}").exists()}
    else:
        files, ready = first, set[str]()
        if any(before.get(name) != stamp for name, stamp in first.items()):
            time.sleep(job.settle_seconds)
            files = _stamps(source, folder, root)
            ready = {name for name, stamp in files.items() if first.get(name) == stamp}
    ready |= {name for name, stamp in files.items() if before.get(name) == stamp}
    ready = {name for name in ready if files[name][0]}  # of nothing, something may come
    only = frozenset(os.path.normpath(root / name) for name in ready)
    return Found(folder, only, tuple(sorted(files.keys() - ready)))


def check_gone(source: FilesSource, folder: Path, names: Collection[str]) -> None:
    """Make sure that files are gone, and not only out of sight: globs take a folder that cannot be read for empty.

    Args:
        source: paths and globs.
        folder: what relative paths start at.
        names: of the files, as in `versions.renamed`.

    Raises:
        SourceError: one may be there.
    """
    root = anchor(source, folder)
    for parent in sorted({(root / name).parent for name in names}):
        try:
            os.listdir(parent)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise SourceError(
                f"cannot look into {parent}, where files of the newest version were: {error.strerror}; mend that, or "
                "take the folder away if they are to go"
            ) from error
    there = _stamps(source, folder, root)
    back = sorted(name for name in names if name in there)
    if back:
        raise SourceError(f"{root / back[0]} was gone, and is there again; run again once {root} stays as it is")


def _stamps(source: FilesSource, folder: Path, root: Path) -> dict[str, Stamp]:
    """The files that are there: name -> bytes and mtime. None at all, where there is nothing yet in the folder."""
    found = {}
    try:
        for _, path in find_local(source, folder, to_come=True):
            with contextlib.suppress(FileNotFoundError):  # moved away just now
                stat = path.stat()
                found[Path(os.path.relpath(path, root)).as_posix()] = (stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise SourceError(f"cannot look into {error.filename or root}: {error.strerror}; nothing was done") from error
    return found
