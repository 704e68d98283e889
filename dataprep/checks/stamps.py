"""What lies beside an index cache that dataprep built: of which pair it is, by content.

Megatron names a cache by the path of its pair. Where the sequences of a new pair at that path are as long as those of
the old one, the arrays are right for both, and nothing in them tells that a training went over to other tokens.

    <md5>-GPTDataset-<split>-dataprep.json     written before the description; Megatron does not look at it

A pair is known by the checksum that its manifest states of the ``.bin``; without a manifest by size and date, since
to read all tokens takes as long as to train on some.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dataprep.errors import FormatError
from dataprep.indexed import bin_path, idx_path
from dataprep.manifest.loading import is_of, readable_manifest
from dataprep.storage import checksum

if TYPE_CHECKING:
    from pathlib import Path

END = "-dataprep.json"

SCHEMA = 1


def stamp_of(description: Path) -> Path:
    """The stamp's path, by that of a cache's description."""
    return description.with_name(description.name.removesuffix("-description.txt") + END)


def read_stamp(path: Path) -> dict[str, Any] | None:
    """A stamp; None where there is none, or one of another version. A damaged one is none: the arrays speak first."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("schema_version") == SCHEMA else None


def pair_content(prefix: Path) -> dict[str, Any]:
    """By what a pair is known, for a stamp.

    Returns:
        ``idx`` and ``bin``: bytes and mtime_ns of each; checksum of the ``.idx``, and, if a manifest that speaks of
        files of these sizes states it, of the ``.bin``.

    Raises:
        FormatError: a file cannot be read.
    """
    try:
        found = {name: _dated(path) for name, path in (("idx", idx_path(prefix)), ("bin", bin_path(prefix)))}
        found["idx"]["checksum"] = _checksum(idx_path(prefix), found["idx"]["bytes"], found["idx"]["mtime_ns"])
    except OSError as error:
        raise FormatError(f"cannot read {error.filename}: {error.strerror}") from error
    manifest, _ = readable_manifest(prefix)
    if manifest is not None and is_of(manifest, prefix):
        entry = next(entry for entry in manifest.prefixes if entry.name == prefix.name)
        found["bin"]["checksum"] = entry.files.bin_checksum
    return found


def content_change(prefix: Path, stamp: dict[str, Any]) -> str | None:
    """What tells a pair from the one that a stamp is of; None if nothing does.

    Raises:
        FormatError: a file of the pair cannot be read.
    """
    then = stamp.get("pair")
    if not isinstance(then, dict):
        return None
    now = pair_content(prefix)
    for name in ("idx", "bin"):
        old, new = then.get(name), now[name]
        if not isinstance(old, dict):
            continue
        if old.get("bytes") != new["bytes"]:
            return f"it is of a .{name} of {old.get('bytes')} bytes, and this one has {new['bytes']}"
        if old.get("checksum") and new.get("checksum"):
            if old["checksum"] != new["checksum"]:
                return f"it is of a .{name} of as many bytes and other content"
        elif old.get("mtime_ns") != new["mtime_ns"]:
            return f"the .{name} was written again, with as many bytes, after it was made; no manifest says with what"
    return None


def _dated(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


@lru_cache(maxsize=64)
def _checksum(path: Path, _size: int, _date: int) -> str:
    """Of a file, read once for all caches of the pair."""
    return checksum(path)
