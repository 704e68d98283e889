"""JSON lines: the right documents and rejects, fast or slow, however the file is cut."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.batches import RECORD_BYTES, Reject
from dataprep.readers.jsonl import Lines
from dataprep.specs import ReaderSpec

BOM = b"\xef\xbb\xbf"

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
    (b'{"text": NaN, "x": ' + b"[" * 600 + b"]" * 600 + b"}", "not-json"),
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
    return self._slow(block, *self._bounds(block), row)


@given(
    RECORDS.filter(bool),
    st.sampled_from([16, 100, 1024, 1 << 20]),
    st.integers(1, 300),
    st.booleans(),
    st.booleans(),
)
@example([((b'{"text": "a"}', b"a"), b"\n")] * 3, 16, 1, True, True)
def test_fast_is_slow_is_cut_is_expected(read, write, tmp_path_factory, records, batch_bytes, unit_bytes, bom, ends):
    content, documents, rejects = _assemble(records, bom, ends)
    if not content or (content.startswith(BOM) and not bom):  # an empty file, or a mark where it means another thing
        return
    path = write(tmp_path_factory.getbasetemp(), content, "mixed.jsonl")
    reader = ReaderSpec(format="jsonl")
    whole = read(path, reader)
    assert whole.documents == documents
    assert whole.reasons == rejects
    assert whole.num_records == len(documents) + len(rejects)
    assert read(path, reader, batch_bytes) == whole
    assert read(path, reader, batch_bytes, max(unit_bytes, len(content) // 50)) == whole
    with mock.patch.object(Lines, "block", _slowly):
        assert read(path, reader, batch_bytes) == whole


@pytest.mark.parametrize(("line", "outcome"), LINES)
def test_each_line_between_good_ones(read, write, tmp_path: Path, line: bytes, outcome: bytes | str | None):
    good = (b'{"text": "good"}', b"good")
    content, documents, rejects = _assemble([(r, b"\n") for r in (good, (line, outcome), good)], bom=False, ends=True)
    whole = read(write(tmp_path, content))
    assert whole.documents == documents
    assert whole.reasons == rejects
    assert [r.record for r in whole.rejects] == [line] * len(rejects)
    for block in (mock.patch.object(Lines, "block", _slowly), nullcontext()):
        with block:
            assert read(tmp_path / "a.jsonl", batch_bytes=16, unit_bytes=max(7, len(content) // 50)) == whole


def test_every_cut_of_a_file(read, write, tmp_path: Path):
    content = BOM + b'{"text": "a"}\r\n\n{"text": "bc"}\n[]\n  \n\n{"text": "d"}\n{"text": "e"}'
    path = write(tmp_path, content)
    whole = read(path)
    assert list(whole.documents.values()) == [b"a", b"bc", b"d", b"e"]
    assert whole.reasons == [(2, "not-an-object", content.index(b"[]"))]
    for unit_bytes in range(1, len(content) + 2):
        assert read(path, unit_bytes=unit_bytes) == whole


def test_the_usual_block_is_read_fast(read, write, tmp_path: Path):
    """Blank lines, CRLF, NaN and a missing last newline do not need the slow reader."""
    path = write(tmp_path, b'{"text": "a"}\r\n\r\n{"text": "b", "x": NaN}\n\n{"text": "c", "x": [{}]}')
    with mock.patch.object(Lines, "_slow", side_effect=AssertionError):
        assert read(path).documents == {0: b"a", 1: b"b", 2: b"c"}


def test_details_say_what_was_found(read, write, tmp_path: Path):
    lines = [b"[1]", b'{"a": 1, "b": 2}', b'{"text": 1}', b'{"text": "\xff"}', b'{"text": "\\ud800"}', b'{"text": x}']
    details = [r.detail for r in read(write(tmp_path, b"\n".join(lines)), ReaderSpec(format="jsonl")).rejects]
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
def test_too_long_lines(read, write, tmp_path: Path, end: bytes, size: int):
    reader = ReaderSpec(max_document_bytes=50)
    line = b'{"text": "' + b"x" * (size - 12) + b'"}'
    content = b'{"text": "a"}\n' + line + end + (b'{"text": "b"}\n' if end else b"")
    path = write(tmp_path, content)
    whole = read(path, reader)
    if size <= 50:
        assert not whole.rejects
    else:
        detail = f"{size} bytes; reader.max_document_bytes is 50"
        assert whole.rejects == [Reject("n", "too-long", 1, 14, 1, detail=detail, record=line[:RECORD_BYTES])]
        assert list(whole.documents.values()) == ([b"a", b"b"] if end else [b"a"])
    for batch_bytes in (16, 40, 64, 1000):
        assert read(path, reader, batch_bytes) == whole
        assert read(path, reader, batch_bytes, unit_bytes=max(9, size // 40)) == whole


def test_a_long_blank_line_is_no_record(read, write, tmp_path: Path):
    path = write(tmp_path, b'{"text": "a"}\n' + b" " * 3000 + b"\t\r\n" + b'{"text": "b"}\n')
    reader = ReaderSpec(max_document_bytes=50)
    for batch_bytes in (16, 100, 1 << 20):
        assert read(path, reader, batch_bytes) == ({0: b"a", 1: b"b"}, [], 2)


def test_another_field(read, write, tmp_path: Path):
    path = write(tmp_path, b'{"a.b": "x", "text": 1}\n{"a": {"b": "y"}}\n')
    found = read(path, ReaderSpec(text="a.b"))
    assert found.documents == {0: b"x"}
    assert found.reasons == [(1, "missing-text", 24)]
