"""A slice read on from any cursor is the rest of the slice; where cursors are depends on its content alone."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dataprep import readers
from dataprep.errors import SourceError
from dataprep.readers import ranges, streams
from dataprep.readers.records import BOM
from dataprep.specs import ReaderSpec

PACKERS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
SEPARATORS = ["|", "\n\n", "aba"]
RECORDS = st.lists(
    st.one_of(st.integers(0, 40).map(lambda n: b"x" * n), st.sampled_from([b"", b"\xff", b"\r", b"  ", b"no json"])),
    max_size=30,
)


def _lines(records: list[bytes]) -> bytes:
    bare = (b"", b"\r", b"  ", b"no json")
    return b"".join((r if r in bare else b'{"text": "%s"}' % r) + b"\r\n"[len(r) % 2 :] for r in records)


def _members(data: bytes, pack, cuts: list[int]) -> bytes:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return b"".join(pack(data[a:b]) for a, b in itertools.pairwise(places))


def _read(path: Path, file, part, reader, batch_bytes, begin=None):
    """Documents and rejects by their rows, all cursors with how many of each come before, and the source bytes."""
    documents, rejects, cursors = [], [], []
    num_bytes = num_lines = 0
    for batch in readers.read(file, part, reader, batch_bytes, begin):
        documents += [(row, batch.document(i)) for i, row in enumerate(batch.row_numbers().tolist())]
        rejects += batch.rejects
        num_lines += batch.num_lines
        num_bytes += batch.num_source_bytes
        assert batch.num_source_bytes >= 0
        if batch.cursor is not None:
            assert batch.cursor.num_lines == num_lines + (begin.num_lines if begin else 0)
            assert batch.cursor.num_rows == batch.first_row + batch.num_rows
            cursors.append((batch.cursor, len(documents), len(rejects)))
    assert num_bytes == part.num_bytes
    return documents, rejects, cursors


def _check(path: Path, source, reader: ReaderSpec, batches: tuple[int, int]) -> int:
    """Read on from every cursor, with other batches; returns how many there are."""
    file = source(path, reader)
    count = 0
    for part in readers.cut(0, file, reader, 150):
        documents, rejects, cursors = _read(path, file, part, reader, batches[0])
        for i, (cursor, num_documents, num_rejects) in enumerate(cursors):
            rest = _read(path, file, part, reader, batches[1], cursor)
            assert rest[0] == documents[num_documents:]
            assert rest[1] == rejects[num_rejects:]
            assert [c[0] for c in rest[2]] == [c[0] for c in cursors[i + 1 :]]
        count += len(cursors)
    return count


@pytest.mark.parametrize("container", PACKERS)
@given(
    records=RECORDS,
    separator=st.sampled_from([None, *SEPARATORS]),
    cuts=st.lists(st.integers(0, 10_000), max_size=4),
    piece_bytes=st.integers(1, 200),
    batches=st.tuples(st.integers(16, 300), st.integers(16, 300)),
    group_rows=st.sampled_from([1, 1, 2, 3, 7]),
    bom=st.booleans(),
    max_bytes=st.sampled_from([30, 1 << 20]),
)
def test_reading_on_from_every_cursor(
    container, source, records, separator, cuts, piece_bytes, batches, group_rows, bom, max_bytes
):
    data = (BOM if bom else b"") + (_lines(records) if separator is None else separator.encode().join(records))
    if separator is None:
        reader = ReaderSpec(format="jsonl", max_document_bytes=max_bytes, group_rows=group_rows)
    else:
        reader = ReaderSpec(format="text", separator=separator, max_document_bytes=max_bytes, group_rows=group_rows)
    if not data:
        return
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "PIECE_BYTES", piece_bytes)
        patch.setattr(ranges, "SKIP_BYTES", 7)
        patch.setattr(streams, "CHUNK_BYTES", 40)
        path = Path(folder) / "file"
        path.write_bytes(_members(data, PACKERS[container], cuts))
        _check(path, source, reader, batches)


def _jsonl(num: int) -> bytes:
    return b"".join(json.dumps({"text": f"document {i} " * (i % 7)}).encode() + b"\n" for i in range(num))


@pytest.mark.parametrize("group_rows", [1, 5, 1000])
def test_a_piece_ends_with_the_first_record_and_group_behind_its_bytes(tmp_path, source, monkeypatch, group_rows):
    monkeypatch.setattr(ranges, "PIECE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    lines = _jsonl(2500).splitlines(keepends=True)
    path.write_bytes(b"".join(lines))
    expected, offset, due = [], 0, 1000
    for row, line in enumerate(lines, 1):
        offset += len(line)
        if offset >= due and row % group_rows == 0:
            expected.append((offset, row))
            due = (offset // 1000 + 1) * 1000
    reader = ReaderSpec(group_rows=group_rows)
    file = source(path, reader)
    (part,) = readers.cut(0, file, reader, 1 << 30)
    for batch_bytes in (700, 1 << 20):
        found = [cursor for cursor, _, _ in _read(path, file, part, reader, batch_bytes)[2]]
        assert [(cursor.offset, cursor.num_rows) for cursor in found] == expected
    assert len(expected) > 1


def test_a_unit_as_large_as_they_are_cut_is_one_piece():
    from dataprep.specs import Runtime

    assert Runtime().unit_size(1 << 50) < ranges.PIECE_BYTES


@pytest.mark.parametrize("container", ["gzip", "zstd", "xz", "bz2"])
def test_what_lies_before_is_not_decompressed_again_where_there_are_members(tmp_path, source, monkeypatch, container):
    monkeypatch.setattr(ranges, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1 << 12)
    data = _jsonl(30_000)
    path = tmp_path / "a.jsonl.x"
    pieces = [PACKERS[container](data[at : at + (1 << 16)]) for at in range(0, len(data), 1 << 16)]
    path.write_bytes(b"".join(pieces))
    reader = ReaderSpec()
    file = source(path, reader)
    (part,) = readers.cut(0, file, reader, 1 << 30)
    documents, _, cursors = _read(path, file, part, reader, 1 << 18)
    cursor, num_documents, _ = cursors[-1]
    number = cursor.offset >> 16
    assert cursor.place_offset == number << 16
    assert cursor.place == sum(map(len, pieces[:number]))
    with path.open("r+b") as damaged:  # what lies before is not even looked at
        damaged.write(bytes(cursor.place))
    assert _read(path, file, part, reader, 1 << 18, cursor)[0] == documents[num_documents:]


@pytest.mark.parametrize("container", ["gzip", "zstd", "xz", "bz2"])
def test_a_file_that_became_shorter_is_told(tmp_path, source, monkeypatch, container):
    monkeypatch.setattr(ranges, "PIECE_BYTES", 2000)
    path = tmp_path / "a.jsonl.x"
    path.write_bytes(PACKERS[container](_jsonl(500)))
    reader = ReaderSpec()
    file = source(path, reader)
    (part,) = readers.cut(0, file, reader, 1 << 30)
    cursor = _read(path, file, part, reader, 1000)[2][-1][0]
    path.write_bytes(PACKERS[container](_jsonl(50)))
    with pytest.raises(SourceError, match="is shorter than when it was read before"):
        _read(path, file, part, reader, 1000, cursor)
