"""The numbers of scripts that people copy, where they differ from the model's own: to reproduce a figure, not to train.

Each entry changes a shape and a schedule into what one public script has, and says so for every number. Sources:

    rocm-24.12  ROCm/Megatron-LM bb93ccbf, examples/llama/train_llama2.sh and train_llama3.sh
    rocm-25     ROCm/Megatron-LM f253af69, the same files
    aws         aws-samples/awsome-distributed-training e13f65fc, 3.test_cases/1.megatron-lm, both sbatch files
    deepspeed   Megatron-DeepSpeed f4157bea, examples_deepspeed/rebase/ds_pretrain_gpt_125M_flashattn.sh
"""

from __future__ import annotations

from typing import Any

from dataprep.errors import SpecError
from dataprep.train.presets import Shape

AMD_SCHEDULE: dict[str, Any] = {
    "lr": 1e-4,
    "min_lr": 1e-5,
    "lr_decay_iters": 320000,
    "lr_warmup_iters": 0,
    "eval_iters": 0,
    "eval_interval": 5000,
    "save_interval": 5000,
    "log_interval": 1,
    "dataloader_type": "cyclic",
    "save_optim": False,
}

AWS_GPT: dict[str, Any] = {
    "global_batch_size": 288,
    "train_iters": 146484375 // 288,
    "lr": 6e-5,
    "min_lr": 6e-6,
    "lr_decay_iters": 126953125 // 288,
    "lr_warmup_iters": 183105 // 288,
    "precision": "fp16",
    "recompute": "selective",
    "split": "98,2,0",
    "eval_iters": 40,
    "log_interval": 1,
    "save": None,
}

DEEPSPEED: dict[str, Any] = {
    "micro_batch_size": 2,
    "global_batch_size": 256,
    "train_iters": 300 * 10**9 // (256 * 2048),
    "lr": 6e-4,
    "min_lr": 1e-6,
    "lr_decay_iters": 300 * 10**9 // (256 * 2048),
    "lr_warmup_iters": 3 * 10**9 // (256 * 2048),
    "precision": "fp16",
    "recompute": "full",
    "split": "949,50,1",
    "eval_iters": 10,
    "eval_interval": 100,
    "log_interval": 10,
    "num_workers": 0,
}

COMPAT = ("rocm-24.12", "rocm-25", "aws", "deepspeed")


def script_numbers(name: str, model: str, shape: Shape) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a script has for a model.

    Args:
        name: one of `COMPAT`.
        model: name of the preset.
        shape: of the preset.

    Returns:
        Fields of `Shape`, and of `Training`; of the latter, what the request gives wins.

    Raises:
        SpecError: unknown, or the script has no such model.
    """
    if name not in COMPAT:
        raise SpecError(f"--compat {name}: expected one of {', '.join(COMPAT)}")
    family, _, size = model.partition("-")
    is_llama = shape.family == "llama"
    if name.startswith("rocm") and is_llama:
        return _amd(name, family, size), {**AMD_SCHEDULE, **_amd_split(name, family)}
    if name == "aws" and family == "llama2":
        ffn = int(4 * shape.hidden_size * 2 / 3 / 64) * 64  # what Megatron makes of --swiglu without --ffn-hidden-size
        changed = {"ffn_hidden_size": ffn, "add_bias_linear": True, "hidden_dropout": 0.1, "attention_dropout": 0.1}
        schedule = {**AMD_SCHEDULE, "precision": "fp16", "split": "100,0,0", "train_iters": 5}
        return changed, {"global_batch_size": 2048, "precision": "fp16", **_only(schedule, "split", "train_iters")}
    if name == "aws" and family == "gpt":
        return {"hidden_dropout": 0.1, "attention_dropout": 0.1, "init_method_std": 0.006}, AWS_GPT
    if name == "deepspeed" and model == "gpt3-125m":
        return {"hidden_dropout": 0.1, "attention_dropout": 0.1}, DEEPSPEED
    raise SpecError(f"--compat {name}: that script has no {model}")


def _only(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names} | {"eval_iters": 0, "save": None}


def _amd(name: str, family: str, size: str) -> dict[str, Any]:
    positions = 128000 if name == "rocm-24.12" else 32000 if family == "llama2" else 131072
    changed: dict[str, Any] = {"rotary_base": 10000.0, "rope_scaling": None, "max_position_embeddings": positions}
    if name == "rocm-24.12" and (family, size) == ("llama2", "7b"):
        changed |= {"ffn_hidden_size": 14336, "num_query_groups": 8}
    return changed


def _amd_split(name: str, family: str) -> dict[str, Any]:
    return {"split": "99990,8,2"} if name == "rocm-25" and family == "llama2" else {}


def differences(shape: Shape, changed: Shape) -> list[str]:
    """What a script's shape has otherwise, in words: ``ffn_hidden_size 14336 (the model's: 11008)``."""
    mine, theirs = shape.model_dump(), changed.model_dump()
    return [f"{key} {theirs[key]} (the model's: {mine[key]})" for key in mine if mine[key] != theirs[key]]
