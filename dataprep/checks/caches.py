"""Megatron's index caches: those that lie beside a pair or in a given folder, and no longer fit it.

`GPTDataset` keeps three arrays, under a name made of the *path* of the pair, the split and so on, not of its content:

    <md5>-GPTDataset-<split>-description.txt      JSON: what the md5 is of
    <md5>-GPTDataset-<split>-document_index.npy   int32[e]: sequences in the order of the training, epoch after epoch
    <md5>-GPTDataset-<split>-sample_index.npy     int[k + 1, 2]: start of each sample: place in `document_index`, token
    <md5>-GPTDataset-<split>-shuffle_index.npy    uint32[k]

So a pair that is written again under its old path is read through the old arrays. Whether they fit is computed, not
guessed by dates, see `orders`; what they cannot tell, a stamp does where there is one, see `stamps`.
Source: Megatron-LM d98e8a64, megatron/core/datasets/gpt_dataset.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.checks.npy import NpyArray, open_npy
from dataprep.checks.orders import misfit
from dataprep.checks.report import Place
from dataprep.checks.stamps import content_change, read_stamp, stamp_of
from dataprep.errors import SpecError
from dataprep.indexed import Index, bin_path, idx_path

if TYPE_CHECKING:
    from dataprep.checks.report import Report

END = "-description.txt"


@dataclass(frozen=True, slots=True)
class BadCache:
    """A cache that Megatron must not find.

    Attributes:
        code: ``cache-stale`` or ``cache-damaged``.
        files: all of it; without them Megatron builds it anew.
        message: why.
    """

    code: str
    files: tuple[Path, ...]
    message: str


def check_caches(prefix: Path, index: Index, cache: str | Path | None, report: Report) -> None:
    """Note the caches of this pair that do not fit it. See `bad_caches`."""
    for bad in bad_caches(prefix, index, cache):
        report.add(bad.code, Place(str(bad.files[0])), bad.message)


def bad_caches(prefix: Path, index: Index, cache: str | Path | None = None) -> list[BadCache]:
    """The caches of a pair that are stale or damaged, with all files of each: what may be deleted.

    Args:
        prefix: path without ``.bin``.
        index: its index; no length is negative.
        cache: Megatron's ``--data-cache-path``; the folder where Megatron puts caches without one is always looked at.

    Raises:
        SpecError: `cache` is no folder.
    """
    own, found = cache_folders(prefix, None), []
    for folder in cache_folders(prefix, cache):
        for path, value in _descriptions(folder, folder.stat().st_mtime_ns):
            if folder in own and value is None:
                found.append(_bad("cache-damaged", path, "the description is not JSON"))
            elif value is not None and _is_of(prefix, value):
                bad = _check(prefix, index, path, value)
                found += [bad] if bad else []
    return found


def cache_folders(prefix: Path, cache: str | Path | None) -> list[Path]:
    """Where caches of a pair may lie.

    Raises:
        SpecError: `cache` is no folder.
    """
    if cache is not None and not Path(cache).is_dir():
        raise SpecError(f"--cache {cache}: there is no such folder")
    own = sorted(path for path in (prefix / "cache").glob("*_indices") if path.is_dir())
    return list(dict.fromkeys([*own, *([] if cache is None else [Path(cache)])]))


@lru_cache(maxsize=8)
def _descriptions(folder: Path, _stamp: int) -> list[tuple[Path, dict[str, Any] | None]]:
    """All descriptions in a folder; None for one that is not JSON. Read once for all prefixes that share the folder."""
    found: list[tuple[Path, dict[str, Any] | None]] = []
    for path in sorted(folder.glob(f"*{END}")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            value = None
        found.append((path, value if isinstance(value, dict) else None))
    return found


def _is_of(prefix: Path, value: dict[str, Any]) -> bool:
    """Whether a description, or one of those it blends, names this pair by any path that leads to it."""
    parts = value.get("datasets")
    if isinstance(parts, list):
        return any(_is_of(prefix, part) for part in parts if isinstance(part, dict) and "datasets" not in part)
    path = value.get("dataset_path")
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    real = os.path.realpath(prefix)
    # a relative path starts where the training was started, which is not known
    return os.path.realpath(path) == real or (
        not os.path.isabs(path) and real.endswith(os.sep + os.path.normpath(path))
    )


def _bad(code: str, description: Path, message: str) -> BadCache:
    base = description.name.removesuffix(END)
    arrays = sorted(
        path for path in description.parent.iterdir() if path.name.startswith(f"{base}-") and path.suffix == ".npy"
    )
    stamp = [path for path in (stamp_of(description),) if path.exists()]
    return BadCache(code, (description, *arrays, *stamp), message)


def _check(prefix: Path, index: Index, path: Path, value: dict[str, Any]) -> BadCache | None:
    columns = {"document_index": 1, "sample_index": 2, "shuffle_index": 1}
    if "datasets" in value:  # a blend: which sample of which part; nothing in it depends on what the parts hold
        columns = {"dataset_index": 1, "dataset_sample_index": 1}
    elif value.get("class") != "GPTDataset":
        columns = {}
    arrays: dict[str, NpyArray] = {}
    for name, count in columns.items():
        file = path.with_name(f"{path.name.removesuffix(END)}-{name}.npy")
        try:
            arrays[name] = open_npy(file, count)
        except FileNotFoundError:
            return _bad("cache-damaged", path, f"{file.name} is missing: --dataloader-fast-cache-load fails")
        except (OSError, ValueError) as error:
            return _bad("cache-damaged", path, f"{file.name} cannot be read: {error}")
    if "datasets" in value:
        return None
    old = "it is older than the .idx" if path.stat().st_mtime_ns < idx_path(prefix).stat().st_mtime_ns else None
    try:
        message = (misfit(index, arrays, value, old) if columns else old) or _other_content(prefix, path)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        return _bad("cache-damaged", path, f"the description is not one of Megatron's: {error!r}")
    return _bad("cache-stale", path, message) if message else None


def _other_content(prefix: Path, description: Path) -> str | None:
    """What the arrays cannot tell: that the tokens are others, where who built the cache left word of them."""
    stamp = read_stamp(stamp_of(description))
    if stamp is None or not bin_path(prefix).exists():  # that it is missing, others say
        return None
    return content_change(prefix, stamp)
