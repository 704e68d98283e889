"""Commands on corpora and outputs: plan, download, list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from dataprep.commands.app import (
    CorpusArgument,
    JsonOption,
    LimitOption,
    OfflineOption,
    OutputOption,
    SetOption,
    TokenizerOption,
    WorkersOption,
    app,
    go_offline,
    note,
    print_json,
    print_lines,
    with_workers,
)


@app.command()
def plan(
    corpus: CorpusArgument,
    tokenizer: TokenizerOption,
    output: OutputOption = Path("data"),
    workers: WorkersOption = None,
    limit: LimitOption = None,
    settings: SetOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what `run` would do: recipe, policy, files, bytes, and what it will take. Downloads nothing.

    Example: dataprep plan fineweb --tokenizer gpt2
    """
    go_offline(offline)
    from dataprep import blending, catalog, planning, tables

    mixture = catalog.find_mixture(corpus)
    if mixture is not None:
        results = blending.plan_mixture(mixture, tokenizer, output, limit, with_workers(settings, workers))
        if as_json:
            print_json(results)
        else:
            print_lines(line for result in results for line in (*tables.plan(result), ""))
        return
    result = planning.plan(corpus, tokenizer, output, workers, limit, settings or ())
    if as_json:
        print_json(result)
        return
    print_lines(tables.plan(result))


@app.command()
def download(
    context: typer.Context,
    corpus: CorpusArgument,
    output: OutputOption = Path("data"),
    settings: SetOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a corpus, for any tokenizer: resumed, checked, nothing twice. The last line on stdout is its folder.

    Example: dataprep download fineweb:sample-10BT --output /data
    """
    go_offline(offline)
    from dataprep import fetching, progress

    with progress.watch(context.obj["quiet"]) as watcher:
        listing = fetching.download(corpus, output, settings or (), watcher)
    if as_json:
        print_json(listing.to_json())
        return
    if not context.obj["quiet"]:
        size = sum(file.num_bytes for file in listing.files)
        note(f"{len(listing.files):,} files, {size:,} bytes{'' if listing.raw else ', all of them here before'}")
    typer.echo(listing.raw if listing.raw is not None else os.path.dirname(listing.files[0].path))


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="corpora, tokenizers or datasets.")] = "corpora",
    output: OutputOption = Path("data"),
    as_json: JsonOption = False,
) -> None:
    """List shipped corpora, shipped tokenizers, or the datasets in an output folder.

    Example: dataprep list datasets --output data --json
    """
    from dataprep import catalog, tables
    from dataprep.errors import SpecError

    if what == "datasets":
        from dataprep.outputs import datasets

        found: list[dict[str, Any]] = [*datasets(output), *_versions(output)]
        lines = [
            f"{d['prefix']}{_more(d)}  {d['num_documents']:,} documents  {d['num_tokens']:,} tokens  {d['created']}"
            for d in found
        ]
    elif what in ("corpora", "tokenizers"):
        found = catalog.describe(what)
        lines = list(tables.corpora(found) if what == "corpora" else tables.tokenizers(found))
    else:
        raise SpecError(f"list {what}: expected corpora, tokenizers or datasets")
    if as_json:
        print_json(found)
    else:
        print_lines(lines or [f"no {what} here"])


def _versions(output: Path) -> list[dict[str, Any]]:
    """The newest version of each versioned dataset."""
    from dataprep.prefixes import find_prefixes
    from dataprep.versions import versioned

    found = []
    for versions in versioned(output):
        version = versions.load(versions.numbers()[-1])
        folder = versions.version(version.number)
        entry = {"prefix": str(folder), "prefixes": list(map(str, find_prefixes(folder))), "version": version.number}
        keys = ("corpus", "tokenizer", "num_documents", "num_tokens", "created")
        found.append(entry | {key: getattr(version, key) for key in keys})
    return found


def _more(entry: dict[str, Any]) -> str:
    count = len(entry["prefixes"]) - 1
    return f" and {count:,} more" if count and "version" not in entry else ""
