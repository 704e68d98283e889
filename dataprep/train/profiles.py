"""Which flags each version of each trainer knows: the differences that rendered arguments have to follow.

    backend             profiles, default first
    megatron            core-0.16, core-0.8, core-0.12, core-0.14, core-0.19, core-head
    rocm                rocm-25, rocm-24.12
    megatron-deepspeed  megatron-deepspeed
    torchtitan          torchtitan-head, torchtitan-frontier
    torch               builtin

Read from the parsers of NVIDIA/Megatron-LM at core_v0.8.0, core_v0.12.1, core_v0.14.0, core_v0.16.1, core_v0.19.0 and
d98e8a64 (head), which `tests/train/flags` holds the names of; of ROCm/Megatron-LM at bb93ccbf (24.12) and f253af69
(25), as far as its own scripts use flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from dataprep.train.job import Backend

_SINCE_0_9 = frozenset({"ckpt-format", "use-pytorch-profiler", "use-rope-scaling"})
_SINCE_0_12 = frozenset({"rope-scaling-factor", "data-args-path", "per-split-data-args-path", "use-torch-fsdp2"}) | {
    "fp8-recipe",
    "attention-backend",
}
_SINCE_0_14 = frozenset({"fp8-recipe=blockwise"})
_SINCE_0_16 = frozenset({"per-dataset-sequences-path"})
_NOT_ROCM_25 = frozenset({"fp8-recipe=mxfp8"}) | _SINCE_0_14 | _SINCE_0_16
_AMD = ("no-masked-softmax-fusion", "no-gradient-accumulation-fusion", "no-async-tensor-model-parallel-allreduce")


@dataclass(frozen=True)
class Profile:
    """One version of one trainer.

    Attributes:
        backend: the trainer.
        what: the version, in words.
        lacks: of the flags that `backends.megatron` may write, those that it does not know, without dashes; with
            ``=VALUE`` that value.
        always: flags without values that it is always given.
        is_legacy: whether Megatron's own models and flash attention are asked for by flags, and not the default.
        needs_valid_samples: whether no validation is asked for by a split without it, and not by --eval-iters 0.
        needs_valid_split: whether it fails as it starts where --eval-iters asks for samples of no split, instead of
            never validating. Source: megatron/training/training.py, build_train_valid_test_data_iterators.
        cuts_groups: whether more tensor-parallel ranks than query groups share them. Source: TransformerConfig.
    """

    backend: Backend
    what: str
    lacks: frozenset[str] = frozenset()
    always: tuple[str, ...] = ()
    is_legacy: bool = False
    needs_valid_samples: bool = False
    needs_valid_split: bool = False
    cuts_groups: bool = False


PROFILES: dict[str, Profile] = {
    "core-0.16": Profile("megatron", "Megatron-LM core_v0.16.1", needs_valid_split=True, cuts_groups=True),
    "core-0.8": Profile(
        "megatron",
        "Megatron-LM core_v0.8.0",
        _SINCE_0_9 | _SINCE_0_12 | _SINCE_0_14 | _SINCE_0_16,
        is_legacy=True,
        needs_valid_samples=True,
    ),
    "core-0.12": Profile("megatron", "Megatron-LM core_v0.12.1", _SINCE_0_14 | _SINCE_0_16),
    "core-0.14": Profile("megatron", "Megatron-LM core_v0.14.0", _SINCE_0_16, needs_valid_split=True),
    "core-0.19": Profile("megatron", "Megatron-LM core_v0.19.0", needs_valid_split=True, cuts_groups=True),
    "core-head": Profile("megatron", "Megatron-LM d98e8a64", needs_valid_split=True, cuts_groups=True),
    "rocm-25": Profile("rocm", "ROCm Megatron-LM f253af69 (v25.x)", _NOT_ROCM_25, _AMD, is_legacy=True),
    "rocm-24.12": Profile(
        "rocm", "ROCm Megatron-LM bb93ccbf (24.12)", _SINCE_0_12 | _NOT_ROCM_25, _AMD, is_legacy=True
    ),
    "megatron-deepspeed": Profile("megatron-deepspeed", "Megatron-DeepSpeed 4efb479d"),
    "torchtitan-head": Profile("torchtitan", "torchtitan b5bcd76c (2026-08-21)"),
    "torchtitan-frontier": Profile("torchtitan", "eminorhan/frontier-torchtitan d140c6b"),
    "builtin": Profile("torch", "the built-in trainer"),
}
"""Name -> version; of each backend the first is the default."""

BACKENDS: tuple[Backend, ...] = ("megatron", "rocm", "megatron-deepspeed", "torchtitan", "torch")

Vendor = Literal["nvidia", "amd", "any"]


def find_profile(backend: str | None, profile: str | None) -> tuple[Backend, str]:
    """The backend and the name of the profile that a request means.

    Args:
        backend: as given; None: that of the profile, or megatron.
        profile: as given; None: the backend's default.

    Raises:
        SpecError: one of them is unknown, or they do not belong together.
    """
    if profile is not None and profile not in PROFILES:
        raise SpecError(f"--profile {profile}: expected one of {', '.join(PROFILES)}")
    known = next((each for each in BACKENDS if each == (backend or "megatron")), None)
    if known is None:
        raise SpecError(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    if profile is None:
        return known, next(name for name, each in PROFILES.items() if each.backend == known)
    if backend is not None and PROFILES[profile].backend != known:
        mine = ", ".join(name for name, each in PROFILES.items() if each.backend == known)
        raise SpecError(f"--profile {profile} is of {PROFILES[profile].backend}; --backend {known} has {mine}")
    return PROFILES[profile].backend, profile
