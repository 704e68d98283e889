"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines


@app.command()
def export(
    context: typer.Context,
    prefixes: Annotated[
        list[str],
        typer.Argument(
            metavar="PREFIX...", help="Paths without .bin and .idx; a folder or quoted glob: all pairs in it."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The new folder.")],
    file_format: Annotated[str, typer.Option("--format", help="jsonl, or parquet.")] = "jsonl",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Decode with it; default: the manifest's.")
    ] = None,
    files: Annotated[
        int | None,
        typer.Option("--files", help="Of each prefix, of about as many tokens. Default: one per 100 million."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the documents of pairs as text, for trainers that read text: one column, text, a row for each document.

    BOS and EOD are left out. The last line on stdout is the new folder.

    Example: dataprep export data/sample-sample-1a2b3c4d/sample_text_document --output text --format parquet
    """
    from dataprep import exporting, progress

    with progress.watch(context.obj["quiet"]) as watcher:
        result = exporting.export(prefixes, output, file_format, tokenizer, files, watcher)
    if as_json:
        print_json(result.to_json())
        return
    if not context.obj["quiet"]:
        same = result.num_audited - result.num_different
        note(
            f"{result.num_documents:,} documents, {result.num_tokens:,} tokens, {result.num_text_bytes / 1e6:,.1f} MB "
            f"of text in {len(result.files):,} files; {same:,} of {result.num_audited:,} encoded again: equal"
        )
    print_lines([result.folder])
