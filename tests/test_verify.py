"""`verify` names what is wrong with a pair, by whomever written, and is silent about a sound one."""

import json
import os
import shutil
import struct

import numpy as np
import pytest

import dataprep
from dataprep.batches import TokenBatch
from dataprep.errors import SpecError
from dataprep.indexed import HEADER, IndexedWriter
from dataprep.stages.verify import verify

EOD = 7


@pytest.fixture
def pair(tmp_path):
    """Three documents of int32 tokens, each ending with 7, and no manifest."""
    prefix = tmp_path / "a.b_text_document"  # the dot is no suffix
    ids = np.array([1, 2, EOD, 3, EOD, 4, 5, 6, EOD], np.int32)
    with IndexedWriter(prefix, "int32") as writer:
        writer.append(TokenBatch(ids, np.array([0, 3, 5, 9])))
        writer.commit()
    return prefix


def patch(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def idx(prefix):
    return prefix.with_name(prefix.name + ".idx")


def bin_(prefix):
    return prefix.with_name(prefix.name + ".bin")


def codes(prefix, level="tokens"):
    return {problem.code for problem in verify(prefix, level).problems}


def test_a_sound_pair_has_no_problem(pair):
    report = verify(pair)

    assert report.ok
    assert report.problems == []
    assert (report.num_sequences, report.num_documents, report.num_tokens, report.dtype) == (3, 3, 9, "int32")
    assert (report.eod_id, report.num_with_eod, report.num_eod_inside, report.max_id) == (EOD, 3, 0, EOD)
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_file_name_stands_for_its_prefix(pair, suffix):
    assert verify(f"{pair}{suffix}").ok


def test_unknown_prefix_and_level_are_bad_requests(pair):
    with pytest.raises(SpecError, match="no such prefix"):
        verify(pair.with_name("nothing"))
    with pytest.raises(SpecError, match="unknown level"):
        verify(pair, "deep")
    with pytest.raises(SpecError, match="manifest"):
        verify(pair, "source")


LENGTHS = HEADER.size
POINTERS = HEADER.size + 12
BOUNDARIES = HEADER.size + 36


@pytest.mark.parametrize(
    ("offset", "data", "code"),
    [
        (0, b"TNTIDX\x00\x00", "format-foreign"),
        (0, b"NONSENSE", "magic"),
        (9, struct.pack("<Q", 2), "version"),
        (17, b"\x00", "dtype-code"),
        (17, b"\x09", "format-foreign"),
        (17, b"\x07", "dtype-float"),
        (17, b"\x08", "dtype-width"),
        (18, struct.pack("<Q", 2), "idx-size"),
        (18, struct.pack("<Q", 2**63), "idx-size"),
        (26, struct.pack("<Q", 3), "idx-size"),
        (LENGTHS, struct.pack("<i", -1), "length-negative"),
        (LENGTHS, struct.pack("<i", 2), "pointers"),
        (POINTERS, struct.pack("<q", 4), "pointers"),
        (POINTERS + 8, struct.pack("<q", 13), "pointers"),
        (POINTERS + 16, struct.pack("<q", 20 - 2**32), "pointers"),
        (LENGTHS + 8, struct.pack("<i", 5), "bin-size"),
        (BOUNDARIES, struct.pack("<q", 1), "boundaries-start"),
        (BOUNDARIES + 24, struct.pack("<q", 2), "boundaries-end"),
        (BOUNDARIES + 8, struct.pack("<qq", 2, 1), "boundaries-order"),
        (BOUNDARIES + 8, struct.pack("<qq", 0, 1), "documents-empty"),
    ],
)
def test_a_damaged_index_is_named(pair, offset, data, code):
    patch(idx(pair), offset, data)

    assert code in codes(pair, "index")


@pytest.mark.parametrize("size", range(HEADER.size + 36 + 32))
def test_an_index_cut_anywhere_is_refused(pair, size):
    os.truncate(idx(pair), size)

    found = codes(pair, "index")

    if size < HEADER.size:
        assert found in ({"idx-short"}, {"format-foreign"})  # MMIDI alone may be a text
    else:
        assert found in ({"idx-size"}, {"format-foreign"})  # one length is fairseq's


@pytest.mark.parametrize(("size", "code"), [(0, "bin-size"), (35, "bin-size"), (32, "bin-size"), (40, "bin-tail")])
def test_a_bin_of_another_size_is_named(pair, size, code):
    os.truncate(bin_(pair), size)

    assert code in codes(pair, "index")


def test_a_missing_half_is_named(pair):
    bin_(pair).rename(pair.with_name("elsewhere"))
    assert "missing-bin" in codes(pair)

    pair.with_name("elsewhere").rename(bin_(pair))
    idx(pair).unlink()
    assert codes(pair) == {"missing-idx"}


def test_negative_ids_and_a_lost_eod_are_seen_by_reading_the_tokens(pair):
    patch(bin_(pair), 0, struct.pack("<i", -5))
    patch(bin_(pair), 16, struct.pack("<i", 1))

    assert codes(pair, "index") == set()
    assert codes(pair) == {"id-negative", "eod-unclear"}


def test_stray_bytes_after_the_index_that_look_like_modes_are_a_warning(pair):
    with idx(pair).open("ab") as file:
        file.write(b"\x00" * 3)

    report = verify(pair)

    assert report.ok
    assert report.codes == {"idx-tail"}


def test_sentence_level_data_is_a_warning(tmp_path):
    prefix = tmp_path / "s"
    header = HEADER.pack(b"MMIDIDX\x00\x00", 1, 8, 2, 2)
    body = np.array([2, 1], "<i4").tobytes() + np.array([0, 4], "<i8").tobytes() + np.array([0, 2], "<i8").tobytes()
    idx(prefix).write_bytes(header + body)
    bin_(prefix).write_bytes(np.array([1, 2, 2], "<u2").tobytes())

    assert codes(prefix) == {"sentence-level"}


def test_no_sequences_would_hang_megatron(tmp_path):
    prefix = tmp_path / "e"
    idx(prefix).write_bytes(HEADER.pack(b"MMIDIDX\x00\x00", 1, 8, 0, 1) + bytes(8))
    bin_(prefix).write_bytes(b"")

    assert codes(prefix) == {"no-sequences"}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A dataset with a manifest: 300 lines, some empty, one rejected."""
    folder = tmp_path_factory.mktemp("published")
    lines = [json.dumps({"text": f"document {i} " + "word " * (i % 17)}) for i in range(300)]
    lines[10], lines[20] = json.dumps({"text": ""}), "broken"
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out")


@pytest.fixture
def copy(published, tmp_path):
    """A copy of it, to be damaged."""
    source = os.path.dirname(published.prefix)
    shutil.copytree(source, tmp_path / "copy")
    return tmp_path / "copy" / os.path.basename(published.prefix)


def test_every_level_passes_what_we_published(published):
    for level in ("index", "tokens", "source"):
        report = verify(published.prefix, level)
        assert report.problems == []
    assert report.num_sampled == 100


@pytest.mark.slow
def test_any_flipped_bit_is_found_with_the_manifest(copy):
    size = bin_(copy).stat().st_size
    for offset in range(0, size, max(1, size // 40)):
        original = bin_(copy).read_bytes()[offset]
        patch(bin_(copy), offset, bytes([original ^ 0x04]))
        assert not verify(copy).ok, offset
        patch(bin_(copy), offset, bytes([original]))
    for offset in range(idx(copy).stat().st_size):
        original = idx(copy).read_bytes()[offset]
        patch(idx(copy), offset, bytes([original ^ 0x01]))
        assert not verify(copy).ok, offset
        patch(idx(copy), offset, bytes([original]))
    assert verify(copy).ok


def test_an_id_outside_the_vocabulary_is_an_error(copy):
    patch(bin_(copy), 0, struct.pack("<H", 8192))

    assert "id-range" in codes(copy)


def test_level_source_names_a_document_that_is_not_what_the_source_says(copy, monkeypatch):
    pair = dataprep.open_dataset(copy)
    first = pair.sequence_pointers.copy()
    monkeypatch.setattr("dataprep.stages.verify.SAMPLE", len(pair))
    other = 5 if pair.tokens[0] != 5 else 6
    patch(bin_(copy), int(first[0]), struct.pack("<H", other))
    manifest = json.loads((copy.parent / "manifest.json").read_text())
    manifest["prefixes"][0]["files"]["bin_checksum"] = verify(copy, "tokens").bin_checksum
    (copy.parent / "manifest.json").write_text(json.dumps(manifest))

    report = verify(copy, "source")

    assert [problem.code for problem in report.problems] == ["source"]
    assert "document 0 is not what tokenizers makes of record 1" in report.problems[0].message


def test_level_source_says_that_the_source_changed(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"text": "one"}) + "\n")
    prefix = dataprep.run(str(source), "sample", tmp_path / "out").prefix
    source.write_text(json.dumps({"text": "another"}) + "\n")

    report = verify(prefix, "source")

    assert [problem.code for problem in report.problems] == ["source"]
    assert "changed" in report.problems[0].message
