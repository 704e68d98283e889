"""torchtitan: its own loader over our pairs (profile torchtitan-head), or the fork for Frontier, which reads text.

Of head everything is said in Python, by `titan.config_registry`, out of the job's own file; here is only what it cannot
do, and its command. Source: pytorch/torchtitan b5bcd76c (2026-08-21).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dataprep.errors import SpecError
from dataprep.train.backends import frontier
from dataprep.train.backends.words import words
from dataprep.train.program import Program
from dataprep.train.titan.config_registry import VARIABLE
from dataprep.train.titan.source import split_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.train.job import Job

JOB = "job.json"
"""Name of the job's own file, in its folder."""


def render(job: Job) -> Program:
    """The program of a job.

    Args:
        job: of the backend ``torchtitan``.

    Raises:
        SpecError: torchtitan cannot do what the job asks for.
    """
    if job.profile == "torchtitan-frontier":
        return frontier.render(job)
    check(job)
    environment = {
        VARIABLE: os.path.join(job.output, JOB),
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # as torchtitan's run_train.sh
    }
    if job.train.wandb_project is not None:
        environment |= {"WANDB_PROJECT": job.train.wandb_project, "WANDB_RUN_NAME": job.name}
    return Program(
        start="torchrun",
        script="torchtitan.train",
        is_module=True,
        arguments=words([("module", "dataprep.train.titan"), ("config", "trained")], job.arguments),
        environment=environment | job.launch.environment,
        files={JOB: json.dumps(job.to_json(), indent=1, sort_keys=True) + "\n"},
        folder=job.launch.trainer,
        vendor="any",
        notes=tuple(_notes(job)),
        after=_after(job),
    )


def check(job: Job) -> None:
    """See that the job is one for torchtitan.

    Raises:
        SpecError: it is not; says what to do instead.
    """
    train, parallel = job.train, job.parallel
    refusals = {
        "it has no mock data: give a PREFIX": job.data.is_mock,
        "it has no GPT with learned positions; take a Llama, or --backend megatron": job.shape.family == "gpt",
        "its Llama has no biases and no dropout": (
            job.shape.add_bias_linear or bool(job.shape.hidden_dropout or job.shape.attention_dropout)
        ),
        f"{train.precision} is not rendered for it: take bf16, or --backend megatron": (
            train.precision not in ("bf16", "fp32")
        ),
        "the optimizer is AdamW": train.optimizer != "adam",
        f"the schedule {train.lr_decay_style} is not rendered for it: take cosine, linear or constant": (
            train.lr_decay_style not in ("cosine", "linear", "constant")
        ),
        "its learning rate ends where the decay does: train.lr_decay_iters has to be train.train_iters or more": (
            train.lr_decay_iters < train.train_iters
        ),
        "its checkpoints hold the optimizer: leave train.save_optim out": not train.save_optim,
        f"its checkpoints are DCP, never {train.ckpt_format}": train.ckpt_format is not None,
        "it has no file of sequences per prefix: leave train.sequences out": train.sequences,
    }
    for why, applies in refusals.items():
        if applies:
            raise SpecError(f"torchtitan: {why}")
    ranks = parallel.data_parallel_size
    for part in ("train", "valid"):
        if part == "valid" and not train.eval_iters:
            continue
        for rows in split_rows(job, part):
            if rows.stop - rows.start < ranks:
                raise SpecError(
                    f"torchtitan: {rows.prefix} has {rows.stop - rows.start} documents to {part} on, and {ranks} ranks "
                    "want one each; give it more, another train.split, or --set train.eval_iters=0"
                )


def _notes(job: Job) -> Iterator[str]:
    yield (
        "dataprep has to be installed in torchtitan's environment, and torchtitan to be of b5bcd76c (2026-08-21) or "
        "near: release 0.3.0 is older"
    )
    yield "the order of samples is torchtitan's, which is not Megatron's; a job is resumed with as many ranks"
    if not job.parallel.fsdp:
        yield (
            "weights are sharded over all data-parallel ranks (FSDP), as torchtitan does by default; --set "
            "argument.parallelism.data_parallel_replicate_degree=N for N copies"
        )
    if job.train.eval_iters and not split_rows(job, "valid"):
        yield "nothing is validated on: the split has no documents for it"
    if "test" in job.data.own:
        yield "torchtitan has no test split: its documents are not used"


def _after(job: Job) -> tuple[tuple[str, str], ...]:
    if job.train.save is None:
        return ()
    step = os.path.join(job.train.save, f"step-{job.train.train_iters}")
    command = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {step} {step}.pt"
    return (("all weights in one file of torch.save", command),)
