"""`dataprep.readers`: the right documents and rejects, however the file is cut and read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep import readers
from dataprep.batches import RECORD_BYTES
from dataprep.errors import SourceError, SpecError
from dataprep.specs import ReaderSpec, SourceFile

BOM = b"\xef\xbb\xbf"
ZSTD = zstandard.ZstdCompressor().compress


def _file(path: Path, reader: ReaderSpec) -> SourceFile:
    kind, compression = readers.detect(path, reader)
    num_bytes = path.stat().st_size
    return SourceFile(name="n", path=str(path), num_bytes=num_bytes, mtime_ns=0, format=kind, compression=compression)


def _read(path: Path, reader: ReaderSpec | None = None, batch_bytes: int = 1 << 20, unit_bytes: int = 1 << 30):
    """Documents as {row: text}, rejects with rows renumbered over the whole file, and the number of records."""
    reader = reader or ReaderSpec()
    file = _file(path, reader)
    slices = readers.cut(3, file, reader, unit_bytes)
    documents: dict[int, bytes] = {}
    rejects: list[tuple[Any, ...]] = []
    base = 0
    for part in slices:
        assert part.file == 3
        expected_row = num_bytes = 0
        began = (dict(documents), list(rejects), 0)
        for batch in readers.read(file, part, reader, batch_bytes):
            assert batch.file == "n"
            if batch.restart:
                began = (dict(documents), list(rejects), expected_row)
            if batch.undo:
                documents, rejects, expected_row = began
            assert batch.first_row == expected_row
            assert batch.num_rows == len(batch) + sum(r.count for r in batch.rejects)
            assert all(r.file == "n" for r in batch.rejects)
            batch.to_arrow().validate(full=True)
            for i, row in enumerate(batch.row_numbers().tolist()):
                documents[base + row] = batch.document(i)
            rejects += [(base + r.row, r.reason, r.offset, r.group, r.count, r.detail, r.record) for r in batch.rejects]
            expected_row += batch.num_rows
            num_bytes += batch.num_source_bytes
            assert batch.num_source_bytes >= 0
        assert num_bytes == part.num_bytes
        base += expected_row
    return documents, rejects, base


def _reasons(rejects) -> list[tuple[int, str, int]]:
    return [(row, reason, offset) for row, reason, offset, *_ in rejects]


def _write(folder: Path, content: bytes, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# JSON lines


LINES: list[tuple[bytes, bytes | str | None]] = [
    (b'{"text": "plain"}', b"plain"),
    (b'{"text": "a\\u0000b \\ud83d\\ude00 \\n\\" \xe2\x80\xa8"}', 'a\0b \U0001f600 \n" \u2028'.encode()),
    (b'{"text": ""}', b""),
    (b'{"te\\u0078t": "escaped key"}', b"escaped key"),
    (b'  {"text": "spaces around"} \t', b"spaces around"),
    (b'{"text": "a", "x": NaN, "y": [Infinity, -Infinity]}', b"a"),
    (b'{"text": "a", "x": Inf}', b"a"),
    (b' {"text": "a", "x": NaN}', b"a"),
    (b'{"text": "a", "x": ' + b"9" * 5000 + b"}", b"a"),
    (b'{"text": "a", "x": 1e999}', b"a"),
    (b'{"text": "a", "x": {"text": 5}, "y": [{"text": null}]}', b"a"),
    (b'{"x": {"text": "inner"}, "text": "outer"}', b"outer"),
    (b'{"text": "first", "text": "last"}', b"last"),
    (b'{"text": 1, "text": "last"}', b"last"),
    (b'{"text": "first", "text": "last", "x": NaN}', b"last"),
    (b'{"text": "a", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}", b"a"),
    (b'{"text": "a",\r"x": ' + b"[" * 2000 + b"]" * 2000 + b"}", b"a"),
    (b'{"text":\r"a", "x": NaN}', b"a"),
    (b'{"text": "a"}\r{"text": "b"}', "not-json"),
    (b"", None),
    (b" \t", None),
    (b"   ", None),
    (b'{"text": "a", "text": null}', "null-text"),
    (b'{"text": null}', "null-text"),
    (b'{"text": null, "x": NaN}', "null-text"),
    (b'{"x": {"text": "inner"}}', "missing-text"),
    (b"{}", "missing-text"),
    (b'{"x": NaN}', "missing-text"),
    (b'{"text": 5}', "text-not-a-string"),
    (b'{"text": 5, "x": NaN}', "text-not-a-string"),
    (b'{"text": true}', "text-not-a-string"),
    (b'{"text": ["a"]}', "text-not-a-string"),
    (b'{"text": {"text": "a"}}', "text-not-a-string"),
    (b'["text"]', "not-an-object"),
    (b'[{"text": "a"}]', "not-an-object"),
    (b"17", "not-an-object"),
    (b'"{}"', "not-an-object"),
    (b"null", "not-an-object"),
    (b"NaN", "not-an-object"),
    (b'{"text": "a"}{"text": "b"}', "not-json"),
    (b'{"text": "a"} {"text": "b"}', "not-json"),
    (b'{"text": "a"}, {"text": "b"}', "not-json"),
    (b'{"text": "spans', "not-json"),
    (b'two lines"}', "not-json"),
    (b'{"text": "a", "x": {}', "not-json"),
    (b"}", "not-json"),
    (b"{", "not-json"),
    (b'{"text": "trunc', "not-json"),
    (b'{"text": "a",}', "not-json"),
    (b'{"text": "a\tb"}', "not-json"),
    (b'{"text": "a", "x": "\x01"}', "not-json"),
    (b'{"text": "a"}\x00}', "not-json"),
    (b'{"text": "a"}\x0b', "not-json"),
    (b'{"text": "a", "x": 01}', "not-json"),
    (b"\xef\xbb\xbf" + b'{"text": "mark in the middle"}', "not-json"),
    (b'{"text": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not-json"),
    (b'{"text": "\xff"}', "invalid-utf8"),
    (b'{"text": "\xed\xa0\x80"}', "invalid-utf8"),
    (b'{"text": "\xc0\x80"}', "invalid-utf8"),
    (b'{"text": "a", "x": "\xe2\x80"}', "invalid-utf8"),
    (b'{"text": "a", "\xf5": 1}', "invalid-utf8"),
    (b"\xff\xfe", "invalid-utf8"),
    (b'{"text": "\\ud800"}', "lone-surrogate"),
    (b'{"text": "\\udc00 low"}', "lone-surrogate"),
    (b'{"text": "\\ud800\\u0041"}', "lone-surrogate"),
    (b'{"text": "a", "x": "\\udfff"}', "lone-surrogate"),
    (b'{"text": "a", "\\udbff": 1}', "lone-surrogate"),
]

GOOD = st.builds(
    lambda text, ascii_only, before, after: (
        json.dumps({**before, "text": text, **after}, ensure_ascii=ascii_only).encode(),
        text.encode(),
    ),
    st.text(max_size=40),
    st.booleans(),
    st.dictionaries(st.text(max_size=3).filter(lambda key: key != "text"), st.none() | st.text(max_size=5), max_size=2),
    st.dictionaries(st.text(max_size=3).filter(lambda key: key != "text"), st.floats() | st.integers(), max_size=2),
)
RECORDS = st.lists(st.tuples(st.one_of(GOOD, GOOD, st.sampled_from(LINES)), st.sampled_from([b"\n", b"\n", b"\r\n"])))


def _assemble(records, bom: bool, ends: bool) -> tuple[bytes, dict[int, bytes], list[tuple[int, str, int]]]:
    """The file, its documents and its rejects."""
    content, documents, rejects, row = BOM if bom else b"", {}, [], 0
    for (line, outcome), end in records:
        if isinstance(outcome, bytes):
            documents[row] = outcome
        elif outcome is not None:
            rejects.append((row, outcome, len(content)))
        row += outcome is not None
        content += line + end
    return content if ends else content.removesuffix(b"\n"), documents, rejects


def _slowly(self: Any, block: Any, row: int) -> Any:
    return self.slow(block, *self.bounds(block), row)


@given(
    RECORDS.filter(bool),
    st.sampled_from([16, 100, 1024, 1 << 20]),
    st.integers(1, 300),
    st.booleans(),
    st.booleans(),
)
@example([((b'{"text": "a"}', b"a"), b"\n")] * 3, 16, 1, True, True)
def test_fast_is_slow_is_cut_is_expected(tmp_path_factory, records, batch_bytes, unit_bytes, bom, ends):
    content, documents, rejects = _assemble(records, bom, ends)
    if not content or (content.startswith(BOM) and not bom):  # an empty file, or a mark where it means another thing
        return
    path = _write(tmp_path_factory.getbasetemp(), content, "mixed.jsonl")
    reader = ReaderSpec(format="jsonl")
    whole = _read(path, reader)
    assert whole[0] == documents
    assert _reasons(whole[1]) == rejects
    assert whole[2] == len(documents) + len(rejects)
    assert _read(path, reader, batch_bytes) == whole
    assert _read(path, reader, batch_bytes, max(unit_bytes, len(content) // 50)) == whole
    with mock.patch.object(readers._Lines, "block", _slowly):
        assert _read(path, reader, batch_bytes) == whole


@pytest.mark.parametrize(("line", "outcome"), LINES)
def test_each_line_between_good_ones(tmp_path: Path, line: bytes, outcome: bytes | str | None):
    good = (b'{"text": "good"}', b"good")
    content, documents, rejects = _assemble([(r, b"\n") for r in (good, (line, outcome), good)], bom=False, ends=True)
    whole = _read(_write(tmp_path, content))
    assert whole[0] == documents
    assert _reasons(whole[1]) == rejects
    assert [r[-1] for r in whole[1]] == [line] * len(rejects)
    for block in (mock.patch.object(readers._Lines, "block", _slowly), nullcontext()):
        with block:
            assert _read(tmp_path / "a.jsonl", batch_bytes=16, unit_bytes=max(7, len(content) // 50)) == whole


def test_every_cut_of_a_file(tmp_path: Path):
    content = BOM + b'{"text": "a"}\r\n\n{"text": "bc"}\n[]\n  \n\n{"text": "d"}\n{"text": "e"}'
    path = _write(tmp_path, content)
    whole = _read(path)
    assert list(whole[0].values()) == [b"a", b"bc", b"d", b"e"]
    assert _reasons(whole[1]) == [(2, "not-an-object", content.index(b"[]"))]
    for unit_bytes in range(1, len(content) + 2):
        assert _read(path, unit_bytes=unit_bytes) == whole


def test_the_usual_block_is_read_fast(tmp_path: Path):
    """Blank lines, CRLF, NaN and a missing last newline do not need the slow reader."""
    path = _write(tmp_path, b'{"text": "a"}\r\n\r\n{"text": "b", "x": NaN}\n\n{"text": "c", "x": [{}]}')
    with mock.patch.object(readers._Lines, "slow", side_effect=AssertionError):
        assert _read(path)[0] == {0: b"a", 1: b"b", 2: b"c"}


def test_details_say_what_was_found(tmp_path: Path):
    lines = [b"[1]", b'{"a": 1, "b": 2}', b'{"text": 1}', b'{"text": "\xff"}', b'{"text": "\\ud800"}', b'{"text": x}']
    details = [r[5] for r in _read(_write(tmp_path, b"\n".join(lines)), ReaderSpec(format="jsonl"))[1]]
    assert details[:5] == [
        "expected an object, found an array",
        "no field 'text'; there are: a, b",
        "expected 'text' to be a string, found a number",
        "invalid start byte: 0xff at byte 10",
        "\\ud800 stands alone",
    ]
    assert details[5].endswith("at character 10")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("size", [49, 50, 51, 52, 53, 54, 100, 5000, RECORD_BYTES + 100])
def test_too_long_lines(tmp_path: Path, end: bytes, size: int):
    reader = ReaderSpec(max_document_bytes=50)
    line = b'{"text": "' + b"x" * (size - 12) + b'"}'
    content = b'{"text": "a"}\n' + line + end + (b'{"text": "b"}\n' if end else b"")
    path = _write(tmp_path, content)
    whole = _read(path, reader)
    if size <= 50:
        assert not whole[1]
    else:
        detail = f"{size} bytes; reader.max_document_bytes is 50"
        assert whole[1] == [(1, "too-long", 14, -1, 1, detail, line[:RECORD_BYTES])]
        assert list(whole[0].values()) == ([b"a", b"b"] if end else [b"a"])
    for batch_bytes in (16, 40, 64, 1000):
        assert _read(path, reader, batch_bytes) == whole
        assert _read(path, reader, batch_bytes, unit_bytes=max(9, size // 40)) == whole


def test_a_long_blank_line_is_no_record(tmp_path: Path):
    path = _write(tmp_path, b'{"text": "a"}\n' + b" " * 3000 + b"\t\r\n" + b'{"text": "b"}\n')
    reader = ReaderSpec(max_document_bytes=50)
    for batch_bytes in (16, 100, 1 << 20):
        assert _read(path, reader, batch_bytes) == ({0: b"a", 1: b"b"}, [], 2)


def test_another_field(tmp_path: Path):
    path = _write(tmp_path, b'{"a.b": "x", "text": 1}\n{"a": {"b": "y"}}\n')
    documents, rejects, _ = _read(path, ReaderSpec(text="a.b"))
    assert documents == {0: b"x"}
    assert _reasons(rejects) == [(1, "missing-text", 24)]


# Containers


@pytest.mark.parametrize(
    ("pack", "compression"),
    [(gzip.compress, "gzip"), (ZSTD, "zstd"), (lzma.compress, "xz"), (bz2.compress, "bz2")],
)
def test_compressed_lines(tmp_path: Path, pack, compression):
    first, second = BOM + b'{"text": "a"}\n{"te', b'xt": "b"}\n[]\n'
    path = _write(tmp_path, pack(first) + pack(second), "no-suffix")
    reader = ReaderSpec()
    assert readers.detect(path, reader) == ("jsonl", compression)
    for batch_bytes in (16, 1 << 20):
        documents, rejects, _ = _read(path, reader, batch_bytes, unit_bytes=1)
        assert documents == {0: b"a", 1: b"b"}
        assert _reasons(rejects) == [(2, "not-an-object", len(first + second) - 3)]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"truncated or corrupt.*fetch it again"):
        _read(path, reader)


# Detection


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b'{"text": 1}', ("jsonl", "none")),
        ("a", BOM + b' \r\n\t{"text": 1}', ("jsonl", "none")),
        ("a.JSONL", b"17", ("jsonl", "none")),
        ("a.ndjson.gz", gzip.compress(b"17"), ("jsonl", "gzip")),
        ("a.md", b"# title", ("text", "none")),
        ("a.txt", b"[1]", ("text", "none")),
        ("a.txt.zst", ZSTD(b"words"), ("text", "zstd")),
        ("a.jsonl.gz", b'{"text": 1}', ("jsonl", "none")),
        ("a.bin", b"\x50\x2a\x4d\x18\x00\x00\x00\x00" + ZSTD(b"{}"), ("jsonl", "zstd")),
    ],
)
def test_detects(tmp_path: Path, name: str, content: bytes, expected: tuple[str, str]):
    assert readers.detect(_write(tmp_path, content, name), ReaderSpec()) == expected


@pytest.mark.parametrize(
    ("name", "content", "spec", "message"),
    [
        ("a.json", b' [{"text": 1}]', {}, r"JSON array, not JSON lines; .*jq -c '\.\[\]'"),
        ("a.html", b"<html>", {}, "set reader.format="),
        ("a.jsonl", b"", {}, "is empty"),
        ("a.txt", b"", {}, "is empty"),
        ("a.txt", b"", {"format": "text", "separator": "\n"}, "is empty"),
        ("a.jsonl.gz", gzip.compress(b""), {}, "is empty once decompressed"),
        ("a.jsonl", b"\x50\x2a\x4d\x18\x00\x00\x00\x00", {}, "is empty once decompressed"),
        ("a.txt.gz", b"words", {}, "expected gzip, found none"),
        ("a.jsonl", b"{}", {"format": "parquet"}, "expected parquet, found a file that begins with"),
        ("a.parquet", b"PAR1", {"format": "arrow"}, "expected arrow"),
        ("a.parquet.gz", gzip.compress(b"PAR1"), {}, "parquet inside gzip"),
        ("a.jsonl.gz", gzip.compress(b"{}")[:-3], {}, "truncated or corrupt"),
    ],
)
def test_refuses(tmp_path: Path, name: str, content: bytes, spec: dict[str, Any], message: str):
    with pytest.raises(SourceError, match=message):
        readers.detect(_write(tmp_path, content, name), ReaderSpec(**spec))


def test_refuses_what_is_not_there(tmp_path: Path):
    with pytest.raises(SourceError, match="cannot open"):
        readers.detect(tmp_path / "none.jsonl", ReaderSpec())
    with pytest.raises(SourceError, match="cannot"):
        readers.detect(tmp_path, ReaderSpec())


def test_settings_without_effect_are_errors(tmp_path: Path):
    lines, text = _write(tmp_path, b"{}"), _write(tmp_path, b"words", "a.txt")
    with pytest.raises(SpecError, match=r"reader\.separator has no effect"):
        readers.detect(lines, ReaderSpec(separator="\n"))
    for spec in (ReaderSpec(text="text"), ReaderSpec(text="content")):
        with pytest.raises(SpecError, match=r"reader\.text names a field"):
            readers.detect(text, spec)
    assert readers.detect(text, ReaderSpec(separator="\n")) == ("text", "none")


# Plain text


def test_a_file_is_one_document(tmp_path: Path):
    reader = ReaderSpec(format="text")
    for content, text in (
        (b"a\n\nb\n", b"a\n\nb\n"),
        (b"", b""),
        (BOM, b""),
        (BOM + b"x", b"x"),
        (b'{"text": 1}',) * 2,
    ):
        for batch_bytes in (16, 1 << 20):
            path = _write(tmp_path, content, "a.txt")
            assert _read(path, reader, batch_bytes, unit_bytes=1) == ({0: text}, [], 1)
            path = _write(tmp_path, gzip.compress(content), "b")
            assert _read(path, reader, batch_bytes, unit_bytes=1) == ({0: text}, [], 1)


def test_a_file_that_is_one_bad_document(tmp_path: Path):
    for batch_bytes in (16, 100):
        rejects = _read(_write(tmp_path, b"x" * 70, "a.txt"), ReaderSpec(max_document_bytes=50), batch_bytes)[1]
        assert rejects == [(0, "too-long", 0, -1, 1, "70 bytes; reader.max_document_bytes is 50", b"x" * 70)]
    rejects = _read(_write(tmp_path, b"abc\xff", "a.txt"))[1]
    assert rejects == [(0, "invalid-utf8", 0, -1, 1, "invalid start byte: 0xff at byte 3", b"abc\xff")]


@given(
    st.lists(
        st.sampled_from([b"", b"a", b"\xc3\xa4", b"\xff", b"\xe2\x82", b"long" * 9, b"\n"]), min_size=1, max_size=12
    ),
    st.sampled_from(["\n", "\n\n", "<|>", "\u20ac", "aba"]),
    st.sampled_from([16, 40, 1 << 20]),
    st.integers(1, 90),
    st.booleans(),
)
def test_pieces(tmp_path_factory, pieces, separator, batch_bytes, unit_bytes, bom):
    mark, sep = BOM if bom else b"", separator.encode()
    body = sep.join(pieces)
    path = _write(tmp_path_factory.getbasetemp(), mark + body, "pieces.txt")
    reader = ReaderSpec(format="text", separator=separator, max_document_bytes=20)
    if not mark + body:
        return
    parts = body.split(sep)
    documents, rejects, offset = {}, [], len(mark)
    for row, part in enumerate(parts if parts[-1] else parts[:-1]):
        try:
            part.decode()
            reason = None
        except UnicodeDecodeError:
            reason = "invalid-utf8"
        reason = "too-long" if len(part) > 20 else reason
        if reason is None:
            documents[row] = part
        else:
            rejects.append((row, reason, offset))
        offset += len(part) + len(sep)
    whole = _read(path, reader)
    assert whole[0] == documents
    assert _reasons(whole[1]) == rejects
    assert _read(path, reader, batch_bytes, unit_bytes) == whole


# Columns


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
def test_columns_of_every_type(tmp_path: Path, container: str, kind: pa.DataType):
    values = ["\u00e4\u00f6".encode() * 20, b"", None, b"x\0y", b"x" * 51, b"last"]
    table = pa.table({"n": pa.array(range(6)), "text": _array(values, kind)})
    path = _write_column_file(tmp_path / "a", container, table, 4)
    reader = ReaderSpec(max_document_bytes=80)
    whole = _read(path, reader)
    assert whole[0] == {i: v for i, v in enumerate(values) if v is not None}
    assert _reasons(whole[1]) == [(2, "null-text", -1)]
    for batch_bytes in (16, 60, 1024):
        assert _read(path, reader, batch_bytes, unit_bytes=1) == whole
    rejects = _read(path, ReaderSpec(max_document_bytes=50))[1]
    assert [(row, reason) for row, reason, *_ in rejects] == [(0, "too-long"), (2, "null-text"), (4, "too-long")]
    assert rejects[2][5:] == ("51 bytes; reader.max_document_bytes is 50", b"x" * 51)
    assert [r[3] for r in rejects] == [0, 0, 1]


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_binary_that_is_not_utf8(tmp_path: Path, container: str):
    # Together 1 and 2 are UTF-8, each alone is not.
    table = pa.table({"text": pa.array([b"a", b"\xc3", b"\xa4", b"b\xff"], pa.binary())})
    path = _write_column_file(tmp_path / "a", container, table, 10)
    documents, rejects, _ = _read(path)
    assert documents == {0: b"a"}
    assert [(r[0], r[1], r[5], r[6]) for r in rejects] == [
        (1, "invalid-utf8", "unexpected end of data: 0xc3 at byte 0", b"\xc3"),
        (2, "invalid-utf8", "invalid start byte: 0xa4 at byte 0", b"\xa4"),
        (3, "invalid-utf8", "invalid start byte: 0xff at byte 1", b"b\xff"),
    ]


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_a_missing_column_names_the_others(tmp_path: Path, container: str):
    table = pa.table({"content": ["a"], "text": [1]})
    path = _write_column_file(tmp_path / "a", container, table, 10)
    message = r"found int64; use --set reader.text=NAME, there are: content \(string\), text \(int64\)"
    with pytest.raises(SourceError, match=message):
        _read(path)
    with pytest.raises(SourceError, match="expected one column 'body' of text, found 0 of that name"):
        _read(path, ReaderSpec(text="body"))
    assert _read(path, ReaderSpec(text="content"))[0] == {0: b"a"}


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
def test_nested_columns_of_the_same_name(tmp_path: Path, container: str):
    nested = pa.array([{"b": "inner", "text": "inner", "tags": [{"text": "t"}]}])
    pairs = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"a": nested, "m": pairs, "a.b": ["outer b"], "text": ["outer text" * 100]})
    path = _write_column_file(tmp_path / "a", container, table, 10)
    assert _read(path)[0] == {0: b"outer text" * 100}
    assert _read(path, ReaderSpec(text="a.b"))[0] == {0: b"outer b"}


def test_parquet_slices_are_runs_of_row_groups(tmp_path: Path):
    path = tmp_path / "a.parquet"
    texts = [f"{i} " * 500 for i in range(10)]
    pq.write_table(
        pa.table({"n": range(10), "text": texts}), path, row_group_size=2, compression="none", use_dictionary=False
    )
    reader = ReaderSpec()
    file = _file(path, reader)
    assert readers.detect(path, reader) == ("parquet", "none")
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(i).column(1).total_compressed_size for i in range(5)]
    unit_bytes = sum(sizes[:2])
    slices = readers.cut(0, file, reader, unit_bytes)
    assert [(s.start, s.stop) for s in slices] == [(0, 2), (2, 4), (4, 5)]
    assert [s.num_bytes for s in slices] == [sum(sizes[:2]), sum(sizes[2:4]), sizes[4]]
    assert [len(readers.cut(0, file, reader, size)) for size in (1, 10**9)] == [5, 1]
    assert list(_read(path, unit_bytes=unit_bytes, batch_bytes=1024)[0].values()) == [t.encode() for t in texts]


def _corrupt_group(path: Path, group: int) -> None:
    chunk = pq.read_metadata(path).row_group(group).column(0)
    at = chunk.data_page_offset + chunk.total_compressed_size - 40
    data = bytearray(path.read_bytes())
    data[at : at + 8] = bytes(b ^ 0xFF for b in data[at : at + 8])
    path.write_bytes(data)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_corrupt_row_group_is_taken_back(tmp_path: Path, compression: str):
    path = tmp_path / "a.parquet"
    texts = [f"{i} {np.random.default_rng(i).integers(10**9)} " * 20 for i in range(400)]
    options = {"row_group_size": 100, "compression": compression, "use_dictionary": False, "data_page_size": 2000}
    pq.write_table(pa.table({"text": texts}), path, write_page_checksum=True, write_batch_size=10, **options)
    _corrupt_group(path, 1)
    for batch_bytes, unit_bytes in ((2000, 1 << 30), (1 << 20, 1 << 30), (2000, 1)):
        documents, rejects, num_records = _read(path, None, batch_bytes, unit_bytes)
        assert num_records == 400
        assert documents == {i: texts[i].encode() for i in range(400) if not 100 <= i < 200}
        assert [r[:5] for r in rejects] == [(100, "corrupt-row-group", -1, 1, 100)]
        assert rejects[0][5]
    reader = ReaderSpec()
    file = _file(path, reader)
    part = readers.cut(0, file, reader, 1 << 30)[0]
    flags = [(b.restart, b.undo) for b in readers.read(file, part, reader, 2000)]
    assert flags.count((True, False)) == 4
    assert flags.count((False, True)) == 1
    assert (False, False) in flags[: flags.index((False, True))]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), pa.ArrowMemoryError("malloc of size 1 failed")])
def test_a_failing_machine_is_no_corrupt_row_group(tmp_path: Path, error: Exception):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    with (
        mock.patch.object(readers, "_group_batches", side_effect=error),
        pytest.raises(SourceError, match="cannot read"),
    ):
        _read(path)


def test_a_parquet_file_without_its_end(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SourceError, match=r"cannot read .* as parquet"):
        _read(path)


def test_column_files_without_rows(tmp_path: Path):
    table = pa.table({"text": pa.array([], pa.string())})
    for container in ("parquet", "file", "stream"):
        path = _write_column_file(tmp_path / container, container, table, 10)
        assert _read(path) == ({}, [], 0)


def test_arrow_slices_are_runs_of_record_batches(tmp_path: Path):
    table = pa.table({"text": ["x" * 100] * 90})
    path = _write_arrow(tmp_path / "a", table, 10)
    reader = ReaderSpec()
    file = _file(path, reader)
    slices = readers.cut(0, file, reader, file.num_bytes // 3 + 1)
    assert [(s.start, s.stop) for s in slices] == [(0, 3), (3, 6), (6, 9)]
    assert sum(s.num_bytes for s in slices) == file.num_bytes
    path = _write_arrow(tmp_path / "b", table, 10, stream=True)
    file = _file(path, reader)
    assert [(s.start, s.stop) for s in readers.cut(0, file, reader, 10)] == [(0, file.num_bytes)]


@pytest.mark.parametrize("stream", [True, False])
def test_truncated_arrow_is_seen(tmp_path: Path, stream: bool):
    path = _write_arrow(tmp_path / "a", pa.table({"text": ["some text"] * 6}), 2, stream=stream)
    whole = path.read_bytes()
    for size in range(8, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match="fetch it again"):
            _read(path)


def test_two_arrow_streams_in_a_file_are_no_stream(tmp_path: Path):
    path = _write_arrow(tmp_path / "a", pa.table({"text": ["some text"]}), 2, stream=True)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(SourceError, match="end-of-stream"):
        _read(path)


def test_broken_offsets_in_arrow_are_seen(tmp_path: Path):
    """Arrow believes the offsets of a file; what they point at may not be there."""
    path = _write_arrow(tmp_path / "a", pa.table({"text": ["abcd", "efgh", "ijkl"]}), 3)
    good = np.array([0, 4, 8, 12], np.int32).tobytes()
    bad = np.array([0, 1 << 30, 8, 12], np.int32).tobytes()
    path.write_bytes(path.read_bytes().replace(good, bad))
    with pytest.raises(SourceError, match="as arrow"):
        _read(path)
