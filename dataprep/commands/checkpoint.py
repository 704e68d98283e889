"""The command checkpoint: models of the built-in trainer in other forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dataprep.commands.app import app, note, print_lines

checkpoint = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@checkpoint.callback()
def _checkpoint() -> None:
    """Checkpoints of the built-in trainer in other forms.

    Example: dataprep checkpoint convert trained model --to hf
    """


@checkpoint.command()
def convert(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="Output of a training, a checkpoint, a .pt file, or a folder of hf.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="What to make; there may be none yet.")],
    to: Annotated[
        str, typer.Option("--to", help="hf: save_pretrained; torch: one file of torch.save; dcp: a checkpoint.")
    ],
) -> None:
    """Write a model in another form. dcp and torch hold all that a training needs to go on, hf the weights only.

    A model of hf becomes the beginning of a training: make it OUTPUT/checkpoints/iteration-00000000.

    Example: dataprep checkpoint convert trained model --to hf
    """
    from dataprep.train.builtin import require_torch

    require_torch()
    from dataprep.train.builtin import conversion

    for line in conversion.convert(source, target, to):
        note(f"warning: {line}")
    print_lines([str(target)])


app.add_typer(checkpoint, name="checkpoint")
