"""What earlier runs left in a work folder: taken over, or removed; by who holds the claim, and only as long as it does.

What is removed is looked for first, and only then `fence` is asked, which raises if the folder is not held any more: so
nothing of who may hold it by then is among it.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from dataprep.storage import MARK, explain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dataprep.layout import Layout


def adopt(layout: Layout, fence: Callable[[], None]) -> None:
    """Give what an earlier claim merged the name of this one; older remains go.

    Args:
        layout: of who holds the claim.
        fence: raises if it is not held any more.
    """
    with explain(layout.work, "take over"):
        found = layout.all_merged()
        fence()
        for path in found[:-1]:
            shutil.rmtree(path)
        if found and found[-1] != layout.merged:
            found[-1].rename(layout.merged)
        first = layout.staged / f"{layout.name(0)}.bin"
        if first.exists():  # its run died when it knew already that there are several
            first.rename(layout.staged / f"{layout.growing(0).name}.bin")


def sweep(folder: Path, fence: Callable[[], None] | None = None) -> int:
    """Remove what dead runs left half-written in a folder that this run holds; returns how many.

    It is looked for first, and only then `fence` is asked, which raises if the folder is not held any more: so nothing
    of who may hold it by then is among it.
    """
    with explain(folder, "clear"):
        found = [path for path in folder.iterdir() if MARK in path.name] if folder.is_dir() else []
        if found and fence is not None:
            fence()
        for path in found:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return len(found)


def clear_shards(layout: Layout, fence: Callable[[], None]) -> None:
    """Remove what a run made of its units; plan, recipe, events and rejects stay.

    Receipts and manifests first: none is to stand without what it speaks of. See `sweep` for `fence`.
    """
    with explain(layout.work, "clear"), contextlib.suppress(FileNotFoundError):
        merged = layout.all_merged()
        shards = sorted(layout.shards.iterdir(), key=lambda path: path.suffix != ".json")
        fence()
        for folder in merged:
            (folder / layout.receipts.name).unlink(missing_ok=True)
        for folder in merged:
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
        for path in shards:
            path.unlink(missing_ok=True)
