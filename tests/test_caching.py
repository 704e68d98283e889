"""`repair --cache` deletes the index caches that Megatron must not find, and nothing else."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dataprep.batches import TokenBatch
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import IndexedWriter
from dataprep.repairs import clear_caches


@pytest.fixture
def pair(workspace):
    prefix = workspace / "a"
    with IndexedWriter(prefix, "uint16") as writer:
        writer.append(TokenBatch(np.full(40, 7, np.uint16), np.arange(0, 41, 4)))
        writer.commit()
    return prefix


def cache(folder, name, prefix, arrays=("document_index", "sample_index")):
    """What a run that was killed leaves: a description, and not all of the arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    description = {"class": "GPTDataset", "dataset_path": str(prefix), "index_split": "train", "split_matrix": None}
    (folder / f"{name}-GPTDataset-train-description.txt").write_text(json.dumps(description))
    for array in arrays:
        np.save(folder / f"{name}-GPTDataset-train-{array}.npy", np.zeros((1, 2), np.int32))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_bad_caches_of_the_pair_go_and_those_of_others_stay(pair, workspace):
    own, shared = pair / "cache" / "GPTDataset_indices", workspace / "shared"
    cache(own, "aa", pair)
    cache(shared, "bb", pair)
    cache(shared, "cc", workspace / "b")
    (shared / "notes.txt").touch()
    others = [name for name in names(shared) if not name.startswith("bb-")]
    before = names(own), names(shared)

    planned = clear_caches(pair, shared, dry_run=True)
    assert (names(own), names(shared)) == before
    done = clear_caches(pair, shared)

    assert [change.code for change in planned] == [change.code for change in done] == ["cache-damaged"] * 2
    assert "to be deleted: " in planned[0].text
    assert (names(own), names(shared)) == ([], others)
    assert clear_caches(pair, shared) == ()


def test_caches_are_held_to_a_sound_index_only(pair, workspace):
    cache(workspace / "shared", "bb", pair)
    with pytest.raises(SpecError, match="no such folder"):
        clear_caches(pair, workspace / "nothing")
    os.truncate(workspace / "a.idx", 50)

    with pytest.raises(FormatError, match="sound index"):
        clear_caches(pair, workspace / "shared")
    assert len(names(workspace / "shared")) == 3


def test_the_command_takes_either_output_or_cache(pair, workspace):
    cache(workspace / "shared", "bb", pair)
    command = [sys.executable, "-m", "dataprep", "repair", "a"]

    for more, code, says in (
        ([], 2, "give --output NEW"),
        (["--cache", "shared", "-o", "new"], 2, "give --output NEW"),
        (["--cache", "shared"], 0, "cache-damaged: "),
    ):
        done = subprocess.run([*command, *more], cwd=workspace, capture_output=True, text=True, check=False)
        assert (done.returncode, says in done.stdout + done.stderr) == (code, True)
    assert names(workspace / "shared") == []
