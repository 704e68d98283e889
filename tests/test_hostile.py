"""`verify` on files that are anything: a report, never a traceback, never more memory than a piece takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.batches import TokenBatch
from dataprep.checks import report as report_module
from dataprep.checks.header import check_header
from dataprep.checks.report import Expected, Report
from dataprep.indexed import CODES, HEADER, MAGIC, Header, IndexedWriter, bin_path, idx_path
from dataprep.stages.verify import verify

SCHEMA = json.loads(Path(report_module.__file__).with_name("report.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

COUNTS = st.one_of(st.integers(0, 30), st.integers(0, 2**64 - 1), st.sampled_from([2**31, 2**63, 2**64 - 1, 2**61]))


def look(prefix):
    """Verify at both levels, with and without knowledge; every report has to fit the schema."""
    known = Expected(vocab_size=100, eod_id=7, split="1", special_ids=(0, 1, 8, 9))
    reports = [verify(prefix, "index", known), verify(prefix), verify(prefix, expect=known)]
    VALIDATOR.validate(json.loads(json.dumps([report.to_json() for report in reports])))
    return reports


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@given(st.binary(max_size=200), st.binary(max_size=100))
@example(b"", b"")
def test_any_bytes_are_reported(folder, idx, data):
    (folder / "a.idx").write_bytes(idx)
    (folder / "a.bin").write_bytes(data)

    for report in look(folder / "a"):
        assert not report.ok


@given(COUNTS, COUNTS, st.integers(0, 255), st.binary(max_size=300), st.binary(max_size=100))
def test_any_header_and_any_arrays_are_reported(folder, n, d, code, arrays, data):
    (folder / "a.idx").write_bytes(HEADER.pack(MAGIC, 1, code, n, d) + arrays)
    (folder / "a.bin").write_bytes(data)

    look(folder / "a")


ANY_32 = st.one_of(st.integers(-3, 12), st.integers(-(2**31), 2**31 - 1))
ANY_64 = st.one_of(st.integers(-3, 40), st.integers(-(2**63), 2**63 - 1))


@given(
    st.lists(ANY_32, min_size=1, max_size=9),
    st.data(),
    st.sampled_from([1, 2, 3, 4, 5, 8]),
    st.binary(max_size=400),
)
def test_any_arrays_of_the_right_size_are_reported(folder, lengths, data, code, tokens):
    n = len(lengths)
    pointers = data.draw(st.lists(ANY_64, min_size=n, max_size=n))
    if data.draw(st.booleans()):
        width = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}[code]
        pointers = (np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]]) * width).tolist()
        total = sum(lengths) * width
        tokens = (tokens * (total // len(tokens) + 1))[:total] if tokens and 0 < total < 10_000 else tokens
    bounds = data.draw(st.one_of(st.just(list(range(n + 1))), st.lists(ANY_64, min_size=1, max_size=12)))
    head = HEADER.pack(MAGIC, 1, code, n, len(bounds))
    arrays = (np.array(lengths, "<i4"), np.array(pointers, "<i8"), np.array(bounds, "<i8"))
    (folder / "a.idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))
    (folder / "a.bin").write_bytes(tokens)

    look(folder / "a")


@pytest.fixture
def pair(workspace):
    ids = np.array([1, 2, 7, 3, 7, 4, 5, 6, 7] * 20, np.uint16)
    with IndexedWriter(workspace / "a", "uint16") as writer:
        writer.append(TokenBatch(ids, np.concatenate([[0], np.flatnonzero(ids == 7) + 1])))
        writer.commit()
    return workspace / "a"


@pytest.mark.parametrize("path", [bin_path, idx_path])
def test_a_folder_a_pipe_and_a_dead_link_of_the_name_are_problems(pair, path):
    codes = {"bin": "missing-bin", "idx": "missing-idx"}
    path(pair).unlink()
    path(pair).mkdir()
    assert {"unreadable"} == look(pair)[0].codes
    path(pair).rmdir()
    os.mkfifo(path(pair))  # opening it would wait for ever
    assert {"unreadable"} == look(pair)[0].codes
    path(pair).unlink()
    path(pair).symlink_to("nowhere")
    assert {codes[path(pair).suffix[1:]]} == look(pair)[0].codes
    path(pair).unlink()
    path(pair).symlink_to(path(pair))
    assert {"unreadable"} == look(pair)[0].codes


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_problem(pair):
    idx_path(pair).chmod(0)

    assert look(pair)[0].codes == {"unreadable"}


@pytest.mark.parametrize("path", [bin_path, idx_path])
def test_a_file_that_shrinks_meanwhile_is_a_problem(pair, path):
    def shrink(count):
        os.truncate(path(pair), 100)

    assert verify(pair, progress=shrink).codes == {"unreadable"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"schema_version": 1}', '{"schema_version": 1, "kind": "pair"}']
)
@pytest.mark.parametrize("name", ["manifest.json", "a.manifest.json"])
def test_a_manifest_that_cannot_be_read_is_a_warning(pair, name, text):
    (pair.parent / name).write_text(text)

    assert ["manifest-unreadable" in report.codes for report in look(pair)] == [True] * 3
    assert verify(pair).codes == {"manifest-unreadable"}


def test_pointers_that_overflowed_are_told_from_others(tmp_path):
    """12 sequences of 100 million tokens of 4 bytes, summed as int32: as a writer with numpy 2 leaves them."""
    lengths = np.full(12, 100_000_000, "<i4")
    wrapped = (np.arange(12, dtype=np.int64) * 400_000_000).astype(np.int32).astype("<i8")
    assert wrapped.min() < 0
    write_index(tmp_path / "a", "int32", lengths, wrapped)
    os.truncate(tmp_path / "a.bin", 4_800_000_000)

    report = verify(tmp_path / "a", "index")

    (problem,) = report.problems
    assert (problem.code, problem.place.sequence, problem.place.byte) == ("pointers", 6, 34 + 48 + 48)
    assert "found -1894967296; 6 of 12 are wrong: summed as int32, they wrapped around at 2**31" in problem.message
    assert report.num_tokens == 1_200_000_000


def write_index(prefix, dtype, lengths, pointers):
    head = Header(CODES[dtype], len(lengths), len(lengths) + 1).pack()
    bounds = np.arange(len(lengths) + 1, dtype="<i8")
    idx_path(prefix).write_bytes(head + lengths.tobytes() + pointers.tobytes() + bounds.tobytes())
    bin_path(prefix).touch()


CHILD = """
import json, re, sys
from dataprep.stages.verify import verify
report = verify(sys.argv[1], sys.argv[2])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
print(json.dumps([report.num_tokens, sorted(report.codes), int(peak) // 1024]))
"""


def in_a_child(prefix, level):
    """Tokens, codes, and the most memory that it took, in MiB."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(prefix), level]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_files(tmp_path):
    """1.2 GB of holes, and an index of 6 million documents, of 120 MB; with 4 GB and 10 million it is the same."""
    count, length = 6_000_000, 100
    with idx_path(tmp_path / "a").open("wb") as file:
        file.write(Header(CODES["uint16"], count, count + 1).pack())
        for kind, step in (("<i4", 0), ("<i8", 2 * length), ("<i8", 1)):
            for start in range(0, count + (step == 1), 1 << 20):
                numbers = np.arange(start, min(start + (1 << 20), count + (step == 1)))
                file.write((numbers * step if step else np.full(len(numbers), length)).astype(kind).tobytes())
    with bin_path(tmp_path / "a").open("wb") as file:
        file.truncate(2 * count * length)

    for level, codes in (("index", []), ("tokens", ["eod-unclear", "zero-block"])):
        tokens, found, peak = in_a_child(tmp_path / "a", level)
        assert (tokens, found) == (count * length, codes)
        print(level, peak)
        assert peak < 200


@pytest.mark.parametrize(("count", "codes"), [(2**31 - 1, set()), (2**31, {"too-many"})])
def test_two_to_the_31_sequences_are_too_many(tmp_path, count, codes):
    """In 43 GB of holes."""
    header = Header(CODES["uint16"], count, count + 1)
    with idx_path(tmp_path / "a").open("wb") as file:
        file.write(header.pack())
        file.truncate(header.num_bytes)
    report = Report(str(tmp_path / "a"), "index")

    assert check_header(tmp_path / "a", report) == header
    assert report.codes == codes
