"""Files on this machine: list them, and notice when they change.

A listing is sorted by name, complete, and knows the size, mtime, format and container of every file.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import sysconfig
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import SourceError, SpecError
from dataprep.readers import detect
from dataprep.specs import SourceFile
from dataprep.storage import checksum

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterable, Iterator

    from dataprep.specs import FilesSource, ReaderSpec

GLOB = set("*?[")


def list_local(
    source: FilesSource, reader: ReaderSpec, folder: Path, only: Collection[str] | None = None
) -> tuple[SourceFile, ...]:
    """All files of a source, sorted by name.

    Args:
        source: paths and globs.
        reader: decides how the content is read; see `readers.detect`.
        folder: what relative paths start at.
        only: the absolute paths of those that are read; None: all.

    Raises:
        SpecError: a path or glob names nothing.
        SourceError: a file cannot be opened, or its format cannot be told.
    """
    found = find_local(source, folder, to_come=only is not None)
    kept = [(name, path) for name, path in found if only is None or str(path) in only]
    for name, path in kept:
        if not name.isprintable() and "\\udc" in ascii(name):
            raise SpecError(f"{str(path)!a}: the file's name is not UTF-8; rename it")
    return tuple(_describe(name, path, reader) for name, path in kept)


def find_local(source: FilesSource, folder: Path, to_come: bool = False) -> list[tuple[str, Path]]:
    """The names and absolute paths of all files of a source, sorted by name; none is opened.

    Args:
        source: paths and globs.
        folder: what relative paths start at.
        to_come: a folder may be empty, and a glob match nothing in a folder that is there: files are yet to come.

    Raises:
        SpecError: a path or glob names nothing.
    """
    found: set[Path] = set()
    for pattern in source.paths:
        found.update(_match(pattern, folder, to_come))
    root = _root(found) if found else folder
    named = sorted((path.relative_to(root).as_posix(), path) for path in found)
    kept = [(name, path) for name, path in named if not any(fnmatch(name, pattern) for pattern in source.exclude)]
    if not kept and not to_come:
        raise SpecError(f"no file is left of {', '.join(source.paths)} after exclude: {', '.join(source.exclude)}")
    return kept


def anchor(source: FilesSource, folder: Path) -> Path:
    """The folder that all paths and globs of a source have in common, whatever files there are.

    Args:
        source: paths and globs.
        folder: what relative paths start at.
    """
    found = []
    for pattern in map(_expand, source.paths):
        path, fixed = _absolute(folder / pattern), _fixed(_absolute(folder / pattern))
        if path.is_dir():
            found.append(path)
        else:
            found.append(path.parent if path.exists() or fixed == path else fixed)
    return Path(os.path.commonpath(found))


def _fixed(path: Path) -> Path:
    """What comes before the first part of a path that is a glob."""
    return Path(*itertools.takewhile(lambda part: not GLOB & set(part), path.parts))


def _expand(pattern: str) -> str:
    with suppress(KeyError, IndexError, ValueError, AttributeError):  # a literal brace in a file name
        return os.path.expanduser(pattern.format(**sysconfig.get_paths()) if "{" in pattern else pattern)
    return pattern


def _match(pattern: str, folder: Path, to_come: bool) -> list[Path]:
    pattern = _expand(pattern)
    path = folder / pattern
    if path.is_file():
        return [_absolute(path)]
    if path.is_dir():
        inside = list(_below(path, set()))
        if not inside and not to_come:
            raise SpecError(f"the folder {path} holds no files")
        return inside
    if GLOB & set(pattern):
        names = glob.glob(pattern, root_dir=folder, recursive=True)
        files = [folder / name for name in names if (folder / name).is_file()]
        if files or (to_come and _fixed(_absolute(path)).is_dir()):
            return [_absolute(p) for p in files]
        raise SpecError(
            f"no file matches {pattern!r} in {_absolute(folder)}; quote the pattern so that the shell leaves it alone"
        )
    raise SpecError(f"no such file or folder: {_absolute(path)}")


def _below(folder: Path, seen: set[str]) -> Iterator[Path]:
    """The files below a folder, hidden ones left out; links to folders are followed, once each.

    Of a folder that `datasets.save_to_disk` wrote, only those that hold the rows.

    Raises:
        SourceError: a link leads nowhere.
        SpecError: see `_saved`.
    """
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    for path in _saved(folder) or sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _below(path, seen)
        elif path.exists():
            yield _absolute(path)
        else:
            raise SourceError(f"{path} is a link to nothing: {os.readlink(path)}; remove it or mend it")


def _saved(folder: Path) -> list[Path]:
    """What to read in a folder that `datasets.save_to_disk` wrote; nothing where another wrote it.

    A Dataset names its Arrow streams in ``state.json``, beside ``dataset_info.json``; a DatasetDict its folders, one a
    split, in ``dataset_dict.json`` (datasets 5.2.0, arrow_dataset.py and dataset_dict.py).

    Raises:
        SpecError: several splits and no ``train``; no rows; or an order of rows kept apart from them (datasets 1).
        SourceError: a file is gone.
    """
    splits = _json(folder / "dataset_dict.json").get("splits")
    if isinstance(splits, list):
        if not splits:
            raise SpecError(f"{folder} is a dataset without splits; leave it out")
        if "train" not in splits and len(splits) > 1:
            several = ", ".join(map(str, splits))
            raise SpecError(f"{folder} holds several splits and no train: {several}; give one: {folder}/{splits[0]}")
        return [_listed(folder, "train" if "train" in splits else splits[0])]
    state = _json(folder / "state.json") if (folder / "dataset_info.json").exists() else {}
    if not isinstance(state.get("_data_files"), list):
        return []
    if state.get("_indices_data_files"):
        raise SpecError(
            f"{folder} keeps the order of its rows in another file, which is not read; load it with `datasets`, and "
            "save what flatten_indices() gives"
        )
    if not state["_data_files"]:
        raise SpecError(f"{folder} is a dataset without rows; leave it out")
    return [_listed(folder, file["filename"]) for file in state["_data_files"]]


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is no such file, or something else in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _listed(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise SourceError(f"{folder} names {name} as part of its dataset, but there is none; copy it again")
    return path


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _root(paths: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([path.parent for path in paths]))


def _describe(name: str, path: Path, reader: ReaderSpec) -> SourceFile:
    try:
        stat = path.stat()
        kind, compression = detect(path, reader)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    return SourceFile(
        name=name,
        path=str(path),
        num_bytes=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        format=kind,
        compression=compression,
    )


def check_unchanged(file: SourceFile) -> None:
    """Make sure that a file is still the one that was listed, or fetched.

    Raises:
        SourceError: it is gone, or its size or mtime changed.
    """
    try:
        stat = os.stat(file.path)
    except OSError as error:
        what = "run again once it is back"
        if file.url is not None:
            what = "run the same command again, or fetch it with `dataprep download`, with the same --output"
        raise SourceError(f"{file.path} was listed and is gone: {error.strerror}; {what}") from error
    if stat.st_size != file.num_bytes or (file.mtime_ns is not None and stat.st_mtime_ns != file.mtime_ns):
        when = "" if file.mtime_ns is None else f" modified at {_time(file.mtime_ns)}"
        raise SourceError(
            f"{file.path} changed during the run, or since: {file.num_bytes} bytes{when} "
            f"when listed, {stat.st_size} bytes modified at {_time(stat.st_mtime_ns)} now; run again once nothing "
            "writes to it"
        )


def _time(mtime_ns: int) -> str:
    return datetime.fromtimestamp(mtime_ns / 1e9).isoformat(" ", "milliseconds")


def check_same(file: SourceFile) -> None:
    """Make sure that a file still holds what it held, though it may have been touched.

    Raises:
        SourceError: it is gone, or its content is another.
    """
    try:
        check_unchanged(file)
    except SourceError:
        if not os.path.exists(file.path) or with_checksum(file).checksum != file.checksum:
            raise


def with_checksum(file: SourceFile, stop: threading.Event | None = None) -> SourceFile:
    """The same file with the checksum of its content (xxh3_128), read once from start to end.

    Raises:
        SourceError: it cannot be read.
        Cancelled: `stop` was set meanwhile.
    """
    try:
        return file.model_copy(update={"checksum": checksum(Path(file.path), stop=stop)})
    except OSError as error:
        raise SourceError(f"cannot read {file.path}: {error.strerror}") from error
