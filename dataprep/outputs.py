"""What lies in an output folder: published datasets, and runs that are done, running or stopped.

Reads files only; safe beside a run.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import journal
from dataprep.errors import FormatError
from dataprep.layout import Layout
from dataprep.manifest import load_manifest
from dataprep.storage import MARK, holder

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
    return [_run_status(folder) for folder in _runs(output)]


def _runs(output: Path) -> Iterator[Path]:
    work = Path(os.path.abspath(output)) / "work"
    if work.is_dir():
        yield from sorted(path for path in work.iterdir() if (path / "recipe.json").exists())


def _run_status(work: Path) -> dict[str, Any]:
    try:
        recipe = json.loads((work / "recipe.json").read_text(encoding="utf-8"))
        plan, units = _plan(work / "plan.jsonl")
        fetched = [file for file in recipe["files"] if file.get("url")]
        events = (
            (work / "events.jsonl").read_text(encoding="utf-8").splitlines() if (work / "events.jsonl").exists() else []
        )
        layout = Layout.of(work.parent.parent, recipe["corpus"], recipe["tokenizer"]["name"], plan["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"work": str(work), "state": "unreadable", "detail": f"{type(error).__name__}: {error}"}
    last = _last_event(events)
    done = set(journal.units(layout.receipts))
    with contextlib.suppress(FileNotFoundError):
        done.update(key for key, _, end in (name.partition(".") for name in os.listdir(layout.shards)) if end == "json")
    published = layout.manifest.exists()
    held_by = holder(layout.lock)
    state = "failed" if last.get("event") == "failed" else "stopped"
    state = "published" if published else "running" if held_by else state
    return {
        "work": str(work),
        "corpus": recipe["corpus"],
        "tokenizer": recipe["tokenizer"]["name"],
        "recipe_digest": plan["digest"],
        "state": state,
        "units_done": units if published else len(done),
        "units": units,
        "files_here": sum(1 for file in fetched if published or os.path.exists(file["path"])),
        "files_to_fetch": len(fetched),
        "holder": held_by,
        "last_event": last,
        "prefix": str(layout.prefix) if published else None,
    }


def _plan(path: Path) -> tuple[dict[str, Any], int]:
    """The head of a ``plan.jsonl``, and how many units there are in it so far."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    units = 0
    for line in lines:
        with contextlib.suppress(ValueError):  # cut off by a crash
            units += len(json.loads(line)["units"])
    return json.loads(head), units


def _last_event(lines: list[str]) -> dict[str, Any]:
    for line in reversed(lines):
        try:
            value: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a line cut off by a crash
        return value
    return {}
