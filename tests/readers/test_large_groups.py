"""Memory: a row group of Parquet is read in pieces, however large it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MB = 1_000_000

WRITE = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
path, codec, encoding, num_bytes = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
rng = np.random.default_rng(0)
lengths = rng.integers(200, 6000, num_bytes // 3100)
if encoding == "sorted":  # most texts are short, and most of the text is in long ones
    lengths = np.sort((100 / rng.random(num_bytes // 700)).astype(int).clip(max=1 << 16))
offsets = np.concatenate([[0], np.cumsum(lengths)])
words = rng.integers(97, 123, 1 << 20, np.uint8)
values = np.resize(words, int(offsets[-1]))
text = pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(values))
if encoding == "repeated":
    text = text.take(pa.array(rng.integers(0, 100, len(text))))
table = pa.table({"id": np.arange(len(text)), "text": text, "url": pa.array(offsets[1:]).cast(pa.string())})
pq.write_table(table, path, row_group_size=len(table), compression=codec,
    use_dictionary=encoding in ("dictionary", "repeated"), write_batch_size=64)
assert pq.read_metadata(path).num_row_groups == 1
"""

PEAK = """
import re
def peak():  # not getrusage: its maximum is inherited from the parent
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
"""

READ = (
    PEAK
    + """
import sys
from pathlib import Path
from dataprep import readers
from dataprep.specs import ReaderSpec, SourceFile
path, reader = Path(sys.argv[1]), ReaderSpec()
file = SourceFile(name="n", path=str(path), num_bytes=path.stat().st_size, mtime_ns=0, format="parquet")
(part,) = readers.cut(0, file, reader, 1)
num_bytes = sum(batch.num_text_bytes for batch in readers.read(file, part, reader, 8 << 20))
print(peak(), num_bytes)
"""
)

READ_WHOLE = (
    PEAK
    + """
import sys
import pyarrow.parquet as pq
column = pq.ParquetFile(sys.argv[1]).read_row_group(0, ["text"])["text"]
print(peak(), column.nbytes)
"""
)


def _python(code: str, *arguments: object) -> list[int]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return [int(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "encoding"), [("snappy", "plain"), ("zstd", "dictionary"), ("zstd", "repeated"), ("zstd", "sorted")]
)
def test_a_large_row_group_takes_little_memory(tmp_path: Path, codec: str, encoding: str):
    path = tmp_path / "large.parquet"
    _python(WRITE, path, codec, encoding, 600 * MB)
    try:
        whole, column_bytes = _python(READ_WHOLE, path)
        pieces, text_bytes = _python(READ, path)
    finally:
        path.unlink()
    assert text_bytes > 580 * MB
    assert whole > column_bytes > text_bytes
    assert pieces < 400 * MB < whole / 2
