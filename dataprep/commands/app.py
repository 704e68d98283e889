"""The application that all commands join, their common options, and how they print."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

app = typer.Typer(
    name="dataprep",
    help="Text corpora in, training-ready Megatron token files out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

CorpusArgument = Annotated[
    list[str], typer.Argument(metavar="CORPUS...", help="A shipped name, a YAML, or paths and quoted globs of files.")
]
TokenizerOption = Annotated[
    str, typer.Option("--tokenizer", "-t", help="A shipped name, a folder, a file, a YAML, or org/name on the hub.")
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for the dataset and the work in progress.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", "-w", help="Units at once. Default: all processors.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="At most this many documents: a first look.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, e.g. reader.text=content or runtime.engine=reference."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="WHERE",
        help="local, slurm, slurm-elastic, kubernetes, tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, or a YAML.",
    ),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Never use the network; make do with what was fetched before.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        import dataprep

        typer.echo(dataprep.__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, and only warnings.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    context.obj = {"debug": debug, "quiet": quiet}
    logger = logging.getLogger("dataprep")
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
    for name in () if debug else ("botocore", "fsspec", "gcsfs", "s3fs"):
        logging.getLogger(name).addHandler(logging.NullHandler())  # what they say of an error, our message says


def with_workers(settings: list[str] | None, workers: int | None) -> list[str]:
    """The settings, and ``--workers`` as one of them."""
    return [*(settings or ()), *([f"runtime.workers={workers}"] if workers is not None else [])]


def go_offline(offline: bool) -> None:
    """Never use the network, if that is asked for."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client, which reads it once


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


def print_lines(lines: Iterable[str]) -> None:
    """Lines on stdout: a result, as it is."""
    for line in lines:
        typer.echo(line, color=True)  # else what looks like a colour is cut out of a text that is piped


def note(*lines: str) -> None:
    """Lines on stderr: what is not the result."""
    for line in lines:
        if line:
            typer.echo(line, err=True)
