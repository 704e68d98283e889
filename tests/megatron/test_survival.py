"""What our own reader survives and megatron-core 0.16.1's does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.errors import FormatError

pytestmark = pytest.mark.megatron

# A function that gives back an array and lets go of the dataset, as a loader's often do.
DROPPED = """
import gc, sys, warnings
warnings.simplefilter("ignore")
{opened}
view = dataset[0]
del dataset
gc.collect()
print(int(view.sum()))
"""
OURS = "import dataprep; dataset = dataprep.open_dataset(sys.argv[1])"
THEIRS = "from megatron.core.datasets.indexed_dataset import IndexedDataset; dataset = IndexedDataset(sys.argv[1])"


@pytest.fixture
def prefix(write_texts, tmp_path) -> str:
    """40 documents of 5,000 tokens."""
    return dataprep.run(str(write_texts(["a b" * 2500] * 40)), "sample", tmp_path / "out").prefix


def _dropped(opened: str, prefix: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DROPPED.format(opened=opened), prefix]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=Path(prefix).parent)


def test_a_view_outlives_its_dataset(megatron, prefix):
    ours, theirs = _dropped(OURS, prefix), _dropped(THEIRS, prefix)

    assert ours.returncode == 0, ours.stderr
    assert int(ours.stdout) == int(dataprep.open_dataset(prefix)[0].sum())
    assert theirs.returncode == -signal.SIGSEGV, "it closes the map under the view"


def test_a_short_read_raises(megatron, prefix):
    """Theirs, without mmap, hands out memory that nobody wrote to, as a document of the right length."""
    ours, theirs = dataprep.open_dataset(prefix), megatron.IndexedDataset(prefix, mmap=False)
    last, length = len(ours) - 1, int(ours.lengths[-1])
    whole = theirs[last].copy()
    assert np.array_equal(ours[last], whole)
    os.truncate(f"{prefix}.bin", os.path.getsize(f"{prefix}.bin") // 2)

    assert len(theirs[last]) == length
    with pytest.raises(FormatError, match=r"\.bin: expected .* bytes, as when it was opened, found"):
        ours[last]
    with pytest.raises(FormatError, match=r"sequence .* lies outside the \.bin; run: dataprep verify"):
        dataprep.open_dataset(prefix)[last]
    assert {problem.code for problem in dataprep.verify(prefix, "index").problems} >= {"bin-size"}
