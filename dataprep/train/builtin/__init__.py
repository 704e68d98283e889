"""The built-in trainer, `--backend torch`: proves data, and trains small models. It does not compete with Megatron.

    settings     what a training is, as JSON; no torch
    data         samples in Megatron's order, straight from .bin/.idx; a place in it is one integer
    ranks        who of how many this process is, and how they talk
    model        a transformers model of a shape; DDP, FSDP2
    figures      what is measured: metrics.jsonl, TensorBoard, the share of the device's peak (MFU)
    checkpoints  DCP: any number of ranks reads what any number wrote
    loop         the training itself
    conversion   checkpoints <-> torch.save <-> save_pretrained; text from a model
    __main__     torchrun -m dataprep.train.builtin SETTINGS.json

Importing this package, `settings` and `data` imports no torch; the others need the extra ``train``.
"""

from __future__ import annotations

from importlib.util import find_spec

from dataprep.errors import SpecError


def require_torch() -> None:
    """See that the libraries of the extra ``train`` are installed.

    Raises:
        SpecError: one is not.
    """
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise SpecError(f"the built-in trainer needs {' and '.join(missing)}: pip install 'dataprep-llm[train]'")
