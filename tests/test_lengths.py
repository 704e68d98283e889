"""Lengths of documents: exact, whatever pieces the index is read in, and what a sequence length makes of them."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import FormatError
from dataprep.indexed import IndexedDataset, bin_path, idx_path
from dataprep.inspection.lengths import LengthCounts, document_ends


def counted(lengths):
    return LengthCounts.of([np.array(lengths, np.int64)])


@given(
    lengths=st.lists(st.integers(0, 4), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=20),
    chunk=st.integers(1, 30),
)
def test_ends_are_found_whatever_the_pieces(make_pair, lengths, cuts, chunk):
    boundaries = [0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)]
    pair = IndexedDataset(make_pair([[1] * length for length in lengths], boundaries))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.indexed.reader.CHUNK", chunk)
        found = [end for ends in document_ends(pair) for end in ends.tolist()]

    assert found == [sum(lengths[:boundary]) for boundary in boundaries[1:]]


SEQUENCES = 34  # where the lengths of three sequences begin; their pointers at 46, the four boundaries at 70


@pytest.mark.parametrize(
    ("position", "kind", "value"),
    [
        (SEQUENCES, "<i", -1),
        (SEQUENCES + 8, "<i", 4),
        (46, "<q", 2),
        (46 + 8, "<q", 5),
        (46 + 16, "<q", 2**62),
        (70, "<q", 1),
        (70 + 8, "<q", 3),
        (70 + 8, "<q", -1),
        (70 + 16, "<q", 0),
        (70 + 24, "<q", 2),
        (70 + 24, "<q", 2**40),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_a_broken_index_leads_to_verify(make_pair, monkeypatch, position, kind, value, chunk):
    prefix = make_pair([[1, 2], [3], [4, 5, 6]])
    data = bytearray(idx_path(prefix).read_bytes())
    struct.pack_into(kind, data, position, value)
    idx_path(prefix).write_bytes(data)
    monkeypatch.setattr("dataprep.indexed.reader.CHUNK", chunk)

    with pytest.raises(FormatError, match="run: dataprep verify"):
        list(document_ends(IndexedDataset(prefix)))


@pytest.mark.parametrize("size", [0, 10, 14])
def test_a_bin_of_another_size_leads_to_verify(make_pair, size):
    prefix = make_pair([[1, 2], [3], [4, 5, 6]])
    with bin_path(prefix).open("r+b") as file:
        file.truncate(size)

    with pytest.raises(FormatError, match="run: dataprep verify"):
        list(document_ends(IndexedDataset(prefix)))


def test_no_documents_lead_to_verify(make_pair):
    with pytest.raises(FormatError, match="no documents; run: dataprep verify"):
        list(document_ends(IndexedDataset(make_pair([], [0]))))


@given(chunks=st.lists(st.lists(st.integers(0, 50), max_size=20), max_size=5), table=st.sampled_from([1, 20, 1000]))
def test_lengths_are_counted_whatever_the_pieces(chunks, table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.inspection.lengths.TABLE", table)
        found = LengthCounts.of(np.array(chunk, np.int64) for chunk in chunks)

    every = list(itertools.chain(*chunks))
    assert dict(zip(found.values.tolist(), found.counts.tolist(), strict=True)) == {n: every.count(n) for n in every}
    assert found.num_tokens == sum(every)
    assert found.values.tolist() == sorted(set(every))


def test_bins_are_powers_of_two():
    bins = counted([0, 1, 1, 2, 3, 4, 7, 8, 65, 2**31 - 1]).bins()

    shown = [(entry["from"], entry["to"], entry["num_documents"], entry["num_tokens"]) for entry in bins]
    assert shown[:6] == [(0, 0, 1, 0), (1, 1, 2, 2), (2, 3, 2, 5), (4, 7, 2, 11), (8, 15, 1, 8), (16, 31, 0, 0)]
    assert shown[-1] == (2**30, 2**31 - 1, 1, 2**31 - 1)
    assert len(shown) == 32
    assert [entry["from"] for entry in counted([5, 20]).bins()] == [4, 8, 16]


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any), size=st.integers(1, 12))
def test_cuts_are_what_counting_gives(lengths, size):
    found = counted(lengths).cuts(size)

    tokens, held = sum(lengths), [length for length in lengths if length]
    samples = [range(start, start + size + 1) for start in range(0, tokens - size, size)]
    assert found["num_samples"] == len(samples)
    assert found["num_tokens_dropped"] == tokens - len(set(itertools.chain(*samples)))
    assert found["num_longer"] == sum(length > size for length in lengths)
    assert found["num_tokens_truncated"] == tokens - sum(min(length, size) for length in lengths)
    padding = sum(size - min(length, size) for length in held)
    assert found["share_padding"] == pytest.approx(padding / (size * len(held)))
    # A document is cut unless a sample holds all of it; every place modulo the sequence length is as likely.
    cut = [
        not any(start <= place and place + length <= start + size + 1 for start in range(-size, 2 * size, size))
        for length in held
        for place in range(size)
    ]
    assert found["share_cut"] == pytest.approx(sum(cut) / len(cut))
