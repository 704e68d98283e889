"""The commands of jobs: dataprep jobs add, list, show, run, due, history, retry, pause, resume, render."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep.commands.app import JsonOption, SetOption, app, note, print_json, print_lines
from dataprep.errors import DataprepError, SpecError, TimeIsUp

if TYPE_CHECKING:
    from dataprep.service.job import Job
    from dataprep.service.records import RunRecord

jobs = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

FolderOption = Annotated[Path, typer.Option("--jobs", "-j", metavar="DIR", help="Folder of the jobs' YAMLs.")]
NameArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]
AllowOption = Annotated[
    list[Path] | None,
    typer.Option("--allow", metavar="DIR", help="Refuse jobs that name files elsewhere than here and in their folder."),
]
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help="Names of jobs. Default: all.")]


@jobs.callback()
def _jobs() -> None:
    """Jobs that make new versions of datasets from what is new, by a schedule.

    A job is a YAML in the folder --jobs; what came of it lies in the folder of its dataset, OUTPUT/JOB.

    Example: dataprep jobs add news 'inbox/*.jsonl' --tokenizer gpt2 --output /shared/data --schedule '30 2 * * *'

    Example: dataprep jobs due --jobs /shared/jobs
    """


@jobs.command()
def add(
    context: typer.Context,
    name: NameArgument,
    corpus: Annotated[
        list[str] | None, typer.Argument(metavar="[CORPUS...]", help="A shipped name, or paths and QUOTED globs.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", "-t", help="As for `dataprep run`.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The dataset will be OUTPUT/JOB.")] = Path("data"),
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="CRON", help="Five fields: '30 2 * * *'. Default: by hand.")
    ] = None,
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the schedule, e.g. Europe/Berlin.")] = "UTC",
    changes: Annotated[
        str, typer.Option("--changes", help="append_only: a changed or vanished file is an error; mirror: follow it.")
    ] = "append_only",
    settings: SetOption = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="As for `dataprep run`.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="YAML", help="Take all of it from this file; - is stdin.")
    ] = None,
    folder: FolderOption = Path("jobs"),
) -> None:
    """Write the YAML of a new job, and print its path. Nothing runs yet. What has no option here is added to the YAML.

    Example: dataprep jobs add news 'inbox/*.jsonl' --tokenizer gpt2 --output /shared/data --schedule '30 2 * * *'

    Example: dataprep jobs add news --from news.yaml --jobs /shared/jobs
    """
    from dataprep.service import schedule as times
    from dataprep.service.jobs import add_job
    from dataprep.service.running import now

    if source is not None:
        if corpus or tokenizer:
            raise SpecError("--from takes all of the job from a file; give no CORPUS and no --tokenizer with it")
        given: str | dict[str, Any] = _read(source)
    else:
        given = _described(folder, corpus or [], tokenizer, output, cluster)
        asked = {"set": settings, "changes": changes, "schedule": schedule, "time_zone": time_zone}
        plain = {"set": None, "changes": "append_only", "schedule": None, "time_zone": "UTC"}
        given |= {key: value for key, value in asked.items() if value != plain[key]}
    job = add_job(folder, name, given)
    said = f"it runs when you say: dataprep jobs run {name}"
    for slot in times.next_slots(job, now(), 1):
        said = f"it is due at {slot:%Y-%m-%d %H:%M} UTC; what looks for it then: dataprep jobs render --help"
    note("" if context.obj["quiet"] else said)
    print_lines([str(job.path)])


def _read(source: Path) -> str:
    try:
        return typer.get_text_stream("stdin").read() if str(source) == "-" else source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}") from error


def _described(
    folder: Path, corpus: list[str], tokenizer: str | None, output: Path, cluster: str | None
) -> dict[str, Any]:
    """What a YAML says of a job; paths that start here are written as ones that start at its folder."""
    from dataprep.catalog import names
    from dataprep.service.places import beside, is_named

    if not corpus or tokenizer is None:
        raise SpecError("a job needs a CORPUS and a --tokenizer, or --from with a YAML that says both")
    if len(corpus) > 1 and all(os.path.isfile(each) for each in corpus):
        note(f"these {len(corpus)} files, and no later ones, are the corpus; a QUOTED glob names those to come, too")
    paths = [each if is_named(each, Path.cwd()) else beside(each, folder) for each in corpus]
    if tokenizer not in names("tokenizers") and os.path.exists(os.path.expanduser(tokenizer)):
        tokenizer = beside(os.path.expanduser(tokenizer), folder)
    given: dict[str, Any] = {
        "corpus": paths[0] if len(paths) == 1 else paths,
        "tokenizer": tokenizer,
        "output": beside(str(output), folder),
    }
    if cluster is not None:
        given["cluster"] = beside(cluster, folder) if os.path.isfile(cluster) else cluster
    return given


@jobs.command(name="list")
def list_(folder: FolderOption = Path("jobs"), as_json: JsonOption = False) -> None:
    """List the jobs of a folder: how they are, when they run next, how their last run went.

    Example: dataprep jobs list --jobs /shared/jobs
    """
    from dataprep import tables
    from dataprep.service.jobs import load_jobs

    good, problems = load_jobs(folder)
    found = [{"name": problem.name, "error": problem.text} for problem in problems]
    found = sorted([*found, *map(_summary, good)], key=lambda each: str(each["name"]))
    if as_json:
        print_json(found)
    else:
        print_lines(tables.jobs(found))
        note("" if found else f"no jobs in {folder}; make one with: dataprep jobs add")


def _summary(job: Job) -> dict[str, Any]:
    """A job in short; one of which the records cannot be read says so in its line, and leaves the others theirs."""
    from dataprep.service.running import now
    from dataprep.service.summaries import summary

    try:
        return summary(job, now())
    except (DataprepError, OSError) as error:
        return {"name": job.name, "error": str(error)}


@jobs.command()
def show(name: NameArgument, folder: FolderOption = Path("jobs"), as_json: JsonOption = False) -> None:
    """Show one job: where everything is, its next times, its newest version and runs.

    Example: dataprep jobs show news --jobs /shared/jobs
    """
    from dataprep import tables
    from dataprep.service.jobs import find_job
    from dataprep.service.running import now
    from dataprep.service.summaries import history as records_of
    from dataprep.service.summaries import summary

    job = find_job(folder, name)
    found, runs = summary(job, now()), records_of([job], 5)
    if as_json:
        print_json({**found, "runs": runs, "yaml": job.to_json()})
    else:
        print_lines(tables.job(found, runs))


@jobs.command()
def run(
    context: typer.Context,
    name: NameArgument,
    folder: FolderOption = Path("jobs"),
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a job now, due or not, also a paused one. The last line on stdout is the folder of the newest version.

    Nothing new: that is said, and there is no new version. Another run at work: it is named, and left alone.

    Example: dataprep jobs run news --jobs /shared/jobs
    """
    from dataprep.service.jobs import find_job
    from dataprep.service.places import check_inside

    job = find_job(folder, name)
    if allow:
        check_inside(job, allow)
    _run(context, job, as_json)


def _run(context: typer.Context, job: Job, as_json: bool) -> None:
    from dataprep import progress
    from dataprep.service.ingesting import dataset_of
    from dataprep.service.running import run_job

    with progress.watch(context.obj["quiet"]) as watcher:
        record = run_job(job, None, watcher)
    _tell(context, record)
    versions = dataset_of(job)
    numbers = versions.numbers()
    if as_json:
        print_json(record.to_json())
    elif numbers:
        print_lines([str(versions.version(numbers[-1]))])


def _tell(context: typer.Context, record: RunRecord) -> None:
    from dataprep import tables

    note("" if context.obj["quiet"] else f"{record.job}: {tables.ended(record.to_json())}")


@jobs.command()
def due(
    context: typer.Context,
    names: NamesArgument = None,
    folder: FolderOption = Path("jobs"),
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run what is due, one job after the other, and end: for cron, systemd timers, Slurm and Kubernetes.

    Missed times are made up for once. Failed runs are tried again when it is time. Exit code 0: all went well, or
    nothing was due; 1: a run failed, or a YAML is wrong; the others run all the same.

    Example: dataprep --quiet jobs due --jobs /shared/jobs
    """
    from dataprep import progress
    from dataprep.service.oneshot import run_due

    quiet, found = bool(context.obj["quiet"]), []
    for outcome in run_due(folder, names or [], lambda: progress.watch(quiet), allow or None):
        found.append(outcome)
        if outcome.record is not None:
            _tell(context, outcome.record)
        else:
            note(f"error: {outcome.job}: {outcome.error}")
    if as_json:
        print_json(
            [{"job": each.job, "error": each.error, "record": each.record and each.record.to_json()} for each in found]
        )
    if not found:
        note("" if quiet else "nothing is due")
    if any(each.record is None for each in found):
        raise typer.Exit(1)


@jobs.command(hidden=True)
def part(context: typer.Context, name: NameArgument, folder: FolderOption = Path("jobs")) -> None:
    """Make what a run of a job has set out to make: the command of the job of Slurm that the run has submitted.

    Example: dataprep jobs part news --jobs /shared/jobs
    """
    from dataprep import progress, submission
    from dataprep.service.ingesting import make_part
    from dataprep.service.jobs import find_job
    from dataprep.specs import find_cluster, parse_settings

    job = find_job(folder, name)
    try:
        with progress.watch(context.obj["quiet"]) as watcher:
            print_lines([make_part(job, watcher).prefix])
    except TimeIsUp as error:
        if not submission.queue_again(find_cluster(parse_settings(job.settings).get("cluster", {}))):
            raise
        note("the job's time is up; it is queued again, to go on: what is finished is kept")
        raise typer.Exit(128 + signal.SIGTERM) from error


@jobs.command()
def history(
    name: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Name of the job. Default: all.")] = None,
    folder: FolderOption = Path("jobs"),
    newest: Annotated[int, typer.Option("--newest", "-n", min=1, help="At most so many runs.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List what runs of jobs came to, newest first.

    Example: dataprep jobs history news --newest 5
    """
    from dataprep import tables
    from dataprep.service.jobs import find_job, load_jobs
    from dataprep.service.summaries import history as records_of

    found = records_of([find_job(folder, name)] if name is not None else load_jobs(folder)[0], newest)
    if as_json:
        print_json(found)
    else:
        print_lines(tables.history(found))
        note("" if found else "nothing has run yet")


@jobs.command()
def retry(
    context: typer.Context, name: NameArgument, folder: FolderOption = Path("jobs"), as_json: JsonOption = False
) -> None:
    """Run a job again whose last run failed, without waiting for its time. It goes on where that one was.

    Example: dataprep jobs retry news
    """
    from dataprep.service.ingesting import dataset_of
    from dataprep.service.jobs import find_job
    from dataprep.service.records import newest_of, read_records
    from dataprep.service.schedule import AGAIN

    job = find_job(folder, name)
    last = newest_of(read_records(dataset_of(job)))
    if last is None or last.state not in AGAIN:
        how = "it never ran" if last is None else f"its last run: {last.state}"
        raise SpecError(f"{name} has nothing to try again, {how}; to run it: dataprep jobs run {name}")
    _run(context, job, as_json)


@jobs.command()
def pause(
    context: typer.Context,
    name: NameArgument,
    why: Annotated[str, typer.Option("--why", help="For those who find it paused.")] = "",
    folder: FolderOption = Path("jobs"),
) -> None:
    """Let a job not run by itself any more. A run that goes on ends as it would; `run` runs it all the same.

    Example: dataprep jobs pause news --why 'the disk is nearly full'
    """
    import getpass

    from dataprep.service import records
    from dataprep.service.ingesting import dataset_of
    from dataprep.service.jobs import find_job

    versions = dataset_of(find_job(folder, name))
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        who = f"user {os.getuid()}"
    records.pause(versions, who, why)
    note("" if context.obj["quiet"] else f"{name} is paused; to go on: dataprep jobs resume {name}")


@jobs.command()
def resume(context: typer.Context, name: NameArgument, folder: FolderOption = Path("jobs")) -> None:
    """Let a paused job run by itself again. Times that it missed are made up for by one run.

    Example: dataprep jobs resume news
    """
    from dataprep.service import records
    from dataprep.service.ingesting import dataset_of
    from dataprep.service.jobs import find_job

    versions = dataset_of(find_job(folder, name))
    was = records.paused(versions) is not None
    records.resume(versions)
    note("" if context.obj["quiet"] else f"{name} {'goes on' if was else 'was not paused'}")


@jobs.command()
def render(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="systemd, cron, slurm or kubernetes.")],
    folder: FolderOption = Path("jobs"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of slurm and kubernetes: cluster.partition=cpu, ..."),
    ] = None,
) -> None:
    """Print the entry that lets another scheduler run `dataprep jobs due` every ten minutes, for all jobs of a folder.

    Example: dataprep jobs render systemd --jobs /shared/jobs

    Example: dataprep jobs render kubernetes --jobs jobs --set cluster.image=IMAGE --set cluster.claim=CLAIM
    """
    from dataprep.service import rendering

    typer.echo(rendering.render(kind, folder, settings or []), nl=False)


app.add_typer(jobs, name="jobs")
