"""The samples of the built-in trainer: those of the order that others say, dealt out to ranks."""

from __future__ import annotations

import numpy as np
import pytest

import dataprep
from dataprep.errors import SpecError
from dataprep.mixing import BlendOrder, ask_prefixes
from dataprep.samples import Sampling
from dataprep.train.builtin.__main__ import load_settings
from dataprep.train.builtin.data import Samples, parts_of


def _ids(prefix: str, number: int, sampling: Sampling) -> list[int]:
    found = dataprep.training_sample(prefix, number, sampling)
    return [token for piece in found["pieces"] for token in piece["ids"]]


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_samples_are_those_of_the_order(settings, prefix, part):
    chosen = load_settings(settings(train_iters=3, eval_iters=2, split="80,15,5"))
    samples = parts_of(chosen)[part]
    asked = 24 if part == "train" else 16
    assert len(samples) >= asked
    sampling = Sampling(32, 1234, "80,15,5", part, asked)
    for k in (0, 1, asked - 1):
        assert samples[k].tolist() == _ids(prefix, k, sampling)
        assert samples[k].dtype == np.int64


def test_samples_of_a_blend_are_those_of_its_order(settings, prefix, make_pair):
    other = str(make_pair([[i % 100] * 40 for i in range(600)]))
    chosen = load_settings(settings(data=[[prefix, 3.0], [other, 1.0]], train_iters=4))
    samples = Samples(chosen, "train", 32)
    order, asked = BlendOrder.of_weights([3.0, 1.0], 32), ask_prefixes([3.0, 1.0], 32)
    assert len(samples) == len(order) == 32
    for k in range(32):
        number, place = order.locate(k)
        sampling = Sampling(32, 1234, "969, 30, 1", "train", asked[number])
        assert samples[k].tolist() == _ids((prefix, other)[number], place, sampling)


@pytest.mark.parametrize(("ranks", "micro"), [(1, 8), (1, 2), (2, 2), (4, 1), (4, 2)])
def test_each_sample_of_a_batch_goes_to_one_rank(settings, ranks, micro):
    chosen = load_settings(settings(micro_batch_size=micro))
    samples = parts_of(chosen)["train"]
    dealt = [list(samples.micro_batches(16, chosen, rank, ranks)) for rank in range(ranks)]
    found = [row.tolist() for step in zip(*dealt, strict=True) for batch in step for row in batch]
    assert found == [samples[16 + k].tolist() for k in range(8)], "micro batch after micro batch, as Megatron deals"


def test_parts_without_a_share_or_without_a_use_are_not_read(settings):
    assert set(parts_of(load_settings(settings(split="9,1,0")))) == {"train", "valid"}
    assert set(parts_of(load_settings(settings(eval_iters=0)))) == {"train"}


def test_an_empty_part_is_named(settings, make_pair):
    chosen = load_settings(settings(data=[[str(make_pair([[1] * 50] * 40)), 1.0]]))
    with pytest.raises(SpecError, match="leaves no tokens to test"):
        parts_of(chosen)
