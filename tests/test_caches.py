"""Megatron's index caches: those that fit the pair pass, those of another pair at the same path are named."""

import json
import os
import types

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dataprep.checks.caches import bad_caches
from dataprep.checks.report import Expected
from dataprep.errors import SpecError
from dataprep.indexed import CODES, Header, Index, bin_path, idx_path, write_index
from dataprep.samples import split_ranges
from dataprep.stages.verify import verify
from dataprep.storage import AtomicFile

SEQ = 16


def write(prefix, lengths):
    """A pair; with sequences of no tokens, too."""
    ids, array = np.ones(sum(lengths), np.uint16), np.array(lengths, np.int32)
    ids[np.cumsum(lengths) - 1] = 7
    bin_path(prefix).write_bytes(ids.tobytes())
    with AtomicFile(idx_path(prefix), durable=False) as file:
        write_index(
            file, Header(CODES["uint16"], len(array), len(array) + 1), lambda: [array], [np.arange(len(array) + 1)]
        )


def model(lengths, part, wanted, extra=1, drop=True, size=SEQ):
    """The arrays of GPTDataset with seed 1, token by token; after notes of its numpy and C++ code, not a copy."""
    held, state = lengths[slice(*part)].sum(), np.random.RandomState(1)  # Megatron's generator
    epochs = 1
    while wanted is not None and epochs * held < wanted * size + extra:
        epochs += 1
    early = ((epochs - 1) * held - extra) // size
    alone = epochs > 1 and wanted - early < int(0.80 * ((held - extra) // size))
    parts = [epochs - 1, 1] if alone else [epochs]
    orders = [np.tile(np.arange(*part, dtype=np.int32), count) for count in parts]
    for piece in orders:
        state.shuffle(piece)
    order = np.concatenate(orders)
    places = np.repeat(np.arange(len(order)), lengths[order])
    offsets = np.concatenate([np.arange(length) for length in lengths[order]] or [[]]).astype(int)
    count = max(0, len(places) - extra) // size if drop else max(0, -(-(len(places) - extra) // size))
    samples = [(0, 0)]
    for last in range(size + extra - 1, count * size + extra, size):  # the last token of each sample
        full = last < len(places)
        samples.append(
            (places[last], offsets[last] + 1 - extra) if full else (len(order) - 1, lengths[order[-1]] - extra)
        )
    draws = (
        [np.arange(early, dtype="u4"), np.arange(early, count, dtype="u4")] if alone else [np.arange(count, dtype="u4")]
    )
    for piece in draws:
        state.shuffle(piece)
    return {
        "document_index": order,
        "sample_index": np.array(samples, np.int32),
        "shuffle_index": np.concatenate(draws),
    }


def build(folder, prefix, lengths, split="90,10", index_split="train", name="0123", path=None, wanted=300, **options):
    """A cache as Megatron builds it."""
    part = split_ranges(split, len(lengths)).get(index_split, (0, 0))
    matrix = {"90,10": [[0, 0.9], [0.9, 1.0], None], "1": [[0, 1.0], None, None]}[split]
    description = {
        "class": "GPTDataset",
        "dataset_path": str(prefix) if path is None else path,
        "num_samples": wanted,
        "index_split": index_split,
        "random_seed": 1,
        "sequence_length": options.get("size", SEQ),
        "split": split,
        "split_matrix": matrix,
        "tokenizer": {"class": "none"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"{name}-GPTDataset-{index_split}"
    base.with_name(f"{base.name}-description.txt").write_text(json.dumps(description, indent=4))
    for array, values in model(np.array(lengths), part, wanted, **options).items():
        np.save(base.with_name(f"{base.name}-{array}.npy"), values)
    return base


LENGTHS = [3, 40, 1, 17, 16, 5, 90, 2, 33, 8] * 10


@pytest.fixture
def pair(workspace):
    write(workspace / "a", LENGTHS)
    return workspace / "a"


def codes(prefix, cache=None):
    return verify(prefix, "index", Expected(cache=cache)).codes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"index_split": "valid"},
        {"split": "1"},
        {"extra": 0},
        {"index_split": "valid", "drop": False},
        {"index_split": "valid", "drop": False, "extra": 0, "wanted": 60},
        {"wanted": None},
        {"wanted": 0},
        {"wanted": 130},  # the second epoch is shuffled by itself
        {"wanted": 230},  # and here with the first
        {"wanted": 130, "extra": 0},
        {"size": 1},
        {"size": 5000, "wanted": 3},  # samples of several epochs
    ],
    ids=str,
)
def test_a_cache_that_fits_passes_wherever_it_lies_and_whatever_its_date(pair, workspace, options):
    own = build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS), **options)
    build(workspace / "shared", pair, np.array(LENGTHS), **options)
    for path in own.parent.iterdir():
        os.utime(path, (1, 1))

    assert codes(pair, workspace / "shared") == set()


@pytest.mark.parametrize(
    "lengths",
    [
        [*LENGTHS[:50], LENGTHS[50] - 1, *LENGTHS[51:]],  # a token less
        [*LENGTHS[:50], LENGTHS[51], LENGTHS[50], *LENGTHS[52:]],  # two documents exchanged
        LENGTHS[:-1],
        LENGTHS[:50],
        [*LENGTHS, 5],
        LENGTHS * 2,
        [*LENGTHS[:-1], LENGTHS[-1] + 20],
    ],
)
@pytest.mark.parametrize("split", ["1", "90,10"])
def test_a_cache_of_what_lay_there_before_is_stale(pair, lengths, split):
    build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS), split=split)
    write(pair, lengths)
    if split == "90,10" and lengths[:90] == LENGTHS[:90] and len(lengths) == 100:
        assert codes(pair) == set()  # what changed is in the other part
        return

    (problem,) = verify(pair, "index").problems

    assert (problem.code, problem.severity) == ("cache-stale", "error")
    assert "--cache" in problem.fix


def test_the_end_of_the_last_sample_is_held_to_the_lengths(pair):
    lengths = [50] * 30
    last = model(np.array(lengths), (0, 30), None)["document_index"][-1]
    build(pair / "cache" / "GPTDataset_indices", pair, lengths, split="1", wanted=None)
    lengths[last] -= 20
    write(pair, lengths)

    (problem,) = verify(pair, "index").problems

    assert problem.message == (
        "it has 93 samples of 16 tokens, and Megatron would now make, of one epoch of 1480 tokens, 92"
    )


def test_no_sample_begins_behind_the_end_of_its_sequence(pair):
    lengths = [40] * 10
    order = model(np.array(lengths), (0, 10), None)["document_index"]
    build(pair / "cache" / "GPTDataset_indices", pair, lengths, split="1", wanted=None)
    lengths[order[1]] -= 10  # sample 4 began at its token 24, sample 5 is to begin in the next one
    lengths[order[2]] += 10
    write(pair, lengths)
    assert codes(pair) == {"cache-stale"}


@pytest.mark.parametrize(("before", "after"), [([81], [80]), ([33, 5, 55], [32, 6, 55])])
def test_a_token_lost_where_a_sample_ends_may_look_like_samples_without_their_extra_token(pair, before, after):
    """Then the date decides; Megatron would read a token behind the end of a sequence."""
    order = model(np.array(before), (0, len(before)), None)["document_index"]
    base = build(pair / "cache" / "GPTDataset_indices", pair, np.array(before)[order.argsort()], "1", wanted=None)
    lengths = np.array(after)[order.argsort()]
    held = np.load(base.with_name(f"{base.name}-sample_index.npy"))
    assert np.array_equal(held, model(lengths, (0, len(lengths)), None, extra=0)["sample_index"])
    write(pair, lengths)
    description = base.with_name(f"{base.name}-description.txt")
    os.utime(description, (1, 1))
    assert codes(pair) == {"cache-stale"}

    os.utime(description, (2**32, 2**32))
    assert codes(pair) == set()


def test_only_valid_may_keep_a_sample_that_its_tokens_do_not_fill(pair):
    build(pair / "cache" / "GPTDataset_indices", pair, LENGTHS, wanted=None, drop=False)

    assert codes(pair) == {"cache-stale"}


def test_megatron_counts_the_samples_of_valid_in_a_float_of_24_bits(pair):
    size, folder = 2**23, pair / "cache" / "GPTDataset_indices"
    base = build(folder, pair, [size], split="1", size=size, wanted=None)
    path = base.with_name(f"{base.name}-description.txt")
    path.write_text(json.dumps({**json.loads(path.read_text()), "index_split": "valid", "split_matrix": None}))
    write(pair, [2**24 + 2])  # 2 ** 24 + 1 tokens and one more: a third sample would have one of its own
    for count, expected in ((2, set()), (3, {"cache-stale"})):
        order = np.arange(count, dtype="u4")
        np.random.RandomState(1).shuffle(order)
        np.save(base.with_name(f"{base.name}-shuffle_index.npy"), order)
        rows = np.array([[0, min(number * size, 2**24 + 1)] for number in range(count + 1)], np.int32)
        np.save(base.with_name(f"{base.name}-sample_index.npy"), rows)

        assert codes(pair) == expected


def test_an_empty_part_of_which_no_number_of_samples_is_wanted(workspace):
    write(workspace / "a", [3] * 4)
    build(workspace / "shared", workspace / "a", [3] * 4, index_split="valid", wanted=None)
    assert codes(workspace / "a", workspace / "shared") == set()

    build(workspace / "shared", workspace / "a", [3] * 10, index_split="valid", wanted=5)
    assert codes(workspace / "a", workspace / "shared") == {"cache-stale"}


@pytest.mark.parametrize("name", ["document_index", "shuffle_index"])
def test_another_order_is_stale_where_it_is_quickly_computed(pair, monkeypatch, name):
    lengths = [16] * 10
    write(pair, lengths)
    base = build(pair / "cache" / "GPTDataset_indices", pair, lengths, wanted=None)
    path = base.with_name(f"{base.name}-{name}.npy")
    np.save(path, np.load(path)[::-1])

    (problem,) = verify(pair, "index").problems

    assert problem.message == f"its {name} is in another order than Megatron would put it now"
    monkeypatch.setattr("dataprep.checks.orders.MAX_SHUFFLED", 10)
    assert codes(pair) == set()


def test_a_pair_twice_as_long_has_other_sequences_and_half_the_epochs(pair, monkeypatch):
    monkeypatch.setattr("dataprep.checks.orders.MAX_SHUFFLED", 0)
    build(pair / "cache" / "GPTDataset_indices", pair, [40] * 10, split="1", wanted=99)  # four epochs
    assert codes(pair) == {"cache-stale"}
    write(pair, [40] * 10)
    assert codes(pair) == set()
    write(pair, [40] * 20)

    (problem,) = verify(pair, "index").problems

    assert problem.message == "it holds sequences 0 to 9, and the pair now gives it 0 to 19"


LISTS = st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 16, 30]), min_size=1, max_size=8)


@settings(deadline=None, max_examples=100)
@given(
    LISTS,
    LISTS,
    st.sampled_from([1, 2, 7, 16, 50]),
    st.sampled_from([None, 0, 1, 5, 40]),
    st.sampled_from(["train", "valid"]),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.data(),
)
def test_stale_is_what_megatron_would_not_write(
    tmp_path_factory, before, after, size, wanted, split, extra, drop, data
):
    if data.draw(st.booleans()):  # a small change
        after, place = list(before), data.draw(st.integers(0, len(before) - 1))
        after[place], after[-1] = after[place] + 1, max(0, after[-1] + data.draw(st.sampled_from([-1, 0, 1])))
    assume(sum(before) > 0 < sum(after))
    prefix = tmp_path_factory.mktemp("caches") / "a"
    drop = drop or split == "train"
    base = build(prefix.parent / "b", prefix, before, "1", wanted=wanted, size=size, extra=extra, drop=drop)
    if split == "valid":  # of one part, all of it
        path = base.with_name(f"{base.name}-description.txt")
        text = {**json.loads(path.read_text()), "index_split": "valid", "split_matrix": None}
        path.write_text(json.dumps(text))
    write(prefix, after)
    os.utime(idx_path(prefix), (1, 1))
    held = [
        np.load(base.with_name(f"{base.name}-{name}.npy"))
        for name in ("document_index", "sample_index", "shuffle_index")
    ]
    fits = any(
        all(map(np.array_equal, held, model(np.array(after), (0, len(after)), wanted, *options, size).values()))
        for options in [(1, True), (0, True), *([(1, False), (0, False)] if split == "valid" else [])]
    )

    assert fits == (not bad_caches(prefix, Index(idx_path(prefix)), prefix.parent / "b"))


def test_new_tokens_of_the_same_lengths_are_no_reason_to_build_it_again(pair):
    build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS))
    (pair.with_name("a.bin")).write_bytes(os.urandom(2 * sum(LENGTHS)))

    assert codes(pair) == set()


@pytest.mark.parametrize("path", ["a", "./a", "{folder}/../{name}/a", "sub/../a", "{folder}/a"])
def test_a_cache_is_known_by_any_path_that_leads_to_the_pair(pair, workspace, monkeypatch, path):
    text = path.format(folder=workspace, name=workspace.name)
    build(workspace / "shared", pair, np.array(LENGTHS[:-1]), path=text)

    assert codes(pair, workspace / "shared") == {"cache-stale"}


def test_caches_of_others_are_left_alone(pair, workspace):
    build(workspace / "shared", workspace / "b", np.array(LENGTHS[:-1]))
    build(workspace / "shared", pair, np.array(LENGTHS[:-1]), path="/elsewhere/a", name="4567")
    (workspace / "shared" / "89-GPTDataset-train-description.txt").write_text("{")

    assert codes(pair, workspace / "shared") == set()


@pytest.mark.parametrize("name", ["document_index", "sample_index", "shuffle_index"])
@pytest.mark.parametrize("size", [None, 0, 7, 127, -1])
def test_a_damaged_cache_is_named(pair, name, size):
    base = build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS))
    path = base.with_name(f"{base.name}-{name}.npy")
    if size is None:
        path.unlink()
    else:
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)

    (problem,) = verify(pair, "index").problems

    assert problem.code == "cache-damaged"
    assert path.name in problem.message


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"class": "GPTDataset"}', '{"dataset_path": 3}', "\x00", "[" * 100_000, "{}"]
)
def test_a_description_may_be_anything(pair, text):
    base = build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS))
    base.with_name(f"{base.name}-description.txt").write_text(text)

    assert codes(pair) <= {"cache-damaged"}


@pytest.mark.parametrize(
    "change",
    [
        {"sequence_length": 0},
        {"sequence_length": "x"},
        {"sequence_length": 2**70},
        {"split_matrix": [[0, "a"]]},
        {"split_matrix": [None, None, None]},
        {"split_matrix": [[0, 1e300]]},
        {"split_matrix": {}},
        {"index_split": "night"},
        {"index_split": None},
        {"num_samples": -1},
        {"num_samples": "many"},
        {"num_samples": 1e300},
        {"num_samples": []},
        {"random_seed": -1},
        {"random_seed": 2**32},
        {"random_seed": None},
    ],
)
def test_a_description_with_other_values_is_a_problem_and_no_traceback(pair, change):
    base = build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS))
    path = base.with_name(f"{base.name}-description.txt")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    assert codes(pair) & {"cache-damaged", "cache-stale"}


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0, 0], [2**31 - 1, 0]], np.int32),
        np.array([[0, 0], [-1, 0]], np.int32),
        np.array([[5, 0], [1, 0]], np.int32),
        np.array([[0, 0], [0, -9]], np.int64),
        np.zeros((0, 2), np.int32),
        np.zeros(5, np.int32),
        np.zeros((5, 2), np.float32),
        np.asfortranarray(np.zeros((5, 2), np.int32)),
        np.array([None, {}]),
    ],
)
def test_arrays_may_hold_anything(pair, array):
    base = build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS))
    np.save(base.with_name(f"{base.name}-sample_index.npy"), array)

    assert codes(pair) <= {"cache-damaged", "cache-stale"}
    assert codes(pair)


def test_all_files_of_a_bad_cache_are_listed_and_no_others(pair):
    folder = pair / "cache" / "GPTDataset_indices"
    build(folder, pair, np.array(LENGTHS), name="good")
    bad = build(folder, pair, np.array(LENGTHS[:-1]), name="bad")

    (found,) = bad_caches(pair, Index(idx_path(pair)))

    assert {path.name.removeprefix(f"{bad.name}-") for path in found.files} == {
        "description.txt",
        "document_index.npy",
        "sample_index.npy",
        "shuffle_index.npy",
    }


def test_dates_decide_where_there_are_too_many_sequences_to_compute(pair, monkeypatch):
    monkeypatch.setattr("dataprep.checks.orders.MAX_EXACT", 10)
    base = build(pair / "cache" / "GPTDataset_indices", pair, np.array(LENGTHS))
    os.utime(idx_path(pair), (2, 2))

    assert codes(pair) == set()
    os.utime(base.with_name(f"{base.name}-description.txt"), (1, 1))
    assert codes(pair) == {"cache-stale"}


def test_no_such_cache_folder_is_a_bad_request(pair, workspace):
    with pytest.raises(SpecError, match="no such folder"):
        codes(pair, workspace / "nothing")


@pytest.mark.megatron
def test_caches_that_megatron_core_builds(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 300, 700).tolist()
    write(tmp_path / "a", lengths)
    tokenizer = types.SimpleNamespace(vocab_size=100, eod=7, pad=-1, unique_identifiers={"class": "none"})
    folders = {False: tmp_path / "shared", True: None}
    for own, folder in folders.items():
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=64 + own,
            blend=([str(tmp_path / "a")], None),
            split="90,9,1",
            path_to_cache=str(folder) if folder else None,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            tokenizer=tokenizer,
        )
        BlendedMegatronDatasetBuilder(GPTDataset, [5000, 50, 5], lambda: True, config).build()

    assert len(list(tmp_path.glob("**/*-description.txt"))) == 6
    assert codes(tmp_path / "a", tmp_path / "shared") == set()
    lengths[3] += 1
    write(tmp_path / "a", lengths)
    found = verify(tmp_path / "a", "index", Expected(cache=tmp_path / "shared")).problems
    assert [problem.code for problem in found] == ["cache-stale"] * 2  # train of both; valid and test are not touched
    write(tmp_path / "a", lengths[:-10])
    found = verify(tmp_path / "a", "index", Expected(cache=tmp_path / "shared")).problems
    assert [problem.code for problem in found] == ["cache-stale"] * 6


@pytest.mark.megatron
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        ("90,9,1", (5000, 50, 5)),
        ("90,9,1", (1900, 290, 29)),  # the last epoch by itself
        ("1,1,1", (None, None, None)),
        ("9999,0.5,0.5", (700, None, None)),  # no sequences for valid and test
    ],
)
def test_caches_of_any_options_and_of_pairs_that_change_a_little(tmp_path, split, sizes, drop, extra):
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 300, 700)
    tokenizer = types.SimpleNamespace(vocab_size=100, eod=7, pad=-1, unique_identifiers={"class": "none"})
    options = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}

    def arrays(folder, drop, extra):
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=64,
            blend=([str(tmp_path / "a")], None),
            split=split,
            path_to_cache=str(folder),
            tokenizer=tokenizer,
            drop_last_partial_validation_sequence=drop,
            add_extra_token_to_sequence=extra,
            **options,
        )
        BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
        bases = [str(path).removesuffix("-description.txt") for path in sorted(folder.glob("*-description.txt"))]
        names = ("document_index", "sample_index", "shuffle_index")
        return {os.path.basename(base): [np.load(f"{base}-{name}.npy").tolist() for name in names] for base in bases}

    write(tmp_path / "a", lengths)
    old = arrays(tmp_path / "old", drop, extra)
    assert len(old) == 3
    assert bad_caches(tmp_path / "a", Index(idx_path(tmp_path / "a")), tmp_path / "old") == []
    outcomes = set()
    for number in range(6):
        place, other = rng.integers(0, 700, 2)
        lengths[place] += 1
        lengths[other] -= lengths[other] > 0
        write(tmp_path / "a", lengths)
        os.utime(tmp_path / "a.idx", (1, 1))  # where it may be either, the date decides
        new = [arrays(tmp_path / f"{number}-{d}-{e}", d, e) for d in (True, False) for e in (True, False)]
        found = bad_caches(tmp_path / "a", Index(idx_path(tmp_path / "a")), tmp_path / "old")
        stale = {bad.files[0].name.removesuffix("-description.txt") for bad in found}
        assert stale == {base for base in old if all(each[base] != old[base] for each in new)}
        outcomes |= {len(stale)}
    assert outcomes - {0}
