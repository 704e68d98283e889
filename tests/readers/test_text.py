"""Plain text: whole files and pieces, however the file is cut."""

from __future__ import annotations

import gzip
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dataprep.batches import Reject
from dataprep.specs import ReaderSpec

BOM = b"\xef\xbb\xbf"


def test_a_file_is_one_document(read, write, tmp_path: Path):
    reader = ReaderSpec(format="text")
    for content, text in (
        (b"a\n\nb\n", b"a\n\nb\n"),
        (b"", b""),
        (BOM, b""),
        (BOM + b"x", b"x"),
        (b'{"text": 1}',) * 2,
    ):
        for batch_bytes in (16, 1 << 20):
            path = write(tmp_path, content, "a.txt")
            assert read(path, reader, batch_bytes, unit_bytes=1) == ({0: text}, [], 1)
            path = write(tmp_path, gzip.compress(content), "b")
            assert read(path, reader, batch_bytes, unit_bytes=1) == ({0: text}, [], 1)


def test_a_file_that_is_one_bad_document(read, write, tmp_path: Path):
    for batch_bytes in (16, 100):
        rejects = read(write(tmp_path, b"x" * 70, "a.txt"), ReaderSpec(max_document_bytes=50), batch_bytes).rejects
        assert rejects == [
            Reject("n", "too-long", 0, 0, 0, detail="70 bytes; reader.max_document_bytes is 50", record=b"x" * 70)
        ]
    rejects = read(write(tmp_path, b"abc\xff", "a.txt")).rejects
    assert rejects == [
        Reject("n", "invalid-utf8", 0, 0, 0, detail="invalid start byte: 0xff at byte 3", record=b"abc\xff")
    ]


@given(
    st.lists(
        st.sampled_from([b"", b"a", b"\xc3\xa4", b"\xff", b"\xe2\x82", b"long" * 9, b"\n"]), min_size=1, max_size=12
    ),
    st.sampled_from(["\n", "\n\n", "<|>", "\u20ac", "aba"]),
    st.sampled_from([16, 40, 1 << 20]),
    st.integers(1, 90),
    st.booleans(),
)
def test_pieces(read, write, tmp_path_factory, pieces, separator, batch_bytes, unit_bytes, bom):
    mark, sep = BOM if bom else b"", separator.encode()
    body = sep.join(pieces)
    path = write(tmp_path_factory.getbasetemp(), mark + body, "pieces.txt")
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
    whole = read(path, reader)
    assert whole.documents == documents
    assert whole.reasons == rejects
    assert read(path, reader, batch_bytes, unit_bytes) == whole
