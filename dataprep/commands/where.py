"""The command where."""

from __future__ import annotations

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines
from dataprep.commands.inspect import (
    DocumentOption,
    NumSamplesOption,
    PartOption,
    PrefixArgument,
    SampleOption,
    SeedOption,
    SeqLengthOption,
    SplitOption,
    chosen,
)


@app.command()
def where(
    context: typer.Context,
    prefix: PrefixArgument,
    document: DocumentOption = None,
    sample: SampleOption = None,
    seq_length: SeqLengthOption = None,
    seed: SeedOption = None,
    split: SplitOption = None,
    part: PartOption = None,
    num_samples: NumSamplesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the source file and record of a document, or of every document in a sample that Megatron trains on.

    Exit code 0 if all of them are known, 1 if one is not.

    Example: dataprep where data/sample-sample-1a2b3c4d/sample_text_document --document 3

    Example: dataprep where data/sample-sample-1a2b3c4d/sample_text_document --sample 17 --seq-length 4096
    """
    sampling = chosen(document, sample, seq_length, seed, split, part, num_samples)
    from dataprep import progress, views
    from dataprep.inspection import excerpts

    with progress.watch(context.obj["quiet"]) as watcher:
        value = excerpts.where(prefix, document, sample, sampling, watcher)
    if as_json:
        print_json(value)
    else:
        note(views.drawn(value) if "sampling" in value else "")
        print_lines(views.where(value))
    if any(entry["source"] is None for entry in value["documents"]):
        raise typer.Exit(1)
