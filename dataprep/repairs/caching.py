"""Index caches of a pair that Megatron must not find: stale or damaged ones, deleted in place.

A cache is made again from the pair when it is missing, so nothing is lost but the seconds that takes. Which are stale
is computed, see `checks.caches`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dataprep.checks.caches import bad_caches
from dataprep.errors import FormatError
from dataprep.indexed import Index, idx_path
from dataprep.prefixes import find_prefix
from dataprep.repairs.case import Change
from dataprep.stages.verify import verify
from dataprep.storage import explain

if TYPE_CHECKING:
    from pathlib import Path


def clear_caches(prefix: str | Path, cache: Path, dry_run: bool = False) -> tuple[Change, ...]:
    """Delete the caches of a pair that are stale or damaged, and nothing else.

    Args:
        prefix: path without ``.bin``.
        cache: Megatron's ``--data-cache-path``; where Megatron puts caches without one is always looked at, too.
        dry_run: only say what would be deleted.

    Raises:
        SpecError: no such pair, or no such folder.
        FormatError: the index is broken, so that no cache can be held to it.
        OutputError: a file cannot be deleted.
    """
    path = find_prefix(prefix)
    report = verify(path, "index")
    broken = next((problem for problem in report.problems if problem.severity == "error"), None)
    if broken is not None and not broken.code.startswith("cache-"):
        raise FormatError(f"{path}: {broken.code}: {broken.message}; caches can only be held to a sound index")
    changes = []
    for bad in bad_caches(path, Index(idx_path(path)), cache):
        for file in () if dry_run else bad.files:  # the description first: without it the rest is no cache
            with explain(file, "delete"):
                file.unlink(missing_ok=True)
        names = ", ".join(os.fspath(file) for file in bad.files)
        changes.append(Change(bad.code, f"{bad.message}: {'to be deleted' if dry_run else 'deleted'}: {names}"))
    return tuple(changes)
