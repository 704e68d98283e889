"""The command inspect."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep.commands.app import JsonOption, app, note, print_json, print_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dataprep.samples import Sampling

PrefixArgument = Annotated[str, typer.Argument(metavar="PREFIX", help="Path without .bin and .idx.")]
DocumentOption = Annotated[int | None, typer.Option("--document", "-d", help="This document, counted from 0.")]
SampleOption = Annotated[
    int | None, typer.Option("--sample", help="This sample, counted from 0, as Megatron draws them. With --seq-length.")
]
SeqLengthOption = Annotated[int | None, typer.Option("--seq-length", help="Sequence length of the training.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Of --sample: Megatron's --seed. Default: 1234.")]
SplitOption = Annotated[
    str | None, typer.Option("--split", help="Of --sample: Megatron's --split. Default: 969, 30, 1.")
]
PartOption = Annotated[
    str | None, typer.Option("--part", help="Of --sample: train, valid or test of the split. Default: train.")
]
NumSamplesOption = Annotated[
    int | None,
    typer.Option(
        "--num-samples",
        help="Of --sample: how many the training asks for, iterations times global batch size. Default: one epoch.",
    ),
]


@app.command()
def inspect(
    context: typer.Context,
    prefix: PrefixArgument,
    document: DocumentOption = None,
    sample: SampleOption = None,
    seq_length: SeqLengthOption = None,
    seed: SeedOption = None,
    split: SplitOption = None,
    part: PartOption = None,
    num_samples: NumSamplesOption = None,
    level: Annotated[
        str, typer.Option("--level", help="index: lengths only; tokens: one pass over the .bin as well.")
    ] = "tokens",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Decode with it; default: the manifest's.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw lengths and token frequencies to this .png or .svg.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look inside any pair: lengths, tokens, repeated documents; or one document or sample, decoded.

    --seq-length says what is cut and lost at that length. --sample shows the very sample that Megatron trains on.

    Example: dataprep inspect data/sample-sample-1a2b3c4d/sample_text_document --seq-length 4096 --plot lengths.png

    Example: dataprep inspect data/sample-sample-1a2b3c4d/sample_text_document --document 3

    Example: dataprep inspect data/sample-sample-1a2b3c4d/sample_text_document --sample 17 --seq-length 4096 --seed 1234
    """
    sampling = chosen(document, sample, seq_length, seed, split, part, num_samples)
    _check_plot(plot, document, sample)
    from dataprep import inspection, progress, views
    from dataprep.inspection import excerpts

    with progress.watch(context.obj["quiet"]) as watcher:
        if document is not None:
            value = excerpts.document(prefix, document, tokenizer)
            lines: Iterable[str] = [views.text(value)]
            titles = [views.document(value), *_notes(value)]
        elif sample is not None and sampling is not None:
            value = excerpts.sample(prefix, sample, sampling, tokenizer, watcher)
            lines, titles = views.sample(value), [views.drawn(value), *_notes(value)]
        else:
            findings = inspection.examine(prefix, level, tokenizer, watcher)  # type: ignore[arg-type]
            value = findings.to_json(seq_length)
            lines, titles = views.inspection(value, shutil.get_terminal_size().columns), []
            if plot is not None:
                from dataprep import plots

                plots.draw(findings, plot)
    if as_json:
        print_json(value)
        return
    note(*titles)
    print_lines(map(views.printable if sys.stdout.isatty() else str, lines))


def _notes(value: dict[str, Any]) -> list[str]:
    from dataprep import views

    return [f"warning: {views.printable(text)}" for text in value["notes"]]


def _check_plot(plot: Path | None, document: int | None, sample: int | None) -> None:
    if plot is None:
        return
    from dataprep import plots
    from dataprep.errors import SpecError

    if document is not None or sample is not None:
        raise SpecError("--plot draws a whole pair; leave out --document and --sample")
    plots.check(plot)


def chosen(
    document: int | None,
    sample: int | None,
    seq_length: int | None,
    seed: int | None,
    split: str | None,
    part: str | None,
    num_samples: int | None,
) -> Sampling | None:
    """What the options say of the training whose sample is meant; None where none is.

    Raises:
        SpecError: options that do not go together.
    """
    from dataprep.errors import SpecError

    of_samples = {"seed": seed, "split": split, "part": part, "num_samples": num_samples}
    given: dict[str, Any] = {name: value for name, value in of_samples.items() if value is not None}
    if document is not None and sample is not None:
        raise SpecError("--document and --sample: expected one of them")
    if sample is None:
        if given:
            raise SpecError(f"--{next(iter(given)).replace('_', '-')} is of a sample; give one with --sample")
        if document is not None and seq_length is not None:
            raise SpecError("--seq-length says nothing about one document; give a sample with --sample")
        if seq_length is not None and seq_length < 1:
            raise SpecError(f"--seq-length {seq_length}: expected 1 or more")
        return None
    if seq_length is None:
        raise SpecError("--sample needs --seq-length, of the training whose samples are meant")
    from dataprep.samples import Sampling

    return Sampling(seq_length, **given)
