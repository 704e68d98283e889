"""Which settings only some profiles, launchers or containers read: one that nothing reads is an error, not a promise.

A variable of a script that nothing reads is a warning, since the scripts export many. What a trainer reads and refuses,
its backend says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataprep.train.job import Launch, Parallel, Training
from dataprep.train.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from dataprep.specs import Model

_ALL = frozenset(PROFILES)
_MEGATRON = frozenset(name for name, each in PROFILES.items() if each.backend in ("megatron", "rocm"))
_DEEPSPEED = frozenset({"megatron-deepspeed"})
_FRONTIER = frozenset({"torchtitan-frontier"})
_BUILTIN = frozenset({"builtin"})
_TITAN = frozenset({"torchtitan-head"})
_SLURM = frozenset({"slurm"})
_PODS = frozenset({"kubernetes"})
_HERE = frozenset({"local", "print"})

READ: dict[str, frozenset[str]] = {
    **dict.fromkeys(("train.fp8_recipe", "train.rope_fusion", "train.use_distributed_optimizer"), _MEGATRON),
    "train.mcore": frozenset(name for name, each in PROFILES.items() if each.is_legacy),
    "train.gemm_tuning": frozenset(name for name, each in PROFILES.items() if each.backend == "rocm"),
    **dict.fromkeys(
        ("train.data_cache_path", "train.sequence_parallel", "train.use_flash_attn"), _MEGATRON | _DEEPSPEED
    ),
    **dict.fromkeys(("train.num_workers", "train.dataloader_type"), _MEGATRON | _DEEPSPEED),
    **dict.fromkeys(
        ("train.save_optim", "train.ckpt_format", "train.sequences", "train.wandb_project"),
        _MEGATRON | _DEEPSPEED | _TITAN,
    ),
    **dict.fromkeys(("train.save", "train.log_dir", "train.profile"), _ALL - _BUILTIN),
    **dict.fromkeys(("train.split", "train.eval_interval", "train.eval_iters"), _ALL - _FRONTIER),
    **dict.fromkeys(("train.lr_decay_style", "train.lr_decay_iters", "train.min_lr"), _ALL - _FRONTIER),
    **dict.fromkeys(("train.weight_decay", "train.adam_beta1", "train.adam_beta2", "train.adam_eps"), _ALL - _FRONTIER),
    "train.torch_compile": _TITAN | _FRONTIER | _BUILTIN,
    "parallel.zero_stage": _DEEPSPEED,
    **dict.fromkeys(("launch.image", "launch.mounts"), _PODS | {"docker", "podman", "pyxis"}),
    **dict.fromkeys(("launch.master_addr", "launch.node_rank"), _HERE),
    **dict.fromkeys(
        (
            *("launch.time", "launch.partition", "launch.account", "launch.qos", "launch.reservation"),
            *("launch.constraint", "launch.cpus_per_task", "launch.memory", "launch.exclusive", "launch.directives"),
            *("launch.gpus_option", "launch.requeue", "launch.auto_resume"),
        ),
        _SLURM,
    ),
    **dict.fromkeys(
        (
            *("launch.namespace", "launch.claim", "launch.mount_path", "launch.kind", "launch.runtime"),
            *("launch.instance_type", "launch.cpu_per_node", "launch.memory_per_node", "launch.shared_memory"),
            "launch.token_secret",
        ),
        _PODS,
    ),
}
"""Setting -> the profiles, launchers or containers that read it; one that is not here is read by all."""

MODELS: dict[str, type[Model]] = {"train": Training, "parallel": Parallel, "launch": Launch}


def without_effect(
    settings: Mapping[str, Mapping[str, Any]], chosen: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Settings that nothing will read.

    Args:
        settings: ``namespace -> name -> value``; a value that is the default promises nothing.
        chosen: the profile, the launcher and the container.

    Yields:
        Namespace and name, and whom the setting is for.
    """
    for namespace, model in MODELS.items():
        for name, value in settings.get(namespace, {}).items():
            readers = READ.get(f"{namespace}.{name}")
            field = model.model_fields.get(name)
            if readers is not None and field is not None and readers.isdisjoint(chosen) and field.default != value:
                yield namespace, name, f"it is for {', '.join(sorted(readers))}, and this is for {', '.join(chosen)}"
