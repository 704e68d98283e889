"""`--split` is parted as Megatron parts it, and what would hang it is an error."""

import numpy as np
import pytest

from dataprep.batches import TokenBatch
from dataprep.checks.report import Expected
from dataprep.checks.splits import ranges
from dataprep.errors import SpecError
from dataprep.indexed import IndexedWriter
from dataprep.stages.verify import verify


@pytest.fixture
def write(tmp_path):
    """Write documents of these lengths, each ending with 7."""

    def write(lengths):
        ids = np.ones(sum(lengths), np.uint16)
        ids[np.cumsum(lengths) - 1] = 7
        with IndexedWriter(tmp_path / "a", "uint16") as writer:
            writer.append(TokenBatch(ids, np.concatenate([[0], np.cumsum(lengths)])))
            writer.commit()
        return tmp_path / "a"

    return write


@pytest.mark.parametrize(
    ("split", "num_sequences", "expected"),
    [
        ("969, 30, 1", 1000, [(0, 969), (969, 999), (999, 1000)]),
        ("969, 30, 1", 500, [(0, 484), (484, 500), (500, 500)]),  # 484.5 rounds to even, and nothing is left for test
        ("969,30,1", 501, [(0, 485), (485, 500), (500, 501)]),
        ("100,0,0", 7, [(0, 7), None, None]),
        ("1", 7, [(0, 7), None, None]),
        ("0,1", 7, [None, (0, 7), None]),
        ("998,1,1", 40, [(0, 40), (40, 40), (40, 40)]),
        ("99,1,0", 2**31, [(0, 2126008812), (2126008812, 2**31), None]),
        (".5/.25/.25", 4, [(0, 2), (2, 3), (3, 4)]),  # any other sign parts numbers
    ],
)
def test_ranges_are_megatrons(split, num_sequences, expected):
    assert ranges(split, num_sequences) == expected


@pytest.mark.parametrize("split", ["", "a", "0,0,0", "1,1,1,1", "1.2.3", ".", "9" * 400])
def test_what_is_no_split_is_a_bad_request(write, split):
    with pytest.raises(SpecError, match="expected up to three shares"):
        verify(write([3, 4]), expect=Expected(split=split))


def test_an_empty_part_is_an_error_before_megatron_hangs(write):
    prefix = write([10] * 40)

    assert verify(prefix).problems == []
    (*_, problem) = verify(prefix, "index", Expected(split="998,1,1")).problems
    assert (problem.code, problem.severity) == ("split-empty", "error")
    assert "test of --split 998,1,1 has 0 sequences with 0 tokens" in problem.message


def test_a_part_of_empty_sequences_is_empty(tmp_path, write):
    prefix = write([10] * 10)
    idx = tmp_path / "a.idx"
    data = bytearray(idx.read_bytes())
    data[34 + 36 : 34 + 40] = bytes(4)
    idx.write_bytes(data)
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-20])

    assert verify(prefix, "index", Expected(split="8,1,1")).codes == {"sequences-empty", "split-empty"}


def test_a_part_of_less_than_a_sample_is_a_warning(write):
    prefix = write([10] * 1000)

    assert verify(prefix, "index", Expected(seq_length=9)).codes == set()  # by Megatron's default split
    assert verify(prefix, "index", Expected(seq_length=10)).codes == {"split-short"}
    assert verify(prefix, "index", Expected(split="100,0,0", seq_length=9999)).codes == set()
    assert verify(prefix, "index", Expected(split="100,0,0", seq_length=10_000)).codes == {"split-short"}


@pytest.mark.megatron
def test_ranges_are_those_of_megatron_core():
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets.blended_megatron_dataset_config import (
        convert_split_vector_to_split_matrix,
        parse_and_normalize_split,
    )

    rng = np.random.default_rng(0)
    for _ in range(3000):
        split = ",".join(str(rng.choice([0, 1, 30, 969, 0.1, 1 / 3, 998.5, 7])) for _ in range(rng.integers(1, 4)))
        n = int(rng.choice([1, 2, 3, 40, 500, 501, 12345, 2**31 - 1]))
        if not sum(map(float, split.split(","))):
            continue
        matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
        theirs = [part and (round(part[0] * float(n)), round(part[1] * float(n))) for part in matrix]
        assert ranges(split, n) == theirs, (split, n)
