"""What a file is, and compressed files as a whole."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep import readers
from dataprep.errors import SourceError, SpecError
from dataprep.specs import ReaderSpec

BOM = b"\xef\xbb\xbf"
ZSTD = zstandard.ZstdCompressor().compress


@pytest.mark.parametrize(
    ("pack", "compression"),
    [(gzip.compress, "gzip"), (ZSTD, "zstd"), (lzma.compress, "xz"), (bz2.compress, "bz2")],
)
def test_compressed_lines(read, write, tmp_path: Path, pack, compression):
    first, second = BOM + b'{"text": "a"}\n{"te', b'xt": "b"}\n[]\n'
    path = write(tmp_path, pack(first) + pack(second), "no-suffix")
    reader = ReaderSpec()
    assert readers.detect(path, reader) == ("jsonl", compression)
    for batch_bytes in (16, 1 << 20):
        found = read(path, reader, batch_bytes, unit_bytes=1)
        assert found.documents == {0: b"a", 1: b"b"}
        assert found.reasons == [(2, "not-an-object", len(first + second) - 3)]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"truncated or corrupt.*fetch it again"):
        read(path, reader)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b'{"text": 1}', ("jsonl", "none")),
        ("a", BOM + b' \r\n\t{"text": 1}', ("jsonl", "none")),
        ("a.JSONL", b"17", ("jsonl", "none")),
        ("a.ndjson.gz", gzip.compress(b"17", mtime=0), ("jsonl", "gzip")),
        ("a.md", b"# title", ("text", "none")),
        ("a.txt", b"[1]", ("text", "none")),
        ("a.txt.zst", ZSTD(b"words"), ("text", "zstd")),
        ("a.jsonl.gz", b'{"text": 1}', ("jsonl", "none")),
        ("a.bin", b"\x50\x2a\x4d\x18\x00\x00\x00\x00" + ZSTD(b"{}"), ("jsonl", "zstd")),
    ],
)
def test_detects(write, tmp_path: Path, name: str, content: bytes, expected: tuple[str, str]):
    assert readers.detect(write(tmp_path, content, name), ReaderSpec()) == expected


@pytest.mark.parametrize(
    ("name", "content", "spec", "message"),
    [
        ("a.json", b' [{"text": 1}]', {}, r"JSON array, not JSON lines; .*jq -c '\.\[\]'"),
        ("a.html", b"<html>", {}, "set reader.format="),
        ("a.jsonl", b"", {}, "is empty"),
        ("a.txt", b"", {}, "is empty"),
        ("a.txt", b"", {"format": "text", "separator": "\n"}, "is empty"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), {}, "is empty once decompressed"),
        ("a.jsonl", b"\x50\x2a\x4d\x18\x00\x00\x00\x00", {}, "is empty once decompressed"),
        ("a.txt.gz", b"words", {}, "expected gzip, found none"),
        ("a.jsonl", b"{}", {"format": "parquet"}, "expected parquet, found a file that begins with"),
        ("a.parquet", b"PAR1", {"format": "arrow"}, "expected arrow"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), {}, "parquet inside gzip"),
        ("a.jsonl.gz", gzip.compress(b"{}", mtime=0)[:-3], {}, "truncated or corrupt"),
    ],
)
def test_refuses(write, tmp_path: Path, name: str, content: bytes, spec: dict[str, Any], message: str):
    with pytest.raises(SourceError, match=message):
        readers.detect(write(tmp_path, content, name), ReaderSpec(**spec))


def test_refuses_what_is_not_there(tmp_path: Path):
    with pytest.raises(SourceError, match="cannot open"):
        readers.detect(tmp_path / "none.jsonl", ReaderSpec())
    with pytest.raises(SourceError, match="cannot"):
        readers.detect(tmp_path, ReaderSpec())


def test_settings_without_effect_are_errors(write, tmp_path: Path):
    lines, text = write(tmp_path, b"{}"), write(tmp_path, b"words", "a.txt")
    with pytest.raises(SpecError, match=r"reader\.separator has no effect"):
        readers.detect(lines, ReaderSpec(separator="\n"))
    for spec in (ReaderSpec(text="text"), ReaderSpec(text="content")):
        with pytest.raises(SpecError, match=r"reader\.text names a field"):
            readers.detect(text, spec)
    assert readers.detect(text, ReaderSpec(separator="\n")) == ("text", "none")
