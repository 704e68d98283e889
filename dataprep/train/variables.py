"""The variables of the public scripts: taken from ``KEY=VALUE`` arguments, and from the environment.

    MBS=2 BS=128 TP=1 TE_FP8=1 SEQ_LENGTH=8192 MODEL_SIZE=8 dataprep train PREFIX --model llama3

Each is a setting of this program under another name. What the scripts document and never read, or read and cannot mean
well, is answered with a warning, not with silence.

Sources: ROCm/Megatron-LM bb93ccbf, f253af69, ff206628, examples/llama (train_llama2.sh, train_llama3.sh,
train_llama_slurm.sh); awsome-distributed-training e13f65fc and 7217859f, megatron-lm/slurm and kubernetes.
"""

from __future__ import annotations

import difflib
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Variable:
    """What a variable stands for.

    Attributes:
        key: the setting, ``NAMESPACE.NAME``; of ``ask.*``, what only a request has, see `Asked`.
        kind: how its text is read; ``switch`` is 0 or 1.
        on: what the setting becomes where a switch is 1; nothing is set where it is 0, unless `off` says so.
        off: what it becomes at 0.
    """

    key: str
    kind: Literal["int", "text", "switch"] = "text"
    on: Any = True
    off: Any = None


VARIABLES: dict[str, Variable] = {
    "MODEL_SIZE": Variable("ask.size"),
    "MODEL_NAME": Variable("ask.model"),
    "DATA_PATH": Variable("ask.data_path"),
    "MOCK_DATA": Variable("ask.mock", "switch"),
    "TOKENIZER_MODEL": Variable("ask.tokenizer"),
    "TOKENIZER_TYPE": Variable("ask.tokenizer_type"),
    "BATCH_SIZE_PER_NODE": Variable("ask.batch_size_per_node", "int"),
    "TP": Variable("parallel.tensor_model_parallel_size", "int"),
    "TENSOR_PARALLEL": Variable("parallel.tensor_model_parallel_size", "int"),
    "PP": Variable("parallel.pipeline_model_parallel_size", "int"),
    "PIPELINE_PARALLEL": Variable("parallel.pipeline_model_parallel_size", "int"),
    "CP": Variable("parallel.context_parallel_size", "int"),
    "FSDP": Variable("parallel.fsdp", "switch", off=False),
    "NNODES": Variable("parallel.nodes", "int"),
    "NUM_NODES": Variable("parallel.nodes", "int"),
    "GPUS_PER_NODE": Variable("parallel.gpus_per_node", "int"),
    "GPU_PER_NODE": Variable("parallel.gpus_per_node", "int"),
    "MBS": Variable("train.micro_batch_size", "int"),
    "MICRO_BATCH_SIZE": Variable("train.micro_batch_size", "int"),
    "BS": Variable("train.global_batch_size", "int"),
    "GLOBAL_BATCH_SIZE": Variable("train.global_batch_size", "int"),
    "SEQ_LENGTH": Variable("train.seq_length", "int"),
    "TOTAL_ITERS": Variable("train.train_iters", "int"),
    "SEQ_PARALLEL": Variable("train.sequence_parallel", "switch", off=False),
    "TE_FP8": Variable("train.precision", "switch", on="fp8", off="bf16"),
    "TE_FP8_RECIPE": Variable("train.fp8_recipe"),
    "GEMM_TUNING": Variable("train.gemm_tuning", "switch", off=False),
    "MCORE": Variable("train.mcore", "switch", off=False),
    "OPTIMIZER": Variable("train.optimizer"),
    "RECOMPUTE": Variable("train.recompute", "switch", on="full", off="none"),
    "ROPE_FUSION": Variable("train.rope_fusion", "switch", off=False),
    "USE_FLASH_ATTN": Variable("train.use_flash_attn", "switch", off=False),
    "ENABLE_PROFILING": Variable("train.profile", "switch", off=False),
    "LOG_INTERVAL": Variable("train.log_interval", "int"),
    "EVAL_INTERVAL": Variable("train.eval_interval", "int"),
    "SAVE_INTERVAL": Variable("train.save_interval", "int"),
    "EVAL_ITERS": Variable("ask.eval_iters", "int"),
    "SAVE_CKPT_PATH": Variable("train.save"),
    "LOAD_CKPT_PATH": Variable("ask.load"),
    "CKPT_FORMAT": Variable("train.ckpt_format"),
    "DATA_CACHE_PATH": Variable("train.data_cache_path"),
    "LOG_DIR": Variable("train.log_dir"),
    "TRAIN_LOG": Variable("train.log_file"),
    "TEE_OUTPUT": Variable("train.tee", "switch", off=False),
    "EXP_NAME": Variable("ask.name"),
    "NUM_LAYERS": Variable("model.num_layers", "int"),
    "HIDDEN_SIZE": Variable("model.hidden_size", "int"),
    "NUM_ATTENTION_HEADS": Variable("model.num_attention_heads", "int"),
    "MAX_POSITION_EMBEDDINGS": Variable("model.max_position_embeddings", "int"),
    "MASTER_ADDR": Variable("launch.master_addr"),
    "MASTER_PORT": Variable("launch.master_port", "int"),
    "NODE_RANK": Variable("launch.node_rank", "int"),
    "NCCL_SOCKET_IFNAME": Variable("launch.interface"),
    "GLOO_SOCKET_IFNAME": Variable("launch.interface"),
    "NETWORK_INTERFACE": Variable("launch.interface"),
    "MEGATRON_DIR": Variable("launch.trainer"),
    "IMAGE": Variable("launch.image"),
    "IMAGE_URI": Variable("launch.image"),
    "EFA_PER_NODE": Variable("launch.efa_per_node", "int"),
    "INSTANCE_TYPE": Variable("launch.instance_type"),
    "FSX_MOUNT": Variable("ask.mount"),
    "HOST_MOUNT": Variable("ask.host_mount"),
    "CONTAINER_MOUNT": Variable("ask.container_mount"),
    "WANDB_API_KEY": Variable("ask.wandb"),
}
"""Name -> what it stands for. Whoever reads them finds the more general name, of two of one key, given later."""

DEAD: dict[str, str] = {
    "NO_TORCH_COMPILE": "the scripts of 24.12 and later never read it; nothing here compiles the model",
    "CONTI_PARAMS": "its flag --use-contiguous-parameters-in-local-ddp is in no Megatron; left out",
    "NO_TRAINING": "dataprep train trains, or shows what it would do with --dry-run",
    "DATA_DIR": "name the data by their prefix, or DATA_PATH",
    "ENABLE_ROPE": "rotary positions belong to the model, and are always used with Llama",
    "DISABLE_ROPE_TE": "only Megatron of ROCm 24.12 has it; ROPE_FUSION=0 is the same everywhere",
    "MEGATRON_FSDP": "left out; FSDP=1 uses PyTorch's",
    "FP8_PARAM_GATHER": "left out; --set argument.fp8-param-gather= adds the flag where the trainer has it",
    "NUM_PROCESSES": "the scripts never set it; GPUS_PER_NODE is read",
    "RECOMPUTE_NUM_LAYERS": "RECOMPUTE=1 is of all layers; --set argument.recompute-num-layers=N says otherwise",
    "CHECKPOINT_PATH": "the scripts comment its use out; SAVE_CKPT_PATH is read",
    "CONTAINER_NAME": "containers get the name of the job, and no other container is stopped",
    "REGISTRY": "put it into the image's name",
}
"""Variables of the scripts that do nothing, there or here, and why."""

OWN_BY_ENVIRONMENT = frozenset({"WANDB_API_KEY", "HF_TOKEN"})
"""Secrets: that they are there is known, what they are is not looked at."""


@dataclass(frozen=True)
class Taken:
    """What variables say.

    Attributes:
        settings: ``namespace -> name -> value``.
        notes: which were taken from where.
        warnings: which do nothing, and why.
    """

    settings: dict[str, dict[str, Any]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def is_variable(word: str) -> bool:
    """Whether an argument is ``KEY=VALUE``, and no ``PREFIX=WEIGHT``."""
    name, equals, value = word.partition("=")
    known = name in VARIABLES or name in DEAD
    return (
        bool(equals) and name.replace("_", "").isalnum() and name == name.upper() and (known or not _is_number(value))
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def take(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Taken:
    """Read variables; those of the command line win.

    Args:
        words: ``KEY=VALUE`` each.
        environment: where else to look; None: that of the process.

    Raises:
        SpecError: a value that the variable cannot have.
    """
    environment = os.environ if environment is None else environment
    given = dict(word.split("=", 1) for word in words)
    found = {name: environment[name] for name in (*VARIABLES, *DEAD) if environment.get(name) and name not in given}
    settings: dict[str, dict[str, Any]] = {}
    if not any(name in VARIABLES for name in found):
        found = {}  # such names are common: alone, they are of something else
    warnings = [f"{name} does nothing: {DEAD[name]}" for name in (*given, *found) if name in DEAD]
    for name in given:
        if name not in VARIABLES and name not in DEAD:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            warnings.append(f"{name} is no variable that is known{f'; {near[0]} is' if near else ''}: it does nothing")
    for source in (found, given):
        for name, text in source.items():
            if name in VARIABLES and not text:
                raise SpecError(f"{name}= has no value; perhaps it is of a variable that is not set")
            if name in VARIABLES:
                _set(settings, name, text)
    shown = {n: "..." if n in OWN_BY_ENVIRONMENT else t for n, t in found.items() if n in VARIABLES}
    notes = [f"from the environment: {' '.join(f'{n}={shlex.quote(t)}' for n, t in shown.items())}"] if shown else []
    return Taken(settings, tuple(notes), tuple(warnings))


def _set(settings: dict[str, dict[str, Any]], name: str, text: str) -> None:
    variable = VARIABLES[name]
    value: Any = text
    if variable.kind == "int":
        try:
            value = int(text)
        except ValueError as error:
            raise SpecError(f"{name}={text}: expected a whole number") from error
    elif variable.kind == "switch":
        if text not in ("0", "1"):
            raise SpecError(f"{name}={text}: expected 0 or 1")
        value = variable.on if text == "1" else variable.off
    if value is not None:
        namespace, _, key = variable.key.partition(".")
        settings.setdefault(namespace, {})[key] = value
