"""Checkpoints: everything that a training needs to go on, with any number of ranks.

    <output>/checkpoints/iteration-00000200/
        __0_0.distcp ...   torch.distributed.checkpoint (DCP): each rank writes what it holds
        .metadata          written last; a checkpoint exists if and only if it does
    state: model, optimizer, training (JSON: how far, of what data, with which settings)

Written in the background: a training waits only while its state is copied. DCP's own files hold pickles: load none
from people whom you would not let run a program.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from dataprep.errors import FormatError, OutputError, SpecError
from dataprep.storage import make_folder
from dataprep.train.builtin.settings import FREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.train.builtin.ranks import Ranks
    from dataprep.train.builtin.settings import Settings


def complete(output: Path) -> list[Path]:
    """The complete checkpoints of a training, oldest first."""
    return sorted(path.parent for path in output.glob("checkpoints/iteration-*/.metadata"))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """DCP without other ranks: that is meant so, and it need not warn of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
        yield


def training_of(checkpoint: Path) -> dict[str, Any]:
    """How far the training of a checkpoint was, and of what: plain JSON values.

    Raises:
        FormatError: not a checkpoint of this trainer.
    """
    state = {"training": ""}
    try:
        with alone():
            dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
        value: dict[str, Any] = json.loads(state["training"])
    except (CheckpointException, RuntimeError, OSError, ValueError) as error:
        raise FormatError(f"{checkpoint}: not a whole checkpoint of the built-in trainer: {error}") from error
    return value


def check_newest(settings: Settings, data: list[dict[str, Any]]) -> None:
    """See that a training goes on with what it began with, if its output holds a checkpoint.

    Args:
        settings: of the training.
        data: the fingerprint of its data.

    Raises:
        SpecError: the newest checkpoint is of other data or settings.
        FormatError: it is none of this trainer.
    """
    for path in complete(Path(settings.output))[-1:]:
        found, mine = training_of(path), settings.to_json()
        if found["settings"] is None:  # weights that came from elsewhere
            other = [] if found["shape"] == mine["shape"] else ["shape"]
        else:
            other = [key for key in mine if key not in FREE and found["settings"].get(key) != mine[key]]
            other += [] if found["data"] == data else ["data"]
        if other:
            raise SpecError(
                f"{path} is of a training with another {', '.join(other)}: it cannot go on with this; choose another "
                "output for a new training, or give what that one was given"
            )


class Checkpoints:
    """Those of one training.

    Args:
        settings: of the training.
        ranks: all have to call the same methods.
        data: the fingerprint of its data.
        tokenizer: identity of its tokenizer, as JSON, if it is known.
    """

    def __init__(
        self, settings: Settings, ranks: Ranks, data: list[dict[str, Any]], tokenizer: dict[str, Any] | None
    ) -> None:
        self._settings, self._ranks = settings, ranks
        self._training = {"data": data, "tokenizer": tokenizer, "seed": settings.seed, "settings": settings.to_json()}
        self._output = Path(settings.output)
        self._pending: Any = None

    def resume(self, model: Any, optimizer: Any) -> int:
        """Go on from the newest checkpoint, if there is one; `check_newest` said that one may.

        Returns:
            How many iterations are done.
        """
        path = self._ranks.told(complete(self._output)[-1:])
        if not path:
            return 0
        training = training_of(path[0])
        state = {"model": get_model_state_dict(model)}
        if training["settings"] is not None:  # else weights that came from elsewhere
            state["optimizer"] = get_optimizer_state_dict(model, optimizer)
        dcp.load(state, checkpoint_id=path[0], process_group=self._ranks.saving)
        set_model_state_dict(model, state["model"])
        if "optimizer" in state:
            set_optimizer_state_dict(model, optimizer, state["optimizer"])
        return int(training["iteration"])

    def save(self, model: Any, optimizer: Any, iteration: int) -> None:
        """Begin to write a checkpoint; returns once the state is copied.

        Raises:
            OutputError: the one before could not be written.
        """
        self.finish()
        path = self._output / "checkpoints" / f"iteration-{iteration:08d}"
        if self._ranks.rank == 0:
            shutil.rmtree(path, ignore_errors=True)  # one that was not finished
            make_folder(path)
        dist.barrier(group=self._ranks.control)
        progress = {"iteration": iteration, "consumed_samples": iteration * self._settings.global_batch_size}
        shape = self._settings.shape.to_json()
        state = {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
            "training": json.dumps({**self._training, **progress, "shape": shape}, sort_keys=True),
        }
        self._pending = dcp.async_save(state, checkpoint_id=path, process_group=self._ranks.saving)

    def finish(self) -> None:
        """Wait until the last checkpoint is written; then remove those that are not to be kept.

        Raises:
            OutputError: it could not be written.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except (CheckpointException, RuntimeError, OSError) as error:
            raise OutputError(f"cannot write a checkpoint to {self._output}: {error}") from error
        if self._ranks.rank == 0 and self._settings.keep_checkpoints is not None:
            for path in complete(self._output)[: -self._settings.keep_checkpoints]:
                (path / ".metadata").unlink()
                shutil.rmtree(path)
