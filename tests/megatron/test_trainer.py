"""The samples that the built-in trainer trains on are those of GPTDataset and BlendedDataset, in their order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.train.builtin.data import parts_of
from dataprep.train.builtin.settings import Settings

pytestmark = pytest.mark.megatron

LENGTH = 64


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory) -> list[str]:
    """Two datasets, of 700 short documents and of 300 longer ones."""
    folder: Path = tmp_path_factory.mktemp("samples")
    texts = {
        "short": [f"document {i}: " + "some words " * (i % 23) for i in range(700)],
        "long": [f"another {i}: " + f"and {i * i} more words " * (20 + i % 50) for i in range(300)],
    }
    found = []
    for name, lines in texts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
        found.append(str(dataprep.run(str(folder / f"{name}.jsonl"), "sample", folder / "out").prefix))
    return found


@pytest.mark.parametrize("iterations", [3, 60])
@pytest.mark.parametrize("weights", [[1.0], [0.3, 0.7], [5.0, 1.0]])
def test_samples_are_megatrons(megatron, process_group, gpt_config, prefixes, weights, iterations):
    shape = {
        "family": "llama",
        "num_layers": 1,
        "hidden_size": 8,
        "ffn_hidden_size": 8,
        "num_attention_heads": 1,
        "num_query_groups": 1,
        "vocab_size": 8192,
        "max_position_embeddings": LENGTH,
    }
    data = list(zip(prefixes, weights, strict=False))
    sizes = {"seq_length": LENGTH, "micro_batch_size": 2, "global_batch_size": 16, "train_iters": iterations}
    value = {"data": data, "shape": shape, **sizes, "seed": 1, "split": "80,15,5", "eval_iters": 2, "lr": 1.0}
    ours = parts_of(Settings.from_json({**value, "output": "."}, "here"))

    blend = [prefix for prefix, _ in data], weights if len(weights) > 1 else None
    config = gpt_config(blend, LENGTH, "80,15,5")
    asked = [iterations * 16, 2 * 16, 2 * 16]
    builder = megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, asked, lambda: True, config)
    for part, size, theirs in zip(("train", "valid", "test"), asked, builder.build(), strict=True):
        assert len(ours[part]) == len(theirs) >= size, part
        for k in range(size):
            sample, tokens = theirs[k], ours[part][k]
            assert np.array_equal(sample["tokens"].numpy(), tokens[:-1]), (part, k)
            assert np.array_equal(sample["labels"].numpy(), tokens[1:]), (part, k)
