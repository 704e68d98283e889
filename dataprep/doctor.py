"""Is a folder fit for runs? What its file system can do, and whether several processes in it agree.

    processes  P  P  P  P     here, or one on each of several machines, started by hand
    meeting    <folder>/dataprep-doctor.../<step>.<process>.json       they wait for each other at every step

What each of them saw travels in these files, so every process comes to the same report.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.claims import Claim
from dataprep.errors import BusyError, LostClaimError, OutputError
from dataprep.probe import probe
from dataprep.storage import MARK, AtomicFile, checksum, existing, explain, make_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = 4
"""Processes that meet where only this machine takes part."""

ROUNDS = 10
"""How often they contend for a claim."""

PATIENCE_SECONDS = 120.0
"""How long one waits for the others: a person has to start them, and NFS shows new names within 60 s."""

SILENT_SECONDS = 1.0
"""How long the holder that does not beat is left alone."""

BLOCK = 1 << 20
"""What is written side by side begins at multiples of this, and no two processes write within one."""


def examine(folder: Path, peers: int | None, told: Callable[[str], None]) -> dict[str, Any]:
    """Examine a folder; what is made there goes again.

    Args:
        folder: an output folder, or what is to become one; then the one above it that exists is examined.
        peers: processes that are started with this number, on any machines. None: some are started here.
        told: what is done now.

    Returns:
        ``folder``, ``file_system``, ``free_bytes``, ``probe``, ``lacks``, ``processes`` (``host-pid`` of each),
        ``checks`` (``name``, ``ok``, ``detail`` of each), and ``ok``.

    Raises:
        OutputError: the folder cannot be written to, or not all processes came.
    """
    folder = existing(folder)
    found = probe(folder)
    free, needed = shutil.disk_usage(folder).free, (peers or PEERS) * 8 * BLOCK
    if free < needed:
        raise OutputError(f"{folder}: {free / 1e6:,.1f} MB are free, and this takes {needed / 1e6:,.0f}; make room")
    if peers is None:
        peers, place = PEERS, folder / f"dataprep-doctor{MARK}{os.getpid()}"
        children = [_start(place) for _ in range(PEERS - 1)]
    else:
        place, children = folder / f"dataprep-doctor{MARK}{peers}", []
    try:
        processes, checks = attend(place, peers, told)
    finally:
        for child in children:
            child.kill()
            child.wait()
        if children:
            shutil.rmtree(place, ignore_errors=True)
    return {
        "folder": str(folder),
        "file_system": found.file_system,
        "free_bytes": shutil.disk_usage(folder).free,
        "probe": found.to_json(),
        "lacks": found.lacks,
        "processes": processes,
        "checks": checks,
        "ok": not found.lacks and all(check["ok"] for check in checks),
    }


def _start(place: Path) -> subprocess.Popen[bytes]:
    code = "import sys; from pathlib import Path; from dataprep.doctor import PEERS, attend; "
    code += "attend(Path(sys.argv[1]), PEERS, lambda name: None)"
    nothing = subprocess.DEVNULL  # what goes wrong is missed by the others, and said by this process
    return subprocess.Popen([sys.executable, "-c", code, str(place)], stdin=nothing, stdout=nothing, stderr=nothing)


def attend(place: Path, peers: int, told: Callable[[str], None]) -> tuple[list[str], list[dict[str, Any]]]:
    """Take part in a meeting; returns who else did, and what was found.

    Raises:
        OutputError: the file system refuses, or not all came.
    """
    told(f"waiting for {peers} processes in {place}")
    meeting = Meeting(place, peers)
    tests = {"claims": _claims, "overtaking": _overtaking, "visibility": _visibility, "parallel writes": _writes}
    checks = []
    for name, test in tests.items():
        told(name)
        ok, detail = test(meeting)
        checks.append({"name": name, "ok": ok, "detail": detail})
    meeting.close()
    return meeting.names, checks


class Meeting:
    """Processes that wait for each other in a folder.

    Args:
        folder: made by whoever comes first.
        peers: how many they are.

    Attributes:
        names: of all of them, ``host-pid``.
        rank: of this one.

    Raises:
        OutputError: they did not all come.
    """

    def __init__(self, folder: Path, peers: int) -> None:
        make_folder(folder)
        self.folder, self.peers, self._name = folder, peers, f"{socket.gethostname()}-{os.getpid()}"
        self.names: list[str] = sorted(self.gather("name", self._name))
        self.rank = self.names.index(self._name)

    def gather(self, step: str, value: Any) -> list[Any]:
        """Say something, and return what all say, once they have."""
        write_json(self.folder / f"{step}.{self._name}.json", value, durable=False)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            values = self._said(step)
            if len(values) == self.peers:
                return values
            if time.monotonic() > end or len(values) > self.peers:
                raise OutputError(
                    f"{self.folder}: {len(values)} processes met, expected {self.peers} within {PATIENCE_SECONDS:.0f} "
                    f"s. If all were started and they share this folder, remove it and start them again: rm -r "
                    f"{self.folder}"
                )
            with AtomicFile(self.folder / f"here.{self._name}", durable=False):
                pass  # NFS may show the names of a minute ago, until one changes the folder oneself
            time.sleep(0.02)

    def _said(self, step: str) -> list[Any]:
        values = []
        with explain(self.folder, "look into"):
            paths = [self.folder / name for name in sorted(os.listdir(self.folder))]
        for path in paths:
            if path.name.startswith(f"{step}.") and path.suffix == ".json" and MARK not in path.name:
                with contextlib.suppress(OSError, ValueError):  # not to be read yet
                    values.append(json.loads(path.read_bytes()))
        return values

    def close(self) -> None:
        """Leave; the first one waits until all have left, and removes the folder."""
        if self.rank == 0:
            self.gather("gone", None)
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            write_json(self.folder / f"gone.{self._name}.json", None, durable=False)


def _claims(meeting: Meeting) -> tuple[bool, str]:
    """All contend for one claim, again and again."""
    winners = []
    for number in range(ROUNDS):
        meeting.gather(f"start{number}", None)
        with contextlib.ExitStack() as stack:
            won = True
            try:
                stack.enter_context(Claim(meeting.folder / f"claims{number}" / "claim", beat_seconds=0.2))
            except BusyError:
                won = False
            winners.append(sum(meeting.gather(f"won{number}", won)))
    wrong = [count for count in winners if count != 1]
    return not wrong, f"{ROUNDS} rounds" + (f"; {len(wrong)} with {wrong} winners" if wrong else ": one winner each")


def _overtaking(meeting: Meeting) -> tuple[bool, str]:
    """The first holds a claim and does not beat; the second takes over; the first finds it gone, and what it made."""
    folder = meeting.folder / "overtaking"
    mine, theirs, final = folder / "merged-1", folder / "merged-2", folder / "final"
    said: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if meeting.rank == 0:
            first = stack.enter_context(Claim(folder / "claim", beat_seconds=3600))
            make_folder(mine)
        meeting.gather("held", None)
        if meeting.rank == 1:
            stack.enter_context(Claim(folder / "claim", wait=True, ttl_seconds=SILENT_SECONDS))
            with explain(mine, "take over"):
                mine.rename(theirs)
        meeting.gather("overtaken", None)
        if meeting.rank == 0:
            said = {"told": _is_told(first), "fenced": not _renames(mine, final)}
        meeting.gather("woken", None)
        if meeting.rank == 1:
            said = {"published": _renames(theirs, final)}
        found = {key: value for each in meeting.gather("found", said) for key, value in each.items()}
    wrong = [key for key, value in found.items() if not value]
    return not wrong, f"not {', not '.join(wrong)}" if wrong else "a silent holder was told, fenced, and overtaken"


def _is_told(claim: Claim) -> bool:
    try:
        claim.check()
    except LostClaimError:
        return True
    return False


def _renames(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except FileNotFoundError:
        return False
    return True


def _visibility(meeting: Meeting) -> tuple[bool, str]:
    """What one renames into place, the others read whole."""
    with AtomicFile(meeting.folder / f"data{meeting.rank}") as file:
        file.write(_pattern(meeting.rank))
    written = meeting.gather("written", [meeting.rank, file.checksum])
    start, wrong = time.monotonic(), len(written)
    while wrong and time.monotonic() < start + PATIENCE_SECONDS / 2:
        wrong = sum(_checksum(meeting.folder / f"data{rank}") != expected for rank, expected in written)
        time.sleep(0.02 if wrong else 0)
    seen = meeting.gather("seen", [wrong, time.monotonic() - start])
    wrong, slowest = sum(count for count, _ in seen), max(seconds for _, seconds in seen)
    return (
        not wrong,
        f"{wrong} files were not seen" if wrong else f"seen whole by all after {slowest:.1f} s at the most",
    )


def _checksum(path: Path) -> str | None:
    try:
        return checksum(path)
    except OSError:
        return None


def _writes(meeting: Meeting) -> tuple[bool, str]:
    """All write their blocks of one file at the same time."""
    path, blocks = meeting.folder / "shared", 4 * meeting.peers
    if meeting.rank == 0:
        with explain(path, "write"), path.open("wb") as file:
            file.truncate(blocks * BLOCK)
    meeting.gather("made", None)
    with explain(path, "write"), path.open("r+b", buffering=0) as file:
        for block in range(meeting.rank, blocks, meeting.peers):
            os.pwrite(file.fileno(), _pattern(block), block * BLOCK)
        os.fsync(file.fileno())
    meeting.gather("filled", None)
    with explain(path, "read"), path.open("rb", buffering=0) as file:
        wrong = sum(os.pread(file.fileno(), BLOCK, block * BLOCK) != _pattern(block) for block in range(blocks))
    worst = max(meeting.gather("compared", wrong))
    return not worst, f"{worst} of {blocks} blocks are wrong" if worst else f"{blocks} blocks of 1 MiB, all right"


def _pattern(number: int) -> bytes:
    """A block unlike any other."""
    return (number + 1).to_bytes(8, "little") * (BLOCK // 8)
