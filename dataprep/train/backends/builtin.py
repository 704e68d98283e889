"""The built-in trainer: its settings, as the JSON file that it is started with."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dataprep.errors import SpecError
from dataprep.train.builtin.settings import Settings
from dataprep.train.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.train.job import Job

SETTINGS = "settings.json"


def render(job: Job) -> Program:
    """The program of a job.

    Raises:
        SpecError: the job asks for what the built-in trainer does not do.
    """
    for is_asked, what in _refused(job):
        if is_asked:
            raise SpecError(f"--backend torch does not do {what}: it is for small models; --backend megatron does")
    settings = _settings(job)
    return Program(
        start="torchrun",
        script="dataprep.train.builtin",
        is_module=True,
        arguments=(os.path.join(job.output, SETTINGS),),
        environment={"TOKENIZERS_PARALLELISM": "false"} | job.launch.environment,
        files={SETTINGS: json.dumps(settings.to_json(), indent=1, sort_keys=True) + "\n"},
        folder=job.launch.trainer,
        vendor="any",
        after=(
            ("a model for transformers", f"dataprep checkpoint convert {job.output} {job.output}/model --to hf"),
            ("text from it", f"dataprep generate {job.output}/model --prompt 'Once upon a time'"),
        ),
    )


def _refused(job: Job) -> Iterator[tuple[bool, str]]:
    parallel, train = job.parallel, job.train
    yield parallel.model_size > 1, "tensor, pipeline or context parallelism"
    yield train.precision in ("fp8", "fp16"), train.precision
    yield train.optimizer != "adam", f"--set train.optimizer={train.optimizer}"
    yield train.lr_decay_style != "cosine", f"--set train.lr_decay_style={train.lr_decay_style}"
    yield train.load is not None, "--set train.load: it goes on with what is in its own folder"
    yield job.data.is_mock, "mock data"
    yield bool(job.data.own), "--valid and --test"
    yield bool(job.arguments), f"--set argument.{next(iter(job.arguments), '')}: it has no further flags"


def _settings(job: Job) -> Settings:
    shape, train = job.shape, job.train
    value = {
        "data": [[part.prefix, part.weight] for part in job.data.parts],
        "tokenizer": job.tokenizer_path or None,
        "shape": shape.to_json() | {"vocab_size": job.padded_vocab_size},
        "parallel": "fsdp2" if job.parallel.fsdp else "ddp",
        "precision": train.precision,
        "activation_checkpointing": train.recompute != "none",
        "compile": train.torch_compile,
        "save_interval": train.save_interval if train.save is not None else None,
        "output": job.output,
        **{name: getattr(train, name) for name in SAME},
    }
    return Settings.from_json(value, "--backend torch")


SAME = (
    *("seq_length", "micro_batch_size", "global_batch_size", "train_iters", "seed", "split"),
    *("lr", "min_lr", "lr_warmup_iters", "lr_decay_iters", "weight_decay", "clip_grad"),
    *("adam_beta1", "adam_beta2", "adam_eps", "eval_interval", "eval_iters", "log_interval"),
)
"""Settings of a job and of the built-in trainer that have one name and one meaning."""
