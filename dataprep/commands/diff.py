"""The command diff."""

from __future__ import annotations

from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, print_json, print_lines


@app.command()
def diff(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="Path without .bin and .idx.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Decode with it; default: the manifests'.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say where two pairs part. Exit code 0 if they hold the same documents in the same order, 1 if not.

    All ids are compared, whatever the manifests say. The same ids in another dtype are the same.

    Example: dataprep diff data/all_text_document copy/all_text_document
    """
    from dataprep import differences, progress, tables

    with progress.watch(context.obj["quiet"]) as watcher:
        found = differences.diff(a, b, tokenizer, watcher)
    if as_json:
        print_json(found.to_json())
    else:
        print_lines(tables.difference(found.to_json()))
    if not found.same:
        raise typer.Exit(1)
