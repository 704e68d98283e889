"""The order of Megatron's blends, held to the rule it follows, one sample after the other."""

import itertools
import tracemalloc

import numpy as np
import pytest

from dataprep.errors import SpecError
from dataprep.mixing import BlendOrder, ask_prefixes, normalized


def one_by_one(weights, size, limits=None):
    """Whichever is furthest behind; of equal ones the first. Python's floats are doubles, as in C++."""
    drawn, found = [0] * len(weights), []
    for sample in range(size):
        behind = [weight * max(float(sample), 1.0) - float(count) for weight, count in zip(weights, drawn, strict=True)]
        open_ones = [i for i in range(len(weights)) if limits is None or drawn[i] < limits[i]]
        prefix = max(open_ones, key=lambda i: behind[i])
        found.append((prefix, drawn[prefix]))
        drawn[prefix] += 1
    return found


def pairs(order):
    return list(zip(order.dataset_index.tolist(), order.dataset_sample_index.tolist(), strict=True))


WEIGHTS = {
    "one": [3.0],
    "two": [3.0, 7.0],
    "ten": [0.1, 0.2, 0.7],
    "equal": [1.0] * 7,
    "odd": [0.123456789, 1 / 3, 2.718281828, 0.05, 1.0],
    "rare": [1.0, 1e-3, 1e-6],
    "halves": [2.0**-i for i in range(12)],
    "fifty": [1.0 + (i * 7919 % 50) for i in range(50)],
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_draws_are_those_of_one_after_the_other(weights, monkeypatch):
    monkeypatch.setattr("dataprep.mixing.STRETCH", 50)
    monkeypatch.setattr("dataprep.mixing.ABREAST", 20)
    order = BlendOrder(weights, 5003)
    assert pairs(order) == one_by_one(order.weights, 5003)


def test_draws_of_real_stretches_are_those_of_one_after_the_other():
    order = BlendOrder(WEIGHTS["odd"], 20_000)
    assert pairs(order) == one_by_one(order.weights, 20_000)


@pytest.mark.parametrize("lengths", [[1], [5, 1, 9], [300, 3, 151, 77], [1] * 20, [1000, 1]])
def test_prefixes_without_weights_are_each_drawn_from_to_their_end(lengths, monkeypatch):
    monkeypatch.setattr("dataprep.mixing.STRETCH", 50)
    order = BlendOrder.of_lengths(lengths, None)
    assert order.weights == lengths
    assert pairs(order) == one_by_one([length / sum(lengths) for length in lengths], sum(lengths), lengths)
    assert np.bincount(order.dataset_index).tolist() == lengths


def test_prefixes_without_weights_share_by_their_lengths():
    order = BlendOrder.of_lengths([300, 100], 200)
    assert (order.weights, len(order)) == ([0.75, 0.25], 200)
    assert len(BlendOrder.of_lengths([300, 100], 1000)) == 400


def test_what_is_asked_for_is_rounded_up_and_a_surplus_added():
    assert ask_prefixes([3, 7], 1000) == [302, 704]
    assert ask_prefixes([3, 7], 1000, 0.0) == [300, 700]
    assert ask_prefixes([1, 1, 1], 10) == [5, 5, 5]
    assert len(BlendOrder.of_weights([1, 1, 1], 10)) == 12
    assert ask_prefixes([1, 2], 0) == [0, 0]


def test_the_places_of_single_samples(monkeypatch):
    monkeypatch.setattr("dataprep.mixing.BLOCK", 64)
    order = BlendOrder(WEIGHTS["odd"], 1000)
    assert [order.locate(k) for k in range(1000)] == pairs(order)
    for k in (-1, 1000):
        with pytest.raises(SpecError, match=r"sample -?[0-9]+ of a blend of 1000"):
            order.locate(k)


def test_a_blend_of_nothing():
    order = BlendOrder([1, 2], 0)
    assert (len(order.dataset_index), order.dataset_index.dtype) == (0, np.dtype(np.int16))
    assert (len(order.dataset_sample_index), order.dataset_sample_index.dtype) == (0, np.dtype(np.int64))


@pytest.mark.parametrize(
    "weights", [[], [0.0, 1.0], [-1.0, 2.0], [float("nan")], [float("inf"), 1.0], [1e-320, 1e300], [1.0] * 32767]
)
def test_weights_that_megatron_does_not_take(weights):
    with pytest.raises(SpecError):
        normalized(weights)


def test_a_prefix_without_samples():
    with pytest.raises(SpecError, match="prefix 1 of a blend without weights"):
        BlendOrder.of_lengths([3, 0], None)


@pytest.mark.slow
def test_pieces_need_the_memory_of_one():
    tracemalloc.start()
    try:
        count = sum(len(piece) for piece, _ in itertools.islice(BlendOrder([3, 7], 20_000_000).pieces(), 5))
        assert count == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
