"""Every `dataprep repair` that a report of `verify` names mends what it is named for, typed as it stands there."""

import shlex
import struct

import numpy as np
import pytest
from typer.testing import CliRunner

from dataprep.checks.report import Expected
from dataprep.checks.rules import RULES
from dataprep.cli import app
from dataprep.indexed import HEADER, bin_path, idx_path
from dataprep.stages.verify import verify

EOD = 50
N = 60
TOKENS = N * 4
LENGTHS, POINTERS, BOUNDS = HEADER.size, HEADER.size + 4 * N, HEADER.size + 12 * N


def write(prefix, dtype="<u2", code=8, lengths=None, bounds=None):
    """60 documents of four tokens, each ending with the EOD."""
    tokens = np.array([[300 + i, 400 + i, 500 + i, EOD] for i in range(N)], dtype)
    lengths = np.full(N, 4) if lengths is None else lengths
    bounds = np.arange(N + 1) if bounds is None else bounds
    pointers = (np.cumsum(lengths) - lengths) * tokens.itemsize
    head = HEADER.pack(b"MMIDIDX\0\0", 1, code, len(lengths), len(bounds))
    arrays = [lengths.astype("<i4"), pointers.astype("<i8"), bounds.astype("<i8")]
    idx_path(prefix).write_bytes(head + b"".join(array.tobytes() for array in arrays))
    bin_path(prefix).write_bytes(tokens.tobytes())


def patched(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def appended(path, data):
    with path.open("ab") as file:
        file.write(data)


def bound(number, value):
    return lambda p: patched(idx_path(p), BOUNDS + 8 * number, struct.pack("<q", value))


DAMAGES = {
    "missing-idx": lambda p: idx_path(p).unlink(),
    "idx-short": lambda p: idx_path(p).write_bytes(b"MMIDIDX\0\0\1"),
    "magic": lambda p: patched(idx_path(p), 0, b"\x81\x82\x83"),
    "version": lambda p: patched(idx_path(p), 9, b"\2"),
    "dtype-code": lambda p: patched(idx_path(p), 17, b"\x63"),
    "dtype-float": lambda p: write(p, "<i4", 7),
    "dtype-width": lambda p: patched(idx_path(p), 17, b"\4"),
    "dtype-unusual": lambda p: write(p, "<i8", 5),
    "idx-size": lambda p: patched(idx_path(p), 18, struct.pack("<Q", N + 1)),
    "idx-tail": lambda p: appended(idx_path(p), bytes(N)),
    "no-documents": lambda p: write(p, bounds=np.array([])),
    "length-negative": lambda p: patched(idx_path(p), LENGTHS + 40, struct.pack("<i", -1)),
    "pointers": lambda p: patched(idx_path(p), POINTERS + 80, struct.pack("<q", 7)),
    "bin-tail": lambda p: appended(bin_path(p), np.array([5, 6], "<u2").tobytes()),
    "eod-uncounted": lambda p: write(p, lengths=np.full(N, 3)),
    "boundaries-start": bound(0, 1),
    "boundaries-order": bound(9, 3),
    "boundaries-end": bound(N, N - 1),
    "sequences-empty": lambda p: write(p, lengths=np.array([4, 0] * N), bounds=np.arange(2 * N + 1)),
    "sentence-level": lambda p: write(p, lengths=np.full(2 * N, 2), bounds=np.arange(0, 2 * N + 1, 2)),
    "dtype-band": lambda p: write(p, "<i4", 4),
}


def test_each_code_that_repair_mends_is_tried():
    named = {code for code, rule in RULES.items() if "--output NEW" in rule.fix}
    assert named == {*DAMAGES, "too-many"}  # 2**31 sequences: see test_repairs


@pytest.mark.parametrize("code", DAMAGES)
def test_the_fix_that_a_report_names_mends_the_problem(workspace, code):
    prefix = workspace / "old pair"
    write(prefix)
    DAMAGES[code](prefix)
    expect = Expected(vocab_size=60_000) if code == "dtype-band" else None
    fix = next(problem.fix for problem in verify(prefix, expect=expect).problems if problem.code == code)

    words = shlex.split(fix.partition(";")[0])
    typed = [{"NEW": str(workspace / "new"), "ID": str(EOD)}.get(word, word) for word in words]
    done = CliRunner().invoke(app, typed[1:])

    assert (typed[0], done.exit_code) == ("dataprep", 0), done.output
    report = verify(workspace / "new", expect=expect)
    assert code not in report.codes
    assert (report.ok, report.num_documents, report.num_tokens) == (True, N * (2 if "empty" in code else 1), TOKENS)
