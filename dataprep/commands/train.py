"""The command train."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep.commands.app import JsonOption, app, note, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.train.job import Job
    from dataprep.train.preflight import Finding
    from dataprep.train.program import Program
    from dataprep.versions import Versions


@app.command()
def train(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PREFIX[=WEIGHT] | KEY=VALUE]...",
            help="Pairs, folders of them, or a data_args.txt; and variables of the public scripts, as MBS=2.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="As llama3.1-8b, gpt3-125m; or llama3 with MODEL_SIZE=8.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", help="megatron (default), rocm, megatron-deepspeed, torchtitan, or torch, built in."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="The trainer's version: core-0.8 to core-head, rocm-24.12, ...")
    ] = None,
    compat: Annotated[
        str | None,
        typer.Option("--compat", help="A public script's own numbers: rocm-24.12, rocm-25, aws, deepspeed."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="The training's. Default: the one the data were made with.")
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option("--valid", help="Pairs to validate on, in place of a share.")
    ] = None,
    test: Annotated[list[str] | None, typer.Option("--test", help="Pairs to test on, in place of a share.")] = None,
    seq_length: Annotated[int | None, typer.Option("--seq-length", min=1, help="Tokens of a sample.")] = None,
    micro_batch: Annotated[int | None, typer.Option("--micro-batch", min=1, help="Samples at once on a rank.")] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", min=1, help="Samples of a step.")] = None,
    tokens: Annotated[float | None, typer.Option("--tokens", min=1, help="How long: in tokens, as 100e9.")] = None,
    iterations: Annotated[int | None, typer.Option("--iterations", min=1, help="How long: in steps.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How long: in samples.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="Tensor-parallel ranks.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Pipeline-parallel ranks.")] = None,
    cp: Annotated[int | None, typer.Option("--cp", min=1, help="Context-parallel ranks.")] = None,
    fsdp: Annotated[bool | None, typer.Option("--fsdp/--no-fsdp", help="Shard parameters over all ranks.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Machines.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="Ranks of each.")] = None,
    launcher: Annotated[
        str, typer.Option("--launcher", help="local, slurm, kubernetes, or print: the command, to run by hand.")
    ] = "print",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs: logs, checkpoints.")] = Path("runs"),
    strict: Annotated[bool, typer.Option("--strict", help="Read every token before, not only indices.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show what would be submitted; do nothing.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="model.*, train.*, parallel.*, launch.*, as train.lr=1e-4; argument.NAME=VALUE is the trainer's own.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove, plan, render and launch a training.

    Checks come first, always; an error among them ends it with exit code 1 and nothing submitted.

    Example: dataprep train data/books_text_document --model llama3.1-8b --tokens 1e9 --launcher slurm --dry-run
    """
    from dataprep import progress
    from dataprep.train import preflight
    from dataprep.train.backends import render
    from dataprep.train.launchers import find_launcher
    from dataprep.train.request import Asked, resolve
    from dataprep.versions import hold_lease
    from dataprep.watcher import Progress

    starter = find_launcher(launcher)
    asked = Asked(
        words=words or [],
        model=model,
        backend=backend,
        profile=profile,
        compat=compat,
        tokenizer=tokenizer,
        valid=valid or (),
        test=test or (),
        iterations=iterations,
        tokens=tokens,
        samples=samples,
        options={
            "train": _given(seq_length=seq_length, micro_batch_size=micro_batch, global_batch_size=global_batch),
            "parallel": _given(
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                context_parallel_size=cp,
                fsdp=fsdp,
                nodes=nodes,
                gpus_per_node=gpus_per_node,
            ),
        },
        settings=settings or (),
        output=output,
        launcher=launcher,
    )
    resolved = resolve(asked)
    job = resolved.job
    note(*resolved.notes, *(f"warning: {text}" for text in resolved.warnings))
    program = render(job)
    text = starter.render(job, program)
    with progress.watch(context.obj["quiet"]) as watcher:
        watcher.stage("preflight", 0)
        findings = preflight.check(job, strict, lambda count: watcher(Progress(source_bytes=count)))
    failed = any(finding.severity == "error" for finding in findings)
    if as_json:
        print_json(_described(job, findings, program, text))
    else:
        shown = [each for each in findings if each.severity != "ok" or not context.obj["quiet"]]
        note(*(f"{finding.severity:8}{finding.check:16}{finding.text}" for finding in shown))
    if failed:
        raise typer.Exit(1)
    note(*program.notes, *(f"before, {what}: {command}" for what, command in program.before))
    if dry_run or starter.launch is None:
        if not as_json:
            typer.echo(text, nl=False)
        note(*(f"afterwards, {what}: {command}" for what, command in program.after))
        return
    with contextlib.ExitStack() as stack:
        for versions, version in _versions([*asked.words, *asked.valid, *asked.test]):
            if launcher == "local":
                held = stack.enter_context(hold_lease(versions, version, f"training {job.output}"))
                note(f"{versions.version(held.version)} is kept while this runs")
            else:
                note(f"retention may remove the version; to keep it: dataprep lease {versions.folder} --for 30d")
        raise typer.Exit(starter.launch(job, program))


def _versions(words: Sequence[str]) -> list[tuple[Versions, str]]:
    """The versioned datasets among what a training reads."""
    from dataprep.versions import find_version

    found = (find_version(word.rpartition("=")[0] or word) for word in words)
    return [each for each in found if each is not None]


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _described(job: Job, findings: list[Finding], program: Program, text: str) -> dict[str, Any]:
    return {
        "job": job.to_json(),
        "findings": [finding.to_json() for finding in findings],
        "script": program.script,
        "arguments": list(program.arguments),
        "environment": program.environment,
        "files": program.files,
        "text": text,
    }
