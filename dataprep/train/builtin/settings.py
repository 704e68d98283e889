"""What a training with the built-in trainer is: one JSON file, checked before anything is started. No torch here.

Fields carry the names of Megatron's flags where Megatron has them, and their defaults (Megatron-LM d98e8a64,
megatron/training/arguments.py and megatron/training/config), so that one table serves both.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from dataprep.samples import SEED, SPLIT, parse_split
from dataprep.specs import Model
from dataprep.train.presets import Shape


class Settings(Model):
    """A training.

    Attributes:
        data: (prefix, weight); of a single one the weight means nothing, of several the shares of samples, as in
            Megatron's ``--data-path``.
        tokenizer: what ``dataprep run --tokenizer`` takes: goes with an exported model, and decodes samples of it.
            None: what the manifest of the first prefix names.
        global_batch_size: samples of an iteration, over all ranks; a multiple of `micro_batch_size` times the ranks.
        lr_decay_iters: None: `train_iters`.
        weight_decay: of matrices and embeddings; not of biases and norms.
        clip_grad: the largest norm of the gradient; 0: none.
        precision: ``bf16``: parameters and sums stay float32, the rest of the arithmetic is bfloat16.
        parallel: ``ddp`` keeps the model on every rank, ``fsdp2`` cuts it into one piece for each.
        activation_checkpointing: forget what a layer computed, and compute it again on the way back: less memory.
        compile: `torch.compile` of each layer and of the loss.
        eval_interval: iterations from one evaluation on the valid split to the next; always of the same samples.
        eval_iters: how many global batches that takes; 0: no evaluation.
        save_interval: iterations from one checkpoint to the next; None: only at the end, or when told to end.
        keep_checkpoints: so many of the newest ones; None: all.
        output: folder of checkpoints, ``metrics.jsonl`` and TensorBoard's files; a training that is found there goes
            on.
    """

    data: tuple[tuple[str, PositiveFloat], ...] = Field(min_length=1)
    tokenizer: str | None = None
    shape: Shape
    seq_length: PositiveInt
    micro_batch_size: PositiveInt
    global_batch_size: PositiveInt
    train_iters: PositiveInt
    seed: NonNegativeInt = SEED
    split: str = SPLIT
    lr: PositiveFloat
    min_lr: NonNegativeFloat = 0.0
    lr_warmup_iters: NonNegativeInt = 0
    lr_decay_iters: PositiveInt | None = None
    weight_decay: NonNegativeFloat = 0.01
    clip_grad: NonNegativeFloat = 1.0
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_eps: PositiveFloat = 1e-8
    precision: Literal["bf16", "fp32"] = "bf16"
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    activation_checkpointing: bool = False
    compile: bool = False
    eval_interval: PositiveInt = 1000
    eval_iters: NonNegativeInt = 100
    log_interval: PositiveInt = 100
    save_interval: PositiveInt | None = None
    keep_checkpoints: PositiveInt | None = None
    output: str

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        parse_split(self.split)
        if self.shape.family == "gpt":
            if self.shape.num_query_groups != self.shape.num_attention_heads or self.shape.rope_scaling is not None:
                raise ValueError("the family gpt has neither grouped queries nor rope_scaling; leave them out")
            if not self.shape.add_bias_linear:
                raise ValueError("the family gpt has biases here: add_bias_linear has to be true")
        if self.shape.hidden_dropout or self.shape.attention_dropout:
            raise ValueError("there is no dropout here: hidden_dropout and attention_dropout have to be 0")
        if self.seq_length > self.shape.max_position_embeddings:
            most = self.shape.max_position_embeddings
            raise ValueError(f"seq_length {self.seq_length} is more than max_position_embeddings {most}")
        if self.global_batch_size % self.micro_batch_size:
            sizes = f"global_batch_size {self.global_batch_size} is no multiple of micro_batch_size"
            raise ValueError(f"{sizes} {self.micro_batch_size}")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} is above lr {self.lr}")
        if self.lr_warmup_iters >= (self.lr_decay_iters or self.train_iters):
            last = self.lr_decay_iters or self.train_iters
            raise ValueError(f"lr_warmup_iters {self.lr_warmup_iters} leaves no iteration of {last} to decay in")
        return self


FREE = frozenset(
    {
        "activation_checkpointing",
        "compile",
        "data",
        "eval_interval",
        "eval_iters",
        "keep_checkpoints",
        "log_interval",
        "micro_batch_size",
        "output",
        "parallel",
        "save_interval",
        "tokenizer",
    }
)
"""Settings that may be others when a training goes on; its data is held to what it is, not to where it lies."""
