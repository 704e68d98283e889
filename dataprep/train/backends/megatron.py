"""The arguments of ``pretrain_gpt.py`` of Megatron-LM, NVIDIA's and ROCm's, as the profile's version takes them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dataprep.checks.known import BAND
from dataprep.errors import SpecError
from dataprep.train.backends.caches import cache_commands
from dataprep.train.backends.words import Flag, model, records, schedule, short, weighted, words
from dataprep.train.profiles import PROFILES
from dataprep.train.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dataprep.train.job import Job
    from dataprep.train.profiles import Profile

MANY = 16
"""Prefixes from which on they are written to a file, and not into the command line."""

ROCM_ENVIRONMENT = {
    "GPU_MAX_HW_QUEUES": "2",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "NCCL_CHECKS_DISABLE": "1",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_CROSS_NIC": "0",
    "NCCL_PROTO": "Simple",
    "RCCL_MSCCL_ENABLE": "0",
    "HSA_NO_SCRATCH_RECLAIM": "1",
}
"""Source: ROCm/Megatron-LM f253af69, examples/llama/train_llama3.sh; there, as here, a user's own values win."""


def render(job: Job) -> Program:
    """The program of a job.

    Args:
        job: of the backend ``megatron`` or ``rocm``.

    Raises:
        SpecError: the profile's version cannot do what the job asks for.
    """
    profile = PROFILES[job.profile]
    files: dict[str, str] = {}
    flags: list[Flag] = [
        *_model(job, profile),
        *_parallel(job),
        *schedule(job),
        *_recompute(job),
        *_precision(job, profile),
        *_data(job, files),
        *_records(job),
        *((name, None) for name in profile.always),
    ]
    _check(job, profile, flags)
    return Program(
        start="torchrun",
        script="pretrain_gpt.py",
        arguments=words([flag for flag in flags if flag[0] not in profile.lacks], job.arguments),
        environment=_environment(job),
        files=files,
        folder=job.launch.trainer,
        vendor="amd" if job.backend == "rocm" else "nvidia",
        notes=tuple(_notes(job)),
        before=tuple(cache_commands(job, words(_tokenizer(job), {}))),
        after=_after(job),
    )


def _model(job: Job, profile: Profile) -> Iterator[Flag]:
    grouped = [("group-query-attention", None), ("num-query-groups", job.shape.num_query_groups)]
    yield from model(job, "norm-epsilon", grouped, _rotary(job))
    if profile.is_legacy and job.train.mcore:
        yield "use-mcore-models", None


def _rotary(job: Job) -> Iterator[Flag]:
    yield "position-embedding-type", "rope"
    yield "rotary-base", int(job.shape.rotary_base)
    yield "rotary-percent", 1.0
    yield from _scaled(job)
    yield "normalization", "RMSNorm"


def _scaled(job: Job) -> Iterator[Flag]:
    scaling = job.shape.rope_scaling
    if scaling is not None:
        yield "use-rope-scaling", None
        if scaling.factor != 8.0:  # the default of the versions that have no flag for it
            yield "rope-scaling-factor", scaling.factor
    if not job.train.rope_fusion:
        yield "no-rope-fusion", None


def _parallel(job: Job) -> Iterator[Flag]:
    parallel, train = job.parallel, job.train
    yield "tensor-model-parallel-size", parallel.tensor_model_parallel_size
    yield "pipeline-model-parallel-size", parallel.pipeline_model_parallel_size
    yield "context-parallel-size", parallel.context_parallel_size
    if train.sequence_parallel and parallel.tensor_model_parallel_size > 1:
        yield "sequence-parallel", None
    if parallel.fsdp:
        yield "use-torch-fsdp2", None
        yield "no-gradient-accumulation-fusion", None
        return
    yield "overlap-grad-reduce", None
    if train.use_distributed_optimizer and train.optimizer == "adam":
        yield "use-distributed-optimizer", None
        yield "overlap-param-gather", None


def _recompute(job: Job) -> Iterator[Flag]:
    train = job.train
    if train.recompute == "selective":
        yield "recompute-activations", None
    elif train.recompute == "full":
        yield "recompute-granularity", "full"
        yield "recompute-method", "block"
        yield "recompute-num-layers", job.shape.num_layers // job.parallel.pipeline_model_parallel_size


def _precision(job: Job, profile: Profile) -> Iterator[Flag]:
    train = job.train
    if train.precision != "fp32":
        yield "fp16" if train.precision == "fp16" else "bf16", None
    if train.precision == "fp8":
        yield "transformer-impl", "transformer_engine"
        yield "fp8-format", "hybrid"
        if train.fp8_recipe == "delayed":
            yield "fp8-margin", 0
            yield "fp8-interval", 1
            yield "fp8-amax-history-len", 1024
            yield "fp8-amax-compute-algo", "max"
            yield "attention-softmax-in-fp32", None
        if train.fp8_recipe != "delayed" or not profile.is_legacy:
            yield "fp8-recipe", train.fp8_recipe
    if profile.is_legacy and train.use_flash_attn:
        yield "use-flash-attn", None
    elif not profile.is_legacy and not train.use_flash_attn:
        yield "attention-backend", "unfused"


def _data(job: Job, files: dict[str, str]) -> Iterator[Flag]:
    data, train = job.data, job.train
    yield from _tokenizer(job)
    yield "num-workers", train.num_workers
    yield "dataloader-type", train.dataloader_type
    if data.is_mock:
        yield "mock-data", None
    elif data.own:
        yield from _own(job, files)
    else:
        yield from _blend(job, files)
        yield "split", train.split
    if train.data_cache_path is not None:
        yield "data-cache-path", train.data_cache_path
    if train.sequences and not data.is_mock:
        files["sequences.json"] = _sequences(job)
        yield "per-dataset-sequences-path", os.path.join(job.output, "sequences.json")


def _blend(job: Job, files: dict[str, str]) -> Iterator[Flag]:
    found = weighted(job.data.parts)
    if len(job.data.parts) < MANY or "data-args-path" in PROFILES[job.profile].lacks:
        yield "data-path", short(found)
        return
    if any(letter.isspace() for part in job.data.parts for letter in part.prefix):
        raise SpecError("Megatron splits --data-args-path at spaces, and a prefix has some: name it by a link without")
    pairs = zip(found[::2], found[1::2], strict=True)
    files["data_args.txt"] = "".join(f"{weight} {prefix}\n" for weight, prefix in pairs)
    yield "data-args-path", os.path.join(job.output, "data_args.txt")


def _own(job: Job, files: dict[str, str]) -> Iterator[Flag]:
    own = job.data.own
    if len(job.data.all_parts) < MANY or "per-split-data-args-path" in PROFILES[job.profile].lacks:
        for part, parts in own.items():
            yield f"{part}-data-path", short(weighted(parts))
        return
    lists = {part: weighted(own[part]) if part in own else None for part in ("train", "valid", "test")}
    files["data.json"] = json.dumps(lists, indent=1) + "\n"
    yield "per-split-data-args-path", os.path.join(job.output, "data.json")


def _sequences(job: Job) -> str:
    """Megatron's file of sequences and documents per prefix; it then guesses the dtype by the vocabulary."""
    guessed = "int32" if job.vocab_size > BAND[1] else "uint16"
    for part in job.data.all_parts:
        if part.dtype != guessed:
            raise SpecError(
                f"{part.prefix} is {part.dtype}, and with --per-dataset-sequences-path Megatron reads it as {guessed}, "
                f"by the vocabulary of {job.vocab_size}: it would train on garbage without a word. Leave "
                "train.sequences out"
            )
    counts = {part.prefix: (part.num_sequences, part.num_documents + 1) for part in job.data.all_parts}
    return json.dumps(counts, indent=1) + "\n"


def _tokenizer(job: Job) -> Iterator[Flag]:
    yield "tokenizer-type", job.tokenizer_type
    if job.tokenizer_type == "NullTokenizer":
        yield "vocab-size", job.vocab_size - 1  # it adds its EOD
    elif job.tokenizer_type == "GPT2BPETokenizer":
        merges = job.tokenizer.merges if job.tokenizer else None
        is_file = merges is not None
        yield "vocab-file", job.tokenizer_path if is_file else os.path.join(job.tokenizer_path, "vocab.json")
        yield "merge-file", merges if is_file else os.path.join(job.tokenizer_path, "merges.txt")
    else:
        yield "tokenizer-model", job.tokenizer_path


def _records(job: Job) -> Iterator[Flag]:
    train = job.train
    yield from records(job)
    yield "log-throughput", None
    if train.ckpt_format is not None or job.parallel.fsdp:
        yield "ckpt-format", train.ckpt_format or "torch_dist"
    if train.profile:
        yield "profile", None
        yield "use-pytorch-profiler", None
    if job.backend == "rocm":
        yield "distributed-backend", "nccl"
        yield "distributed-timeout-minutes", 120


ESSENTIAL = {
    "use-rope-scaling": "Llama 3.1 and 3.2 would be trained with the positions of Llama 3",
    "rope-scaling-factor": "Llama 3.2 would be trained with the factor of Llama 3.1",
    "use-torch-fsdp2": "nothing would be sharded",
    "per-dataset-sequences-path": "every index would be read",
    "ckpt-format": "checkpoints would have another format",
    "fp8-recipe": "another recipe would be used",
    "use-pytorch-profiler": "nothing would be profiled",
}
"""Flags that cannot just be left out, and what would happen."""


def _check(job: Job, profile: Profile, flags: Sequence[Flag]) -> None:
    for name, _ in flags:
        if name in profile.lacks and name in ESSENTIAL:
            raise SpecError(f"--profile {job.profile}: {profile.what} has no --{name}, and {ESSENTIAL[name]}")
    recipe, precision = job.train.fp8_recipe, job.train.precision
    if f"fp8-recipe={recipe}" in profile.lacks:
        raise SpecError(f"--profile {job.profile}: {profile.what} has no {recipe}")
    if recipe != "delayed" and precision != "fp8":
        raise SpecError(f"train.fp8_recipe={recipe} would do nothing with {precision}: --set train.precision=fp8")


def _environment(job: Job) -> dict[str, str]:
    found = {"TOKENIZERS_PARALLELISM": "false"}
    if not job.parallel.fsdp:  # with FSDP, one queue would keep its transfers from overlapping
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if job.backend == "rocm":
        found |= ROCM_ENVIRONMENT
        if job.train.gemm_tuning:
            found |= {"TE_HIPBLASLT_TUNING_RUN_COUNT": "10", "TE_HIPBLASLT_TUNING_ALGO_COUNT": "50"}
    return found | job.launch.environment


def _notes(job: Job) -> Iterator[str]:
    if job.data.is_mock:
        yield "no prefix is given: Megatron trains on mock data"
    if job.train.save is not None and job.train.load not in (None, job.train.save):
        yield f"started again, it begins at {job.train.load} again; to go on, --set train.load={job.train.save}"
    if not job.launch.trainer:
        yield "pretrain_gpt.py is expected where the command is started; --set launch.trainer=FOLDER names its folder"


def _after(job: Job) -> tuple[tuple[str, str], ...]:
    if job.train.save is None:
        return ()
    command = (
        f"python tools/checkpoint/convert.py --model-type GPT --loader mcore --saver mcore "
        f"--load-dir {job.train.save} --save-dir {job.train.save}-converted"
    )
    return (("another tensor or pipeline size", command),)
