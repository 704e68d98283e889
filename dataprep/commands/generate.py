"""The command generate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import app, print_lines


@app.command()
def generate(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Output of a training, a checkpoint, or a folder.")],
    prompt: Annotated[str, typer.Option("--prompt", help="What to go on with. Default: begin a document.")] = "",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", "-t", help="Default: that of the data it was trained on.")
    ] = None,
    num_tokens: Annotated[int, typer.Option("--tokens", min=1, help="At most so many.")] = 32,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
) -> None:
    """Let a small model that the built-in trainer made, or one of its kind, go on with a text; on the processor.

    Example: dataprep generate trained --prompt "The weather"
    """
    from dataprep import views
    from dataprep.train.builtin import require_torch

    require_torch()
    from dataprep.train.builtin import conversion

    text = conversion.generate(model, prompt, tokenizer, num_tokens, temperature, seed)
    print_lines([views.printable(prompt + text) if sys.stdout.isatty() else prompt + text])
