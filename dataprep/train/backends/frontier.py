"""torchtitan's fork for Frontier, which tokenizes text while it trains: its TOML, and a start for mixed data.

It reads one dataset by `datasets.load_dataset(PATH)`, so the prefixes are exported first (`dataprep export`). It draws
rows, not tokens; of several prefixes each row's probability is what gives the job's shares of tokens:

    probability of a row of prefix i  =  weight_i * documents_i / tokens_i,  over the sum of these

which is `blending.token_shares` the other way round. The fork has no place for such a mixture, so a few lines of Python
put it there and then run its train.py as it is.

Source: eminorhan/frontier-torchtitan d140c6b (2024-11-25): train.py, train_8B.sh, torchtitan/config_manager.py,
torchtitan/optimizer.py, torchtitan/datasets/hf_datasets.py, torchtitan/models/llama.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Any

from dataprep.errors import SpecError
from dataprep.train.backends.words import words
from dataprep.train.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dataprep.train.job import Job, Part
    from dataprep.train.presets import Shape

TOML = "train.toml"
MIXED = "train_mixed.py"
"""Names of files in the job's folder."""

TEXT = "text"
"""Name of the folder, in the job's folder, that the prefixes are exported to."""

SHAPES = {
    (16, 2048, 7168, 32, 8): "1B",
    (28, 3072, 11264, 24, 8): "3B",
    (32, 4096, 14336, 32, 8): "8B",
    (80, 8192, 28672, 64, 8): "70B",
    (126, 16384, 53248, 128, 8): "405B",
}
"""Layers, width, feed-forward width, heads, groups -> flavor of its llama3, by its ModelArgs: the feed-forward width is
2/3 of 4 widths, times a factor, rounded up, which for 1B and 3B is not that of Llama 3.2."""

ENVIRONMENT = {
    "NCCL_NET_GDR_LEVEL": "3",
    "NCCL_ALGO": "TREE",
    "NCCL_CROSS_NIC": "1",
    "NCCL_SOCKET_IFNAME": "hsn0",
    "GLOO_SOCKET_IFNAME": "hsn0",
    "NCCL_IB_TIMEOUT": "31",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "HF_HUB_OFFLINE": "1",
    "LOGLEVEL": "INFO",
}
"""Of its train_8B.sh, without the paths of one user and the proxies of one site."""

START = '''"""Started instead of train.py: the fork's one dataset is a mixture of several, rows drawn by probability."""

import os
import runpy
import sys

from datasets import interleave_datasets, load_dataset

sys.path.insert(0, os.getcwd())
import torchtitan.datasets.hf_datasets as loader

PARTS = {parts}


def mixed(path, split):
    parts = [
        load_dataset("json", data_files=os.path.join(path, name, "*.jsonl"), split=split, streaming=True)
        for name, _ in PARTS
    ]
    probabilities = [probability for _, probability in PARTS]
    return interleave_datasets(parts, probabilities=probabilities, seed={seed}, stopping_strategy="all_exhausted")


loader.load_dataset = mixed
runpy.run_path("train.py", run_name="__main__")
'''


def row_probabilities(parts: Sequence[Part]) -> list[float]:
    """How often a row of each prefix is drawn for the tokens to have the shares that the parts' weights say.

    Returns:
        One for each part, which add up to 1.
    """
    rows = [part.weight * part.num_documents / part.num_tokens for part in parts]
    return [each / sum(rows) for each in rows]


def render(job: Job) -> Program:
    """The program of a job.

    Args:
        job: of the profile ``torchtitan-frontier``.

    Raises:
        SpecError: the fork cannot do what the job asks for.
    """
    check(job)
    files = {TOML: _toml(job)}
    names = _folders(job.data.parts)
    script = "train.py"
    if len(names) > 1:
        pairs = list(zip(names, (round(each, 12) for each in row_probabilities(job.data.parts)), strict=True))
        listed = "".join(f"    ({json.dumps(name)}, {probability!r}),\n" for name, probability in pairs)
        files[MIXED] = START.format(parts=f"[\n{listed}]", seed=job.train.seed)
        script = os.path.join(job.output, MIXED)
    interface = job.launch.interface
    chosen = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface is not None else {}
    return Program(
        start="torchrun",
        script=script,
        arguments=words([("job.config_file", os.path.join(job.output, TOML))], job.arguments),
        environment=ENVIRONMENT | chosen | job.launch.environment,
        files=files,
        folder=job.launch.trainer,
        vendor="amd",
        notes=tuple(_notes(job)),
        after=tuple(_after(job)),
    )


def check(job: Job) -> None:
    """See that the job is one for the fork.

    Raises:
        SpecError: it is not; says what to do instead.
    """
    train, shape = job.train, job.shape
    ranks = train.micro_batch_size * job.parallel.data_parallel_size
    refusals = {
        "it has no mock data: give a PREFIX": job.data.is_mock,
        "it has one split, and validates on nothing: give prefixes without --valid and --test": bool(job.data.own),
        f"it has no model of this shape; its flavors are those of Llama 3 ({', '.join(SHAPES.values())})": (
            _flavor(shape) is None
        ),
        "it has no stretched rotary positions: take --model llama3-8b or another without": (
            shape.rope_scaling is not None
        ),
        "its embedding is never tied to the output: --set model.tie_embeddings=false": shape.tie_embeddings,
        f"{train.precision} is not rendered for it: take bf16": train.precision not in ("bf16", "fp32"),
        "the optimizer is AdamW": train.optimizer != "adam",
        "it has no context parallelism: --cp 1": job.parallel.context_parallel_size > 1,
        f"it accumulates no gradients: --global-batch {ranks}, micro batch times ranks, or another --micro-batch": (
            train.global_batch_size != ranks
        ),
    }
    for why, applies in refusals.items():
        if applies:
            raise SpecError(f"frontier-torchtitan: {why}")


def _flavor(shape: Shape) -> str | None:
    sizes = shape.num_layers, shape.hidden_size, shape.ffn_hidden_size, shape.num_attention_heads
    is_llama3 = shape.family == "llama" and shape.rotary_base == 500000.0 and shape.norm_epsilon == 1e-5
    return SHAPES.get((*sizes, shape.num_query_groups)) if is_llama3 else None


def _toml(job: Job) -> str:
    """TOML of tables of plain values, of which JSON's are written alike."""
    lines = []
    for name, table in tables(job).items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def tables(job: Job) -> dict[str, dict[str, Any]]:
    """What the TOML says, by its tables."""
    train, parallel = job.train, job.parallel
    path = job.tokenizer_path
    return {
        "job": {"dump_folder": job.output, "description": job.name},
        "profiling": {"enable_profiling": train.profile, "save_traces_folder": "profile_trace", "profile_freq": 10},
        "metrics": {
            "log_freq": train.log_interval,
            "enable_tensorboard": train.log_dir is not None,
            "save_tb_folder": train.log_dir or "tb",
        },
        "model": {
            "name": "llama3",
            "flavor": _flavor(job.shape),
            "norm_type": "fused_rmsnorm",
            "tokenizer_path": path if path.endswith(".model") else os.path.join(path, "original", "tokenizer.model"),
        },
        "optimizer": {"name": "AdamW", "lr": train.lr},
        "training": {
            "batch_size": train.micro_batch_size,
            "seq_len": train.seq_length,
            "warmup_steps": train.lr_warmup_iters,
            "max_norm": train.clip_grad,
            "steps": train.train_iters,
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": parallel.data_parallel_size,
            "tensor_parallel_degree": parallel.tensor_model_parallel_size,
            "mixed_precision_param": "float32" if train.precision == "fp32" else "bfloat16",
            "compile": train.torch_compile,
            "dataset": "dataprep",
            "dataset_path": os.path.join(job.output, TEXT),
        },
        "experimental": {"pipeline_parallel_degree": parallel.pipeline_model_parallel_size},
        "checkpoint": {
            "enable_checkpoint": train.save is not None,
            "folder": train.save or "checkpoint",
            "interval_type": "steps",
            "interval": train.save_interval,
            "model_weights_only": False,
            "export_dtype": "bfloat16",
            "async_mode": "disabled",
        },
        "activation_checkpoint": {"mode": train.recompute, "selective_ac_option": "op"},
        "float8": {"enable_float8_linear": False},
    }


def _folders(parts: Sequence[Part]) -> list[str]:
    """Names of the folders that several prefixes are exported to, each its own."""
    names = [os.path.basename(part.prefix) for part in parts]
    return [name if names.count(name) == 1 else f"{number}-{name}" for number, name in enumerate(names)]


def _exports(job: Job) -> Iterator[str]:
    """The commands that write the text; as many files as ranks read at once, or each would read all of them."""
    text = os.path.join(job.output, TEXT)
    names = _folders(job.data.parts)
    for part, name in zip(job.data.parts, names, strict=True):
        folder = os.path.join(text, name) if len(names) > 1 else text
        files = job.parallel.data_parallel_size
        yield shlex.join(["dataprep", "export", part.prefix, "--output", folder, "--files", str(files)])


def _notes(job: Job) -> Iterator[str]:
    yield f"it reads text: run first  {'  &&  '.join(_exports(job))}"
    yield (
        "weight decay 0.1, betas 0.9 and 0.95 and a linear decay to 0 are fixed in the fork; it never validates, and "
        "shuffles no documents"
    )
    shares = [part.weight for part in job.data.parts]
    if len(shares) > 1:
        found = zip(job.data.parts, row_probabilities(job.data.parts), strict=True)
        rows = ", ".join(f"{os.path.basename(part.prefix)} {row:.4g} (tokens {part.weight:.4g})" for part, row in found)
        yield f"rows are drawn by these probabilities, for these shares of tokens: {rows}"
    yield (
        "aws-ofi-rccl is not on the search path by itself: --set launch.prologue='[\"export "
        "LD_LIBRARY_PATH=FOLDER/lib:$LD_LIBRARY_PATH\"]'"
    )
    yield "model.tokenizer_path has to be the tiktoken file of Llama 3, original/tokenizer.model of its repository"
    if job.train.load is not None:
        yield f"it starts from what is in its own checkpoint folder: put {job.train.load} there as step-0"


def _after(job: Job) -> Iterator[tuple[str, str]]:
    if job.train.save is not None:
        step = os.path.join(job.train.save, f"step-{job.train.train_iters}")
        yield (
            "to a checkpoint.pth of Meta's form",
            shlex.join(["python", "dcp_to_llama.py", "--input_dir", step, "--output_dir", f"{step}-llama"]),
        )
