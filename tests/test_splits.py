"""`verify --split`: what would hang Megatron is an error, what gives no sample a warning."""

import numpy as np
import pytest

from dataprep.batches import TokenBatch
from dataprep.checks.report import Expected
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


@pytest.mark.parametrize("split", ["", "a", "0,0,0", "1,1,1,1", "1.2.3", ".", "9" * 400])
def test_what_is_no_split_is_a_bad_request(write, split):
    with pytest.raises(SpecError, match="expected the shares"):
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
