"""The command status."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, print_json, print_lines

WATCH_SECONDS = 2.0
"""How often ``--watch`` looks."""


@app.command()
def status(
    output: Annotated[Path, typer.Argument(help="Output folder.")] = Path("data"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again until no run goes on; exit code 1 if one was not published.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the runs in an output folder: done, running, stopped, and how they get on. Reads files only, on any node.

    With --watch, the runs that go on are followed to their end, or all there are if none does.

    Example: dataprep status data
    Example: dataprep status /shared/data --watch
    """
    from dataprep import tables
    from dataprep.errors import SpecError
    from dataprep.outputs import status as read_status

    if not output.is_dir():
        raise SpecError(f"no such folder: {output}; name the --output of a run")
    found, followed, shown = read_status(output), set[str](), list[str]()
    while watch and (going := {entry["work"] for entry in found if entry["state"] == "running"}):
        followed |= going
        if not as_json:
            shown = _show(list(tables.status(found)), shown)
        time.sleep(WATCH_SECONDS)
        found = read_status(output)
    if as_json:
        print_json(found)
    else:
        _show(list(tables.status(found)) or [f"no runs in {output}"], shown)
    ends = [entry["state"] for entry in found if not followed or entry["work"] in followed]
    if watch and (not ends or set(ends) != {"published"}):
        raise typer.Exit(1)


def _show(lines: list[str], before: list[str]) -> list[str]:
    """Print lines if they are others than before; on a terminal, in their place."""
    if lines != before:
        if before and sys.stdout.isatty():
            from shutil import get_terminal_size

            width = get_terminal_size().columns
            rows = sum(max(1, -(-len(line) // width)) for line in before)
            typer.echo(f"\x1b[{rows}F\x1b[J", nl=False)
        print_lines(lines)
    return lines
