"""What lies in an output folder: published datasets, and runs that are done, running or stopped.

Reads files only; safe beside a run.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.claims import Claim, look
from dataprep.errors import FormatError
from dataprep.layout import Layout
from dataprep.manifest import load_manifest
from dataprep.meters import RunState
from dataprep.storage import MARK, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator


def datasets(output: Path) -> list[dict[str, Any]]:
    """The published datasets below an output folder, oldest first."""
    found = []
    for path in sorted(Path(os.path.abspath(output)).glob("*/manifest.json")):
        if MARK in path.parent.name or path.parent.is_symlink():
            continue
        try:
            manifest = load_manifest(path)
        except FormatError:
            continue  # another tool's manifest.json
        found.append(
            {
                "prefix": str(path.parent / manifest.prefixes[0].name),
                "prefixes": [str(path.parent / prefix.name) for prefix in manifest.prefixes],
                "corpus": manifest.recipe.corpus,
                "tokenizer": manifest.recipe.tokenizer.name,
                "recipe_digest": manifest.recipe_digest,
                "num_documents": manifest.counts.num_documents,
                "num_tokens": manifest.counts.num_tokens,
                "created": manifest.created,
            }
        )
    return sorted(found, key=lambda entry: str(entry["created"]))


def status(output: Path) -> list[dict[str, Any]]:
    """The runs below an output folder: what is done, running, stopped; from files alone."""
    return [run_status(folder) for folder in runs(output)]


def unlock(output: Path) -> list[dict[str, Any]]:
    """Take the claims of all runs, and of versioned datasets, below an output folder from whoever holds them.

    Removes nothing.

    Returns:
        Each of them: ``work``, its folder, ``holder``, who had it, and ``is_alive``: whether that is a process of this
        machine that lives. It finds out by itself, and stops.

    Raises:
        OutputError: the file system refuses.
    """
    taken = []
    root = Path(os.path.abspath(output))
    for folder in sorted([*root.glob("work/*/claim"), *root.glob("*/claim")]):
        claim = look(folder)
        if not claim.is_free:
            with Claim(folder, wait=True, ttl_seconds=0):
                taken.append({"work": str(folder.parent), "holder": claim.who, "is_alive": claim.is_near})
    return taken


def runs(output: Path) -> Iterator[Path]:
    """The work folders of the runs below an output folder."""
    work = Path(os.path.abspath(output)) / "work"
    if work.is_dir():
        for path in sorted(work.iterdir()):
            if os.path.exists(path / "recipe.json") or (path.is_dir() and not os.access(path, os.X_OK)):
                yield path


def run_status(work: Path) -> dict[str, Any]:
    """How one run stands: an entry of `status`."""
    try:
        return _read_run(work)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {"work": str(work), "state": "unreadable", "detail": f"{type(error).__name__}: {error}"}


def _read_run(work: Path) -> dict[str, Any]:
    recipe = json.loads(read_whole(work / "recipe.json"))
    plan, units = _plan(work / "plan.jsonl")
    fetched = [file for file in recipe["files"] if file.get("url")]
    home = plan.get("home", "")
    layout = Layout.of(work.parent.parent, recipe["corpus"], recipe["tokenizer"]["name"], plan["digest"], home)
    claim = look(layout.claim)  # before all that its holder may still change
    published = layout.manifest.exists()
    events = [line for path in layout.all_events() for line in read_whole(path).decode().splitlines()]
    progress = _progress(layout, published)
    last = _last_event(events)
    state = "failed" if last.get("event") == "failed" else "stopped"
    if not claim.is_free:
        state = "running" if claim.is_near else "claimed"
    state = "published" if published else state
    return {
        "work": str(work),
        "corpus": recipe["corpus"],
        "tokenizer": recipe["tokenizer"]["name"],
        "recipe_digest": plan["digest"],
        "state": state,
        "units_done": units if published else min(units, _units_done(events, progress)),
        "units": units,
        "files_here": sum(1 for file in fetched if published or os.path.exists(file["path"])),
        "files_to_fetch": len(fetched),
        "holder": None if claim.is_free else claim.who,
        "last_event": last,
        "progress": progress.to_json() if progress is not None else None,
        "prefix": str(layout.first_prefix) if published else None,
    }


def _plan(path: Path) -> tuple[dict[str, Any], int]:
    """The head of a ``plan.jsonl``, and how many units there are in it so far."""
    head, *lines = read_whole(path).decode().splitlines()
    units = 0
    for line in lines:
        with contextlib.suppress(ValueError):  # cut off by a crash
            units += len(json.loads(line)["units"])
    return json.loads(head), units


def _progress(layout: Layout, published: bool) -> RunState | None:
    """What the driver wrote last, where it is of use.

    None: there is none; it is damaged, or of another version; the dataset was published behind it; or the dataset that
    it tells of is not there any more.
    """
    try:
        state = RunState.model_validate_json(read_whole(layout.progress))
    except (OSError, ValueError):
        return None
    return state if published == (state.state == "published") else None


def _units_done(events: list[str], progress: RunState | None) -> int:
    """How many units are done, as the driver noted it; one that ended in its last moments is found by the next run.

    Not counted in the folder of shards: what is merged has none there any more.
    """
    done, known = 0, False
    for line in events:
        if line.startswith('{"event": "unit"'):  # a hundred thousand of them are not worth parsing
            done += 1
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if event["event"] == "resume":
                done, known = int(event["done"]), True
            elif event["event"] == "published":
                done = 0  # and if it is not there any more, nothing of it is
    return done if known or progress is None else max(done, progress.units_done)


def _last_event(lines: list[str]) -> dict[str, Any]:
    for line in reversed(lines):
        try:
            value: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a line cut off by a crash
        if isinstance(value, dict):
            return value
    return {}
