"""What a job is: one YAML of the jobs folder, ``<folder>/<job>.yaml``.

    corpus: ./inbox/*.jsonl               a name, hf:org/name, addresses, or paths; or a list of the last two
    tokenizer: gpt2                       a shipped name, org/name on the hub, or a path: ./x, ../x or /x
    output: ../data                       the dataset is <output>/<job>/
    set: [reader.text=content]            as --set
    cluster: slurm                        as --cluster
    changes: append_only                  or mirror: what to do about changed and vanished source files
    schedule: "30 2 * * *"                cron, five fields; without it a job runs only by hand
    time_zone: Europe/Berlin
    settle_seconds: 60                    how long a new file must not have changed
    done_marker: .done                    instead: a file counts once <file>.done is there
    retention: {versions: 10, days: 30}   keep at least so many versions, and all that are younger
    retries: {attempts: 3, wait_seconds: 300}
    notify: {webhook: https://..., command: [/opt/notify], on: [published, failed]}

Relative paths start at the YAML's folder. A file that is wrong is a `Problem` and leaves the others alone. What is in
the folder and no job: hidden files, backups of editors, folders, links that lead out of it. Where a job may reach is
another question: see `places.outside`. Nothing but `add_job` writes here.
"""

from __future__ import annotations

import difflib
import glob
import os
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import Field, PrivateAttr, TypeAdapter, ValidationError, field_validator, model_validator

from dataprep.errors import DataprepError, SpecError
from dataprep.service.schedule import check_cron
from dataprep.specs import (
    Kubernetes,
    Model,
    Name,
    OutputSpec,
    Runtime,
    TokenPolicy,
    cluster_settings,
    find_cluster,
    parse_settings,
    parse_yaml,
)
from dataprep.storage import MARK, UNSUPPORTED, AtomicFile, explain, make_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 64 << 10
"""Of a job's YAML; more is a mistake, or meant to be one."""

RESERVED = {"raw", "work"}
"""What an output folder has of its own, beside datasets."""

SAID_ELSEWHERE = {
    **dict.fromkeys(["source.kind", "source.paths", "source.urls", "source.repo"], "corpus:"),
    **dict.fromkeys(["tokenizer.path", "tokenizer.merges", "tokenizer.repo"], "tokenizer:"),
    **dict.fromkeys(["cluster.kind", "cluster.address"], "cluster:"),
    **dict.fromkeys(["cluster.prologue", "cluster.directives"], "a YAML that cluster: names"),
}
"""Settings that a job may not have, and what says the same: what reaches for files or runs commands has one place each,
where `places.outside` looks."""

GLOB = set("*?[")

Word = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Retention(Model):
    """Which versions are kept: at least `versions` of them, and all younger than `days`. Default: all."""

    versions: int | None = Field(default=None, ge=1)
    days: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Retries(Model):
    """How often a run that failed is tried: `attempts` in all; before the second `wait_seconds`, then twice as long."""

    attempts: int = Field(default=3, ge=1, le=100)
    wait_seconds: int = Field(default=300, ge=1, le=86_400)


class Notify(Model):
    """Who is told how runs ended.

    Attributes:
        webhook: an address that gets a POST of JSON; what it hides is shown nowhere.
        command: a program and its arguments, without a shell, that gets the same on stdin.
        on: the ends of runs that are told.
    """

    webhook: Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$", max_length=4096)] | None = None
    command: tuple[Word, ...] = ()
    on: tuple[Literal["published", "unchanged", "failed", "interrupted", "lost", "skipped"], ...] = (
        "published",
        "failed",
    )


class Job(Model):
    """One scheduled ingestion, as its YAML has it. Made by `load_job`, which knows where the YAML lies.

    Attributes:
        corpus, tokenizer, output, cluster: as written; see `corpus_arguments` and its like for what to use.
        changes: ``append_only``: a changed or vanished source file is an error; ``mirror``: its documents are made
            anew, or left out.
        schedule: cron, five fields; None: only by hand.
        time_zone: that the schedule is of, by its name in the IANA database.
        settle_seconds: a new file must not have changed for so long, by our own monotonic clock.
        done_marker: the end of the name of a file that says that the one without it is whole; None: `settle_seconds`.
    """

    corpus: tuple[Word, ...] = Field(min_length=1)
    tokenizer: Word
    output: Word
    set: tuple[Word, ...] = ()
    cluster: Word | None = None
    changes: Literal["append_only", "mirror"] = "append_only"
    schedule: Word | None = None
    time_zone: Word = "UTC"
    settle_seconds: float = Field(default=60, ge=0, le=86_400)
    done_marker: Annotated[str, Field(pattern=r"^[^/\x00-\x1f]+$", max_length=100)] | None = None
    retention: Retention = Retention()
    retries: Retries = Retries()
    notify: Notify = Notify()

    _path: Path = PrivateAttr(default=Path())

    @field_validator("time_zone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError) as error:
            near = difflib.get_close_matches(value, zoneinfo.available_timezones(), 1)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else "expected a name like Europe/Berlin; without tzdata, none is known"
            )
            raise ValueError(f"no time zone {value!r}; {hint}") from error
        return value

    @model_validator(mode="after")
    def _comes_due(self) -> Self:
        if self.schedule is not None:
            check_cron(self.schedule)
        return self

    @property
    def name(self) -> str:
        """The stem of the file, and the name of the dataset."""
        return self._path.stem

    @property
    def path(self) -> Path:
        return self._path

    @property
    def folder(self) -> Path:
        """The jobs folder, absolute."""
        return self._path.parent

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        return zoneinfo.ZoneInfo(self.time_zone)

    @property
    def created(self) -> datetime:
        """When the YAML was last written, by the clock of its file system.

        Raises:
            SpecError: it is gone.
        """
        try:
            return datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except OSError as error:
            raise SpecError(f"cannot read {self._path}: {error.strerror}") from error

    @property
    def corpus_arguments(self) -> list[str]:
        """What stands for CORPUS, as the catalog takes it; paths absolute."""
        return [each if is_named(each, self.folder) else absolute(each, self.folder) for each in self.corpus]

    @property
    def tokenizer_argument(self) -> str:
        """What stands for ``--tokenizer``; a path absolute."""
        return absolute(self.tokenizer, self.folder) if _is_path(self.tokenizer) else self.tokenizer

    @property
    def output_folder(self) -> Path:
        return Path(absolute(self.output, self.folder))

    @property
    def settings(self) -> list[str]:
        """Those of ``cluster:`` and ``set:``.

        Raises:
            SpecError: ``cluster:`` is a file that cannot be read, or none.
        """
        return [*cluster_settings(self.cluster_argument), *self.set]

    @property
    def cluster_argument(self) -> str | None:
        """What stands for ``--cluster``; a path absolute."""
        is_path = (
            self.cluster is not None and ("/" in self.cluster or "." in self.cluster) and "://" not in self.cluster
        )
        return absolute(self.cluster, self.folder) if self.cluster is not None and is_path else self.cluster

    @property
    def command(self) -> tuple[str, ...]:
        """Of `notify`, with the path of its program absolute."""
        first, *rest = self.notify.command or ("",)
        return (absolute(first, self.folder) if "/" in first else first, *rest) if first else ()


@dataclass(frozen=True)
class Problem:
    """A file of the jobs folder that is no job.

    Attributes:
        name: of the job that it would be.
        text: what is wrong with it.
    """

    name: str
    text: str


def load_jobs(folder: Path) -> tuple[list[Job], list[Problem]]:
    """The jobs of a folder, by name, and what is wrong with other YAMLs in it.

    Raises:
        SpecError: there is no such folder, or it cannot be read.
    """
    jobs, problems = [], []
    for path in _files(folder):
        try:
            jobs.append(load_job(path))
        except DataprepError as error:
            problems.append(Problem(path.stem, str(error)))
    return jobs, problems


def find_job(folder: Path, name: str) -> Job:
    """The job of this name.

    Raises:
        SpecError: there is none, or it is wrong.
    """
    names = [path.stem for path in _files(folder)]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        there = f"did you mean {near[0]}?" if near else f"there are {', '.join(names[:20]) or 'none'}"
        raise SpecError(f"no job {name!r} in {folder}; {there}")
    return load_job(folder / f"{name}.yaml")


def load_job(path: Path) -> Job:
    """One job.

    Raises:
        SpecError: it cannot be read, or is wrong; the message names the file and the key.
    """
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MAX_BYTES else ""
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not YAML: {error}") from error
    if size > MAX_BYTES:
        raise SpecError(f"{path} has {size:,} bytes; a job has at most {MAX_BYTES:,}")
    return parse_job(text, path)


def parse_job(text: str, path: Path) -> Job:
    """The job that a YAML text is, were it the content of this file.

    Raises:
        SpecError: it is wrong.
    """
    try:
        TypeAdapter(Name).validate_python(path.stem)
    except ValidationError as error:
        raise SpecError(
            f"{path}: {path.stem!r} is no name of a job; use letters, digits and ._+-, at most 100 of them, and begin "
            "with a letter or a digit"
        ) from error
    if path.stem in RESERVED or MARK in path.stem:
        raise SpecError(f"{path}: {path.stem!r} means something else in an output folder; give the job another name")
    if len(text.encode()) > MAX_BYTES:
        raise SpecError(f"{path} has more than {MAX_BYTES:,} bytes, the most that a job has")
    value = parse_yaml(_without_anchors(text, path), str(path))
    if isinstance(value.get("corpus"), str):
        value["corpus"] = [value["corpus"]]
    notify = value.get("notify")
    if isinstance(notify, dict) and True in notify:  # YAML 1.1 takes the key `on` for a yes
        notify["on"] = notify.pop(True)
    job = Job.from_json(value, str(path))
    job._path = Path(os.path.abspath(path))
    try:
        _check(job)
    except SpecError as error:
        raise error if str(path) in str(error) else SpecError(f"{path}: {error}") from error
    return job


def add_job(folder: Path, name: str, given: str | Mapping[str, Any]) -> Job:
    """Write the YAML of a new job.

    Args:
        folder: of the jobs; made.
        name: of the job.
        given: the YAML as text, or its keys and values.

    Raises:
        SpecError: it is wrong, or there is a job of this name.
        OutputError: the file system refuses.
    """
    path = folder / f"{name}.yaml"
    text = given if isinstance(given, str) else yaml.safe_dump(dict(given), sort_keys=False, allow_unicode=True)
    job = parse_job(text, path)
    make_folder(folder)
    if os.path.lexists(path):
        raise _exists(path)
    file = AtomicFile(path)
    try:
        file.write(text.encode())
        with explain(path, "write"):
            os.fsync(file.fd)
            _name(file.temporary, path)
    finally:
        file.discard()
    return job


def _name(temporary: Path, path: Path) -> None:
    """Give a file its name, which nothing may have.

    Raises:
        SpecError: something has it.
    """
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        os.rename(temporary, path)  # without hard links two who add the same job at once both succeed


def _exists(path: Path) -> SpecError:
    return SpecError(f"{path} is there already; edit it, or give the job another name")


def _files(folder: Path) -> list[Path]:
    """The files that are jobs by their names and places, sorted.

    Raises:
        SpecError: there is no such folder, or it cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SpecError(
            f"cannot read the jobs folder {folder}: {error.strerror}; name it with --jobs, or make it with "
            "`dataprep jobs add`"
        ) from error
    real = os.path.realpath(folder)
    return [folder / name for name in names if name.endswith(".yaml") and _is_job(real, name)]


def _is_job(folder: str, name: str) -> bool:
    path = os.path.realpath(os.path.join(folder, name))
    return not name.startswith((".", "#")) and os.path.isfile(path) and path.startswith(os.path.join(folder, ""))


def _without_anchors(text: str, path: Path) -> str:
    """The text; a YAML of a few lines that refer to each other can stand for gigabytes.

    Raises:
        SpecError: it is no YAML, or has anchors.
    """
    try:
        anchored = any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in yaml.scan(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if anchored:
        raise SpecError(f"{path}: a job has no use for anchors and aliases (& and *); write it out, and quote globs")
    return text


def _check(job: Job) -> None:
    """What can be said of a job without looking at its sources.

    Raises:
        SpecError: something in it cannot work.
    """
    from dataprep.catalog import find_mixture, names

    given = parse_settings(list(job.set))
    for key in (f"{namespace}.{key}" for namespace, values in given.items() for key in values):
        if key in SAID_ELSEWHERE:
            raise SpecError(f"set: {key} is said by {SAID_ELSEWHERE[key]}")
    runtime = Runtime.from_json(given.get("runtime", {}), "set: runtime")
    if runtime.metrics is not None and not os.path.isabs(runtime.metrics):
        raise SpecError(f"set: runtime.metrics={runtime.metrics}: give an absolute path")
    TokenPolicy.from_json(given.get("policy", {}), "set: policy")
    OutputSpec.from_json(given.get("output", {}), "set: output")
    for text in (*job.corpus, job.output):
        if "{" in text and not _is_address(text):
            raise SpecError(f"{text}: braces are not taken in the paths of a job; rename the folder or the file")
    if "://" in job.output:
        raise SpecError(f"output: {job.output} is an address; datasets are made in folders")
    if not _is_path(job.tokenizer) and "/" not in job.tokenizer and job.tokenizer not in names("tokenizers"):
        raise SpecError(
            f"tokenizer: {job.tokenizer!r} is none of those shipped: {', '.join(names('tokenizers'))}; a path begins "
            "with ./, ../ or /, and one of the hub is org/name"
        )
    if isinstance(find_cluster(parse_settings(job.settings).get("cluster", {})), Kubernetes):
        raise SpecError(
            "cluster: manifests for Kubernetes are printed, and a job has nobody who creates them; leave cluster: out, "
            "and have the job run in a pod: dataprep jobs render kubernetes"
        )
    mixture = None if _is_address(job.corpus[0]) else find_mixture(job.corpus_arguments)
    if mixture is not None:
        parts = ", ".join(part.corpus for part in mixture.mixture.corpora)
        raise SpecError(f"corpus: {job.corpus[0]} is a mixture; make a job of each of its corpora: {parts}")


def _is_path(tokenizer: str) -> bool:
    return tokenizer.startswith(("/", "./", "../"))


def _is_address(corpus: str) -> bool:
    return corpus.startswith("hf:") or "://" in corpus


def is_named(corpus: str, folder: Path) -> bool:
    """Whether a corpus is an address, of the hub, or shipped, and not a path."""
    from dataprep.catalog import shipped

    if _is_address(corpus):
        return True
    if "/" in corpus or GLOB & set(corpus) or corpus.endswith((".yaml", ".yml")) or (folder / corpus).exists():
        return False
    return shipped.find("pipelines", corpus.partition(":")[0]) is not None


def absolute(text: str, folder: Path) -> str:
    """A path, or a glob, that starts at a folder; what the folder's own name has of globs is none."""
    joined = os.path.abspath(os.path.join(folder, text))
    if not GLOB & set(text) or os.path.isabs(text):
        return joined
    own = os.path.commonpath([folder, joined])
    return glob.escape(own) + joined[len(own) :]
