"""How flags become words of a command line; what the dialects of Megatron have in common."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dataprep.train.job import Job, Part

Flag = tuple[str, Any]
"""Name without dashes, and value: None for a flag without one, a list for one with several."""


MAX_BYTES = 100_000
"""Of prefixes in a command line. Slurm's tasks and containers get it as one word, of 128 KiB at most: execve(2)."""


def words(flags: Iterable[Flag], arguments: Mapping[str, str | None]) -> tuple[str, ...]:
    """The command line of flags.

    Args:
        flags: as a backend has them, each once.
        arguments: the user's own, name -> value; one of the same name takes the flag's place.
    """
    merged = {**dict(flags), **arguments}
    return tuple(word for flag in merged.items() for word in _words(flag))


def _words(flag: Flag) -> list[str]:
    name, value = flag
    values = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    return [f"--{name}", *(repr(each) if isinstance(each, float) else str(each) for each in values)]


def model(job: Job, epsilon: str, grouped: Iterable[Flag], rotary: Iterable[Flag]) -> Iterator[Flag]:
    """The flags of a shape.

    Args:
        job: whose shape.
        epsilon: what the dialect calls that of the norms.
        grouped: its flags for grouped queries, where the shape has some.
        rotary: its flags for rotary positions and RMSNorm, where the shape is a Llama.
    """
    shape = job.shape
    yield "num-layers", shape.num_layers
    yield "hidden-size", shape.hidden_size
    yield "ffn-hidden-size", shape.ffn_hidden_size
    yield "num-attention-heads", shape.num_attention_heads
    if shape.num_query_groups != shape.num_attention_heads:
        yield from grouped
    yield "seq-length", job.train.seq_length
    longest = max(shape.max_position_embeddings, job.train.seq_length if shape.family == "llama" else 0)
    yield "max-position-embeddings", longest
    yield epsilon, shape.norm_epsilon
    yield "init-method-std", shape.init_method_std
    yield "attention-dropout", shape.attention_dropout
    yield "hidden-dropout", shape.hidden_dropout
    if shape.family == "llama":
        yield from rotary
        yield "swiglu", None
    if not shape.add_bias_linear:
        yield "disable-bias-linear", None
    if not shape.tie_embeddings:
        yield "untie-embeddings-and-output-weights", None


def schedule(job: Job) -> Iterator[Flag]:
    """The flags of batches, steps and the optimizer, which all dialects have."""
    train = job.train
    yield "micro-batch-size", train.micro_batch_size
    yield "global-batch-size", train.global_batch_size
    yield "train-iters", train.train_iters
    yield "seed", train.seed
    yield "optimizer", train.optimizer
    yield "lr", train.lr
    yield "min-lr", train.min_lr
    yield "lr-decay-style", train.lr_decay_style
    yield "lr-warmup-iters", train.lr_warmup_iters
    yield "lr-decay-iters", train.lr_decay_iters
    yield "weight-decay", train.weight_decay
    yield "clip-grad", train.clip_grad
    if train.optimizer == "adam":
        yield "adam-beta1", train.adam_beta1
        yield "adam-beta2", train.adam_beta2
        yield "adam-eps", train.adam_eps


def records(job: Job) -> Iterator[Flag]:
    """The flags of evaluations, logs and checkpoints, which all dialects have."""
    train = job.train
    yield "eval-interval", train.eval_interval
    yield "eval-iters", train.eval_iters
    yield "log-interval", train.log_interval
    if train.log_dir is not None:
        yield "tensorboard-dir", train.log_dir
    if train.save is not None:
        yield "save", train.save
        yield "save-interval", train.save_interval
        yield "exit-signal-handler", None  # SIGTERM saves, and ends
    if train.load is not None or train.save is not None:
        yield "load", train.load or train.save  # none there yet: it begins anew
    if train.load is not None and train.load != train.save:
        yield "exit-on-missing-checkpoint", None
    if not train.save_optim:
        yield "no-save-optim", None
        yield "no-save-rng", None
    if train.wandb_project is not None:
        yield "wandb-project", train.wandb_project
        yield "wandb-exp-name", job.name
        yield "wandb-save-dir", os.path.join(job.output, "wandb")


def weighted(parts: Sequence[Part]) -> list[str]:
    """``[p]``, or ``[w1, p1, w2, p2]``: some versions take no list of prefixes without weights."""
    if len(parts) == 1:
        return [parts[0].prefix]
    return [word for part in parts for word in (f"{part.weight:.9g}", part.prefix)]


def short(found: list[str]) -> list[str]:
    """The same words, for a version that takes them on the command line alone.

    Raises:
        SpecError: they are too long for it.
    """
    size = sum(len(os.fsencode(word)) + 1 for word in found)
    if size > MAX_BYTES:
        raise SpecError(
            f"{len(found) // 2} prefixes are {size} bytes of a command line, where this version wants them, and Linux "
            "takes 128 KiB: dataprep merge makes fewer of them"
        )
    return found
