"""Counts of ids and repeated documents: as counting lists gives them, wherever blocks and documents end."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError
from dataprep.indexed import IndexedDataset, bin_path
from dataprep.inspection import census


def table(counts):
    return {number: count for number, count in enumerate(counts.tolist()) if count}


@given(
    documents=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=25).filter(any),
    dtype=st.sampled_from(["uint8", "uint16", "int16", "int32", "int64"]),
    block=st.integers(1, 12),
    chunk=st.integers(1, 30),
)
def test_counts_are_those_of_lists(make_pair, documents, dtype, block, chunk):
    pair = IndexedDataset(make_pair(documents, dtype=dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.inspection.census.COPY_BYTES", block * pair.dtype.itemsize)
        patch.setattr("dataprep.inspection.census.CHUNK", chunk)
        patch.setattr("dataprep.indexed.reader.CHUNK", chunk)
        found = census.take(pair)

    held = [document for document in documents if document]
    assert table(found.counts) == Counter(token for document in held for token in document)
    assert table(found.begins) == Counter(document[0] for document in held)
    assert table(found.ends) == Counter(document[-1] for document in held)
    assert table(found.lone) == Counter(document[0] for document in held if len(document) == 1)
    assert found.num_distinct == len({token for document in held for token in document})
    assert found.num_outside == 0
    copies = Counter(map(tuple, held))
    groups = [(documents.index(list(text)), count, len(text)) for text, count in copies.items() if count > 1]
    repeats = found.repeats
    shown = list(zip(repeats.first.tolist(), repeats.copies.tolist(), repeats.lengths.tolist(), strict=True))
    assert shown == sorted(groups, key=lambda group: (-group[1], group[0]))
    assert repeats.num_compared == len(documents)
    assert repeats.num_documents == sum(count - 1 for count in copies.values())
    assert repeats.num_tokens == sum((count - 1) * len(text) for text, count in copies.items())


def test_documents_of_several_sequences_are_one(make_pair):
    found = census.take(IndexedDataset(make_pair([[1], [2, 3], [1, 2], [3], [3]], boundaries=[0, 2, 4, 5])))

    assert (found.repeats.first.tolist(), found.repeats.lengths.tolist()) == ([0], [3])
    assert (table(found.begins), table(found.ends), table(found.lone)) == ({1: 2, 3: 1}, {3: 3}, {3: 1})


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
def test_what_is_no_id_is_counted_aside_and_takes_no_memory(make_pair, dtype):
    largest = int(np.iinfo(dtype).max)
    found = census.take(IndexedDataset(make_pair([[-1, 5, largest], [-5, 5], [-(largest + 1)]], dtype=dtype)))

    inside = {5: 2, largest: 1} if largest < census.LIMIT else {5: 2}
    assert table(found.counts) == inside
    assert found.num_outside == 6 - sum(inside.values())
    assert len(found.counts) <= census.LIMIT


def test_only_the_first_documents_are_compared(make_pair, monkeypatch):
    monkeypatch.setattr("dataprep.inspection.census.MOST_DOCUMENTS", 3)
    monkeypatch.setattr("dataprep.inspection.census.COPY_BYTES", 4)
    found = census.take(IndexedDataset(make_pair([[1], [2], [1], [2], [1]])))

    assert (found.repeats.num_compared, found.repeats.num_documents) == (3, 1)
    assert table(found.counts) == {1: 3, 2: 2}


def test_a_file_that_became_shorter_is_said(make_pair):
    prefix = make_pair([[1, 2, 3]] * 10)
    pair = IndexedDataset(prefix)
    with bin_path(prefix).open("r+b") as file:
        file.truncate(30)

    with pytest.raises(FormatError, match="became shorter; run: dataprep verify"):
        census.take(pair)
