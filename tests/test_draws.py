"""`dataprep.reshaping.draws`: exactly as many as asked for, the same for the same seed, each as likely as any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.reshaping import draws
from dataprep.reshaping.draws import Draw


def test_keys_are_splitmix64s():
    """The first values for the state 0, as its reference implementation gives them."""
    assert [hex(key) for key in draws._keys(0, 0, 3)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert draws._keys(0, 2, 3)[0] == draws._keys(0, 0, 3)[2]


@settings(max_examples=50)
@given(total=st.integers(1, 300), seed=st.integers(-3, 2**70), block=st.integers(1, 64), data=st.data())
def test_as_many_as_asked_for(total, seed, block, data):
    count = data.draw(st.integers(1, total))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "BLOCK", block)
        draw = Draw.of(seed, total, count)
    chosen = draw.chosen(0, total)
    assert np.count_nonzero(chosen) == count
    middle = total // 2
    assert np.array_equal(chosen, np.concatenate([draw.chosen(0, middle), draw.chosen(middle, total)]))
    assert not (Draw.of(seed, total, max(1, count - 1)).chosen(0, total) & ~chosen).any()


def test_every_number_is_as_likely():
    """Over 400 seeds each of 20 is drawn about 100 times: within five standard deviations."""
    counts = sum(Draw.of(seed, 20, 5).chosen(0, 20).astype(int) for seed in range(400))
    assert abs(counts - 100).max() < 5 * (400 * 0.25 * 0.75) ** 0.5
    assert counts.sum() == 400 * 5


def test_seeds_draw_different_numbers():
    drawn = {tuple(np.flatnonzero(Draw.of(seed, 1000, 3).chosen(0, 1000))) for seed in range(100)}
    assert len(drawn) == 100
