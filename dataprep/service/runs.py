"""Runs as their work folders show them, whoever started them: what pages list, and all there is to know of one.

Reading a run takes a millisecond, and there may be thousands that ended long ago. So what was read stays known until
something in the run's folder has another name or mtime (its files are replaced, not changed), and a run that goes on is
read each time. Links are not followed: a folder of users may hold one to a file that only the server can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dataprep.meters import RunState
from dataprep.outputs import run_status, runs
from dataprep.specs import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

State = Literal["running", "claimed", "published", "failed", "stopped", "unreadable"]

GOING = ("running", "claimed")
"""States of a run that may change although nothing in its folder does: its process may have ended."""

TAIL_BYTES = 64 << 10
"""Of events and logs are shown."""

HEAD_BYTES = 16 << 10

MOST_EVENTS = 300

SETTLED_NS = 2_000_000_000
"""An mtime that is younger may stand for two contents: clocks of file systems tick every few milliseconds to 2 s."""


class Run(Model):
    """A run in short.

    Attributes:
        output: id of the output that it lies in.
        id: name of its work folder.
        corpus, tokenizer: names; "" where the folder cannot be read.
        recipe_digest: of what it makes.
        state: ``claimed``: by a process of another machine, which may have died.
        detail: of one that failed or cannot be read: why.
        units, units_done: known so far.
        files_to_fetch, files_here: source files from elsewhere.
        holder: who is at work.
        prefix: what it published, absolute.
        started, updated: UTC, as its driver wrote them; else when the folder changed last.
        rejects: records that it put aside, by reason; known in the end.
        progress: what its driver wrote last.
    """

    output: str
    id: str
    corpus: str = ""
    tokenizer: str = ""
    recipe_digest: str = ""
    state: State
    detail: str = ""
    units: int = 0
    units_done: int = 0
    files_to_fetch: int = 0
    files_here: int = 0
    holder: str | None = None
    prefix: str | None = None
    started: str | None = None
    updated: str
    rejects: dict[str, int] = Field(default_factory=dict)
    progress: RunState | None = None

    @property
    def is_going(self) -> bool:
        return self.state in GOING


class Event(Model):
    """What a driver noted.

    Attributes:
        time: UTC, by its clock.
        name: what happened.
        text: the rest, as ``key=value``.
    """

    time: str
    name: str
    text: str


class RunDetail(Model):
    """All there is to know of one run.

    Attributes:
        run: it in short.
        work: its folder.
        recipe: as ``recipe.json`` has it, without the files.
        num_files: source files.
        files: the names of the first of them.
        events: the newest that its driver noted, oldest first.
        has_rejects: whether source records were put aside.
        dashboard: address of Dask's pages, as the driver's machine reaches them, while they are there; "": none.
    """

    run: Run
    work: str
    recipe: dict[str, Any]
    num_files: int
    files: tuple[str, ...]
    events: tuple[Event, ...]
    has_rejects: bool
    dashboard: str = ""


class Works:
    """The runs of one output. For several threads at once.

    Args:
        output: its id.
        folder: the output folder.
    """

    def __init__(self, output: str, folder: Path) -> None:
        self._output, self._folder = output, folder
        self._known: dict[str, tuple[Any, Run]] = {}
        self._lock = threading.Lock()

    def list(self) -> list[Run]:
        """All runs there are.

        Raises:
            OSError: their folder cannot be read.
        """
        with self._lock:
            known, now = self._known, dict[str, tuple[Any, Run]]()
            for folder in runs(self._folder):
                if folder.is_symlink():
                    continue
                now[folder.name] = self._seen(folder, known.get(folder.name))
            self._known = now
        return [run for _, run in now.values()]

    def find(self, name: str) -> Run | None:
        """One run, by the name of its work folder."""
        return next((run for run in self.list() if run.id == name), None)

    def detail(self, name: str) -> RunDetail | None:
        """All there is to know of a run; None: there is none of that name."""
        run = self.find(name)
        if run is None:
            return None
        work = self._folder / "work" / run.id
        recipe = _recipe(work) if run.state != "unreadable" else {}
        files = recipe.pop("files", [])
        events = [path for path in work.glob("events-*.jsonl") if path.stem[7:].isdecimal()]
        newest = max(events, key=lambda path: int(path.stem[7:]), default=None)
        return RunDetail(
            run=run,
            work=str(work),
            recipe=recipe,
            num_files=len(files),
            files=tuple(str(file.get("name")) for file in files[:20]),
            events=tuple(_events(tail(newest))) if newest is not None else (),
            has_rejects=bool(os.path.lexists(work / "rejects" / "rejects.jsonl")),
            dashboard=_dashboard(newest) if newest is not None and run.is_going else "",
        )

    def _seen(self, folder: Path, before: tuple[Any, Run] | None) -> tuple[Any, Run]:
        stamp = _stamp(folder, before[1].prefix if before is not None else None)
        if before is not None and before[0] == stamp and stamp is not None:
            return before
        run = _read(self._output, folder)
        stamp = _stamp(folder, run.prefix)
        young = stamp is not None and max(stamp) > time.time_ns() - SETTLED_NS
        return (None if run.is_going or young else stamp), run


def _stamp(folder: Path, prefix: str | None) -> tuple[int, ...] | None:
    """What changes whenever a run that nobody works on does."""
    paths = [str(folder), f"{folder}/claim", *([f"{os.path.dirname(prefix)}/manifest.json"] if prefix else [])]
    try:
        return tuple(os.stat(path).st_mtime_ns for path in paths)
    except OSError:
        return None


def _read(output: str, folder: Path) -> Run:
    try:
        link = _link(folder)
        detail = f"{link} is a link, and the pages follow none" if link else ""
    except OSError as error:
        detail = f"cannot be read: {error.strerror}"
    if detail:
        return Run(output=output, id=folder.name, state="unreadable", detail=detail, updated=_utc(folder))
    found = run_status(folder)
    last, seen = found.get("last_event", {}), found.get("progress")
    detail = found.get("detail", "")
    if found["state"] == "failed":
        detail = str(last.get("error", ""))
    progress = RunState.model_validate(seen) if seen else None
    return Run(
        output=output,
        id=folder.name,
        corpus=str(found.get("corpus", "")),
        tokenizer=str(found.get("tokenizer", "")),
        recipe_digest=str(found.get("recipe_digest", "")),
        state=found["state"],
        detail=detail,
        units=found.get("units", 0),
        units_done=found.get("units_done", 0),
        files_to_fetch=found.get("files_to_fetch", 0),
        files_here=found.get("files_here", 0),
        holder=found.get("holder"),
        prefix=found.get("prefix"),
        started=progress.started if progress is not None else None,
        updated=progress.updated if progress is not None else _utc(folder),
        rejects=_counts(last.get("rejects")),
        progress=progress,
    )


def _recipe(work: Path) -> dict[str, Any]:
    """What a run makes; nothing, where that went away, or was replaced, since its state was read."""
    try:
        value = json.loads(read_plain(work / "recipe.json"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _events(text: str) -> Iterator[Event]:
    for line in text.splitlines()[-MOST_EVENTS:]:
        try:
            value = json.loads(line)
            name, moment = str(value.pop("event")), str(value.pop("time", ""))
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
            continue  # cut off by a crash
        told = (f"{key}={each if isinstance(each, str) else json.dumps(each)}" for key, each in value.items())
        yield Event(time=moment.replace("T", " ").removesuffix("+00:00"), name=name, text="  ".join(told))


def _dashboard(events: Path) -> str:
    """The address that a driver noted as it began; nothing but one of a page is believed."""
    for line in read_plain(events, HEAD_BYTES).splitlines():
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            value = json.loads(line)
            if value.get("event") == "dashboard" and re.match("https?://", str(value.get("address"))):
                return str(value["address"])
    return ""


def _counts(value: object) -> dict[str, int]:
    """Rejects by reason, of an event that anybody may have written."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {str(reason): count for reason, count in pairs if type(count) is int}


def _link(folder: Path) -> str:
    """The name of a link among the files of a run that are read, or ""."""
    names = ("recipe.json", "plan.jsonl", "progress.json", "claim", "rejects")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and (entry.name in names or entry.name.startswith("events-")):
                return entry.name
    return ""


def _utc(path: Path) -> str:
    try:
        seconds = path.lstat().st_mtime
    except OSError:
        seconds = 0.0  # it went away just now
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def read_plain(path: Path, most: int = 64 << 20) -> bytes:
    """The first bytes of a plain file; b"" of a link, a pipe, or what is not there."""
    with _plain(path) as fd:
        return _read_at(fd, 0, most) if fd is not None else b""


def tail(path: Path, most: int = TAIL_BYTES) -> str:
    """The last lines of a plain file; "" of a link, a pipe, or what is not there."""
    with _plain(path) as fd:
        if fd is None:
            return ""
        size = os.fstat(fd).st_size
        text = _read_at(fd, max(0, size - most), most).decode(errors="replace")
    return text if size <= most else text.partition("\n")[2]


def _read_at(fd: int, start: int, most: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        file.seek(start)
        return file.read(most)


@contextlib.contextmanager
def _plain(path: Path) -> Iterator[int | None]:
    """A plain file, open while the block runs; None: it is something else, or not to be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)
