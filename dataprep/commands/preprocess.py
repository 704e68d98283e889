"""The command preprocess."""

from __future__ import annotations

import typer

from dataprep.commands.app import app, note, print_json


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def preprocess(context: typer.Context) -> None:
    """Take the flags of Megatron's tools/preprocess_data.py, and write its bytes. The last lines are the prefixes.

    Example: dataprep preprocess --input corpus.jsonl --output-prefix my-gpt2 --tokenizer-type GPT2BPETokenizer
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --append-eod --workers 8
    """
    from dataprep.compat import flags

    if {"--help", "-h"} & set(context.args):
        typer.echo(flags.parser().format_help())
        return
    asked = flags.parse(context.args)
    from dataprep import progress
    from dataprep.compat.preprocess import preprocess as make

    if not context.obj["quiet"]:
        note(*asked.notes)
    with progress.watch(context.obj["quiet"]) as watcher:
        made = make(asked, watcher)
    if asked.as_json:
        print_json([{"prefix": str(m.prefix), "fresh": m.fresh, "manifest": m.manifest.to_json()} for m in made])
        return
    for pair in made:
        if not context.obj["quiet"] and not pair.fresh:
            note(f"{pair.prefix}: nothing to do: this pair exists and its sources are unchanged")
        typer.echo(pair.prefix)
