"""Megatron-DeepSpeed: the arguments of its ``pretrain_gpt.py``, in its own dialect, and DeepSpeed's configuration.

Its parser is Megatron-LM's of 2023 with changes: other flags for rotary positions, names of norms in lower case, no
tokenizer of Llama 2 by that name. What both files say (batch sizes, ZeRO stage, precision, clipping) comes from one
place here, since DeepSpeed believes its configuration and Megatron its arguments.

Source: deepspeedai/Megatron-DeepSpeed 4efb479d: megatron/arguments.py, megatron/training.py, megatron/core/
parallel_state.py, megatron/model/transformer.py, megatron/tokenizer/tokenizer.py, tools/convert_checkpoint; the form of
the configuration is that of its examples_deepspeed/rebase and examples_deepspeed/universal_checkpointing.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any

from dataprep.errors import SpecError
from dataprep.train.backends.words import Flag, model, records, schedule, short, weighted, words
from dataprep.train.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.train.job import Job

CONFIG = "ds_config.json"
"""Name of DeepSpeed's configuration in the job's folder."""

GQA_BROKEN = "676a482c"
"""Since this commit (2024-12-04) the projection is cut into three equal parts, also where keys and values are smaller
than queries: megatron/model/transformer.py, ParallelAttention.forward."""

GQA_WORKS = "6acc370a"
"""The commit before it."""


def render(job: Job) -> Program:
    """The program of a job.

    Args:
        job: of the backend ``megatron-deepspeed``.

    Raises:
        SpecError: Megatron-DeepSpeed cannot do what the job asks for.
    """
    check(job)
    flags = [
        *_model(job),
        *_parallel(job),
        *schedule(job),
        *_recompute(job),
        *_precision(job),
        *_data(job),
        *_records(job),
        *_deepspeed(job),
    ]
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return Program(
        start="deepspeed",
        script="pretrain_gpt.py",
        arguments=words(flags, job.arguments),
        environment=environment | job.launch.environment,
        files={CONFIG: json.dumps(config(job), indent=2) + "\n"},
        folder=job.launch.trainer,
        vendor="any",
        notes=tuple(_notes(job)),
        after=_after(job, flags),
    )


def check(job: Job) -> None:
    """See that the job is one for Megatron-DeepSpeed.

    Raises:
        SpecError: it is not; says what to do instead.
    """
    train, parallel = job.train, job.parallel
    refusals = {
        "it has no mock data: give a PREFIX": job.data.is_mock,
        "it has no FSDP; ZeRO does the same: --set parallel.zero_stage=3": parallel.fsdp,
        "its fp8 was never joined to ZeRO: take bf16, or --backend megatron": train.precision == "fp8",
        "it has no file of sequences per prefix: leave train.sequences out": train.sequences,
        "it has no stretched rotary positions, so that Llama 3.1 and 3.2 would be trained with those of Llama 3: take "
        "--model llama3-8b or another without, or --backend megatron": job.shape.rope_scaling is not None,
        "its rotary base is a whole number": job.shape.rotary_base % 1 != 0,
        "it knows no schedule WSD: take cosine, linear or constant": train.lr_decay_style == "WSD",
        f"its checkpoints are DeepSpeed's own, never {train.ckpt_format}": train.ckpt_format not in (None, "torch"),
    }
    refusals |= _refused_sizes(job)
    for why, applies in refusals.items():
        if applies:
            raise SpecError(f"Megatron-DeepSpeed: {why}")


def _refused_sizes(job: Job) -> dict[str, bool]:
    """Of the parallel sizes; sources: parallel_state.initialize_model_parallel, DeepSpeed's PipelineEngine."""
    parallel = job.parallel
    tensor, pipeline = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    sequence = parallel.context_parallel_size
    heads, length = job.shape.num_attention_heads, job.train.seq_length
    return {
        f"ZeRO stage {parallel.zero_stage} does not go with pipelines: --set parallel.zero_stage=1, or --pp 1": (
            pipeline > 1 and parallel.zero_stage > 1
        ),
        "its sequence parallelism (--cp) goes with --tp 1 and --pp 1 alone": sequence > 1 and tensor * pipeline > 1,
        f"its sequence parallelism gives each rank whole heads: {heads} are not divisible by --cp {sequence}": (
            heads % sequence != 0
        ),
        f"its sequence parallelism cuts a sequence evenly: {length} is not divisible by --cp {sequence}": (
            length % sequence != 0
        ),
        "its sequence parallelism (--cp) has no grouped queries: take --cp 1": (
            sequence > 1 and job.shape.num_query_groups != heads
        ),
    }


def config(job: Job) -> dict[str, Any]:
    """DeepSpeed's configuration.

    The number of micro batches is left to DeepSpeed: global batch / (micro batch x copies of the model).
    """
    train, stage = job.train, job.parallel.zero_stage
    result: dict[str, Any] = {
        "train_batch_size": train.global_batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "steps_per_print": train.log_interval,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": train.clip_grad,
        "prescale_gradients": stage == 0,
        "wall_clock_breakdown": False,
    }
    if train.precision == "bf16":
        result["bf16"] = {"enabled": True}
        result["data_types"] = {"grad_accum_dtype": "fp32"}  # as Megatron does with --bf16
    elif train.precision == "fp16":
        result["fp16"] = {
            "enabled": True,
            "loss_scale": 0,
            "loss_scale_window": 500,
            "hysteresis": 2,
            "min_loss_scale": 1,
            "initial_scale_power": 11,
        }
    return result


def _model(job: Job) -> Iterator[Flag]:
    rotary = [
        ("use-rotary-position-embeddings", None),
        ("rotary-position-embeddings-theta", int(job.shape.rotary_base)),
        ("normalization", "rmsnorm"),
    ]
    yield from model(job, "layernorm-epsilon", [("num-key-value-heads", job.shape.num_query_groups)], rotary)


def _parallel(job: Job) -> Iterator[Flag]:
    parallel, train = job.parallel, job.train
    yield "tensor-model-parallel-size", parallel.tensor_model_parallel_size
    yield "pipeline-model-parallel-size", parallel.pipeline_model_parallel_size
    if not _is_pipeline(job):
        yield "no-pipeline-parallel", None
    if parallel.context_parallel_size > 1:
        yield "ds-sequence-parallel-size", parallel.context_parallel_size
    if train.sequence_parallel and parallel.tensor_model_parallel_size > 1:
        yield "sequence-parallel", None
    # the first rank builds the indices alone, and 10 are too few for large ones
    yield "distributed-timeout-minutes", 120


def _is_pipeline(job: Job) -> bool:
    """Whether the model is made for DeepSpeed's pipeline, be it of one stage.

    It is where that can be: its converters read the checkpoints of pipelines only, a file for each layer.
    """
    return job.parallel.zero_stage <= 1 and job.parallel.context_parallel_size == 1


def _recompute(job: Job) -> Iterator[Flag]:
    train = job.train
    yield "override-opt_param-scheduler", None  # of a checkpoint: this job's schedule holds
    if train.recompute == "selective":
        yield "recompute-granularity", "selective"
    elif train.recompute == "full":
        yield "checkpoint-activations", None
        yield "deepspeed-activation-checkpointing", None


def _precision(job: Job) -> Iterator[Flag]:
    train = job.train
    if train.precision != "fp32":
        yield train.precision, None
    if train.precision == "fp16":
        yield "hysteresis", 2
    else:
        yield "no-query-key-layer-scaling", None  # it keeps scores within fp16
    if train.use_flash_attn and train.precision != "fp32":
        yield "use-flash-attn-v2", None
    yield "no-gradient-accumulation-fusion", None  # it needs a kernel of Apex


def _data(job: Job) -> Iterator[Flag]:
    data, train = job.data, job.train
    yield from _tokenizer(job)
    if data.own:
        for part, parts in data.own.items():
            yield f"{part}-data-path", short(weighted(parts))
    else:
        yield "data-path", short(weighted(data.parts))
        yield "split", train.split
    yield "data-impl", "mmap"
    if train.data_cache_path is not None:
        yield "data-cache-path", train.data_cache_path
    yield "dataloader-type", train.dataloader_type
    yield "num-workers", train.num_workers


def _tokenizer(job: Job) -> Iterator[Flag]:
    path = job.tokenizer_path
    if job.tokenizer_type == "GPT2BPETokenizer":
        merges = job.tokenizer.merges if job.tokenizer else None
        yield "tokenizer-type", "GPT2BPETokenizer"
        yield "vocab-file", path if merges else os.path.join(path, "vocab.json")
        yield "merge-file", merges or os.path.join(path, "merges.txt")
    elif job.tokenizer_type == "Llama2Tokenizer":
        yield "tokenizer-type", "GPTSentencePieceTokenizer"
        yield "tokenizer-model", path
    elif job.tokenizer_type == "HuggingFaceTokenizer":
        yield "tokenizer-type", "HFTokenizer"
        yield "tokenizer-model", path
        # Its size leaves out added tokens: 128,000 of Llama 3, whose BOS is 128,000. One multiple as large as the whole
        # padded vocabulary is what it is padded to, whatever it counts.
        size = job.padded_vocab_size // job.parallel.tensor_model_parallel_size
        yield "make-vocab-size-divisible-by", size
    else:
        raise SpecError(
            f"Megatron-DeepSpeed has no {job.tokenizer_type}; name the tokenizer of the data: --tokenizer T"
        )


def _records(job: Job) -> Iterator[Flag]:
    train = job.train
    yield from records(job)
    if train.profile:
        yield "profile", "pt"


def _deepspeed(job: Job) -> Iterator[Flag]:
    yield "deepspeed", None
    yield "deepspeed_config", os.path.join(job.output, CONFIG)
    yield "zero-stage", job.parallel.zero_stage


def _notes(job: Job) -> Iterator[str]:
    if not job.launch.trainer:
        yield "pretrain_gpt.py is expected where the command is started; --set launch.trainer=FOLDER names its folder"
    if job.shape.num_query_groups != job.shape.num_attention_heads:
        yield (
            f"Megatron-DeepSpeed since {GQA_BROKEN} (2024-12-04) cuts queries, keys and values into equal thirds, and "
            f"fails in the first step of a model with grouped queries: check out {GQA_WORKS}, the commit before"
        )
    if job.tokenizer_type == "Llama2Tokenizer":
        yield "Megatron-DeepSpeed calls Llama2Tokenizer GPTSentencePieceTokenizer; the ids are the same"
    if "use-flash-attn-v2" not in job.arguments and job.train.use_flash_attn and job.train.precision != "fp32":
        yield (
            "--use-flash-attn-v2 needs flash-attn 2; with flash-attn 1, as in older ROCm images: --set "
            "train.use_flash_attn=false and --set argument.use-flash-attn="
        )
    if job.train.save is not None and not _is_pipeline(job):
        yield (
            "its converters read checkpoints of pipelines only, which ZeRO 2, ZeRO 3 and --cp do not make; DeepSpeed's "
            "zero_to_fp32.py in the checkpoint's folder gathers the weights"
        )


def _after(job: Job, flags: list[Flag]) -> tuple[tuple[str, str], ...]:
    """Conversions; DeepSpeedCheckpoint reads one step's folder, hf2megads the folder above it."""
    save = job.train.save
    if save is None or not _is_pipeline(job):
        return ()
    step = f"{save}/global_step{job.train.train_iters}"
    megatron = (
        "PYTHONPATH=. python tools/convert_checkpoint/deepspeed_to_megatron.py --target_tp 1 --target_pp 1 "
        f"--input_folder {shlex.quote(step)} --output_folder {shlex.quote(save + '-megatron')}"
    )
    commands = [("to a checkpoint of Megatron-LM", megatron)]
    if job.shape.family == "gpt":
        to_hub = megatron.replace("deepspeed_to_megatron.py", "deepspeed_to_transformers.py")
        to_hub = to_hub.replace(shlex.quote(save + "-megatron"), shlex.quote(save + "-hf"))
        commands.append(("to GPT-2 of transformers; its config.json has to get the right sizes", to_hub))
    elif not job.shape.tie_embeddings:
        commands.append(("to Llama of transformers; HF_MODEL: a folder with the config.json", _to_llama(job, flags)))
    return tuple(commands)


def _to_llama(job: Job, flags: list[Flag]) -> str:
    """tools/hf2megads_weight_converter.py takes the arguments of the training, to build its model."""
    changed = {
        "load": str(job.train.save),
        "save": f"{job.train.save}-hf",
        "to-hf-ckpt": None,
        "load-mode": "auto",
        "hf-ckpt-dir": "HF_MODEL",
        "hf-ckpt-num-shards": "1",
    }
    arguments = words(flags, {**job.arguments, **changed})
    return f"deepspeed tools/hf2megads_weight_converter.py {shlex.join(arguments)}"
