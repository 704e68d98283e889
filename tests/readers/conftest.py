"""One way to read a file, which checks on the way what holds for every file, however it is cut and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from dataprep import readers
from dataprep.batches import Reject
from dataprep.readers.streams import fill, open_stream
from dataprep.specs import ReaderSpec, SourceFile


class Found(NamedTuple):
    """All of a file: rows and lines are renumbered over its slices."""

    documents: dict[int, bytes]
    rejects: list[Reject]
    num_records: int

    @property
    def reasons(self) -> list[tuple[int, str, int]]:
        return [(reject.row, reject.reason, reject.offset) for reject in self.rejects]


def _source(path: Path, reader: ReaderSpec) -> SourceFile:
    kind, compression = readers.detect(path, reader)
    num_bytes = path.stat().st_size
    return SourceFile(name="n", path=str(path), num_bytes=num_bytes, mtime_ns=0, format=kind, compression=compression)


def _read(path: Path, reader: ReaderSpec | None = None, batch_bytes: int = 1 << 20, unit_bytes: int = 1 << 30) -> Found:
    reader = reader or ReaderSpec()
    file = _source(path, reader)
    documents: dict[int, bytes] = {}
    rejects: list[Reject] = []
    base = base_line = 0
    for part in readers.cut(3, file, reader, unit_bytes):
        assert part.file == 3
        expected_row = num_bytes = num_lines = accounted = 0
        began = (dict(documents), list(rejects), 0, 0)
        for batch in readers.read(file, part, reader, batch_bytes):
            assert batch.file == "n"
            if batch.restart:
                began = (dict(documents), list(rejects), expected_row, accounted)
            if batch.undo:
                documents, rejects, expected_row, accounted = began
            assert batch.first_row == expected_row
            records = len(batch) + batch.num_joined() + batch.num_empty + sum(r.count for r in batch.rejects)
            assert batch.num_rows == records or reader.group_rows > 1
            accounted += records
            assert all(r.file == "n" for r in batch.rejects)
            batch.to_arrow().validate(full=True)
            for i, row in enumerate(batch.row_numbers().tolist()):
                documents[base + row] = batch.document(i)
            for r in batch.rejects:
                rejects.append(replace(r, row=base + r.row, line=r.line if r.line < 0 else base_line + r.line))
            expected_row += batch.num_rows
            num_lines += batch.num_lines
            num_bytes += batch.num_source_bytes
            assert batch.num_source_bytes >= 0
        assert num_bytes == part.num_bytes
        assert accounted == expected_row
        base += expected_row
        base_line += num_lines
    content = b"" if file.format in ("parquet", "arrow") else _content(file)
    assert base_line == content.count(b"\n")
    for reject in rejects:
        assert reject.line == (-1 if reject.offset < 0 else content.count(b"\n", 0, reject.offset))
    return Found(documents, rejects, base)


def _content(file: SourceFile) -> bytes:
    out, buffer = b"", bytearray(1 << 16)
    with open_stream(Path(file.path), file.compression) as stream:
        while count := fill(stream, memoryview(buffer)):
            out += buffer[:count]
    return out


@pytest.fixture(scope="session")
def source() -> Callable[[Path, ReaderSpec], SourceFile]:
    """A file as `sources` would list it."""
    return _source


@pytest.fixture(scope="session")
def read() -> Callable[..., Found]:
    """All of a file, as `Found`, in batches and slices of the size asked for."""
    return _read


@pytest.fixture(scope="session")
def write() -> Callable[[Path, bytes, str], Path]:
    """Write a file and name its path."""

    def write(folder: Path, content: bytes, name: str = "a.jsonl") -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return write
