"""The commands that make pairs of others: merge, split, sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines

if TYPE_CHECKING:
    from dataprep.reshaping import Made

NewOption = Annotated[
    str, typer.Option("--output", "-o", metavar="NEW", help="The new prefix: a path without .bin and .idx.")
]
MOST_SHOWN = 20
"""New pairs of which a person is told the counts."""

PrefixArgument = Annotated[str, typer.Argument(help="Path without .bin and .idx.")]


@app.command()
def merge(
    context: typer.Context,
    prefixes: Annotated[
        list[str],
        typer.Argument(
            metavar="PREFIX...", help="Paths without .bin and .idx, in order; a folder or quoted glob: all pairs in it."
        ),
    ],
    output: NewOption,
    as_json: JsonOption = False,
) -> None:
    """Make one pair of several, one behind the other, in the order given; those of a folder or glob by name.

    What was copied is read back and compared. The last line on stdout is the new prefix.

    Example: dataprep merge 'shards/part-*' --output data/all_text_document
    """
    from dataprep import progress, reshaping

    with progress.watch(context.obj["quiet"]) as watcher:
        made = reshaping.merge(prefixes, output, watcher)
    _show([made], context.obj["quiet"], as_json, made.to_json())


@app.command()
def split(
    context: typer.Context,
    prefix: PrefixArgument,
    output: NewOption,
    documents: Annotated[int | None, typer.Option("--documents", help="So many in each part.")] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="At most so many in each part; a document that has more is alone.")
    ] = None,
    fractions: Annotated[
        str | None, typer.Option("--fractions", metavar="F,F,...", help="Of the tokens, one for each part; as 0.9,0.1.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make several pairs of one, NEW-00000, NEW-00001 and so on: consecutive documents, and none is cut.

    What was copied is read back and compared. The last lines on stdout are the new prefixes.

    Example: dataprep split data/all_text_document --output data/part --fractions 0.99,0.01
    """
    from dataprep import progress, reshaping

    with progress.watch(context.obj["quiet"]) as watcher:
        made = reshaping.split(prefix, output, documents, tokens, fractions, watcher)
    _show(made, context.obj["quiet"], as_json, [each.to_json() for each in made])


@app.command()
def sample(
    context: typer.Context,
    prefix: PrefixArgument,
    output: NewOption,
    documents: Annotated[int, typer.Option("--documents", help="How many.")],
    seed: Annotated[int, typer.Option("--seed", help="Another one draws others.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a pair of documents of another, drawn at random, in its order. The last line on stdout is the new prefix.

    Example: dataprep sample data/all_text_document --output data/few --documents 1000 --seed 1
    """
    from dataprep import progress, reshaping

    with progress.watch(context.obj["quiet"]) as watcher:
        made = reshaping.sample(prefix, output, documents, seed, watcher)
    _show([made], context.obj["quiet"], as_json, made.to_json())


def _show(made: list[Made], quiet: bool, as_json: bool, value: object) -> None:
    if as_json:
        print_json(value)
        return
    if not quiet:
        for each in made[:MOST_SHOWN]:
            (entry,) = each.manifest.prefixes
            note(f"{entry.name}: {entry.num_documents:,} documents, {entry.num_tokens:,} tokens ({entry.dtype})")
        if made[MOST_SHOWN:]:
            note(f"... and {len(made) - MOST_SHOWN:,} more")
    print_lines(each.prefix for each in made)
