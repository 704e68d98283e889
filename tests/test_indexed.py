"""`dataprep.indexed`: byte for byte what the docstring says, and nothing else is believed."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataprep
from dataprep import indexed
from dataprep.batches import TokenBatch
from dataprep.errors import EncodeError, FormatError
from dataprep.indexed import (
    CODES,
    DTYPES,
    Index,
    IndexedDataset,
    IndexedWriter,
    IndexWriter,
    bin_path,
    idx_path,
    read_header,
)
from dataprep.storage import AtomicFile

DOCUMENTS = st.lists(st.lists(st.integers(0, 60_000), max_size=8), max_size=30)


def _batch(documents: list[list[int]], dtype: str = "int32") -> TokenBatch:
    ids = np.array(list(itertools.chain(*documents)), dtype)
    return TokenBatch(ids, np.cumsum([0, *map(len, documents)], dtype=np.int64))


def _write(prefix: Path, documents: list[list[int]], dtype: str = "int32") -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        writer.append(_batch(documents, dtype))
        writer.commit()
    return prefix


def _read(prefix: Path) -> list[list[int]]:
    pair = IndexedDataset(prefix)
    return [pair.document(i).tolist() for i in range(pair.num_documents)]


def test_the_example_of_the_docstring(workspace):
    prefix = _write(workspace / "a", [[7, 8], [], [9]])
    assert bin_path(prefix).read_bytes() == struct.pack("<3i", 7, 8, 9)
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 2, 4)
    expected += struct.pack("<2i", 2, 1) + struct.pack("<2q", 0, 8) + struct.pack("<4q", 0, 1, 1, 2)
    assert idx_path(prefix).read_bytes() == expected
    assert len(expected) == 34 + 12 * 2 + 8 * 4


def test_uint16(workspace):
    prefix = _write(workspace / "a", [[1], [65535, 2]], "uint16")
    assert bin_path(prefix).read_bytes() == struct.pack("<3H", 1, 65535, 2)
    assert idx_path(prefix).read_bytes()[17] == 8
    assert IndexedDataset(prefix).sequence_pointers.tolist() == [0, 2]
    assert _read(prefix) == [[1], [65535, 2]]


def test_a_dot_in_the_prefix_is_no_suffix(workspace):
    prefix = _write(workspace / "v1.5", [[1]])
    assert sorted(path.name for path in workspace.iterdir()) == ["v1.5.bin", "v1.5.idx"]
    assert _read(prefix) == [[1]]


@given(parts=st.lists(DOCUMENTS, max_size=5), dtype=st.sampled_from(["uint16", "int32"]), chunk=st.integers(1, 9))
def test_what_goes_in_comes_out(parts, dtype, chunk):
    """In any number of batches, with any chunk, with documents of no token."""
    documents = list(itertools.chain(*parts))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.indexed.writer.CHUNK", chunk)
        prefix = Path(name) / "a"
        with IndexedWriter(prefix, dtype) as writer:
            for part in parts:
                writer.append(_batch(part, dtype))
            writer.commit()
        pair = IndexedDataset(prefix)
        assert pair.dtype == np.dtype(dtype)
        assert pair.num_documents == len(documents)
        assert [pair.document(i).tolist() for i in range(len(documents))] == documents
        full = [document for document in documents if document]
        assert [view.tolist() for view in pair[:]] == full
        assert pair.lengths.tolist() == [len(document) for document in full]
        assert pair.num_tokens == sum(map(len, documents))
        assert pair.document_indices.dtype == pair.sequence_pointers.dtype == np.int64
        assert pair.lengths.dtype == np.int32
        for start, stop in itertools.combinations(range(len(documents) + 1), 2):
            assert pair.document_lengths(start, stop).tolist() == [len(document) for document in documents[start:stop]]
        if full:
            assert [p for p in dataprep.verify(prefix).problems if p.severity == "error"] == []


@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=4), chunk=st.integers(1, 9))
def test_adding_an_index_is_adding_its_documents(parts, chunk):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.indexed.writer.CHUNK", chunk)
        folder = Path(name)
        index = IndexWriter(folder)
        for i, part in enumerate(parts):
            shard = _write(folder / str(i), part)
            bin_path(shard).unlink()
            for lengths in Index(idx_path(shard)).length_chunks():
                index.add(lengths)
        with AtomicFile(idx_path(folder / "merged")) as file:
            index.write(file, "int32")
        index.close()
        _write(folder / "direct", list(itertools.chain(*parts)))
        assert idx_path(folder / "merged").read_bytes() == idx_path(folder / "direct").read_bytes()


@given(steps=st.lists(st.tuples(DOCUMENTS, st.booleans()), max_size=6))
def test_undo_forgets_what_came_after_the_mark(steps):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = [[5, 5, 5]]
        with IndexedWriter(folder / "undone", "int32") as writer:
            writer.append(_batch(kept))
            for documents, keep in steps:
                mark = writer.mark()
                writer.append(_batch(documents))
                if keep:
                    kept += documents
                else:
                    writer.undo(mark)
            writer.commit()
        _write(folder / "direct", kept)
        for path in (bin_path, idx_path):
            assert path(folder / "undone").read_bytes() == path(folder / "direct").read_bytes()


def test_a_writer_that_is_not_committed_leaves_nothing(workspace):
    with pytest.raises(KeyError), IndexedWriter(workspace / "a", "int32") as writer:  # noqa: PT012
        writer.append(_batch([[1, 2]]))
        raise KeyError
    with IndexedWriter(workspace / "a", "int32") as writer:
        writer.append(_batch([[1, 2]]))
    assert not list(workspace.iterdir())


def test_indices_slices_and_errors(workspace):
    pair = IndexedDataset(_write(workspace / "a", [[1], [2, 3], [], [4]]))
    assert (len(pair), pair.num_documents) == (3, 4)
    assert pair[-1].tolist() == [4]
    assert [view.tolist() for view in pair[::-2]] == [[4], [1]]
    for index in (3, -4):
        with pytest.raises(IndexError, match=rf"sequence {index} of 3"):
            pair[index]
    for index in (4, -1):
        with pytest.raises(IndexError, match=rf"document {index} of 4"):
            pair.document(index)
    with pytest.raises(ValueError, match="read-only"):
        pair[1][0] = 9


def test_sequences_of_one_document_are_joined(workspace):
    """Sentence-level pairs of other tools."""
    prefix = workspace / "a"
    bin_path(prefix).write_bytes(struct.pack("<4i", 1, 2, 3, 4))
    head = indexed.Header(4, 3, 3).pack()
    idx_path(prefix).write_bytes(head + struct.pack("<3i3q3q", 1, 2, 1, 0, 4, 12, 0, 2, 3))
    assert _read(prefix) == [[1, 2, 3], [4]]
    assert IndexedDataset(prefix).document_lengths(0, 2).tolist() == [3, 1]


def test_views_outlive_the_dataset_and_its_files(workspace):
    pair = IndexedDataset(_write(workspace / "a", [[1, 2], [3]]))
    views = [pair[0], pair.lengths, pair.sequence_pointers, pair.document_indices, pair.tokens]
    del pair
    gc.collect()
    shutil.rmtree(workspace)
    assert [view.tolist() for view in views] == [[1, 2], [2, 1], [0, 8], [0, 1, 2], [1, 2, 3]]


def test_a_pickled_dataset_is_its_prefix(workspace):
    """What a worker of a data loader is sent, and not the tokens."""
    pair = IndexedDataset(_write(workspace / "a", [[1, 2], [3]] * 1000))
    sent = pickle.dumps(pair)
    assert len(sent) < 1000
    back = pickle.loads(sent)
    assert (back.prefix, len(back), back[1].tolist()) == (pair.prefix, 2000, [3])
    assert pickle.loads(pickle.dumps(pair.index)).num_documents == 2000


# --- damage


@pytest.fixture
def sound(workspace) -> Path:
    """8 sequences and 9 boundaries: one bit apart, and a multiple of 8, so that boundaries can pass for modes."""
    prefix = _write(workspace / "a", [[i, i + 1, 9] for i in range(8)])
    assert not dataprep.verify(prefix).problems
    return prefix


def _complaint(prefix: Path) -> bool:
    """Whether opening it fails, or verify has something to say."""
    try:
        IndexedDataset(prefix)
    except FormatError as error:
        assert str(prefix) in str(error)  # noqa: PT017
    return bool(dataprep.verify(prefix).problems)


def test_every_truncation_is_seen(sound):
    for path in (idx_path(sound), bin_path(sound)):
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            assert not dataprep.verify(sound).ok, f"{path.suffix} cut to {size}"
            if path.suffix == ".idx":
                with pytest.raises(FormatError):
                    IndexedDataset(sound)
        path.write_bytes(whole)


def _reads(pair: IndexedDataset):
    yield from (lambda: pair[-1], lambda: pair[:], lambda: pair.document(3999), lambda: pair[np.int64(3999)])


def test_a_short_read_raises(workspace):
    """A .bin cut before it is opened, either file cut while it is open: never other bytes, and no signal."""
    prefix = _write(workspace / "a", [[i, i + 1, i + 2] for i in range(4000)])
    bin_bytes, idx_bytes = bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()
    pair = IndexedDataset(prefix)
    os.truncate(bin_path(prefix), len(bin_bytes) // 3)
    for read in _reads(pair):
        with pytest.raises(FormatError, match=r"a\.bin: expected 48000 bytes, as when it was opened, found 16000"):
            read()
    pair = IndexedDataset(prefix)
    assert pair[10].tolist() == [10, 11, 12]
    for read in _reads(pair):
        with pytest.raises(FormatError, match=r"lies outside the \.bin; run: dataprep verify"):
            read()
    bin_path(prefix).write_bytes(bin_bytes)
    pair = IndexedDataset(prefix)
    os.truncate(idx_path(prefix), 34)
    for read in (*_reads(pair), lambda: pair.document_lengths(0, 4000)):
        with pytest.raises(FormatError, match=r"a\.idx: expected 80042 bytes, as when it was opened, found 34"):
            read()
    idx_path(prefix).write_bytes(idx_bytes)
    assert pair.document(3999).tolist() == [3999, 4000, 4001], "what is whole again is read again"


def test_every_value_of_every_header_byte_is_seen(sound):
    path = idx_path(sound)
    whole = path.read_bytes()
    for place in range(34):
        flips = range(1, 256) if place in (9, 17, 18, 26) else [1 << bit for bit in range(8)]
        for flip in flips:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            assert _complaint(sound), f"byte {place}: {whole[place]} -> {whole[place] ^ flip}"


def test_flipped_bits_of_every_byte_of_the_index_are_seen(sound):
    """Two of the eight bits of each."""
    path = idx_path(sound)
    whole = path.read_bytes()
    for place in range(34, len(whole)):
        for bit in (place % 4, place % 4 + 4):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert _complaint(sound), f"byte {place} bit {bit}"


@pytest.mark.parametrize("counts", [(2**63, 2**63), (2**64 - 1, 1), (2**61, 9), (8, 2**61), (0, 0)])
def test_absurd_counts_are_refused_without_memory(sound, counts):
    path = idx_path(sound)
    path.write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, *counts) + path.read_bytes()[34:])
    with pytest.raises(FormatError, match=r"expected .* bytes"):
        read_header(path)


def test_messages_name_what_is_wrong(sound):
    path = idx_path(sound)
    whole = path.read_bytes()
    for content, message in [
        (b"", "expected a header of 34 bytes, found a file of 0"),
        (b"TNTIDX\0\0" + whole[8:], "TNTIDX, the old"),
        (b"PK" + whole[2:], "not a Megatron index"),
        (whole[:9] + struct.pack("<Q", 2) + whole[17:], "expected version 1, found 2"),
        (whole[:17] + b"\x0a" + whole[18:], "fairseq's uint64"),
        (whole[:17] + b"\x00" + whole[18:], "expected a dtype code of 1 to 8, found 0"),
        (whole + b"\0", "found 203"),
    ]:
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            IndexedDataset(sound)
    path.unlink()
    with pytest.raises(FormatError, match=r"cannot read .*\.idx: No such file"):
        IndexedDataset(sound)


def test_pointers_that_lead_outside_are_refused(sound):
    path = idx_path(sound)
    whole = bytearray(path.read_bytes())
    for value in (-4, 2, 1 << 40, 8 * 12):
        whole[34 + 32 : 34 + 40] = struct.pack("<q", value)
        path.write_bytes(whole)
        with pytest.raises(FormatError, match="sequence 0 lies outside"):
            IndexedDataset(sound)[0]
    whole[34:38] = struct.pack("<i", -1)
    path.write_bytes(whole)
    with pytest.raises(FormatError, match="sequence 0 lies outside"):
        IndexedDataset(sound)[0]


def test_codes_are_megatrons():
    """Megatron-LM d98e8a64, indexed_dataset.py, DType."""
    assert CODES == {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
    assert {np.dtype(kind).name for kind in DTYPES.values()} == set(CODES)


def test_modes_of_multimodal_data_are_read_over(sound):
    path = idx_path(sound)
    path.write_bytes(path.read_bytes() + bytes(8))
    assert _read(sound)[0] == [0, 1, 9]


# --- beyond 2**31 and 2**32 bytes


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_pointers_pass_the_32_bit_boundaries(workspace, dtype):
    """Lengths alone: 6 times 2**30 tokens are 12 or 24 GiB, of which no byte is written."""
    lengths = np.array([2**30, 0, 2**30 - 1, 2**30, 2**30, 1, 2**30, 2**30], np.int64)
    index = IndexWriter(workspace)
    for part in (lengths[:3], lengths[3:]):
        index.add(part)
    with AtomicFile(idx_path(workspace / "a")) as file:
        index.write(file, dtype)
    index.close()
    size = np.dtype(dtype).itemsize
    with bin_path(workspace / "a").open("wb") as file:
        file.truncate(int(lengths.sum()) * size)  # sparse
        file.seek((int(lengths.sum()) - 1) * size)
        file.write((60_000).to_bytes(size, "little"))
    pair = IndexedDataset(workspace / "a")
    kept = [int(n) for n in lengths if n]
    assert pair.sequence_pointers.tolist() == [sum(kept[:i]) * size for i in range(len(kept))]
    assert int(pair.sequence_pointers[-1]) > 2**33 - 2**31
    assert pair.document_indices.tolist() == [0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert pair.document_lengths(0, 8).tolist() == lengths.tolist()
    assert pair.document_lengths(0, 8).dtype == np.int64
    assert pair[len(pair) - 1][-1] == 60_000
    assert pair[len(pair) - 1].shape == (2**30,)
    assert dataprep.verify(workspace / "a", "index").ok


def test_a_document_of_2_31_tokens_is_refused(workspace):
    index = IndexWriter(workspace)
    index.add(np.array([2**31 - 1], np.int64))
    with pytest.raises(EncodeError, match="2147483648 tokens: the index holds at most 2147483647"):
        index.add(np.array([1, 2**31], np.int64))
    assert (index.num_documents, index.num_tokens) == (1, 2**31 - 1)
    index.close()


def test_the_writer_keeps_nothing_per_document(workspace):
    """Counts and a file without a name: 50 million lengths are 200 MB on disk, none in memory."""
    index = IndexWriter(workspace)
    block = np.ones(1 << 16, np.int64)
    for _ in range(40):
        index.add(block)
    assert not list(workspace.iterdir())
    assert index.num_documents == 40 << 16
    assert [len(chunk) for chunk in index.chunks()] == [1 << 20, 1 << 20, 1 << 19]
    index.close()
