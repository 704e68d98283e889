"""The command `run`: here, or handed to a scheduler of jobs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep.commands.app import (
    ClusterOption,
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
    with_workers,
)
from dataprep.errors import BusyError, SpecError, TimeIsUp

if TYPE_CHECKING:
    from dataprep.specs import Mixture
    from dataprep.submission import Order


@app.command()
def run(
    context: typer.Context,
    corpus: CorpusArgument,
    tokenizer: TokenizerOption,
    output: OutputOption = Path("data"),
    workers: WorkersOption = None,
    limit: LimitOption = None,
    settings: SetOption = None,
    cluster: ClusterOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job's script or manifests; do nothing.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Submit the job, print its number, and leave.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Where another run makes this dataset, wait until it ends.")
    ] = False,
    if_free: Annotated[
        bool, typer.Option("--if-free", help="Where another run makes this dataset, leave it alone and exit with 0.")
    ] = False,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a dataset: list, download, tokenize, merge, verify, publish. The last line on stdout is its prefix.

    Interrupted or failed, the same command goes on where it was. Done already, it says so. Of a mixture, every corpus
    is made a dataset, and the last line is the file that blends them (Megatron's --data-args-path); so it is where a
    dataset has several prefixes.

    Example: dataprep run fineweb --tokenizer meta-llama/Llama-3.1-8B --output /data

    Example: dataprep run 'dump/*.jsonl.zst' --tokenizer gpt2 --set reader.text=content

    Example: dataprep run fineweb --tokenizer gpt2 --output /shared/data --cluster slurm --set cluster.nodes=8

    Example: dataprep run fineweb --tokenizer gpt2 --output /shared/data --if-free
    """
    if wait and if_free:
        raise SpecError("--wait and --if-free say the opposite of each other; give one of them")
    go_offline(offline)
    from dataprep import catalog, submission
    from dataprep.specs import cluster_settings

    given = [*cluster_settings(cluster), *with_workers(settings, workers)]
    order = submission.Order(corpus, tokenizer, output, limit, given, offline, wait, if_free)
    quiet = bool(context.obj["quiet"])
    printed = submission.is_printed(order.cluster)
    if detach and not submission.is_handed_over(order.cluster):
        raise SpecError("--detach leaves a job that was submitted: it needs --cluster slurm, outside of an allocation")
    mixture = None if printed else catalog.find_mixture(corpus)
    if printed or dry_run:
        if not printed:
            submission.check(order, mixture)
        typer.echo(submission.render(order), nl=False)
    elif submission.is_handed_over(order.cluster) and not submission.check(order, mixture):
        _hand_over(quiet, order, mixture, as_json, detach)
    else:
        _work(quiet, order, mixture, as_json)


def _work(quiet: bool, order: Order, mixture: Mixture | None, as_json: bool) -> None:
    """Do it here, in a job that may be queued again, or leave it to who does it already."""
    from dataprep import submission

    try:
        _run(quiet, order, mixture, as_json)
    except TimeIsUp as error:
        if not submission.queue_again(order.cluster):
            raise
        note("the job's time is up; it is queued again, to go on: what is finished is kept")
        raise typer.Exit(128 + signal.SIGTERM) from error
    except BusyError as error:
        if not order.if_free:
            raise
        note("" if quiet else f"left alone: {error}")
        if as_json:
            print_json({"prefix": None, "busy": str(error)})


def _hand_over(quiet: bool, order: Order, mixture: Mixture | None, as_json: bool, detach: bool) -> None:
    """Submit the job, follow it unless it is to be left alone, and print what came of it."""
    from dataprep import submission

    job = submission.submit(order)
    note("" if quiet else f"job {job.number} is submitted, its output goes to {job.log}")
    if detach:
        if as_json:
            print_json({"job": job.number, "log": str(job.log)})
        else:
            typer.echo(job.number)
        return
    try:
        job.follow(_hide if quiet else _show)
    except KeyboardInterrupt:
        note(f"job {job.number} goes on without this command; to end it: scancel {job.number}")
        raise
    if order.if_free and not submission.check(order, mixture):
        note("" if quiet else "the job left the work to another run, as its output says")
        return
    submission.wait_until_seen(order, mixture)
    _run(True, order.here, mixture, as_json)  # the job has said the rest


def _show(text: str) -> None:
    typer.echo(text, err=True, nl=False)


def _hide(text: str) -> None:
    pass


def _run(quiet: bool, order: Order, mixture: Mixture | None, as_json: bool) -> None:
    """Do it here, or find it done."""
    from dataprep import blending, planning, progress, runner, tables

    if mixture is not None:
        with progress.watch(quiet) as watcher:
            blend = blending.run_mixture(
                mixture, order.tokenizer, order.output, order.limit, order.settings, watcher, order.wait
            )
        if as_json:
            print_json(blend.to_json())
        else:
            note("" if quiet else "\n".join(tables.blend(blend.to_json())))
            typer.echo(blend.data_args)
        return
    request = planning.resolve(order.corpus, order.tokenizer, order.output, None, order.limit, order.settings)
    with progress.watch(quiet) as watcher:
        result = runner.execute(request, watcher, order.wait)
    manifest = result.manifest
    if as_json:
        beside = {"prefixes": result.prefixes, "data_args": result.data_args}
        print_json({"prefix": result.prefix, **beside, "fresh": result.fresh, "manifest": manifest.to_json()})
        return
    if not quiet:
        note("" if result.fresh else "nothing to do: this dataset exists and its sources are unchanged")
        note(*progress.summary(result))
    typer.echo(result.data_args or result.prefix)
