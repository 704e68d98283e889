"""Files of a repository on the hub, at one commit.

    revision -> commit -> the folders that the globs begin with, listed -> files that match, sorted

A corpus that names no globs (``hf:org/name``) is read as its card says: ``configs`` and their ``data_files``; without
those, all files of a known format, those of the training split where names tell splits apart.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from dataprep import hub
from dataprep.errors import SourceError, SpecError
from dataprep.hub import Repo, RepoFile
from dataprep.layout import RawFolder
from dataprep.parts import Wanted
from dataprep.readers import format_by_name
from dataprep.requests import read
from dataprep.sources.local import GLOB
from dataprep.specs import Listing, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from dataprep.specs import HubSource, ReaderSpec

log = logging.getLogger(__name__)

CARD = "README.md"

EXTRAS = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
"""Files beside the data, left out by globs and folders as `datasets` 5.2 (data_files.py) does; hidden ones, too."""

CONVERTED = "refs/convert/parquet"
"""The branch where the hub keeps every data set as ``<configuration>/<split>/<number>.parquet``."""

SPLITS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")
"""Splits in the names of files, as `datasets` 5.2 (data_files.py) knows them; the first two are that to train on."""


def list_repo(source: HubSource, reader: ReaderSpec, output: Path) -> Listing:
    """The files of a repository that a source names.

    Raises:
        SpecError: there are none, or which of several configurations is not said.
        SourceError: the hub refuses, or cannot be reached.
    """
    repo = hub.commit(Repo(source.repo, source.type, source.revision))
    globs = source.globs
    found = matching(repo, globs) if globs else by_card(repo, source.subset, source.revision)
    excluded = matcher(source.exclude)
    kept = [file for file in found if file.num_bytes and not excluded(file.path)]
    if not kept:
        wanted = ", ".join(globs) or "data"
        raise SpecError(
            f"{repo.id} holds no file of {wanted} with anything in it; see {repo.page}/tree/{repo.revision}"
        )
    if len(kept) < len(found):
        log.info("%s: %d files are empty or excluded", repo.id, len(found) - len(kept))
    raw = RawFolder.of(output, repo.id.replace("/", "--"), repo.revision)
    return Listing(
        files=tuple(_describe(repo, file, raw, reader) for file in sorted(kept, key=lambda file: file.path)),
        origin=repo.url,
        raw=str(raw.path),
    )


def _describe(repo: Repo, file: RepoFile, raw: RawFolder, reader: ReaderSpec) -> SourceFile:
    url = repo.file_url(file.path)
    if not is_inside(file.path):
        raise SourceError(f"{url}: a file of that name cannot be stored safely")
    kind, compression = format_by_name(file.path, url, reader)
    return SourceFile(
        name=file.path,
        path=str(raw.files / file.path),
        url=url,
        num_bytes=file.num_bytes,
        format=kind,
        compression=compression,
        checksum=file.checksum,
    )


def is_inside(name: str) -> bool:
    """Whether a name that somebody else chose stays below the folder it is put into."""
    parts = name.split("/")
    longest = max(len(part.encode()) for part in parts)
    whole = not any(part in ("", ".", "..") for part in parts)
    return "\0" not in name and whole and longest <= 255 and len(name.encode()) < 1000


def matching(repo: Repo, globs: Sequence[str]) -> list[RepoFile]:
    """Files that match one of the globs, each once; a glob that names a folder means all below it.

    Raises:
        SpecError: one of the globs matches nothing: the layout is another than was thought.
    """
    folders = sorted({_fixed_part(glob) for glob in globs})
    roots = [f for f in folders if not any(f != g and (g == "" or f.startswith(g + "/")) for g in folders)]
    there = {file.path: file for root in roots for file in hub.tree(repo, root)}
    names = {glob.rstrip("/") for glob in globs if not set(glob) & GLOB}  # a card may name thousands
    patterns = {glob: matcher([glob]) for glob in globs if set(glob) & GLOB}
    found: dict[str, RepoFile] = {}
    used: set[str] = set()
    for path, file in there.items():
        named = {path, *map(str, PurePosixPath(path).parents)} & names
        hits = named | {glob for glob, matches in patterns.items() if matches(path)}
        if path in named or (hits and not is_extra(path)):
            found[path] = file
            used |= hits
    unused = sorted((names | set(patterns)) - used)
    if unused:
        raise SpecError(f"{repo.id} holds no file of {', '.join(unused)}; see {repo.page}/tree/{repo.revision}")
    return list(found.values())


def is_extra(path: str) -> bool:
    """Whether a file lies beside the data only: a card, a hidden file."""
    parts = path.split("/")
    return parts[-1] in EXTRAS or any(part.startswith(".") and part.strip(".") for part in parts)


def _fixed_part(glob: str) -> str:
    """The folder that all files of a glob lie in: ``data/*/x`` -> ``data``."""
    parts = PurePosixPath(glob).parts[:-1]
    fixed = []
    for part in parts:
        if set(part) & GLOB:
            break
        fixed.append(part)
    return "/".join(fixed)


def matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    """Whether a path matches one of some globs; ``*`` stays within a folder, ``**`` crosses them.

    Raises:
        SpecError: one is no glob.
    """
    from fsspec.utils import glob_translate  # 50 ms, for those who do not read files of their own

    patterns = []
    for glob in globs:
        try:
            patterns.append(re.compile(glob_translate(glob)))
        except (ValueError, re.error) as error:
            raise SpecError(f"{glob!r} is no glob: {error}; ** stands alone between two slashes") from error
    return lambda path: any(pattern.fullmatch(path) for pattern in patterns)


@dataclass(frozen=True)
class Configuration:
    """One configuration of a repository's card: its name, and globs by split."""

    name: str
    default: bool
    splits: dict[str, list[str]]


def by_card(repo: Repo, subset: str | None, revision: str) -> list[RepoFile]:
    """The files that the repository's card names, or, if it names none, all that can be read.

    Args:
        repo: at a commit.
        subset: the configuration wanted.
        revision: what the commit was named by.

    Raises:
        SpecError: the card has no such configuration, or several and none was chosen; it names no files that there are.
    """
    configurations: list[Configuration] = []
    for card in hub.describe(repo, [CARD]):
        configurations = _configurations(
            read(Wanted(card.path, repo.file_url(card.path), card.num_bytes, card.checksum))
        )
    files = [] if configurations else hub.tree(repo)
    if revision == CONVERTED and not configurations:
        configurations = _converted(files)
    if not configurations:
        if subset is not None:
            raise SpecError(f"{repo.id}: its card names no configurations, so there is no {subset!r}; leave it out")
        return _by_names(repo, files)
    by_name = {configuration.name: configuration for configuration in configurations}
    names = ", ".join(by_name)
    if subset is None:
        defaults = [c for c in configurations if c.default or c.name == "default"] or configurations
        if len(defaults) > 1:
            raise SpecError(f"{repo.id} has several configurations; choose one with hf:{repo.id}:NAME of {names}")
        subset = defaults[0].name
    if subset not in by_name:
        raise SpecError(f"{repo.id}: no configuration {subset!r}; there are {names}")
    splits = by_name[subset].splits
    split = "train" if "train" in splits else next(iter(splits)) if len(splits) == 1 else None
    if split is None:
        raise SpecError(
            f"{repo.id}: {subset} has no split 'train', but {', '.join(splits)}; write a YAML that names the files "
            "you want under source.paths"
        )
    log.info("%s: configuration %s, split %s: %s", repo.id, subset, split, ", ".join(splits[split]))
    return matching(repo, splits[split])


def _converted(files: list[RepoFile]) -> list[Configuration]:
    """The configurations of a branch that the hub has converted."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in files:
        config, _, rest = file.path.partition("/")
        split = rest.partition("/")[0]
        if rest.count("/") == 1 and rest.endswith(".parquet"):
            found.setdefault(config, {}).setdefault(split, []).append(file.path)
    return [Configuration(config, False, splits) for config, splits in found.items()]


def _configurations(card: bytes) -> list[Configuration]:
    """What a card's front matter says under ``configs``; https://huggingface.co/docs/hub/datasets-manual-configuration."""
    match = re.match(rb"(?:\xef\xbb\xbf)?\s*---\r?\n(.*?)\r?\n---\s*(\n|$)", card, re.DOTALL)
    try:
        value = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError:
        value = None
    configs = value.get("configs") if isinstance(value, dict) else None
    found = []
    for config in configs if isinstance(configs, list) else ():
        if isinstance(config, dict) and ("data_files" in config or config.get("data_dir")):
            splits = _splits(config.get("data_files", "**"), str(config.get("data_dir") or ""))
            found.append(Configuration(str(config.get("config_name", "default")), bool(config.get("default")), splits))
    return found


def _splits(data_files: Any, folder: str) -> dict[str, list[str]]:
    """``data_files`` in any of the forms that a card may use -> split -> globs."""
    if isinstance(data_files, dict):
        entries = list(data_files.items())
    elif isinstance(data_files, list) and all(isinstance(entry, dict) for entry in data_files):
        entries = [(entry.get("split", "train"), entry.get("path")) for entry in data_files]
    else:
        entries = [("train", data_files)]
    result: dict[str, list[str]] = {}
    for split, paths in entries:
        for path in paths if isinstance(paths, list) else [paths]:
            if isinstance(path, str):
                result.setdefault(str(split), []).extend(_expand(f"{folder}/{path}"))
    return result


def _expand(glob: str) -> list[str]:
    """A glob of a card, in our words: ``./a/{b,c}.x`` -> ``a/b.x``, ``a/c.x``."""
    match = re.search(r"\{([^{}]*)\}", glob)
    if match is not None:
        return [
            each for part in match[1].split(",") for each in _expand(glob[: match.start()] + part + glob[match.end() :])
        ]
    return ["/".join(part for part in glob.split("/") if part not in ("", "."))]


def _by_names(repo: Repo, files: list[RepoFile]) -> list[RepoFile]:
    """The data among files, of the split to train on where names tell splits apart.

    Raises:
        SpecError: there is none; of several formats; or of other splits only.
    """
    choose = "choose with --set 'source.paths=[\"...\"]'"
    beside = [file for file in files if not is_extra(file.path)]
    data = [file for file in beside if _is_data(file.path)] or [file for file in beside if file.path.endswith(".json")]
    if not data:
        kinds = sorted({PurePosixPath(file.path).suffix or file.path for file in beside})
        raise SpecError(
            f"{repo.id} holds no data that dataprep knows by its name, but {', '.join(kinds[:12]) or 'nothing'}; "
            f"{choose}, or see {repo.page}/tree/{repo.revision}"
        )
    formats = {"parquet": "Parquet", "arrow": "Arrow"}
    kinds = sorted({formats.get(PurePosixPath(file.path).suffix[1:], "JSON lines") for file in data})
    if len(kinds) > 1:
        raise SpecError(f"{repo.id} holds files of several formats, {', '.join(kinds)}; {choose}")
    splits = {_split_of(file.path) for file in data}
    train = [file for file in data if _split_of(file.path) in SPLITS[:2]]
    if not train and splits - {None}:
        raise SpecError(f"{repo.id} has no split 'train', but {', '.join(sorted(filter(None, splits)))}; {choose}")
    chosen = train or data
    log.info("%s: no card says which files: using %d of %d by their names", repo.id, len(chosen), len(files))
    return chosen


def _is_data(path: str) -> bool:
    return re.search(r"\.(parquet|arrow|jsonl|ndjson)$|\.(jsonl|ndjson|json)\.(gz|zst|zstd|xz|bz2)$", path) is not None


def _split_of(path: str) -> str | None:
    words = re.split(r"[^A-Za-z]+", path.lower())
    return next((split for split in SPLITS if split in words), None)
