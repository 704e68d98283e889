"""Parquet and Arrow: columns of every type, row groups, and files that are broken."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep import readers
from dataprep.errors import SourceError
from dataprep.readers import parquet
from dataprep.specs import ReaderSpec

COLUMN_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.binary()),
]


def _array(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    plain = pa.array(values, pa.binary())
    if pa.types.is_dictionary(kind):
        return plain.dictionary_encode().cast(kind)
    if kind == pa.string_view():
        return plain.cast(pa.string()).cast(kind)
    return plain.cast(kind)


def _write_arrow(path: Path, table: pa.Table, rows: int, stream: bool = False) -> Path:
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def _write_column_file(path: Path, container: str, table: pa.Table, rows: int) -> Path:
    if container == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return path
    return _write_arrow(path, table, rows, stream=container == "stream")


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
@pytest.mark.parametrize("kind", COLUMN_TYPES, ids=str)
def test_columns_of_every_type(read, tmp_path: Path, container: str, kind: pa.DataType):
    values = ["\u00e4\u00f6".encode() * 20, b"", None, b"x\0y", b"x" * 51, b"last"]
    table = pa.table({"n": pa.array(range(6)), "text": _array(values, kind)})
    path = _write_column_file(tmp_path / "a", container, table, 4)
    reader = ReaderSpec(max_document_bytes=80)
    whole = read(path, reader)
    assert whole.documents == {i: v for i, v in enumerate(values) if v is not None}
    assert whole.reasons == [(2, "null-text", -1)]
    for batch_bytes in (16, 60, 1024):
        assert read(path, reader, batch_bytes, unit_bytes=1) == whole
    rejects = read(path, ReaderSpec(max_document_bytes=50)).rejects
    assert [(r.row, r.reason) for r in rejects] == [(0, "too-long"), (2, "null-text"), (4, "too-long")]
    assert (rejects[2].detail, rejects[2].record) == ("51 bytes; reader.max_document_bytes is 50", b"x" * 51)
    assert [r.group for r in rejects] == [0, 0, 1]


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_binary_that_is_not_utf8(read, tmp_path: Path, container: str):
    # Together 1 and 2 are UTF-8, each alone is not.
    table = pa.table({"text": pa.array([b"a", b"\xc3", b"\xa4", b"b\xff"], pa.binary())})
    path = _write_column_file(tmp_path / "a", container, table, 10)
    documents, rejects, _ = read(path)
    assert documents == {0: b"a"}
    assert [(r.row, r.reason, r.detail, r.record) for r in rejects] == [
        (1, "invalid-utf8", "unexpected end of data: 0xc3 at byte 0", b"\xc3"),
        (2, "invalid-utf8", "invalid start byte: 0xa4 at byte 0", b"\xa4"),
        (3, "invalid-utf8", "invalid start byte: 0xff at byte 1", b"b\xff"),
    ]


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_a_missing_column_names_the_others(read, tmp_path: Path, container: str):
    table = pa.table({"content": ["a"], "text": [1]})
    path = _write_column_file(tmp_path / "a", container, table, 10)
    message = r"found int64; use --set reader.text=NAME, there are: content \(string\), text \(int64\)"
    with pytest.raises(SourceError, match=message):
        read(path)
    with pytest.raises(SourceError, match="expected one column 'body' of text, found 0 of that name"):
        read(path, ReaderSpec(text="body"))
    assert read(path, ReaderSpec(text="content")).documents == {0: b"a"}


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_nested_columns_of_the_same_name(read, tmp_path: Path, container: str):
    nested = pa.array([{"b": "inner", "text": "inner", "tags": [{"text": "t"}]}])
    pairs = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"a": nested, "m": pairs, "a.b": ["outer b"], "text": ["outer text" * 100]})
    path = _write_column_file(tmp_path / "a", container, table, 10)
    assert read(path).documents == {0: b"outer text" * 100}
    assert read(path, ReaderSpec(text="a.b")).documents == {0: b"outer b"}


def test_parquet_slices_are_runs_of_row_groups(read, source, tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = [f"{i} " * 500 for i in range(10)]
    pq.write_table(
        pa.table({"n": range(10), "text": texts}), path, row_group_size=2, compression="none", use_dictionary=False
    )
    reader = ReaderSpec()
    file = source(path, reader)
    assert readers.detect(path, reader) == ("parquet", "none")
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(i).column(1).total_uncompressed_size for i in range(5)]
    unit_bytes = sum(sizes[:2])
    slices = readers.cut(0, file, reader, unit_bytes)
    assert [(s.start, s.stop) for s in slices] == [(0, 2), (2, 4), (4, 5)]
    places = [file.num_bytes * sum(sizes[:n]) // sum(sizes) for n in (0, 2, 4, 5)]  # the other column's bytes as well
    assert [s.num_bytes for s in slices] == [b - a for a, b in itertools.pairwise(places)]
    assert [len(readers.cut(0, file, reader, size)) for size in (1, 10**9)] == [5, 1]
    assert list(read(path, unit_bytes=unit_bytes, batch_bytes=1024).documents.values()) == [t.encode() for t in texts]


def _corrupt_group(path: Path, group: int) -> None:
    chunk = pq.read_metadata(path).row_group(group).column(0)
    at = chunk.data_page_offset + chunk.total_compressed_size - 40
    data = bytearray(path.read_bytes())
    data[at : at + 8] = bytes(b ^ 0xFF for b in data[at : at + 8])
    path.write_bytes(data)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_corrupt_row_group_is_taken_back(read, source, tmp_path: Path, compression: str):
    path = tmp_path / "a.parquet"
    texts = [f"{i} {np.random.default_rng(i).integers(10**9)} " * 20 for i in range(400)]
    options = {"row_group_size": 100, "compression": compression, "use_dictionary": False, "data_page_size": 2000}
    pq.write_table(pa.table({"text": texts}), path, write_page_checksum=True, write_batch_size=10, **options)
    _corrupt_group(path, 1)
    for batch_bytes, unit_bytes in ((2000, 1 << 30), (1 << 20, 1 << 30), (2000, 1)):
        documents, rejects, num_records = read(path, None, batch_bytes, unit_bytes)
        assert num_records == 400
        assert documents == {i: texts[i].encode() for i in range(400) if not 100 <= i < 200}
        assert [(r.row, r.reason, r.group, r.count) for r in rejects] == [(100, "corrupt-row-group", 1, 100)]
        assert rejects[0].detail
    reader = ReaderSpec()
    file = source(path, reader)
    part = readers.cut(0, file, reader, 1 << 30)[0]
    flags = [(b.restart, b.undo) for b in readers.read(file, part, reader, 2000)]
    assert flags.count((True, False)) == 4
    assert flags.count((False, True)) == 1
    assert (False, False) in flags[: flags.index((False, True))]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), pa.ArrowMemoryError("malloc of size 1 failed")])
def test_a_failing_machine_is_no_corrupt_row_group(read, tmp_path: Path, error: Exception):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    with (
        mock.patch.object(parquet, "_group_batches", side_effect=error),
        pytest.raises(SourceError, match="cannot read"),
    ):
        read(path)


def test_a_parquet_file_without_its_end(read, tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SourceError, match=r"cannot read .* as parquet"):
        read(path)


def test_column_files_without_rows(read, tmp_path: Path):
    table = pa.table({"text": pa.array([], pa.string())})
    for container in ("parquet", "file", "stream"):
        path = _write_column_file(tmp_path / container, container, table, 10)
        assert read(path) == ({}, [], 0)


def test_arrow_slices_are_runs_of_record_batches(source, tmp_path: Path):
    table = pa.table({"text": ["x" * 100] * 90})
    path = _write_arrow(tmp_path / "a", table, 10)
    reader = ReaderSpec()
    file = source(path, reader)
    slices = readers.cut(0, file, reader, file.num_bytes // 3 + 1)
    assert [(s.start, s.stop) for s in slices] == [(0, 3), (3, 6), (6, 9)]
    assert sum(s.num_bytes for s in slices) == file.num_bytes
    path = _write_arrow(tmp_path / "b", table, 10, stream=True)
    file = source(path, reader)
    slices = readers.cut(0, file, reader, file.num_bytes // 3 + 1)
    assert [s.num_bytes for s in slices] == [s.stop - s.start for s in slices]
    assert (slices[0].start, slices[-1].stop) == (0, file.num_bytes)
    assert [sum(batch.num_rows for batch in readers.read(file, s, reader, 1000)) for s in slices] == [20, 30, 40]


@pytest.mark.parametrize("stream", [True, False])
def test_truncated_arrow_is_seen(read, tmp_path: Path, stream: bool):
    path = _write_arrow(tmp_path / "a", pa.table({"text": ["some text"] * 6}), 2, stream=stream)
    whole = path.read_bytes()
    for size in range(8, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match="fetch it again"):
            read(path)


def test_two_arrow_streams_in_a_file_are_no_stream(read, tmp_path: Path):
    path = _write_arrow(tmp_path / "a", pa.table({"text": ["some text"]}), 2, stream=True)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(SourceError, match="end-of-stream"):
        read(path)


def test_broken_offsets_in_arrow_are_seen(read, tmp_path: Path):
    """Arrow believes the offsets of a file; what they point at may not be there."""
    path = _write_arrow(tmp_path / "a", pa.table({"text": ["abcd", "efgh", "ijkl"]}), 3)
    good = np.array([0, 4, 8, 12], np.int32).tobytes()
    bad = np.array([0, 1 << 30, 8, 12], np.int32).tobytes()
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(SourceError, match="as arrow"):
        read(path)
