"""The command lease: say that a version of a dataset is in use."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep.children import run_to_end
from dataprep.commands.app import JsonOption, app, note, print_json, print_lines
from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from dataprep.versions import Lease, Versions

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@app.command(context_settings={"allow_interspersed_args": True})
def lease(
    context: typer.Context,
    dataset: Annotated[str, typer.Argument(help="Versioned dataset, DATASET/current, or DATASET/v000007.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Holds the lease as long as it runs.")
    ] = None,
    span: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Hold the lease for so long: 90m, 12h, 30d or 4w.")
    ] = None,
    who: Annotated[str | None, typer.Option("--who", help="What uses it. Default: the command, or the user.")] = None,
    release: Annotated[str | None, typer.Option("--release", metavar="ID", help="End a lease.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a version of a dataset as long as it is used: retention removes none that has a lease. Alone: list leases.

    With a command, the lease holds while that runs; its variable DATAPREP_VERSION names the folder of the version,
    whose data_args.txt is for Megatron's --data-args-path. The exit code is the command's.

    Example: dataprep lease /shared/data/news

    Example: dataprep lease /shared/data/news/current --for 30d --who 'run 42'

    Example: dataprep lease /shared/data/news -- bash -c 'train.sh --data-args-path $DATAPREP_VERSION/data_args.txt'
    """
    from dataprep.versions import find_version, leases_of, release_lease, take_lease

    found = find_version(dataset)
    if found is None:
        raise SpecError(f"{dataset} is no versioned dataset: there are no versions in it, or beside it")
    versions, word = found
    if sum(map(bool, (command, span, release))) > 1:
        raise SpecError("a command, --for and --release exclude each other; give one of them")
    if release is not None:
        if not release_lease(versions, release):
            raise SpecError(f"{versions.folder} has no lease {release}; see: dataprep lease {dataset}")
        note("" if context.obj["quiet"] else f"lease {release} has ended")
    elif span is not None:
        _show(versions, [take_lease(versions, word, who or _user(), _span(span))], as_json)
    elif command:
        raise typer.Exit(_run(versions, word, command, who))
    else:
        number = versions.number_of(word)
        leases = [each for each in leases_of(versions) if word == "current" or each.version == number]
        _show(versions, leases, as_json)
        note("" if leases or as_json else f"nobody has a lease of {dataset}")


def _span(text: str) -> timedelta:
    from datetime import timedelta

    match = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if match is None:
        raise SpecError(f"--for {text}: expected a number and m, h, d or w: 90m, 12h, 30d, 4w")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"


def _show(versions: Versions, leases: Sequence[Lease], as_json: bool) -> None:
    if as_json:
        print_json([each.to_json() | {"path": str(versions.version(each.version))} for each in leases])
        return
    print_lines(
        f"{each.id}  {versions.version(each.version)}  until {each.until}  {each.who} "
        f"(process {each.pid} on {each.host} since {each.since})"
        for each in leases
    )


def _run(versions: Versions, word: str, command: list[str], who: str | None) -> int:
    """Run a command that uses a version; returns its exit code."""
    from dataprep.versions import hold_lease

    def answer(number: int, earlier: int, starting: bool) -> int | None:
        if number in (signal.SIGTERM, signal.SIGUSR1):
            return signal.SIGTERM
        return number if starting else None  # it has got it as well, and ends as it likes

    with hold_lease(versions, word, who or " ".join(command)[:200]) as held:
        folder = str(versions.version(held.version))
        try:
            code, _ = run_to_end(command, answer, env={**os.environ, "DATAPREP_VERSION": folder})
        except OSError as error:
            raise SpecError(f"cannot run {command[0]}: {error.strerror}") from error
    return code if code >= 0 else 128 - code
