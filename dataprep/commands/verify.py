"""The command verify."""

from __future__ import annotations

from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, print_json


@app.command()
def verify(
    context: typer.Context,
    prefixes: Annotated[list[str], typer.Argument(metavar="PREFIX...", help="Paths without .bin and .idx.")],
    level: Annotated[str, typer.Option("--level", help="index, tokens or source: how deep to look.")] = "tokens",
    as_json: JsonOption = False,
) -> None:
    """Prove a .bin/.idx pair, by whomever written. Exit code 1 if anything is wrong.

    Example: dataprep verify data/sample-sample-1a2b3c4d/sample_text_document --level source
    """
    from dataprep import progress
    from dataprep.errors import SpecError
    from dataprep.stages.verify import LEVELS
    from dataprep.stages.verify import verify as check
    from dataprep.watcher import Progress

    if level not in LEVELS:
        raise SpecError(f"--level {level}: expected {', '.join(LEVELS)}")
    reports = []
    for prefix in prefixes:
        with progress.watch(context.obj["quiet"]) as watcher:
            size = _size(prefix)
            if level != "index":
                watcher.stage("verify", size)
            reports.append(check(prefix, level, progress=lambda n, w=watcher: w(Progress(source_bytes=n))))  # type: ignore[misc]
    if as_json:
        print_json([report.to_json() for report in reports])
    else:
        for report in reports:
            typer.echo(
                f"{'ok' if report.ok else 'BAD'}  {report.prefix}  {report.num_documents:,} documents  "
                f"{report.num_tokens:,} tokens  "
                f"{report.dtype}" + (f"  {report.num_sampled} re-encoded" if report.num_sampled else "")
            )
            for problem in report.problems:
                typer.echo(f"    {problem.severity} {problem.code}: {problem.message}")
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _size(prefix: str) -> int:
    from dataprep.indexed import bin_path
    from dataprep.layout import find_prefix

    path = bin_path(find_prefix(prefix))
    return path.stat().st_size if path.exists() else 0
