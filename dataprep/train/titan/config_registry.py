"""A job in torchtitan's own terms: what ``--module dataprep.train.titan --config trained`` runs.

DATAPREP_JOB names the job's file, which `backends.torchtitan` writes. Options behind the two change what is here.

For torchtitan b5bcd76c (2026-08-21): trainer.py, config, components, models/llama3. torchtitan is imported when
`trained` is called, and by nothing else here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep.errors import SpecError
from dataprep.train.job import Job
from dataprep.train.titan.source import make_dataset, split_rows

if TYPE_CHECKING:
    from dataprep.samples import SplitPart

VARIABLE = "DATAPREP_JOB"
"""Environment variable with the path of the job, as JSON."""


def load_job() -> Job:
    """The job that DATAPREP_JOB names.

    Raises:
        SpecError: it names none, or a damaged one.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        raise SpecError(f"{VARIABLE} names no job; `dataprep train --backend torchtitan` writes one")
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the job {path}: {error}") from error
    return Job.from_json(value, path)


def make_loader(job: Job, part: SplitPart) -> Any:
    """torchtitan's configuration of the loader of one split."""
    from torchtitan.components.data import GrainDataLoader

    return GrainDataLoader.Config(dataset=make_dataset(split_rows(job, part)), seed=job.train.seed)


def trained() -> Any:
    """torchtitan's Trainer.Config of the job; what ``--config trained`` names."""
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.config import CompileConfig
    from torchtitan.config.configs import DebugConfig
    from torchtitan.tools.profiler import Profiler
    from torchtitan.trainer import Trainer

    job = load_job()
    train = job.train
    return Trainer.Config(
        model_spec=_model_spec(job),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=job.padded_vocab_size)),
        hf_assets_path=_assets(job.tokenizer_path),
        tokenizer=_no_tokenizer(),
        dump_folder=job.output,
        dataloader=make_loader(job, "train"),
        **_steps(job),
        parallelism=_parallelism(job),
        checkpoint=CheckpointManager.Config(
            enable=train.save is not None,
            folder=train.save or "checkpoint",
            interval=train.save_interval,
            initial_load_path=train.load,
            initial_load_model_only=False,
            last_save_model_only=False,
            keep_latest_k=0,  # all, as Megatron does
        ),
        activation_checkpoint=_activation_checkpoint(job),
        compile=CompileConfig(enable=train.torch_compile),
        metrics=MetricsProcessor.Config(
            log_freq=train.log_interval,
            enable_tensorboard=train.log_dir is not None,
            save_tb_folder=train.log_dir or "tb",
            enable_wandb=train.wandb_project is not None,
        ),
        profiler=Profiler.Config(enable_profiling=train.profile),
        validator=_validator(job),
        debug=DebugConfig(seed=train.seed),
    )


def _assets(path: str) -> str:
    """The folder of the tokenizer, for its Hugging Face format of checkpoints; it takes no tokenizer.model."""
    return os.path.dirname(path) if path.endswith(".model") else path or "."


def _steps(job: Job) -> dict[str, Any]:
    """Optimizer, schedule and batches."""
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import TrainingConfig

    train = job.train
    return {
        "optimizer": default_adamw(
            lr=train.lr,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_eps,
            weight_decay=train.weight_decay,
        ),
        "lr_scheduler": LRSchedulersContainer.Config(
            warmup_steps=train.lr_warmup_iters,
            total_steps=train.lr_decay_iters,
            decay_ratio=0.0 if train.lr_decay_style == "constant" else None,
            decay_type="linear" if train.lr_decay_style == "constant" else train.lr_decay_style,
            min_lr_factor=train.min_lr / train.lr,
        ),
        "training": TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=train.micro_batch_size * train.seq_length,
            num_tokens_per_train_step=train.global_batch_size * train.seq_length,
            max_context_length=train.seq_length,
            max_norm=train.clip_grad,
            steps=train.train_iters,
            mixed_precision_param="float32" if train.precision == "fp32" else "bfloat16",
            disable_cuda_graphs=job.parallel.pipeline_model_parallel_size > 1,  # torchtitan refuses both together
        ),
    }


def _micro_batches(job: Job) -> int:
    """Forward passes of each rank in one step."""
    return job.train.global_batch_size // (job.train.micro_batch_size * job.parallel.data_parallel_size)


def _parallelism(job: Job) -> Any:
    from torchtitan.config import ParallelismConfig

    parallel = job.parallel
    pipeline = parallel.pipeline_model_parallel_size
    return ParallelismConfig(
        tensor_parallel_degree=parallel.tensor_model_parallel_size,
        pipeline_parallel_degree=pipeline,
        context_parallel_degree=parallel.context_parallel_size,
        num_pp_microbatches=_micro_batches(job) if pipeline > 1 else 1,
    )


def _activation_checkpoint(job: Job) -> Any:
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    return {"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}[job.train.recompute]


def _validator(job: Job) -> Any:
    from torchtitan.components.validate import Validator

    if not job.train.eval_iters or not split_rows(job, "valid"):
        return Validator.Config()
    return Validator.Config(
        enable=True,
        freq=job.train.eval_interval,
        steps=job.train.eval_iters * _micro_batches(job),
        dataloader=make_loader(job, "valid"),
    )


def _no_tokenizer() -> Any:
    """torchtitan opens a tokenizer in any case; the ids are here already."""
    from torchtitan.components.tokenizer import BaseTokenizer

    class NoTokenizer(BaseTokenizer):  # type: ignore[misc,unused-ignore]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):  # type: ignore[misc,unused-ignore]
            pass

        def __init__(self, config: object, *, tokenizer_path: str) -> None:
            super().__init__()

        def encode(self, *args: object, **kwargs: object) -> list[int]:
            raise NotImplementedError("the data are ids already")

        def decode(self, *args: object, **kwargs: object) -> str:
            raise NotImplementedError("the data are ids already")

        def get_vocab_size(self) -> int:
            raise NotImplementedError("the data are ids already")

    return NoTokenizer.Config()


def _model_spec(job: Job) -> Any:
    """torchtitan's Llama 3 with the job's sizes, which its own flavors have for a few models only."""
    from dataclasses import replace

    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, RMSNorm

    shape = job.shape
    scaling = shape.rope_scaling
    rope = ComplexRoPE.Config(
        dim=shape.head_size,
        max_context_length=max(shape.max_position_embeddings, job.train.seq_length),
        theta=shape.rotary_base,
        scaling="llama" if scaling else "none",
        **(scaling.model_dump(exclude={"factor"}) | {"scaling_factor": scaling.factor} if scaling else {}),
    )
    spec = llama3.model_registry("1B" if shape.tie_embeddings else "8B")
    model, size = spec.model, job.padded_vocab_size
    embedding = replace(model.tok_embeddings, num_embeddings=size, embedding_dim=shape.hidden_size)
    model = replace(
        model,
        dim=shape.hidden_size,
        vocab_size=size,
        tok_embeddings=embedding,
        norm=replace(model.norm, normalized_shape=shape.hidden_size),
        lm_head=replace(
            model.lm_head,
            in_features=shape.hidden_size,
            out_features=size,
            param_init=llama3._output_linear_init(shape.hidden_size),
        ),
        layers=llama3._build_llama3_layers(
            n_layers=shape.num_layers,
            dim=shape.hidden_size,
            n_heads=shape.num_attention_heads,
            n_kv_heads=shape.num_query_groups,
            hidden_dim=shape.ffn_hidden_size,
            rope=rope,
            attn_backend="flex",
        ),
    )
    for _, norm, _, _ in model.traverse(RMSNorm.Config):
        norm.eps = shape.norm_epsilon
    return replace(spec, flavor=job.model, model=model)
