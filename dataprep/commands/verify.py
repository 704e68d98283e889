"""The command verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, print_json, print_lines


def _print_schema(wanted: bool) -> None:
    if wanted:
        path = Path(__file__).parents[1] / "checks" / "report.schema.json"
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
        raise typer.Exit


@app.command()
def verify(
    context: typer.Context,
    prefixes: Annotated[
        list[str],
        typer.Argument(metavar="PREFIX...", help="Paths without .bin and .idx; a folder: all pairs or datasets in it."),
    ],
    level: Annotated[str, typer.Option("--level", help="index, tokens or source: how deep to look.")] = "tokens",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="The training's: its vocabulary, EOD and special tokens.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, help="The true one, without Megatron's padding.")
    ] = None,
    eod: Annotated[int | None, typer.Option("--eod", min=0, help="The id that has to end every document.")] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Megatron's, such as 969,30,1: no part of it may be empty.")
    ] = None,
    seq_length: Annotated[
        int | None,
        typer.Option("--seq-length", min=1, help="Megatron's; no part of the split may hold less than that."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Megatron's --data-cache-path: no index in it may be stale.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, help="Pairs at once. Default: by the processors.")
    ] = None,
    as_json: JsonOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", callback=_print_schema, is_eager=True, help="Print the JSON schema of a report.")
    ] = False,
) -> None:
    """Prove .bin/.idx pairs, by whomever written, before a training is started on them.

    Exit codes: 0 all are sound, warnings do not count; 1 something is wrong; 2 a bad request.

    Example: dataprep verify data/sample-sample-1a2b3c4d/sample_text_document --split 969,30,1 --seq-length 4096
    """
    from dataprep import progress, tables
    from dataprep.checks.report import LEVELS, Expected
    from dataprep.errors import SpecError
    from dataprep.prefixes import find_prefixes
    from dataprep.stages.verify import num_bytes, verify_all, with_tokenizer
    from dataprep.watcher import Progress

    wanted = next((known for known in LEVELS if known == level), None)
    if wanted is None:
        raise SpecError(f"--level {level}: expected {', '.join(LEVELS)}")
    paths = list(dict.fromkeys(path for prefix in prefixes for path in find_prefixes(prefix, below=True)))
    expect = Expected(vocab_size=vocab_size, eod_id=eod, split=split, seq_length=seq_length, cache=cache)
    if tokenizer is not None:
        expect = with_tokenizer(expect, tokenizer)
    with progress.watch(context.obj["quiet"]) as watcher:
        watcher.stage("verify", sum(num_bytes(path, wanted) for path in paths))
        reports = verify_all(paths, wanted, expect, workers, lambda count: watcher(Progress(source_bytes=count)))
    values = [report.to_json() for report in reports]
    if as_json:
        print_json(values)
    else:
        print_lines(line for value in values for line in tables.report(value))
    if not all(report.ok for report in reports):
        raise typer.Exit(1)
