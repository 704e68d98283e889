"""The command repair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines


@app.command()
def repair(
    context: typer.Context,
    prefix: Annotated[str, typer.Argument(help="Path without .bin and .idx.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="NEW", help="The new prefix; it must not exist.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="DIR",
            help="Instead: delete the pair's stale Megatron index caches, there and beside it.",
        ),
    ] = None,
    eod: Annotated[
        int | None, typer.Option("--eod", metavar="ID", help="The id that ends documents, where only it can tell.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Takes EOD and vocabulary from it; default: the manifest's.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="uint16 or int32: of the new pair. Without an index, also what the .bin holds."),
    ] = None,
    documents: Annotated[bool, typer.Option("--documents", help="Join the sentences of each document.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Mend a .bin/.idx pair without its source, in a new pair. The last lines on stdout are the prefixes to train on.

    Finds out by itself what is wrong: pointers, lengths, boundaries, counts, dtype, EODs that were not counted,
    trailing bytes, a lost index. Every repair is proven by what the two files hold; what cannot be proven is refused,
    and then nothing is written. The input is never changed. Exit code 0 if nothing is wrong, too.

    Example: dataprep repair broken_text_document --output fixed_text_document
    """
    from dataprep import progress
    from dataprep.errors import SpecError
    from dataprep.repairs import Wanted
    from dataprep.repairs import repair as mend

    if dtype not in (None, "uint16", "int32"):
        raise SpecError(f"--dtype {dtype}: expected uint16 or int32")
    if cache is not None or output is None:
        if output is not None or cache is None:
            raise SpecError("give --output NEW to mend the pair, or --cache DIR to delete its stale index caches")
        _clear(context, prefix, cache, dry_run, as_json)
        return
    wanted = Wanted(eod, tokenizer, cast("Literal['uint16', 'int32'] | None", dtype), documents)
    with progress.watch(context.obj["quiet"]) as watcher:
        result = mend(prefix, output, wanted, dry_run, watcher)
    for warning in result.warnings:
        note(f"warning: {warning}")
    if as_json:
        print_json(result.to_json())
        return
    changes = [f"{change.code}: {change.text}" for change in result.changes]
    if not changes:
        sound = "has no error; see the warnings" if result.warnings else "is sound"
        note(*([] if context.obj["quiet"] else [f"nothing to repair: {result.prefix} {sound}"]))
    if dry_run:
        print_lines(changes)
        return
    note(*([] if context.obj["quiet"] else changes))
    print_lines(result.prefixes)


def _clear(context: typer.Context, prefix: str, cache: Path, dry_run: bool, as_json: bool) -> None:
    from dataprep.repairs import clear_caches

    changes = clear_caches(prefix, cache, dry_run)
    if as_json:
        print_json({"prefix": prefix, "changes": [change.to_json() for change in changes], "is_written": not dry_run})
        return
    if not changes and not context.obj["quiet"]:
        note(f"nothing to delete: no index cache of {prefix} is stale or damaged")
    print_lines(f"{change.code}: {change.text}" for change in changes)
