"""reader.group_rows: what is joined with what, for any cut and batch size, and what corrupt row groups take back."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import readers
from dataprep.errors import SpecError
from dataprep.readers.messages import walk
from dataprep.specs import ReaderSpec

Record = bytes | None
BAD = b"\xff"


def _grouped(records: list[Record], group_rows: int) -> dict[int, bytes]:
    """The definition: number of the first record joined -> document."""
    documents = {}
    for start in range(0, len(records), group_rows):
        rows = [i for i in range(start, min(start + group_rows, len(records))) if records[i] not in (None, b"", BAD)]
        if rows:
            documents[rows[0]] = b"\n".join(records[i] or b"" for i in rows)
    return documents


def _write(folder: Path, container: str, records: list[Record], rows: int) -> Path:
    path = folder / f"a.{container}"
    if container == "jsonl":
        lines = [
            b"{" if r == BAD else json.dumps({"text": None if r is None else r.decode()}).encode() for r in records
        ]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    elif container == "txt":
        path.write_bytes(b"".join((r or b"") + b"|" for r in records))
    else:
        table = pa.table({"n": range(len(records)), "text": pa.array(records, pa.binary())})
        if container == "parquet":
            pq.write_table(table, path, row_group_size=rows)
        else:
            new = pa.ipc.new_stream if container == "stream" else pa.ipc.new_file
            with new(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=rows)
    return path


def _spec(container: str, group_rows: int) -> ReaderSpec:
    if container == "txt":
        return ReaderSpec(format="text", separator="|", group_rows=group_rows)
    return ReaderSpec(group_rows=group_rows)


RECORDS = st.lists(
    st.one_of(st.sampled_from([None, b"", BAD, b"a\nb"]), st.binary(max_size=0), st.text("xy\u00e4").map(str.encode)),
    min_size=1,
    max_size=40,
)


@given(
    records=RECORDS,
    container=st.sampled_from(["jsonl", "txt", "parquet", "file", "stream"]),
    group_rows=st.one_of(st.integers(2, 7), st.just(10**9)),
    rows=st.integers(1, 9),
    batch_bytes=st.sampled_from([1, 8, 20, 1000]),
    unit_bytes=st.sampled_from([1, 300, 10**9]),
)
def test_any_records_are_grouped_as_defined(read, records, container, group_rows, rows, batch_bytes, unit_bytes):
    if container == "txt":
        records = [*(record or b"" for record in records), b"last"]
    with tempfile.TemporaryDirectory() as folder:
        path = _write(Path(folder), container, records, rows)
        found = read(path, _spec(container, group_rows), batch_bytes, unit_bytes)
    assert found.documents == _grouped(records, group_rows)
    assert [r.row for r in found.rejects] == [i for i, record in enumerate(records) if record in (None, BAD)]
    assert found.num_records == len(records)


def test_what_was_joined_and_left_out_is_counted(read, source, tmp_path: Path):
    records = [b"a", None, b"b", b"", b"c", b"", BAD, None, b"", b"d"]
    path = _write(tmp_path, "parquet", records, 100)
    reader = ReaderSpec(group_rows=3)
    file = source(path, reader)
    (part,) = readers.cut(0, file, reader, 1)
    batch, last = readers.read(file, part, reader, 1 << 20)
    assert [batch.document(i) for i in range(len(batch))] == [b"a\nb", b"c"]
    assert (batch.row_numbers().tolist(), batch.num_joined(), batch.num_empty) == ([0, 4], 1, 3)
    assert (len(batch.rejects), batch.num_rows) == (3, 10)
    assert (last.document(0), last.row_numbers().tolist(), last.num_rows) == (b"d", [9], 0)


@pytest.mark.parametrize("cut", [1, 300, 10**9])
@pytest.mark.parametrize("corrupt", [0, 1, 3])
@pytest.mark.parametrize("group_rows", [7, 100, 150, 250, 400])
def test_what_was_joined_from_a_corrupt_row_group_is_taken_back(read, tmp_path: Path, group_rows, corrupt, cut):
    path = tmp_path / "a.parquet"
    records: list[Record] = [f"{i} {np.random.default_rng(i).integers(10**9)} ".encode() * (i % 40) for i in range(400)]
    options = {"row_group_size": 100, "compression": "none", "use_dictionary": False, "data_page_size": 2000}
    pq.write_table(pa.table({"text": records}), path, write_page_checksum=True, write_batch_size=10, **options)
    chunk = pq.read_metadata(path).row_group(corrupt).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 40] ^= 0xFF
    path.write_bytes(data)
    records[100 * corrupt : 100 * corrupt + 100] = [None] * 100
    for batch_bytes in (500, 1 << 20):
        found = read(path, ReaderSpec(group_rows=group_rows), batch_bytes, cut)
        assert found.documents == _grouped(records, group_rows)
        assert [(r.row, r.reason, r.count) for r in found.rejects] == [(100 * corrupt, "corrupt-row-group", 100)]


@pytest.mark.parametrize(
    ("container", "group_rows", "first_rows"),
    [
        ("parquet", 1, list(range(0, 60, 4))),
        ("parquet", 2, list(range(0, 60, 4))),
        ("parquet", 6, [0, 12, 24, 36, 48]),
        ("parquet", 7, [0, 28, 56]),
        ("parquet", 100, [0]),
        ("file", 6, [0, 12, 24, 36, 48]),
        ("stream", 6, [0, 12, 24, 36, 48]),
        ("stream", 100, [0]),
        ("jsonl", 2, [0]),
        ("txt", 2, [0]),
    ],
)
def test_slices_begin_where_groups_begin(source, tmp_path: Path, container, group_rows, first_rows):
    path = _write(tmp_path, container, [b"%d" % i for i in range(60)], 4)
    reader = _spec(container, group_rows)
    file = source(path, reader)
    found, row = [], 0
    for part in readers.cut(0, file, reader, 1):
        found.append(row)
        row += sum(batch.num_rows for batch in readers.read(file, part, reader, 1000))
    assert found == first_rows


def test_a_record_has_to_be_short_but_what_is_joined_may_be_long(read, tmp_path: Path):
    path = _write(tmp_path, "parquet", [b"x" * 10, b"y" * 10, b"z" * 11, b"w"], 100)
    found = read(path, ReaderSpec(group_rows=4, max_document_bytes=10))
    assert found.documents == {0: b"x" * 10 + b"\n" + b"y" * 10 + b"\nw"}
    assert [(r.row, r.reason) for r in found.rejects] == [(2, "too-long")]


def test_a_group_of_a_single_document_is_refused(write, tmp_path: Path):
    path = write(tmp_path, b"one document", "a.txt")
    with pytest.raises(SpecError, match="group_rows has no effect"):
        readers.detect(path, ReaderSpec(group_rows=2))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("is_file", [True, False])
def test_record_batches_are_found_without_reading_them(tmp_path: Path, compression, is_file):
    path = tmp_path / "a"
    table = pa.table({"n": range(100), "text": [f"{i} " * i for i in range(100)]})
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    sizes = [5, 0, 60, 1, 34]
    with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
            (batch,) = table.slice(start, size).to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
            writer.write_batch(batch, {"some": "metadata"})
    with pa.OSFile(str(path)) as source:
        found = walk(source, 8 if is_file else 0)
        assert found is not None
        assert (found.rows, found.dictionaries) == (sizes, False)
        for place, size in zip(found.places, sizes, strict=True):
            source.seek(place)
            assert pa.ipc.read_record_batch(pa.ipc.read_message(source), table.schema).num_rows == size
        assert found.end == path.stat().st_size or is_file


def test_no_damage_of_a_stream_misleads_the_walk_into_an_error(tmp_path: Path):
    table = pa.table({"text": ["some text"] * 6})
    path = _write(tmp_path, "stream", [b"some text"] * 6, 2)
    whole = path.read_bytes()
    with pa.OSFile(str(path)) as source:
        found = walk(source, 0)
    assert found is not None
    assert found.rows == [2] * (len(table) // 2)
    for i in range(len(whole)):
        for bits in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[i] ^= bits
            found = walk(pa.BufferReader(bytes(damaged)), 0)
            assert found is None or all(0 <= place < len(whole) for place in found.places)
        assert walk(pa.BufferReader(whole[:i]), 0) is None
