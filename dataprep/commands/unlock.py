"""The command unlock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines


@app.command()
def unlock(
    context: typer.Context,
    output: Annotated[Path, typer.Argument(help="Output folder.")] = Path("data"),
    as_json: JsonOption = False,
) -> None:
    """Take an output folder from runs that hold it, where you know that they are dead: the next one need not wait.

    For a run that died on another machine: of this one it is known at once. Removes nothing; a run that lives after all
    notices, and stops. The lines on stdout say who held what.

    Example: dataprep unlock /shared/data
    """
    from dataprep.errors import SpecError
    from dataprep.outputs import unlock as take

    if not output.is_dir():
        raise SpecError(f"no such folder: {output}; name the --output of a run")
    taken = take(output)
    if as_json:
        print_json(taken)
        return
    print_lines(f"{entry['work']}  was held by {entry['holder']}" for entry in taken)
    for entry in taken:
        note(f"{entry['holder']} is alive, and stops as soon as it notices" if entry["is_alive"] else "")
    note("" if taken or context.obj["quiet"] else f"nothing to do: no run holds anything in {output}")
