"""What `torchrun` starts on every rank: torchrun -m dataprep.train.builtin SETTINGS.json.

Without `torchrun`, as in ``python -m dataprep.train.builtin SETTINGS.json``, there is one rank. Exit codes: 0 done,
1 the work failed, 2 a bad request, 130 interrupted, 143 told to end (by SIGTERM, or by SIGUSR1 in a job of Slurm);
of the last two the training is saved. `torchrun` itself makes 1 of any code but 0.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import DataprepError, SpecError
from dataprep.train.builtin import data, require_torch
from dataprep.train.builtin.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.train.builtin.ranks import Ranks


def load_settings(path: Path) -> Settings:
    """Read the settings of a training.

    Raises:
        SpecError: no such file, or not settings.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the settings {path}: {error}") from error
    return Settings.from_json(value, str(path))


def prepared(settings: Settings) -> Callable[[Ranks], int]:
    """Find all that can be found wrong before the ranks join.

    Returns:
        What trains once they have, and gives the exit code of a training that did not fail, see `Training.run`.

    Raises:
        DataprepError: see `data.checked`, `data.parts_of` and `check_newest`.
    """
    require_torch()
    from dataprep.storage import make_folder
    from dataprep.train.builtin.checkpoints import Checkpoints, check_newest
    from dataprep.train.builtin.loop import Training
    from dataprep.train.builtin.ranks import rank_and_size

    rank, size = rank_and_size()
    manifests = data.checked(settings, size, scans=rank == 0)
    parts = data.parts_of(settings)
    make_folder(Path(settings.output))
    found = data.fingerprint(settings, manifests)
    tokenizer = _tokenizer(settings, manifests)
    check_newest(settings, found)
    return lambda ranks: Training(settings, ranks, parts, Checkpoints(settings, ranks, found, tokenizer)).run()


def _tokenizer(settings: Settings, manifests: list[Any]) -> dict[str, Any] | None:
    """The identity of the tokenizer that was named, or else of the manifests, as JSON."""
    if settings.tokenizer is not None:
        from dataprep.catalog import find_tokenizer
        from dataprep.definitions import identify

        return identify(*find_tokenizer(settings.tokenizer, {})).to_json()
    known = [manifest.tokenizer for manifest in manifests if manifest is not None and manifest.tokenizer is not None]
    return known[0].to_json() if known else None


def main(arguments: list[str]) -> int:
    """Train, and turn what goes wrong into one message."""
    try:
        if len(arguments) != 1:
            raise SpecError("usage: torchrun -m dataprep.train.builtin SETTINGS.json")
        train = prepared(load_settings(Path(arguments[0])))
        from dataprep.train.builtin.ranks import started

        with started() as ranks:
            return train(ranks)
    except DataprepError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0" or not isinstance(error, SpecError):  # a bad request is found by all of them
            sys.stderr.write(f"error: {error}\n" if rank == "0" else f"error: rank {rank}: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
