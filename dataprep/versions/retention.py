"""Which versions go, and with them the parts that no version names any more.

What goes is moved by a rename into a folder that bears the epoch of the claim, and is emptied there: who takes the
claim over moves that folder away first, so that a run that was asleep meanwhile removes nothing. The mark of a version
that goes stays until it is gone, see `leases`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dataprep.errors import FormatError
from dataprep.layout import Layout
from dataprep.manifest import load_manifest
from dataprep.storage import explain, make_folder
from dataprep.versions.changes import Pending
from dataprep.versions.folder import discard
from dataprep.versions.leases import clear_leases, leases_of, mark_of

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.claims import Claim
    from dataprep.versions.folder import Versions


@dataclass(frozen=True)
class Removed:
    """What retention did.

    Attributes:
        versions: numbers of those that were removed.
        leased: numbers of those that were to go, and are in use.
        parts: names of the parts that were removed.
        num_bytes: of those parts.
    """

    versions: tuple[int, ...] = ()
    leased: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    num_bytes: int = 0


def retain(
    versions: Versions, claim: Claim, keep: int | None, days: float | None, now: datetime | None = None
) -> Removed:
    """Remove old versions, and parts of none.

    Args:
        versions: the versioned dataset.
        claim: held.
        keep: at least so many versions stay; None, and `days` too: all do.
        days: and all that are younger.
        now: UTC.

    Raises:
        LostClaimError: the claim is not held any more.
        OutputError: the file system refuses, or a lease cannot be read.
        FormatError: the manifest of a version that stays cannot be read, so that nobody knows what it needs.
    """
    now = now or datetime.now(UTC)
    numbers = versions.numbers()
    old = [] if keep is None and days is None else numbers[: -max(1, keep or 1)]
    if days is not None:
        old = [number for number in old if now - _created(versions, number) > timedelta(days=days)]
    removing = versions.removing(claim.epoch)
    make_folder(removing)
    gone, leased = list[int](), list[int]()
    for number in old:
        if _remove(versions, number, claim, now):
            gone.append(number)
        else:
            leased.append(number)
    parts, num_bytes = _remove_parts(versions, removing, claim)
    discard(removing)
    with explain(versions.leases, "clear"):
        for number in gone:
            mark_of(versions, number, claim.epoch).unlink(missing_ok=True)
    clear_leases(versions, now)
    return Removed(tuple(gone), tuple(leased), tuple(parts), num_bytes)


def _created(versions: Versions, number: int) -> datetime:
    return datetime.fromisoformat(versions.load(number).created)


def _remove(versions: Versions, number: int, claim: Claim, now: datetime) -> bool:
    """Remove a version, unless it is in use."""
    version = versions.version(number)
    mark = mark_of(versions, number, claim.epoch)
    make_folder(versions.leases)
    with explain(version, "remove"):
        mark.touch()
        if any(lease.version == number for lease in leases_of(versions, now)):
            mark.unlink()
            return False
        claim.check()
        version.rename(versions.removing(claim.epoch) / version.name)  # fails if somebody took over meanwhile
    return True


def _remove_parts(versions: Versions, removing: Path, claim: Claim) -> tuple[list[str], int]:
    """Remove the parts that are in no version, and what their runs have left."""
    pending = Pending.read(versions.pending)
    removed, num_bytes = list[str](), 0
    with explain(versions.parts, "look into"):
        parts = [path for path in versions.parts.iterdir() if path.is_dir()] if versions.parts.is_dir() else []
        left = {path.name: path for path in parts if pending is None or not path.name.endswith(pending.ending)}
    for number in reversed(versions.numbers()):  # the newest names all there are, unless some are to go
        if left:
            for named in versions.load(number).parts:
                left.pop(os.path.basename(named.folder), None)
    for _, part in sorted(left.items()):
        work = _work_of(part, versions)
        with explain(part, "remove"):
            num_bytes += sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
            versions.gone(part).parent.mkdir(exist_ok=True)
            versions.gone(part).touch()
            claim.check()
            if work is not None and work.is_dir():  # first: its name is in the part alone
                work.rename(removing / f"{part.name}-work")
            part.rename(removing / part.name)
        removed.append(part.name)
    return removed, num_bytes


def drop(versions: Versions, claim: Claim, keep: str = "") -> None:
    """Forget what an earlier run has set out to do, with all that it has of it, unless it became a part.

    Args:
        versions: the versioned dataset.
        claim: held.
        keep: the digest of what is to be done now.

    Raises:
        LostClaimError: the claim is not held any more.
        OutputError: the file system refuses.
    """
    pending, removing = Pending.read(versions.pending), versions.removing(claim.epoch)
    with explain(versions.pending, "forget"):
        if pending is not None and pending.digest != keep and not any(versions.parts.glob(f"*{pending.ending}")):
            work = Layout.of(versions.folder.parent, "", "", pending.digest).work
            make_folder(removing)
            claim.check()
            if work.is_dir():
                work.rename(removing / work.name)
            discard(removing)
        if pending is None or pending.digest != keep:
            versions.pending.unlink(missing_ok=True)


def _work_of(part: Path, versions: Versions) -> Path | None:
    """Where the run worked that made a part; its rejects lie there."""
    try:
        manifest = load_manifest(part / "manifest.json")
    except FormatError:
        return None
    if re.fullmatch("[0-9a-f]{64}", manifest.recipe_digest) is None:
        return None
    output = versions.folder.parent
    return Layout.of(output, versions.name, manifest.recipe.tokenizer.name, manifest.recipe_digest).work
