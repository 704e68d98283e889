"""Megatron's index caches: those that fit the pair pass, those of another pair at the same path are named."""

import json
import os
import types

import numpy as np
import pytest

from dataprep.batches import TokenBatch
from dataprep.checks.caches import bad_caches
from dataprep.checks.report import Expected
from dataprep.errors import SpecError
from dataprep.indexed import Index, IndexedWriter, idx_path
from dataprep.samples import split_ranges
from dataprep.stages.verify import verify

SEQ = 16


def write(prefix, lengths):
    ids = np.ones(sum(lengths), np.uint16)
    ids[np.cumsum(lengths) - 1] = 7
    with IndexedWriter(prefix, "uint16") as writer:
        writer.append(TokenBatch(ids, np.concatenate([[0], np.cumsum(lengths)])))
        writer.commit()
    return np.array(lengths)


def build(folder, prefix, lengths, **options):
    """A cache as Megatron builds it, for three epochs; after notes of its numpy and C++ code, not a copy."""
    values = {"split": "90,10", "index_split": "train", "name": "0123", "path": str(prefix), "extra": 1, **options}
    part = split_ranges(values["split"], len(lengths))[values["index_split"]]
    matrix = [[0, 0.9], [0.9, 1.0], None] if values["split"] == "90,10" else [[0, 1.0], None, None]
    order = np.tile(np.arange(*part, dtype=np.int32), 3)
    np.random.RandomState(1).shuffle(order)  # Megatron's generator
    ends = np.concatenate([[0], np.cumsum(lengths[order], dtype=np.int64)])
    starts = np.arange((ends[-1] - values["extra"]) // SEQ + 1) * SEQ
    place = np.searchsorted(ends, starts, "right" if values["extra"] else "left") - 1
    place = np.maximum(place, 0)
    samples = np.stack([place, starts - ends[place]], 1).astype(np.int32)
    description = {
        "class": "GPTDataset",
        "dataset_path": values["path"],
        "num_samples": 9,
        "index_split": values["index_split"],
        "random_seed": 1,
        "sequence_length": SEQ,
        "split": values["split"],
        "split_matrix": matrix,
        "tokenizer": {"class": "none"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"{values['name']}-GPTDataset-{values['index_split']}"
    files = {"document_index": order, "sample_index": samples, "shuffle_index": np.arange(len(samples) - 1, dtype="u4")}
    base.with_name(f"{base.name}-description.txt").write_text(json.dumps(description, indent=4))
    for name, array in files.items():
        np.save(base.with_name(f"{base.name}-{name}.npy"), array)
    return base


LENGTHS = [3, 40, 1, 17, 16, 5, 90, 2, 33, 8] * 10


@pytest.fixture
def pair(workspace):
    write(workspace / "a", LENGTHS)
    return workspace / "a"


def codes(prefix, cache=None):
    return verify(prefix, "index", Expected(cache=cache)).codes


@pytest.mark.parametrize(
    "options", [{}, {"index_split": "valid"}, {"split": "1"}, {"extra": 0}], ids=["train", "valid", "whole", "no-extra"]
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
    monkeypatch.setattr("dataprep.checks.caches.MAX_EXACT", 10)
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
