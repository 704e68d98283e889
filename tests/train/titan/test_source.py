"""Documents of pairs for torchtitan: what its loader asks of a source; and its loader, where it is installed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import IndexedDataset
from dataprep.train.job import Data, Part
from dataprep.train.titan.config_registry import VARIABLE, load_job
from dataprep.train.titan.source import PairSource, PairSourceConfig, Rows, make_dataset, split_rows

DOCUMENTS = [[1, 10, 2], [1, 20, 21, 2], [1], [1, 30, 31, 32, 2], []]


@pytest.fixture
def prefix(make_pair) -> str:
    bounds = np.cumsum([0, *(len(ids) > 0 for ids in DOCUMENTS)])
    return str(make_pair([ids for ids in DOCUMENTS if ids], boundaries=bounds))


def test_rows_are_documents(prefix):
    source = PairSource(Rows(prefix, 5, 1, 5, 1.0))

    assert len(source) == 4
    assert [source[i].tolist() for i in range(4)] == DOCUMENTS[1:]
    assert all(source[i].dtype == np.int64 for i in range(4))
    for outside in (-1, 4):
        with pytest.raises(IndexError):
            source[outside]


def test_a_document_of_several_sequences_is_one_row(make_pair):
    source = PairSource(Rows(str(make_pair([[1], [2, 3], [4]], boundaries=[0, 2, 3])), 2, 0, 2, 1.0))

    assert [source[i].tolist() for i in range(2)] == [[1, 2, 3], [4]]


def test_a_pair_that_changed_is_refused(prefix, tmp_path):
    with pytest.raises(SpecError, match="holds 5 documents, and held 6"):
        PairSource(Rows(prefix, 6, 0, 6, 1.0))
    with pytest.raises(FormatError):
        PairSourceConfig(rows=Rows(str(tmp_path / "none"), 1, 0, 1, 1.0)).build(dataset_iteration_policy=None)


@pytest.fixture
def job(make_job, dataset):
    """On 800 documents, twice."""
    job = make_job(dataset, backend="torchtitan", model="llama3-8b", settings=["train.split=70,20,10"])
    (part,) = job.data.parts
    half = part.model_copy(update={"weight": 0.5})
    return job.model_copy(update={"data": Data(parts=(half, half))})


def test_splits_are_megatrons(job, dataset):
    rows = split_rows(job, "train")

    assert rows == (Rows(dataset, 800, 0, 560, 0.5),) * 2
    assert [(each.start, each.stop) for each in split_rows(job, "valid")] == [(560, 720)] * 2
    assert [(each.start, each.stop) for each in split_rows(job, "test")] == [(720, 800)] * 2
    alone = job.model_copy(update={"train": job.train.model_copy(update={"split": "100"})})
    assert split_rows(alone, "valid") == ()


def test_own_prefixes_of_a_split_are_whole(job, dataset):
    (part, _) = job.data.parts
    own = job.model_copy(update={"data": Data(own={"valid": (part,)})})

    assert split_rows(own, "valid") == (Rows(dataset, 800, 0, 800, 0.5),)
    assert split_rows(own, "train") == ()


def test_the_job_is_found_by_its_variable(job, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(SpecError, match=VARIABLE):
        load_job()
    path = tmp_path / "job.json"
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(SpecError, match="cannot read"):
        load_job()
    path.write_text('{"name": 3}')
    with pytest.raises(SpecError, match=r"job\.json"):
        load_job()
    path.write_text(json.dumps(job.to_json()))
    assert load_job() == job


def test_importing_it_imports_no_torch():
    code = (
        "import sys, dataprep.train.titan.config_registry, dataprep.train.backends.torchtitan\n"
        "assert not {'torch', 'torchtitan', 'grain'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_torchtitans_own_loader_reads_it_and_resumes(job):
    """For torchtitan at b5bcd76c; no release has its loader yet."""
    data = pytest.importorskip("torchtitan.components.data")
    rows = [Rows(each.prefix, 800, 0, 800, weight) for each, weight in zip(job.data.parts, (0.5, 0.5), strict=True)]

    def loader(rank):
        config = data.GrainDataLoader.Config(dataset=make_dataset(tuple(rows)), seed=1)
        return config.build(
            dp_world_size=2, dp_rank=rank, tokenizer=None, max_context_length=4096, num_tokens_per_batch=8192
        )

    def take(iterator, number):
        batches = [next(iterator) for _ in range(number)]
        return [(batch["input"].numpy(), batch["positions"].numpy(), labels.numpy()) for batch, labels in batches]

    first = loader(0)
    begun = take(iter(first), 4)
    state = first.state_dict()
    gone_on = take(iter(first), 4)
    second = loader(0)
    second.load_state_dict(state)

    for ours, theirs in zip(take(iter(second), 4), gone_on, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    assert not np.array_equal(take(iter(loader(1)), 1)[0][0], begun[0][0])
    _check_pieces(begun, job.data.parts[0])


def _check_pieces(batches, part: Part) -> None:
    """Positions begin anew with each document; inputs and labels are its tokens."""
    pair = IndexedDataset(part.prefix)
    heads = {tuple(pair.document(i)[:16].tolist()): pair.document(i) for i in range(pair.num_documents)}
    checked = 0
    for tokens, positions, labels in batches:
        starts = np.flatnonzero(positions == 0)
        for start, stop in itertools.pairwise(starts):
            document = heads.get(tuple(tokens[start : start + 16].tolist())) if stop - start >= 16 else None
            if document is not None:
                checked += 1
                np.testing.assert_array_equal(document[: stop - start], tokens[start:stop])
                np.testing.assert_array_equal(document[1 : stop - start + 1], labels[start:stop])
                np.testing.assert_array_equal(positions[start:stop], np.arange(stop - start))
    assert checked
