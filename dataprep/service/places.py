"""Where the words of a job lead: names, addresses, paths; and which paths lie outside of where it may reach."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import SpecError
from dataprep.specs import parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dataprep.service.job import Job

GLOB = set("*?[")

REMOTE = ("http", "https", "s3", "s3a", "gs", "gcs")
"""Schemes of addresses that lead to no file of this machine; fsspec knows others that do."""


def is_address(corpus: str) -> bool:
    """Whether a corpus is an address, or of the hub."""
    return corpus.startswith("hf:") or "://" in corpus


def is_named(corpus: str, folder: Path) -> bool:
    """Whether a corpus is an address, of the hub, or shipped, and not a path."""
    from dataprep.catalog import shipped

    if is_address(corpus):
        return True
    if "/" in corpus or GLOB & set(corpus) or corpus.endswith((".yaml", ".yml")) or (folder / corpus).exists():
        return False
    return shipped.find("pipelines", corpus.partition(":")[0]) is not None


def is_path(tokenizer: str) -> bool:
    """Whether a tokenizer is a path, and not a name."""
    return tokenizer.startswith(("/", "./", "../"))


def absolute(text: str, folder: Path) -> str:
    """A path, or a glob, that starts at a folder; what the folder's own name has of globs is none."""
    own, pattern = _split(text, folder)
    return glob.escape(own) + pattern if GLOB & set(pattern) else own + pattern


def beside(text: str, folder: Path) -> str:
    """A path, or a glob, that starts where this process does, as one that starts at a folder.

    It is relative where it leads no further up than to the folder's own, so that both can be moved together.
    """
    own, pattern = _split(text, Path.cwd())
    relative = os.path.relpath(own, os.path.abspath(folder))
    if relative.startswith("../../") or relative == "../..":
        return absolute(text, Path.cwd())
    literal = relative if relative.startswith("..") else os.path.join(".", relative)
    return (glob.escape(literal) if pattern else literal) + pattern


def outside(job: Job, allowed: Sequence[Path] = ()) -> list[Path]:
    """What a job reaches for on this machine and has no business with; a server refuses jobs with any.

    Looked at are files of the corpus, also those that a corpus' YAML names and those that a glob matches or a folder
    holds now, the tokenizer, the cluster's YAML, the output, the program that is told, and the folder of metrics; links
    are followed. Settings that could lead further are no settings of a job, see `jobs.SAID_ELSEWHERE`.

    Args:
        job: to look at.
        allowed: folders beside the jobs folder in which all of that may lie.

    Returns:
        One path of each word that leads out, as the job has it; or what of its matches does.
    """
    folders = [Path(os.path.realpath(each)) for each in (job.folder, *allowed)]
    known: dict[str, bool] = {}

    def is_inside(path: str) -> bool:
        parent = os.path.dirname(path)
        if parent == path or os.path.islink(path):
            return any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in folders)
        if parent not in known:  # of a million files in one folder
            known[parent] = any(Path(os.path.realpath(parent)).is_relative_to(folder) for folder in folders)
        return known[parent] or any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in folders)

    found = [stray for own, pattern in _reached(job) if (stray := _stray(own, pattern, is_inside)) is not None]
    return [Path(each) for each in dict.fromkeys(found)]


def around(jobs: Path) -> tuple[Path, ...]:
    """The folder that a jobs folder lies in: where its jobs may reach if nobody says otherwise; not the root of all."""
    parent = Path(os.path.realpath(jobs)).parent
    return () if parent == parent.parent else (parent,)


def strange(away: Sequence[Path]) -> str:
    """What to say of paths that a job names outside of where it may reach."""
    named = ", ".join(map(str, away[:5]))
    return f"{named}, outside of where jobs may reach; if it may: --allow {shlex.quote(str(away[0].parent))}"


def check_inside(job: Job, allowed: Sequence[Path]) -> None:
    """See that a job reaches for nothing outside; see `outside`.

    Raises:
        SpecError: it does.
    """
    if away := outside(job, allowed):
        raise SpecError(f"the job {job.name} names {strange(away)}")


def _reached(job: Job) -> Iterator[tuple[str, str | None]]:
    """Every path that the job leads to, in two parts: what is literal, and the glob that follows it.

    None follows a folder that is written to: what lies in it is not read as a source, and may be very much.
    """
    for corpus in job.corpus:
        if not is_named(corpus, job.folder):
            yield _split(corpus, job.folder)
            if corpus.endswith((".yaml", ".yml")):
                yield from _of_corpus(absolute(corpus, job.folder))
        elif "://" in corpus:
            yield from _of_address(corpus)
    yield from _of_tokenizer(job)
    yield str(job.output_folder), None
    if job.cluster_argument is not None and os.path.isabs(job.cluster_argument):
        yield job.cluster_argument, ""
    if job.notify.command:
        program = job.notify.command[0]
        yield shutil.which(program) or program, ""
    given = parse_settings(list(job.set))
    for namespace, key in (("runtime", "metrics"), ("cluster", "scratch")):
        if key in given.get(namespace, {}):
            yield os.path.abspath(str(given[namespace][key])), ""


def _of_corpus(path: str) -> Iterator[tuple[str, str]]:
    """What the YAML of a corpus leads to; where it is none, nothing."""
    from dataprep.catalog import find_corpus
    from dataprep.specs import FilesSource, UrlsSource

    try:
        corpus, folder = find_corpus([path], {})
    except SpecError:  # a run says so
        return
    if isinstance(corpus.source, FilesSource):
        for each in corpus.source.paths:
            yield (each, "") if "{" in each else _split(each, folder)
    elif isinstance(corpus.source, UrlsSource):
        for each in corpus.source.urls:
            yield from _of_address(each)


def _of_address(url: str) -> Iterator[tuple[str, str]]:
    if "::" in url or url.partition("://")[0].lower() not in REMOTE:
        yield url, ""


def _of_tokenizer(job: Job) -> Iterator[tuple[str, str]]:
    from dataprep.specs import TokenizerSpec, load_yaml

    if not is_path(job.tokenizer):
        return
    path = job.tokenizer_argument
    yield path, ""
    if path.endswith((".yaml", ".yml")):
        try:
            spec = TokenizerSpec.from_json(load_yaml(Path(path)), path)
        except SpecError:  # a run says so
            return
        for each in (spec.path, spec.merges):
            if each is not None:
                yield os.path.join(os.path.dirname(path), os.path.expanduser(each)), ""


def _split(text: str, folder: Path) -> tuple[str, str]:
    """A path that starts at a folder, absolute, in two parts: what is literal, and the glob that follows it."""
    joined = os.path.abspath(os.path.join(folder, text))
    if not GLOB & set(text):
        return joined, ""
    own = "" if os.path.isabs(text) else os.path.commonpath([folder, joined])
    first = min(joined.find(mark, len(own)) % (len(joined) + 1) for mark in GLOB)  # -1 counts as the end
    cut = max(joined.rfind("/", 0, first), len(own))
    return joined[:cut], joined[cut:]


def _stray(own: str, pattern: str | None, is_inside: Callable[[str], bool]) -> str | None:
    """What of a path, of what it matches, or of what lies below it, is not inside; None: nothing."""
    if not is_inside(own or "/"):
        return own + (pattern or "")
    if pattern is None:
        return next((path for path in _written(own) if not is_inside(path)), None)
    if pattern:
        matches = glob.iglob(glob.escape(own) + pattern, recursive=True)
        return next((each for each in matches if not is_inside(each)), None)
    return next((path for path in _links_below(own) if not is_inside(path)), None)


def _written(output: str) -> Iterator[str]:
    """Folders in an output that runs write to: the datasets of any job among them."""
    with contextlib.suppress(OSError), os.scandir(output) as entries:
        for entry in entries:
            if entry.is_symlink() or os.path.islink(f"{entry.path}/parts"):
                yield from (entry.path, f"{entry.path}/parts")


def _links_below(folder: str) -> Iterator[str]:
    """Links in a folder and in those below it, also below the links, each folder once."""
    seen, stack = set[str](), [folder]
    while stack:
        here = stack.pop()
        real = os.path.realpath(here)
        if real in seen or not os.path.isdir(here):
            continue
        seen.add(real)
        with os.scandir(here) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_symlink():
                    yield entry.path
                if entry.is_dir():
                    stack.append(entry.path)
