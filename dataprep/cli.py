"""The command line: parse, call, print; nothing else.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 the work or the check failed,
2 a bad request, 130 interrupted. Everything heavy is imported inside the command that needs it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dataprep import tables
from dataprep.errors import DataprepError

if TYPE_CHECKING:
    from collections.abc import Iterable

UsageProblem: type[BaseException] = typer.BadParameter.__mro__[2]
"""Click's ClickException, which typer carries under a private name."""

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


@app.command()
def run(
    context: typer.Context,
    corpus: CorpusArgument,
    tokenizer: TokenizerOption,
    output: OutputOption = Path("data"),
    workers: WorkersOption = None,
    limit: LimitOption = None,
    settings: SetOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a dataset: list, download, tokenize, merge, verify, publish. The last line on stdout is its prefix.

    Interrupted or failed, the same command goes on where it was. Done already, it says so. Of a mixture, every corpus
    is made a dataset, and the last line is the file that blends them (Megatron's --data-args-path).

    Example: dataprep run fineweb --tokenizer meta-llama/Llama-3.1-8B --output /data
    Example: dataprep run 'dump/*.jsonl.zst' --tokenizer gpt2 --set reader.text=content
    """
    _go_offline(offline)
    from dataprep import blending, catalog, planning, progress, runner

    mixture = catalog.find_mixture(corpus)
    if mixture is not None:
        with progress.watch(context.obj["quiet"]) as watcher:
            blend = blending.run_mixture(mixture, tokenizer, output, limit, _with_workers(settings, workers), watcher)
        if as_json:
            _print_json(blend.to_json())
        else:
            _note("" if context.obj["quiet"] else "\n".join(tables.blend(blend.to_json())))
            typer.echo(blend.data_args)
        return
    request = planning.resolve(corpus, tokenizer, output, workers, limit, settings or ())
    with progress.watch(context.obj["quiet"]) as watcher:
        result = runner.execute(request, watcher)
    manifest = result.manifest
    if as_json:
        _print_json({"prefix": result.prefix, "fresh": result.fresh, "manifest": manifest.to_json()})
        return
    if not context.obj["quiet"]:
        _note("" if result.fresh else "nothing to do: this dataset exists and its sources are unchanged")
        _note(*progress.summary(result))
    typer.echo(result.prefix)


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
    _go_offline(offline)
    from dataprep import blending, catalog, planning

    mixture = catalog.find_mixture(corpus)
    if mixture is not None:
        results = blending.plan_mixture(mixture, tokenizer, output, limit, _with_workers(settings, workers))
        if as_json:
            _print_json(results)
        else:
            _print_lines(line for result in results for line in (*tables.plan(result), ""))
        return
    result = planning.plan(corpus, tokenizer, output, workers, limit, settings or ())
    if as_json:
        _print_json(result)
        return
    _print_lines(tables.plan(result))


def _with_workers(settings: list[str] | None, workers: int | None) -> list[str]:
    return [*(settings or ()), *([f"runtime.workers={workers}"] if workers is not None else [])]


def _go_offline(offline: bool) -> None:
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client, which reads it once


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
    _go_offline(offline)
    from dataprep import fetching, progress

    with progress.watch(context.obj["quiet"]) as watcher:
        listing = fetching.download(corpus, output, settings or (), watcher)
    if as_json:
        _print_json(listing.to_json())
        return
    if not context.obj["quiet"]:
        size = sum(file.num_bytes for file in listing.files)
        _note(f"{len(listing.files):,} files, {size:,} bytes{'' if listing.raw else ', all of them here before'}")
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
    from dataprep import catalog
    from dataprep.errors import SpecError

    if what == "datasets":
        from dataprep.inspection import datasets

        found: list[dict[str, Any]] = datasets(output)
        lines = [
            f"{d['prefix']}  {d['num_documents']:,} documents  {d['num_tokens']:,} tokens  {d['created']}"
            for d in found
        ]
    elif what in ("corpora", "tokenizers"):
        found = catalog.describe(what)
        lines = list(tables.corpora(found) if what == "corpora" else tables.tokenizers(found))
    else:
        raise SpecError(f"list {what}: expected corpora, tokenizers or datasets")
    if as_json:
        _print_json(found)
    else:
        _print_lines(lines or [f"no {what} here"])


@app.command()
def status(
    output: Annotated[Path, typer.Argument(help="Output folder.")] = Path("data"), as_json: JsonOption = False
) -> None:
    """Show the runs in an output folder: done, running, stopped. Reads files only; safe beside a run.

    Example: dataprep status data
    """
    from dataprep.errors import SpecError
    from dataprep.inspection import status as read_status

    if not output.is_dir():
        raise SpecError(f"no such folder: {output}; name the --output of a run")
    found = read_status(output)
    if as_json:
        _print_json(found)
        return
    lines = list(tables.status(found))
    _print_lines(lines or [f"no runs in {output}"])


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
        _print_json([report.to_json() for report in reports])
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
            _print_json(value)
        else:
            source = value.get("source")
            place = (
                f"  {source['file']} record {source['first_row'] + 1}"
                if source and source["first_row"] == source["last_row"]
                else ""
            )
            _note(f"document {document}: {value['num_tokens']:,} tokens{place}")
            typer.echo(value["text"])
        return
    value = inspection.inspect(prefix)
    if as_json:
        _print_json(value)
        return
    _print_lines(tables.inspection(value))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _note(*lines: str) -> None:
    for line in lines:
        if line:
            typer.echo(line, err=True)


def main() -> NoReturn:
    """Run the command line and end the process; the only place that turns an exception into text."""
    import signal

    # Start-up is half a second in which nothing else can run: no BLAS threads (0.07 s of processor time, and nothing
    # here multiplies matrices), and no looking for cycles among the hundred thousand objects of a vocabulary.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000)

    debug = "--debug" in sys.argv
    try:
        code = app(standalone_mode=False) or 0
    except DataprepError as error:
        if debug:
            raise
        _note(f"error: {error}")
        code = error.exit_code
    except UsageProblem as error:
        error.show()  # type: ignore[attr-defined]
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if debug:
            raise
        what = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        _note(f"error: {what}{error}; the same command with --debug shows where")
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late to stop anything
    if code == 130:  # Typer turns a KeyboardInterrupt into this, without a word
        _note("interrupted; run the same command again to go on: finished units are kept")
    try:
        sys.stdout.flush()
    except OSError as error:
        _note(f"error: cannot write the result: {error.strerror}")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the interpreter's own end takes 0.25 s more: it frees the engines word by word
