"""The command doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines


@app.command()
def doctor(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder that runs are to write to.")] = Path("data"),
    peers: Annotated[
        int | None,
        typer.Option("--peers", min=2, max=64, help="Meet this many processes, started by hand, on several machines."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Examine a folder: what its file system can do, and whether several processes in it agree on who holds a claim.

    Exit code 1 if something does not hold that a run needs. For a file system that several machines share, start the
    same command with --peers on each of them, within two minutes.

    Example: dataprep doctor /shared/data

    Example: srun --nodes 2 --ntasks-per-node 1 dataprep doctor /shared/data --peers 2
    """
    from dataprep import tables
    from dataprep.doctor import examine

    found = examine(folder, peers, lambda name: note("" if context.obj["quiet"] else f"{name} ..."))
    if as_json:
        print_json(found)
    else:
        print_lines(tables.examination(found))
    if not found["ok"]:
        raise typer.Exit(1)
