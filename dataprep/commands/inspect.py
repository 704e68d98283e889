"""The command inspect."""

from __future__ import annotations

from typing import Annotated

import typer

from dataprep import tables
from dataprep.commands.app import JsonOption, app, note, print_json, print_lines


@app.command()
def inspect(
    prefix: Annotated[str, typer.Argument(help="Path without .bin and .idx.")],
    document: Annotated[
        int | None, typer.Option("--document", "-d", help="Show this document, counted from 0.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Decode with it; default: the manifest's.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look inside a dataset: counts, length quantiles, or one document decoded.

    Example: dataprep inspect data/sample-sample-1a2b3c4d/sample_text_document --document 3
    """
    from dataprep import inspection

    if document is not None:
        value = inspection.document(prefix, document, tokenizer)
        if as_json:
            print_json(value)
        else:
            source = value.get("source")
            place = (
                f"  {source['file']} record {source['first_row'] + 1}"
                if source and source["first_row"] == source["last_row"]
                else ""
            )
            note(f"document {document}: {value['num_tokens']:,} tokens{place}")
            typer.echo(value["text"])
        return
    value = inspection.inspect(prefix)
    if as_json:
        print_json(value)
        return
    print_lines(tables.inspection(value))
