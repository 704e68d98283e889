"""Models in their three forms, and text from them; on one processor, in its memory.

    dcp    a checkpoint of the trainer, or its output folder: the newest one
    torch  one file of torch.save: {model, optimizer, training} of a checkpoint
    hf     a folder of save_pretrained, with the tokenizer's files where they are known: from_pretrained takes it

dcp <-> torch keeps all there is, so that a training goes on from it; hf has the weights only, and a training that
finds them, as a checkpoint of its shape, begins with them.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from dataprep.batches import TextBatch
from dataprep.catalog import find_tokenizer
from dataprep.definitions import identify, load
from dataprep.encoders import open_reference
from dataprep.errors import FormatError, SpecError
from dataprep.inspection.decoding import Decoder
from dataprep.specs import TokenizerIdentity
from dataprep.storage import MARK, explain, make_folder
from dataprep.train.builtin.checkpoints import alone, complete, training_of
from dataprep.train.builtin.model import build, shape_of
from dataprep.train.presets import Shape

transformers.utils.logging.disable_progress_bar()

FORMS = ("hf", "dcp", "torch")


def form_of(path: Path) -> tuple[str, Path]:
    """The form of a model, and the checkpoint itself where `path` is the output folder of a training.

    Raises:
        SpecError: there is none.
    """
    if found := complete(path):
        return "dcp", found[-1]
    if (path / ".metadata").is_file():
        return "dcp", path
    if (path / "config.json").is_file():
        return "hf", path
    if path.is_file():
        return "torch", path
    raise SpecError(
        f"{path}: no model; expected the output of a training, a checkpoint of it, a file of torch.save, or a folder "
        "of save_pretrained"
    )


def load_model(path: Path) -> tuple[Any, dict[str, Any]]:
    """A model of any form, float32 and on the processor, and what is known of its training.

    Raises:
        SpecError: there is none, or it is of another kind.
        FormatError: it cannot be read.
    """
    form, path = form_of(path)
    if form == "hf":
        model, shape = _from_pretrained(path)
        known = identify(*find_tokenizer(str(path), {})).to_json() if (path / "tokenizer.json").is_file() else None
        return model, {"data": None, "iteration": 0, "settings": None, "shape": shape.to_json(), "tokenizer": known}
    held = _torch_state(path) if form == "torch" else None
    training: dict[str, Any] = training_of(path) if held is None else json.loads(held["training"])
    named = training["tokenizer"] or {}
    model = build(Shape.from_json(training["shape"], str(path)), 0, named.get("bos_id"), named.get("eod_id"))
    state = {"model": model.state_dict()}
    if held is not None:
        model.load_state_dict(held["model"])
    else:
        with alone():
            dcp.load(state, checkpoint_id=path, no_dist=True)
    return model, training


def _from_pretrained(path: Path) -> tuple[Any, Shape]:
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        shape = shape_of(config)
        return transformers.AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=torch.float32, local_files_only=True
        ), shape
    except SpecError:
        raise
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: transformers cannot read it: {error}") from error


def convert(source: Path, target: Path, to: str) -> list[str]:
    """Write a model in another form; `target` appears whole or not at all.

    Args:
        source: a model.
        target: the file, of ``torch``, or folder to make; there may be none yet.
        to: ``hf``, ``dcp`` or ``torch``.

    Returns:
        What the result lacks, a line each.

    Raises:
        SpecError: no model, or it has that form already, or `target` exists.
        OutputError: it cannot be written.
    """
    form, source = form_of(source)
    if to not in FORMS or form == to:
        others = " or ".join(name for name in FORMS if name != form)
        raise SpecError(f"{source} is of the form {form}: it can be converted to {others}")
    if target.exists():
        raise SpecError(f"{target} exists; remove it, or choose another name")
    make_folder(target.parent)
    temporary = target.with_name(f"{target.name}{MARK}{os.getpid()}")
    notes: list[str] = []
    try:
        with explain(target, "write"), alone():
            if to == "hf":
                notes = _save_pretrained(source, temporary)
            elif form == "dcp":
                training_of(source)
                dcp_to_torch_save(source, temporary)
            else:
                _save_state(_torch_state(source) if form == "torch" else _weights(source), temporary, to)
            os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
    return notes


def _save_state(state: dict[str, Any], path: Path, to: str) -> None:
    if to == "dcp":
        dcp.save(state, checkpoint_id=path, no_dist=True)
    else:
        torch.save(state, path)


def _weights(source: Path) -> dict[str, Any]:
    model, training = load_model(source)
    return {"model": model.state_dict(), "training": json.dumps(training, sort_keys=True)}


def _torch_state(path: Path) -> dict[str, Any]:
    """What a file of torch.save holds; nothing in it is run.

    Raises:
        FormatError: it is none, or holds other things.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        state["model"], json.loads(state["training"])
    except Exception as error:  # UnpicklingError, RuntimeError, KeyError, ...: whatever it tripped over
        raise FormatError(f"{path}: not a checkpoint of the built-in trainer in one file: {error!r}") from error
    return state


def _save_pretrained(source: Path, target: Path) -> list[str]:
    model, training = load_model(source)
    model.config.use_cache = True
    model.save_pretrained(target)
    if training["tokenizer"] is None:
        return ["without a tokenizer: it is not known"]
    identity = TokenizerIdentity.from_json(training["tokenizer"], str(source))
    try:
        definition = load(identity)
    except SpecError as error:
        return [f"without a tokenizer: {error}"]
    for name, content in definition.contents.items():
        (target / name).write_bytes(content)
    (target / "tokenizer.json").write_text(definition.text("encode"), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": identity.bos_text,
        "eos_token": identity.eod_text,
        "model_max_length": training["shape"]["max_position_embeddings"],
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return []


def generate(path: Path, prompt: str, tokenizer: str | None, num_tokens: int, temperature: float, seed: int) -> str:
    """Let a model go on with a text.

    Args:
        path: the model, of any form.
        prompt: the text; an empty one: the model begins a document.
        tokenizer: what ``--tokenizer`` takes; None: that of the training, or the one in the folder.
        num_tokens: at most so many; a document may end before.
        temperature: 0: always the likeliest token.
        seed: of the draws.

    Returns:
        What follows the prompt.

    Raises:
        SpecError: no model, no tokenizer or another one, or a text that is too long.
    """
    model, training = load_model(path)
    identity = _identity(path, tokenizer, training)
    definition = load(identity)
    ids = open_reference(definition, "encode").encode(TextBatch.of([prompt.encode()])).ids.tolist()
    ids = ([identity.bos_id] if identity.adds_bos else []) + ids or [identity.eod_id]
    most = training["shape"]["max_position_embeddings"]
    if None in ids:
        raise SpecError("this tokenizer has no token to begin a document with: give a --prompt")
    if max(ids) >= model.config.vocab_size:
        raise SpecError(f"the tokenizer {identity.name} has the token {max(ids)}; the model ends before it")
    if len(ids) + num_tokens > most:
        raise SpecError(f"{len(ids)} tokens and {num_tokens} more: the model takes {most} in all")
    torch.manual_seed(seed)
    how: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    ends = {} if identity.eod_id is None else {"eos_token_id": identity.eod_id, "pad_token_id": identity.eod_id}
    given = torch.tensor([ids])
    with torch.no_grad():
        found = model.eval().generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=num_tokens, use_cache=True, **how, **ends
        )
    new = [number for number in found[0, len(ids) :].tolist() if number != identity.eod_id]
    return Decoder(definition).text(new)


def _identity(path: Path, tokenizer: str | None, training: dict[str, Any]) -> TokenizerIdentity:
    if tokenizer is not None:
        return identify(*find_tokenizer(tokenizer, {}))
    if training["tokenizer"] is None:
        raise SpecError(f"{path}: it is not known which tokenizer it was trained with; give --tokenizer")
    return TokenizerIdentity.from_json(training["tokenizer"], str(path))
