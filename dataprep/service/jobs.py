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
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from dataprep.errors import DataprepError, SpecError
from dataprep.service.job import Job, Notify, Retention, Retries
from dataprep.service.places import absolute, is_address, is_path
from dataprep.specs import (
    Kubernetes,
    Name,
    OutputSpec,
    Runtime,
    TokenPolicy,
    find_cluster,
    parse_settings,
    parse_yaml,
)
from dataprep.storage import MARK, UNSUPPORTED, AtomicFile, explain, make_folder, read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Job",
    "Notify",
    "Problem",
    "Retention",
    "Retries",
    "add_job",
    "find_job",
    "load_job",
    "load_jobs",
    "parse_job",
]

MAX_BYTES = 64 << 10
"""Of a job's YAML; more is a mistake, or meant to be one."""

MAX_BRACKETS = 200

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
        text = read_whole(path, MAX_BYTES).decode()
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not YAML: {error}") from error
    return parse_job(text, path)


def parse_job(text: str, path: Path) -> Job:
    """The job that a YAML text is, were it the content of this file.

    Raises:
        SpecError: it is wrong.
    """
    _check_name(path.stem, path)
    if len(text.encode()) > MAX_BYTES:
        raise SpecError(f"{path} has more than {MAX_BYTES:,} bytes, the most that a job has")
    value = parse_yaml(_harmless(text, path), str(path))
    if isinstance(value.get("corpus"), str):
        value["corpus"] = [value["corpus"]]
    notify = value.get("notify")
    if isinstance(notify, dict) and True in notify:  # YAML 1.1 takes the key `on` for a yes
        notify["on"] = notify.pop(True)
    job = Job.from_json(value, str(path))
    job._path = Path(os.path.abspath(path))
    program, *rest = job.notify.command or ("",)
    if "/" in program:
        told = job.notify.model_copy(update={"command": (absolute(program, job.folder), *rest)})
        job = job.model_copy(update={"notify": told})
    try:
        _check(job)
    except SpecError as error:
        raise error if str(path) in str(error) else SpecError(f"{path}: {error}") from error
    return job


def _check_name(name: str, path: Path) -> None:
    """Make sure that a dataset can be called so.

    Raises:
        SpecError: it cannot.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise SpecError(
            f"{path}: {name!r} is no name of a job; use letters, digits and ._+-, at most 100 of them, and begin "
            "with a letter or a digit"
        ) from error
    if name in RESERVED or MARK in name:
        raise SpecError(f"{path}: {name!r} means something else in an output folder; give the job another name")


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
    _check_name(name, path)
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


def _harmless(text: str, path: Path) -> str:
    """The text; a YAML of a few lines that refer to each other stands for gigabytes, one of brackets alone takes hours.

    Raises:
        SpecError: it is no YAML, or is not meant to be read.
    """
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise SpecError(f"{path}: more than {MAX_BRACKETS} brackets; name folders or globs instead of files")
    try:
        anchored = any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in yaml.scan(text))
    except yaml.YAMLError as error:
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
        if "{" in text and not is_address(text):
            raise SpecError(f"{text}: braces are not taken in the paths of a job; rename the folder or the file")
    if "://" in job.output:
        raise SpecError(f"output: {job.output} is an address; datasets are made in folders")
    if not is_path(job.tokenizer) and "/" not in job.tokenizer and job.tokenizer not in names("tokenizers"):
        raise SpecError(
            f"tokenizer: {job.tokenizer!r} is none of those shipped: {', '.join(names('tokenizers'))}; a path begins "
            "with ./, ../ or /, and one of the hub is org/name"
        )
    if isinstance(find_cluster(parse_settings(job.settings).get("cluster", {})), Kubernetes):
        raise SpecError(
            "cluster: manifests for Kubernetes are printed, and a job has nobody who creates them; leave cluster: out, "
            "and have the job run in a pod: dataprep jobs render kubernetes"
        )
    mixture = None if is_address(job.corpus[0]) else find_mixture(job.corpus_arguments)
    if mixture is not None:
        parts = ", ".join(part.corpus for part in mixture.mixture.corpora)
        raise SpecError(f"corpus: {job.corpus[0]} is a mixture; make a job of each of its corpora: {parts}")
