"""Which versions go, and with them the parts that no version names any more.

What goes is moved by a rename into a folder that bears the epoch of the claim, and is emptied there: who takes the
claim over moves that folder away first, so that a run that was asleep meanwhile removes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dataprep.errors import FormatError
from dataprep.layout import Layout
from dataprep.manifest import load_manifest
from dataprep.storage import explain, make_folder
from dataprep.versions.changes import Pending
from dataprep.versions.folder import discard
from dataprep.versions.leases import leases_of

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
    old = [] if keep is None and days is None else numbers[: len(numbers) - max(1, keep or 1)]
    if days is not None:
        old = [number for number in old if now - _created(versions, number) > timedelta(days=days)]
    removing = versions.removing(claim.epoch)
    make_folder(removing)
    gone, leased = list[int](), list[int]()
    for number in old:
        if _remove(versions, number, removing, claim, now):
            gone.append(number)
        else:
            leased.append(number)
    parts, num_bytes = _remove_parts(versions, removing, claim)
    discard(removing)
    return Removed(tuple(gone), tuple(leased), tuple(parts), num_bytes)


def _created(versions: Versions, number: int) -> datetime:
    return datetime.fromisoformat(versions.load(number).created)


def _remove(versions: Versions, number: int, removing: Path, claim: Claim, now: datetime) -> bool:
    """Remove a version, unless it is in use."""
    version = versions.version(number)
    mark = removing / f"{version.name}.mark"
    with explain(version, "remove"):
        mark.touch()
        if any(lease.version == number for lease in leases_of(versions, now)):
            mark.unlink()
            return False
        claim.check()
        version.rename(removing / version.name)  # fails if somebody took over meanwhile
    return True


def _remove_parts(versions: Versions, removing: Path, claim: Claim) -> tuple[list[str], int]:
    """Remove the parts that are in no version, and what their runs have left."""
    named = {versions.part(part.folder).name for number in versions.numbers() for part in versions.load(number).parts}
    pending = Pending.read(versions.pending)
    removed, num_bytes = list[str](), 0
    with explain(versions.parts, "look into"):
        parts = sorted(path for path in versions.parts.iterdir() if path.is_dir()) if versions.parts.is_dir() else []
    for part in parts:
        if part.name in named or (pending is not None and part.name.endswith(f"-{pending.digest[:8]}")):
            continue
        work = _work_of(part, versions)
        with explain(part, "remove"):
            num_bytes += sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
            claim.check()
            part.rename(removing / part.name)
            if work is not None and work.is_dir():
                work.rename(removing / f"{part.name}-work")
        removed.append(part.name)
    return removed, num_bytes


def _work_of(part: Path, versions: Versions) -> Path | None:
    """Where the run worked that made a part; its rejects lie there."""
    try:
        manifest = load_manifest(part / "manifest.json")
    except FormatError:
        return None
    output = versions.folder.parent
    return Layout.of(output, versions.name, manifest.recipe.tokenizer.name, manifest.recipe_digest).work
