"""GPTDataset and BlendedDataset, built on what we write and iterated: every token that Megatron would train on.

No split here is empty: GPTDataset hangs on one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dataprep

pytestmark = pytest.mark.megatron

LENGTH = 64


def _documents(prefix: str) -> list[np.ndarray]:
    pair = dataprep.open_dataset(prefix)
    return [pair[i].astype(np.int64) for i in range(len(pair))]


def _check_samples(dataset, documents: list[np.ndarray], length: int) -> None:
    """Each sample is `length` tokens of the shuffled documents laid end to end, its labels the same one token on."""
    stream = np.concatenate([documents[i] for i in dataset.document_index])
    assert len(dataset) > 1
    for i in range(len(dataset)):
        start = int(dataset.shuffle_index[i]) * length
        sample = dataset[i]
        assert np.array_equal(sample["tokens"].numpy(), stream[start : start + length]), i
        assert np.array_equal(sample["labels"].numpy(), stream[start + 1 : start + length + 1]), i


@pytest.fixture(scope="module", params=["uint16", "int32"])
def prefix(request, tmp_path_factory) -> str:
    """A dataset of 612 documents, more than Megatron's default split needs, and 12 boundaries without a sequence."""
    folder = tmp_path_factory.mktemp("samples")
    texts = [f"document {i}: " + "some words " * (i % 23) if i % 50 else "" for i in range(600)]
    texts[300] = "".join(f"{i} " for i in range(5000))
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = [f"policy.dtype={request.param}", "policy.empty=keep"]
    return dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out", settings=settings).prefix


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_sample_is_made_of_the_documents_that_went_in(megatron, gpt_config, prefix, tmp_path, epochs, mmap):
    documents = _documents(prefix)
    sizes = [epochs * sum(map(len, documents)) * share // LENGTH // 100 for share in (90, 5, 5)]
    config = gpt_config(([prefix], None), LENGTH, "90,5,5", path_to_cache=str(tmp_path), mmap_bin_files=mmap)
    splits = megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, sizes, lambda: True, config).build()

    assert [len(split) >= size > 0 for split, size in zip(splits, sizes, strict=True)] == [True] * 3
    for split in splits:
        _check_samples(split, documents, LENGTH)
    used = [set(split.document_index.tolist()) for split in splits]
    assert sorted(i for part in used for i in part) == list(range(len(documents))), "each document in one split"
    again = megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, sizes, lambda: True, config).build()
    assert np.array_equal(again[0].shuffle_index, splits[0].shuffle_index), "from the cache"


def test_the_data_args_of_a_mixture_are_a_blend(megatron, process_group, gpt_config, tmp_path):
    """As the command writes them and as pretrain_gpt.py reads them: split at spaces, then `get_blend_from_list`."""
    texts = {"short": [f"a short one {i}" for i in range(900)], "long": ["many words of a long one " * 40] * 60}
    for name, lines in texts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    shares = {"short": 0.3, "long": 0.7}
    parts = [{"corpus": f"{name}.jsonl", "weight": weight} for name, weight in shares.items()]
    mix = {"name": "mix", "mixture": {"unit": "tokens", "corpora": parts}}
    (tmp_path / "mix.yaml").write_text(json.dumps(mix))
    command = [sys.executable, "-m", "dataprep", "run", "mix.yaml", "--tokenizer", "sample"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    prefixes, weights = megatron.get_blend_from_list(Path(done.stdout.strip()).read_text().split())
    assert weights == list(shares.values())

    config = gpt_config((prefixes, weights), LENGTH, "90,5,5", path_to_cache=str(tmp_path / "cache"))
    builder = megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, [200, 2, 2], lambda: True, config)
    train, *_ = builder.build()
    assert type(train).__name__ == "BlendedDataset"
    assert len(train) == 200
    assert np.bincount(train.dataset_index).tolist() == [60, 140]
    for dataset, path in zip(train.datasets, prefixes, strict=True):
        _check_samples(dataset, _documents(path), LENGTH)
    for i in range(len(train)):
        sample = train[i]
        source = train.datasets[train.dataset_index[i]]
        assert sample["dataset_id"] == train.dataset_index[i]
        assert sample["tokens"].equal(source[train.dataset_sample_index[i]]["tokens"])
    assert builder.build()[0].unique_description_hash == train.unique_description_hash
    assert list((tmp_path / "cache").glob("*-BlendedDataset-train-dataset_index.npy"))
