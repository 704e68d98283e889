"""Who of how many this process is, on which device, and what all of them agree on.

`torchrun` says so in the environment; without it there is one rank. Collectives of tensors go through the default
group: NCCL (RCCL on ROCm) between GPUs, gloo between processors. What is no tensor has a gloo group of its own, so
that to agree never waits for a GPU, and a checkpoint that is written meanwhile has another.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Ranks:
    """One process of the training.

    Attributes:
        rank, size: this one, and how many there are.
        device: what it computes on.
        control: a gloo group, see `largest`.
        saving: a gloo group for checkpoints.
    """

    rank: int
    size: int
    device: torch.device
    control: Any
    saving: Any

    def largest(self, number: int) -> int:
        """The largest that any rank brought."""
        value = torch.tensor(number)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.control)
        return int(value)

    def told(self, value: Any) -> Any:
        """What rank 0 brought."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def mean(self, value: torch.Tensor) -> float:
        """The mean over all ranks of a number on the device."""
        value = value.clone()
        dist.all_reduce(value)
        return float(value) / self.size


def rank_and_size() -> tuple[int, int]:
    """This rank and how many there are, as `torchrun` says it; nothing is started."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def started() -> Iterator[Ranks]:
    """Join the other ranks; left at the end, but not after an error: they may wait for this one, and it for them."""
    rank, size = rank_and_size()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", **alone)
    failed = True
    try:
        yield Ranks(rank, size, device, dist.new_group(backend="gloo"), dist.new_group(backend="gloo"))
        failed = False
    finally:
        if not failed or size == 1:
            dist.destroy_process_group()
