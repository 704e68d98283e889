"""The order of samples: by a plain Python model of it here, by megatron-core where that is installed."""

import itertools
import random
import types
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CODES, Header, Index, IndexedDataset, idx_path, write_index
from dataprep.samples import PARTS, SampleOrder, Sampling, parse_split, split_ranges
from dataprep.storage import AtomicFile


@pytest.fixture(scope="session")
def index_of(make_pair):
    """The index of a pair of sequences of these lengths; there is no ``.bin`` of that size."""

    def make(lengths):
        path = idx_path(make_pair([[0]]))
        with AtomicFile(path, durable=False) as file:
            header = Header(CODES["uint16"], len(lengths), len(lengths) + 1)
            write_index(file, header, lambda: [np.array(lengths, "<i4")], [np.arange(len(lengths) + 1)])
        return Index(path)

    return make


def sample(pair, order, k):
    return np.concatenate([pair[s][first : first + count] for s, first, count in order.pieces(k).tolist()])


def plain(lengths, sampling, start, stop):
    """The tokens of all samples as (sequence, token), by lists."""
    state, size, wanted = np.random.RandomState(sampling.seed), sampling.seq_length, sampling.num_samples
    tokens = sum(lengths[start:stop])
    epochs = 1
    while wanted is not None and epochs * tokens < wanted * size + 1:
        epochs += 1
    before = ((epochs - 1) * tokens - 1) // size
    apart = epochs > 1 and wanted - before < int(0.8 * ((tokens - 1) // size))
    sequences = []
    for count in (epochs - 1, 1) if apart else (epochs,):
        part = np.array(list(range(start, stop)) * count)
        state.shuffle(part)
        sequences += part.tolist()
    stream = [(s, token) for s in sequences for token in range(lengths[s])]
    samples = [stream[i : i + size + 1] for i in range(0, len(stream) - size, size)]
    order = []
    for numbers in (range(before), range(before, len(samples))) if apart else (range(len(samples)),):
        part = np.array(numbers)
        state.shuffle(part)
        order += part.tolist()
    return [samples[k] for k in order]


@given(
    lengths=st.lists(st.integers(0, 9), min_size=3, max_size=30).filter(any),
    size=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    num_samples=st.none() | st.integers(1, 60),
    chunk=st.integers(1, 40),
)
def test_samples_are_those_of_a_plain_model(index_of, lengths, size, seed, num_samples, chunk):
    index = index_of(lengths)
    sampling = Sampling(size, seed, "1", "train", num_samples)
    expected = plain(lengths, sampling, 0, len(lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.samples.CHUNK", chunk)
        if not expected:
            with pytest.raises(SpecError, match="tokens, and a sample takes"):
                SampleOrder(index, sampling)
            return
        order = SampleOrder(index, sampling)

    assert len(order) == len(expected)
    assert order.shuffle_index.dtype == np.uint32
    for k, tokens in enumerate(expected):
        found = [(s, t) for s, first, count in order.pieces(k).tolist() for t in range(first, first + count)]
        assert found == tokens


def test_parts_of_a_split_are_rounded_as_megatron_does():
    assert split_ranges("969, 30, 1", 500) == {"train": (0, 484), "valid": (484, 500), "test": (500, 500)}
    assert split_ranges("99,1,0", 1000) == {"train": (0, 990), "valid": (990, 1000)}
    assert split_ranges("1", 7) == {"train": (0, 7)}
    assert split_ranges("0,1", 7) == {"valid": (0, 7)}
    assert split_ranges("1,1,2", 2) == {"train": (0, 0), "valid": (0, 1), "test": (1, 2)}  # 0.5 -> 0, 1.5 would be 2


@pytest.mark.parametrize("split", ["", "0", "0,0,0", "1,2,3,4", "a", "1;2", "-1,2", "1e3", "1..2", "9" * 400, "nan"])
def test_what_is_no_split_is_said(split):
    with pytest.raises(SpecError, match="expected the shares"):
        parse_split(split)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seq_length": 0}, "sequence length of 0"),
        ({"seq_length": 2**31 - 1}, "sequence length"),
        ({"seed": -1}, "seed of -1"),
        ({"seed": 2**32}, "seed"),
        ({"num_samples": 0}, "0 samples"),
        ({"part": "all"}, "unknown part 'all'"),
        ({"split": "x"}, "a split of 'x'"),
    ],
)
def test_what_megatron_does_not_take_is_said(change, says):
    with pytest.raises(SpecError, match=says):
        replace(Sampling(8), **change)


@pytest.mark.parametrize(
    ("lengths", "sampling", "says"),
    [
        ([5] * 500, Sampling(8), "no tokens to test .0 of 500"),
        ([5] * 40 + [0] * 10, Sampling(8, split="8,1,1"), "no tokens to valid"),
        ([5] * 40 + [0] * 10, Sampling(8, split="8,0,2", part="test"), "no tokens to test"),
        ([0, 0], Sampling(8, split="1"), "no tokens to train"),
        ([], Sampling(8, split="1"), "no tokens to train"),
        ([5] * 10, Sampling(8, split="1,0,0", part="valid"), "has no valid"),
        ([8], Sampling(8, split="1"), "train has 8 tokens, and a sample takes 8 and one more"),
        ([2], Sampling(2, split="1", num_samples=2**40), "GB of memory"),
        ([2**31 - 1] * 9, Sampling(2, split="1", num_samples=2**60), "GB of memory"),
    ],
)
def test_where_megatron_would_hang_or_fail_is_an_error(index_of, lengths, sampling, says):
    with pytest.raises(SpecError, match=says):
        SampleOrder(index_of(lengths), sampling)


def test_a_sample_that_is_not_there_names_the_last(index_of):
    order = SampleOrder(index_of([5] * 10), Sampling(7, split="1"))

    assert [order.pieces(k)[:, 2].sum() for k in range(7)] == [8] * 7
    for k in (-1, 7):
        with pytest.raises(SpecError, match=r"samples 0 to 6 in one epoch.*--num-samples"):
            order.pieces(k)


def test_a_broken_index_leads_to_verify(index_of):
    index = index_of([5, 9, 5])
    index.path.write_bytes(index.path.read_bytes().replace(b"\t\0\0\0\5\0\0\0", b"\xff\xff\xff\xff\5\0\0\0"))

    with pytest.raises(FormatError, match="a length of -1; run: dataprep verify"):
        SampleOrder(index, Sampling(4, split="1"))


def test_nothing_wraps_beyond_int32(index_of):
    """Three sequences of nearly 2**31 tokens, five epochs: positions beyond 2**34, offsets just below 2**31."""
    lengths, size = [2**31 - 1, 2**31 - 2, 2**31 - 1], 2**29 + 7
    order = SampleOrder(index_of(lengths), Sampling(size, 3, "1", "train", 55))

    total = 5 * sum(lengths)
    assert (order.num_epochs, len(order)) == (5, (total - 1) // size)
    ends = list(itertools.accumulate(lengths[s] for s in order.document_index.tolist()))
    for i, (place, offset) in enumerate(order.sample_index.tolist()):
        assert (ends[place - 1] if place else 0) + offset == i * size
        assert 0 <= offset < lengths[order.document_index[place]]
    assert sorted(order.shuffle_index.tolist()) == list(range(len(order)))
    assert all(order.pieces(k)[:, 2].sum() == size + 1 for k in range(len(order)))


# --- against GPTDataset


def _pair(make_pair, kind, dtype):
    """Some 520 sequences of random tokens."""
    rng = random.Random(7)
    choices = {"documents": range(1, 60), "zeros": [0, 0, 0, 1, 2, 50], "long": [1, 1, 1, 1, 5, 500]}
    lengths = [0, 0, *(rng.choice(choices.get(kind, range(41))) for _ in range(520))]
    boundaries = sorted({0, len(lengths), *rng.sample(range(520), 150)}) if kind == "sentences" else None
    return make_pair([[rng.randrange(65536) for _ in range(length)] for length in lengths], boundaries, dtype)


CONFIGURATIONS = [  # seq_length, seed, split, sizes of the three parts
    (64, 1234, "969, 30, 1", (None, None, None)),
    (100, 1, "90,5,5", (50, 3, 2)),
    (33, 99, "1", (None,) * 3),
    (257, 2, "98,2,0", (900, 40, None)),
    (64, 5, "50,25,25", (190, 90, 800)),
    (3, 0, "3,0,1", (2000, None, 3000)),
    (1000, 2**32 - 1, "0.9,0.06,0.04", (700, 70, 7)),
    (4096, 17, "1,0,0", (30, None, None)),
]


@pytest.mark.megatron
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("kind", ["documents", "zeros", "long", "sentences"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda values: f"{values[0]}-{values[2]}-{values[3][0]}")
def test_every_sample_is_that_of_gpt_dataset(make_pair, tmp_path, configuration, kind, dtype):
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    prefix = _pair(make_pair, kind, dtype)
    seq_length, seed, split, sizes = configuration
    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=seq_length,
        blend=([str(prefix)], None),
        split=split,
        path_to_cache=str(tmp_path / "cache"),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=types.SimpleNamespace(vocab_size=65536, eod=0, pad=-1, unique_identifiers={"class": "none"}),
    )
    built = BlendedMegatronDatasetBuilder(GPTDataset, list(sizes), lambda: True, config).build()
    pair = IndexedDataset(prefix)
    compared = 0
    for part, size, theirs in zip(PARTS, sizes, built, strict=True):
        sampling = Sampling(seq_length, seed, split, part, size)
        if theirs is None or not len(theirs):
            with pytest.raises(SpecError, match="has no" if theirs is None else "a sample takes"):
                SampleOrder(pair.index, sampling)
            continue
        ours = SampleOrder(pair.index, sampling)
        assert np.array_equal(ours.document_index, theirs.document_index)
        assert np.array_equal(ours.sample_index, theirs.sample_index)
        assert np.array_equal(ours.shuffle_index, theirs.shuffle_index)
        assert ours.shuffle_index.dtype == theirs.shuffle_index.dtype
        for k in range(len(theirs)):
            found = theirs[k]
            expected = np.append(found["tokens"].numpy(), found["labels"].numpy()[-1])
            assert np.array_equal(sample(pair, ours, k), expected)
        compared += len(theirs)
    assert compared


@pytest.mark.megatron
def test_beyond_int32_the_sample_index_is_that_of_megatrons_helper(index_of):
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets import helpers

    lengths, size = np.array([2**31 - 1, 0, 2**31 - 2, 7, 2**31 - 1], np.int32), 2**29 + 7
    total = int(lengths.sum(dtype=np.int64))
    order = SampleOrder(index_of(lengths), Sampling(size, 3, "1", "train", 55))

    expected = helpers.build_sample_idx(lengths, order.document_index, size, order.num_epochs, total)
    assert order.num_epochs == 5
    assert np.array_equal(order.sample_index, expected)
