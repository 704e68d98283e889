"""What people call a prefix, or several: paths, files, folders, globs, and versions of datasets."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import SpecError
from dataprep.layout import lies_at
from dataprep.storage import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable


def find_prefix(text: str | Path) -> Path:
    """What a person calls a prefix: the prefix itself, one of its two files, or a folder that holds one pair.

    Raises:
        SpecError: no such pair.
    """
    found = find_prefixes(text)
    if len(found) != 1:
        raise SpecError(f"{text} is a folder with {len(found)} indexed pairs; name one: {_some(found)}")
    return found[0]


def find_prefixes(text: str | Path, below: bool = False) -> list[Path]:
    """The same, but of a folder, and of whatever a glob matches, all pairs, in the order of their names.

    A pair may lack one of its files. What is half-made, or hidden, is left out.

    Args:
        text: what the person says; a version, or the folder of versions, stands for the pairs of its parts.
        below: of a folder without pairs, all datasets in it: the pairs in its folders, each once, whatever links to it.

    Raises:
        SpecError: no such pair, or none in a folder or of a glob.
    """
    if not str(text):
        raise SpecError("the prefix is empty: perhaps a variable that is not set; `.` is the folder you are in")
    path = Path(text)
    if lies_at(path):  # also beside a folder of that name, which Megatron makes for its index caches
        return [path]
    if path.is_dir():
        if found := _prefixes(path.iterdir()) or _prefixes_of_version(path):
            return found
        if below and (found := [prefix for folder in _datasets(path) for prefix in _prefixes(folder.iterdir())]):
            return found
        inside = [Path(entry.name) for entry in sorted(path.iterdir())]
        raise SpecError(f"{path} is a folder without indexed pairs; it holds {_some(inside) or 'nothing'}")
    if path.suffix in (".bin", ".idx"):
        path = path.with_suffix("")
        if lies_at(path):
            return [path]
    if not glob.has_magic(str(text)):
        raise SpecError(f"no such prefix: neither {path}.bin nor {path}.idx exists")
    matches = [Path(name) for end in ("", ".idx", ".bin") for name in glob.glob(f"{text}{end}", recursive=True)]
    inside = [file for match in matches if match.is_dir() for file in match.iterdir()]
    if found := _prefixes([*inside, *matches]):
        return found
    raise SpecError(f"no indexed pair matches {text}")


def _prefixes_of_version(path: Path) -> list[Path]:
    """The pairs of a version, in its order, or of the current one of a versioned dataset, see `versions`.

    They lie in its parts, whose paths it states relative to itself.
    """
    if not (path / "manifest.json").exists():
        path = path / "current"
    path = path.parent / os.readlink(path) if path.is_symlink() else path  # `current` will be another one
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        value = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        if value["kind"] == "version":
            named = ((part["folder"], prefix["name"]) for part in value["parts"] for prefix in part["prefixes"])
            return [Path(os.path.normpath(path / folder / name)) for folder, name in named]
    return []


def _datasets(output: Path) -> list[Path]:
    """The folders in a folder, without links to one another, and without what runs keep there for themselves."""
    folders = [path for path in sorted(output.iterdir()) if path.is_dir() and path.name not in ("work", "raw")]
    found: dict[str, Path] = {}
    for path in sorted(folders, key=Path.is_symlink):
        if MARK not in path.name and not path.name.startswith("."):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _prefixes(paths: Iterable[Path]) -> list[Path]:
    """The prefixes of those of these files that belong to a pair."""
    files = (path for path in paths if path.suffix in (".bin", ".idx") and not path.is_dir())
    return sorted({path.with_suffix("") for path in files if MARK not in path.name and not path.name.startswith(".")})


def _some(prefixes: list[Path]) -> str:
    return ", ".join(map(str, prefixes[:5])) + (" ..." if len(prefixes) > 5 else "")
