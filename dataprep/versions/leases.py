"""Who uses a version: as long as somebody does, retention leaves it alone.

    leases/<id>.json           who uses which version, and until when; renewed while its command runs
    leases/v000003-12.mark     the version is to go, says who holds the claim of epoch 12; there until it is gone

Who takes a lease writes it first and looks then whether the version is being removed; who removes one marks it first
and looks then whether somebody uses it. One of the two sees the other: also over NFS, where a machine may know names of
a minute ago, but for those of a folder that it has itself just changed, and opens no file without asking the server.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dataprep.errors import OutputError, SpecError
from dataprep.specs import Model
from dataprep.storage import explain, make_folder, read_whole, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataprep.versions.folder import Versions

HOLD = timedelta(days=1)
"""How long the lease of a command that runs holds if it is killed, or its machine dies: it is renewed all the time."""

RENEW_SECONDS = 600.0
"""How often it is."""

SKEW = timedelta(hours=1)
"""How far clocks may be apart: so long a lease holds longer than it says."""


class Lease(Model):
    """That somebody uses a version.

    Attributes:
        id: names its file.
        version: which one.
        who: for people: what uses it.
        host, pid: of the process that took it.
        since, until: UTC, by that machine's clock. It holds to `until`, and `SKEW` longer, also if that process was
            killed: what it ran may live on.
    """

    schema_version: int = 1
    id: str
    version: int
    who: str
    host: str
    pid: int
    since: str
    until: str

    def holds(self, now: datetime) -> bool:
        """Whether it has to be respected at a time of this machine's clock."""
        return now < datetime.fromisoformat(self.until) + SKEW


def leases_of(versions: Versions, now: datetime | None = None) -> list[Lease]:
    """The leases that hold, oldest first.

    Raises:
        OutputError: one cannot be read: nobody can say what it holds.
    """
    return sorted((lease for lease, held in _read(versions, now) if held), key=lambda lease: lease.since)


def _read(versions: Versions, now: datetime | None) -> Iterator[tuple[Lease, bool]]:
    """All leases there are, and whether they hold."""
    now = now or datetime.now(UTC)
    for path in _files(versions, ".json"):
        try:
            lease = Lease.model_validate_json(read_whole(path, 1 << 16))
            held = lease.holds(now)
        except FileNotFoundError:
            continue  # released just now
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise OutputError(f"cannot read the lease {path}: {what}; remove it if nobody uses a version") from error
        yield lease, held


def _files(versions: Versions, end: str) -> list[Path]:
    with explain(versions.leases, "look into"):
        try:
            return sorted(path for path in versions.leases.iterdir() if path.name.endswith(end))
        except FileNotFoundError:
            return []


def clear_leases(versions: Versions, now: datetime | None = None) -> None:
    """Remove leases that hold no more; for who holds the claim.

    Raises:
        OutputError: see `leases_of`; the file system refuses.
    """
    for lease, held in list(_read(versions, now)):
        if not held:
            release_lease(versions, lease.id)


def take_lease(versions: Versions, word: str, who: str, span: timedelta = HOLD) -> Lease:
    """Say that somebody uses a version.

    Args:
        versions: the versioned dataset.
        word: which version, see `Versions.find`.
        who: for people: what uses it.
        span: how long.

    Raises:
        SpecError: there is no such version, or it is being removed.
        OutputError: the file system refuses.
    """
    if span <= timedelta(0):
        raise SpecError(f"a lease of {span} is over before it begins; give a time above 0")
    try:
        until = datetime.now(UTC) + span
    except OverflowError as error:
        raise SpecError(f"a lease of {span} has no end in this calendar; give a shorter one") from error
    while True:
        number = versions.number_of(word)
        lease = Lease(
            id=secrets.token_hex(8),
            version=number,
            who=who,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            until=until.isoformat(timespec="seconds"),
        )
        make_folder(versions.leases)
        write_json(versions.leases / f"{lease.id}.json", lease.to_json())
        if is_marked(versions, number) or not _is_there(versions, number):
            release_lease(versions, lease.id)
            if word == "current":
                time.sleep(0.05)  # the newest is never removed, so that there is another one by now, or soon
                continue
            raise SpecError(f"{versions.version(number)} is being removed, by its retention; choose a newer version")
        return lease


def is_marked(versions: Versions, number: int) -> bool:
    """Whether somebody is about to remove a version."""
    begin = f"{versions.version(number).name}-"
    return any(path.name.startswith(begin) for path in _files(versions, ".mark"))


def mark_of(versions: Versions, number: int, epoch: int) -> Path:
    """The file that says that who holds a claim is about to remove a version."""
    return versions.leases / f"{versions.version(number).name}-{epoch}.mark"


def _is_there(versions: Versions, number: int) -> bool:
    path = versions.version(number) / "manifest.json"
    with explain(path, "look into"):
        try:
            path.open("rb").close()
        except FileNotFoundError:
            return False
    return True


def release_lease(versions: Versions, name: str) -> bool:
    """End a lease; False: there is none of that id.

    Raises:
        OutputError: the file system refuses.
    """
    path = versions.leases / f"{name}.json"
    if "/" in name or path not in _files(versions, ".json"):
        return False
    with explain(path, "remove"):
        path.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def hold_lease(versions: Versions, word: str, who: str) -> Iterator[Lease]:
    """Hold a lease while the block runs; where its process is killed, it ends by itself after `HOLD`.

    Raises:
        SpecError, OutputError: see `take_lease`.
    """
    lease, over = take_lease(versions, word, who), threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_SECONDS):
            until = (datetime.now(UTC) + HOLD).isoformat(timespec="seconds")
            with contextlib.suppress(OutputError):  # a full disk; the next one may succeed, and there is a day for it
                write_json(versions.leases / f"{lease.id}.json", lease.model_copy(update={"until": until}).to_json())

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        over.set()
        thread.join()
        release_lease(versions, lease.id)
