"""What runs of jobs say of themselves: a record and a log for each, in the folder of the dataset.

runs/000012.json, .log        of the run that held the claim of epoch 12; written by it alone
runs/skip-<utc>-<token>.json  of one that found another at work, and left
paused                        there while nothing is to run by itself
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from dataprep.claims import look
from dataprep.errors import OutputError
from dataprep.specs import Model
from dataprep.storage import AtomicFile, explain, make_folder, read_whole, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dataprep.versions import Versions

KEPT = 1000
"""Records of a job that are kept; older ones go."""

MOST_BYTES = 1 << 20
"""Of a record."""

RECENT = 50
"""Records that say what is due."""

Trigger = Literal["schedule", "hand", "retry"]
State = Literal["running", "published", "unchanged", "failed", "interrupted", "skipped", "lost"]


class Ingested(Model):
    """What a run came to.

    Attributes:
        version: that it published last; None: nothing was new.
        files_added, files_changed, files_vanished: since the version before.
        files_waiting: files that may still be written to, and were left for the next run.
        num_documents, num_tokens: of the parts that it made.
    """

    version: int | None = None
    files_added: int = 0
    files_changed: int = 0
    files_vanished: int = 0
    files_waiting: int = 0
    num_documents: int = 0
    num_tokens: int = 0


class RunRecord(Ingested):
    """One run of a job, and what it came to.

    Attributes:
        job: its name, which is the dataset's.
        run: its number, the epoch of its claim; 0: it had none, since another one was at work.
        trigger: why it began.
        slot: the time of the schedule that it is for, UTC; None: of none.
        attempt: the how many-th for this slot, from 1.
        state: ``published``: there is a new version; ``unchanged``: nothing was new; ``lost``: what it wrote last says
            that it runs, and it does not.
        started, ended: UTC, by the clock of its machine.
        host, pid: of its process.
        work: name of the run's folder in ``<output>/work``.
        error: what went wrong.
        retry_at: when it is to be tried again, UTC; None: it is not.
        holder: who was at work, of one that was skipped.
    """

    schema_version: Literal[1] = 1
    job: str
    run: int
    trigger: Trigger
    slot: str | None = None
    attempt: int = 1
    state: State = "running"
    started: str
    ended: str | None = None
    host: str
    pid: int
    work: str = ""
    error: str = ""
    retry_at: str | None = None
    holder: str = ""


def utc(moment: datetime) -> str:
    """A moment as records have it."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def record_path(versions: Versions, run: int) -> Path:
    """Where a run's record lies."""
    return versions.folder / "runs" / f"{run:06d}.json"


def log_path(versions: Versions, run: int) -> Path:
    """Where a run's log lies."""
    return versions.folder / "runs" / f"{run:06d}.log"


def write_record(versions: Versions, record: RunRecord) -> None:
    """Write a record, in place of what the same run wrote before.

    Raises:
        OutputError: the file system refuses.
    """
    folder = versions.folder / "runs"
    make_folder(folder)
    if record.run:
        write_json(record_path(versions, record.run), record.to_json())
    else:
        moment = re.sub(r"\D", "", record.started[:19])
        write_json(folder / f"skip-{moment}-{secrets.token_hex(4)}.json", record.to_json(), durable=False)


def read_records(versions: Versions, newest: int = KEPT) -> list[RunRecord]:
    """The records of a job, oldest first; what cannot be read is left out.

    Args:
        versions: the dataset of the job.
        newest: at most so many runs, and so many that were skipped.
    """
    folder = versions.folder / "runs"
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    skips = [name for name in names if name.startswith("skip-")]
    runs = [name for name in names if name[:-5].isdecimal()]
    found = []
    for name in [*runs[-newest:], *skips[-newest:]]:
        with contextlib.suppress(OSError, ValueError):
            found.append(RunRecord.model_validate_json(read_whole(folder / name, MOST_BYTES)))
    try:
        claim = look(versions.claim)
    except OSError:  # nobody can tell who holds it, and what they say of themselves stands
        return sorted(found, key=_order)
    return sorted((_seen(record, claim.epoch, claim.is_free) for record in found), key=_order)


def _order(record: RunRecord) -> tuple[str, int]:
    return record.started, record.run


def _seen(record: RunRecord, epoch: int, is_free: bool) -> RunRecord:
    """The record as it is to be understood: who says that it runs, and does not hold the claim, does not."""
    if record.state == "running" and (record.run < epoch or (record.run == epoch and is_free)):
        return record.model_copy(update={"state": "lost", "error": "it ended without a word"})
    return record


def newest_of(records: Sequence[RunRecord]) -> RunRecord | None:
    """The newest run among records that was none of those skipped: the one of the highest number."""
    return max((record for record in records if record.run), key=lambda record: record.run, default=None)


def trim(versions: Versions) -> None:
    """Remove the records, and logs, of more than `KEPT` runs; whoever holds the claim."""
    folder = versions.folder / "runs"
    with explain(folder, "clear"):
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
        for chosen in ([n for n in names if n[:-5].isdecimal()], [n for n in names if n.startswith("skip-")]):
            for name in chosen[:-KEPT]:
                (folder / name).unlink(missing_ok=True)
                (folder / name).with_suffix(".log").unlink(missing_ok=True)


def since(versions: Versions, created: datetime) -> datetime:
    """When a job came to be: when its YAML was written, or, where that is written again and again, was first seen.

    Args:
        versions: the dataset of the job.
        created: when the YAML that is there now was written.
    """
    try:
        noted = datetime.fromisoformat(read_whole(versions.folder / "since", MOST_BYTES).decode().strip())
    except (OSError, ValueError):
        return created
    return min(noted, created)


def note_since(versions: Versions, created: datetime) -> None:
    """Note when a job was first seen; once.

    Raises:
        OutputError: the file system refuses.
    """
    path = versions.folder / "since"
    if not path.exists():
        make_folder(versions.folder)
        with AtomicFile(path) as file:
            file.write(f"{utc(created)}\n".encode())


class Pause(Model):
    """That a job is not to run by itself, as the file ``paused`` has it."""

    since: str
    who: str
    why: str = ""


def pause(versions: Versions, who: str, why: str = "") -> None:
    """Let a job not run by itself until `resume`.

    Raises:
        OutputError: the file system refuses.
    """
    make_folder(versions.folder)
    write_json(versions.folder / "paused", Pause(since=utc(datetime.now(UTC)), who=who, why=why).to_json())


def resume(versions: Versions) -> None:
    """Let a job run by itself again.

    Raises:
        OutputError: the file system refuses.
    """
    with explain(versions.folder / "paused", "remove"):
        (versions.folder / "paused").unlink(missing_ok=True)


def paused(versions: Versions) -> Pause | None:
    """Who paused a job; None: it is not paused.

    Raises:
        OutputError: that cannot be read: whoever wrote it wanted nothing to run.
    """
    path = versions.folder / "paused"
    try:
        return Pause.model_validate_json(read_whole(path, MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot read {path}: {error}; remove it to let the job run") from error
