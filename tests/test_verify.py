"""`verify` names what is wrong with a pair, by whomever written, and is silent about a sound one."""

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.batches import TokenBatch
from dataprep.checks.report import Expected
from dataprep.errors import SpecError
from dataprep.indexed import HEADER, IndexedWriter
from dataprep.layout import pair_manifest
from dataprep.manifest import Lengths, PairFiles, PairManifest, Part, Prefix
from dataprep.prefixes import find_prefixes
from dataprep.stages.verify import num_bytes, verify, verify_all, with_tokenizer
from dataprep.storage import checksum, write_json

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
    for offset in range(0, size, max(1, size // 20)):
        original = bin_(copy).read_bytes()[offset]
        patch(bin_(copy), offset, bytes([original ^ 0x04]))
        assert not verify(copy).ok, offset
        patch(bin_(copy), offset, bytes([original]))
    for offset in [*range(HEADER.size), *range(HEADER.size, idx(copy).stat().st_size, 3)]:
        original = idx(copy).read_bytes()[offset]
        patch(idx(copy), offset, bytes([original ^ 0x01]))
        assert not verify(copy).ok, offset
        patch(idx(copy), offset, bytes([original]))
    assert verify(copy).ok


@pytest.mark.parametrize("is_own", [True, False])
def test_a_pair_that_was_renamed_keeps_its_manifest(copy, is_own):
    """Its own one is renamed with it; that of a folder speaks of files that are gone."""
    other = copy.with_name("other")
    for place in (bin_, idx):
        place(copy).rename(place(other))
    if is_own:
        copy.with_name("manifest.json").rename(other.with_name("other.manifest.json"))
    assert verify(other, "source").problems == []
    assert verify(other, "source").num_sampled == 100

    patch(bin_(other), 100, b"\1")
    assert codes(other) >= {"manifest"}


def test_a_pair_beside_another_ones_manifest_has_none(copy, pair):
    for place in (bin_, idx):
        shutil.copy(place(pair), place(copy.with_name("other")))
    assert "manifest" not in codes(copy.with_name("other"))


def test_a_manifest_of_other_files_is_one_problem(copy, pair):
    for place in (bin_, idx):
        shutil.copy(place(pair), place(copy))

    (problem,) = (problem for problem in verify(copy).problems if problem.code == "manifest")

    assert problem.message.startswith("the manifest is of other files: documents: expected 298, found 3; sequences: ")
    assert all(name in problem.message for name in ("; tokens: ", "; dtype: ", "; .bin: ", "; .idx: "))
    assert problem.fix.startswith("move the manifest away")


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

    (problem,) = report.problems
    assert (problem.code, report.ok) == ("source-changed", False)
    assert problem.message == f"the source file {source} has changed since the dataset was made: nothing was compared"
    source.unlink()
    (problem,) = verify(prefix, "source").problems
    assert problem.code == "source-gone"
    assert str(source) in problem.message
    assert "build" not in problem.fix


def test_what_is_not_asked_for_is_inferred(pair):
    value = verify(pair).to_json()

    assert (value["min_length"], value["max_length"], value["mean_length"]) == (2, 4, 3.0)
    assert (value["eod_id"], value["num_with_eod"], value["bos_id"], value["vocab_size"]) == (EOD, 3, None, None)


def test_every_problem_says_where_what_it_does_and_what_mends_it(pair):
    patch(idx(pair), POINTERS + 8, struct.pack("<q", 13))

    (problem,) = verify(pair, "index").problems

    assert str(problem.place) == f"{idx(pair)}, byte {POINTERS + 8}, sequence 1"
    assert problem.message == "expected byte 12 by the lengths, found 13; 1 of 3 are wrong"
    assert problem.symptom == "trains on wrong tokens without a word, or fails late"
    assert problem.fix == f"dataprep repair {pair} --output NEW"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda p: p + 4 * (p > 0), "all from here on are shifted by 4 bytes"),
        (lambda p: p // 4, "they are those of items of 1 bytes"),
        (lambda p: p // 2, "they are those of items of 2 bytes"),
        (lambda p: np.append(p[1:], 36), "they are the ends of the sequences"),
        (lambda p: p + np.arange(3) * 4, "they count a token more for each sequence"),
        (lambda p: p - 2**32 * (p > 12), "1 of 3 are wrong"),
    ],
)
def test_the_cause_of_wrong_pointers_is_named(pair, change, cause):
    patch(idx(pair), POINTERS, change(np.array([0, 12, 20])).astype("<i8").tobytes())

    (problem,) = verify(pair, "index").problems

    assert cause in problem.message


def test_a_wrong_length_is_told_from_wrong_pointers(pair):
    patch(idx(pair), LENGTHS + 4, struct.pack("<i", 5))

    (problem,) = verify(pair, "index").problems

    assert (problem.code, problem.place.sequence) == ("pointers", 2)
    assert "the length of sequence 1, 5, should be 2" in problem.message


@pytest.mark.parametrize("vocab_size", [65_499, 65_500, 65_536, 65_537])
@pytest.mark.parametrize("code", [4, 8])
def test_the_band_where_megatrons_writer_and_reader_disagree(tmp_path, code, vocab_size):
    head = HEADER.pack(b"MMIDIDX\x00\x00", 1, code, 2, 3)
    width = {4: 4, 8: 2}[code]
    pointers, bounds = np.array([0, 2 * width], "<i8"), np.arange(3, dtype="<i8")
    idx(tmp_path / "a").write_bytes(head + np.array([2, 2], "<i4").tobytes() + pointers.tobytes() + bounds.tobytes())
    bin_(tmp_path / "a").write_bytes(np.array([1, 7, 2, 7], f"<u{width}").tobytes())

    found = verify(tmp_path / "a", expect=Expected(vocab_size=vocab_size)).codes

    # writer: uint16 below 65500; reader, by --per-dataset-sequences-path: uint16 up to 65536
    expected = {
        4: {"dtype-band"} if vocab_size <= 65_536 else set(),
        8: {"dtype-vocab"} if vocab_size > 65_536 else set(),
    }
    assert found == expected[code]


def test_a_report_can_speak_of_the_pair_by_another_name(pair):
    patch(idx(pair), POINTERS + 8, struct.pack("<q", 13))
    report = verify(pair, "index").named("new name")

    (problem,) = report.problems
    assert (report.prefix, problem.place.file) == ("new name", "new name.idx")
    assert str(pair.parent) not in json.dumps(report.to_json())


@pytest.mark.parametrize("expect", [{"eod_id": 50, "vocab_size": 50}, {"split": "x"}, {"cache": Path("/nowhere")}])
def test_what_contradicts_itself_is_a_bad_request(pair, expect):
    with pytest.raises(SpecError):
        verify(pair, expect=Expected(**expect))


def test_a_folder_means_all_pairs_in_it_also_beside_caches(pair, tmp_path):
    (tmp_path / "b.idx").write_bytes(b"")
    (tmp_path / "c.bin").write_bytes(b"")
    (tmp_path / "d.idx.tmp-1-2").write_bytes(b"")
    (pair / "cache").mkdir(parents=True)

    assert [path.name for path in find_prefixes(tmp_path)] == [pair.name, "b", "c"]
    assert find_prefixes(pair) == [pair]
    reports = verify_all(find_prefixes(tmp_path), "index", workers=3)
    assert [(report.prefix, report.ok) for report in reports] == [
        (str(pair), True),
        (str(tmp_path / "b"), False),
        (str(tmp_path / "c"), False),
    ]


def test_many_pairs_are_reported_in_the_order_they_were_named(pair, tmp_path):
    names = [tmp_path / f"p{i:02d}" for i in range(20)]
    for name in names:
        shutil.copy(idx(pair), idx(name))
        shutil.copy(bin_(pair), bin_(name))
    seen = []

    reports = verify_all(names[::-1], progress=seen.append)

    assert [report.prefix for report in reports] == [str(name) for name in names[::-1]]
    assert sum(seen) == sum(
        num_bytes(name, "tokens") - HEADER.size - 8 for name in names
    )  # all but head and boundary 0
    with pytest.raises(SpecError, match="no such prefix"):
        verify_all([*names, tmp_path / "nothing"])


def test_the_tokenizer_of_the_training_is_held_to_the_manifest(copy, make_tokenizer, bpe):
    sample = Path(__file__).parents[1] / "tokenizers" / "sample"
    same = verify(copy, "index", with_tokenizer(Expected(), "sample"))
    other = verify(copy, "index", with_tokenizer(Expected(), str(bpe.path)))
    changed = copy.parent / "changed"
    shutil.copytree(sample, changed)
    (changed / "tokenizer.json").write_text((changed / "tokenizer.json").read_text() + " ")
    files = verify(copy, "index", with_tokenizer(Expected(), str(changed)))

    assert same.codes == set()
    assert other.codes == {"tokenizer-other"}
    assert "vocabulary 8192, not 900" in other.problems[0].message
    assert (files.codes, files.ok) == ({"tokenizer-files"}, True)


def test_a_manifest_says_what_is_meant(tmp_path):
    """Empty documents that were kept, and documents without EOD, are no problem of a dataset made so."""
    lines = [json.dumps({"text": text}) for text in ["one", "", "two words", "three"] * 5]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    settings = ["policy.empty=keep", "policy.eod=none"]
    prefix = dataprep.run(str(tmp_path / "in.jsonl"), "sample", tmp_path / "out", settings=settings).prefix

    assert verify(prefix, "source").problems == []
    (Path(prefix).parent / "manifest.json").unlink()
    assert verify(prefix).codes == {"documents-empty", "eod-unclear"}


def test_level_source_follows_a_merged_pair_to_all_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.stages.verify.SAMPLE", 1000)
    made = []
    for name in "ab":
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": f"{name} {i} " * (i % 5 + 1)}) + "\n" for i in range(30)))
        made.append(dataprep.run(str(path), "sample", tmp_path / "out"))
    (a, b), prefix = (result.manifest for result in made), tmp_path / "merged"
    ids = [dataprep.open_dataset(result.prefix).document(i) for result in made for i in range(30)]
    ids = [*ids[10:25], *ids[30:]]  # of the first only some
    with IndexedWriter(prefix, "uint16") as writer:
        writer.append(TokenBatch(np.concatenate(ids), np.cumsum([0, *map(len, ids)])))
        writer.commit()
    parts = [
        Part(prefix=made[0].prefix, start=10, num_documents=15, recipe=0, provenance=a.provenance),
        Part(prefix=made[1].prefix, start=0, num_documents=30, recipe=1, provenance=b.provenance),
    ]
    write_manifest(prefix, (a.recipe, b.recipe), parts)

    report = verify(prefix, "source")
    assert (report.problems, report.num_sampled) == ([], 45)
    write_manifest(prefix, (a.recipe, b.recipe), parts[::-1])
    (problem,) = verify(prefix, "source").problems
    assert problem.code == "source"
    write_manifest(prefix, (), [Part(prefix="gone", start=0, num_documents=45)])
    (problem,) = verify(prefix, "source").problems
    assert (problem.code, problem.severity) == ("source-unknown", "error")
    assert "leads back to no source" in problem.message


def test_a_pair_without_source_does_not_stop_the_others(pair, published):
    bare, made = verify_all([pair, published.prefix], "source")

    assert ([problem.code for problem in bare.problems], bare.ok) == (["source-unknown"], False)
    assert made.num_sampled == 100


def test_another_copy_of_the_tokenizer_stands_in_for_the_one_that_is_gone(bpe, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(bpe.path, tmp_path / name)
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "one"}) + "\n")
    prefix = dataprep.run(str(tmp_path / "in.jsonl"), str(tmp_path / "first"), tmp_path / "out").prefix
    shutil.rmtree(tmp_path / "first")

    (problem,) = verify(prefix, "source").problems
    assert (problem.code, problem.severity) == ("tokenizer-gone", "error")
    assert "--tokenizer T" in problem.fix
    expect = with_tokenizer(Expected(), str(tmp_path / "second"))
    assert verify(prefix, "source", expect).num_sampled == 1
    with (tmp_path / "second" / "tokenizer.json").open("a") as file:
        file.write(" ")
    report = verify(prefix, "source", with_tokenizer(Expected(), str(tmp_path / "second")))
    assert report.codes == {"tokenizer-files", "tokenizer-gone"}
    assert "sha256" in report.errors[0].message


def test_an_output_folder_means_all_datasets_in_it(copy, tmp_path):
    output = copy.parent.parent
    other = output / "other"
    shutil.copytree(copy.parent, other)
    (output / "newest").symlink_to(copy.parent.name)
    (output / "linked").symlink_to(tmp_path / "copy")
    for name in ("work", "raw", ".hidden", "x.tmp-1-2"):
        shutil.copytree(copy.parent, output / name)

    assert find_prefixes(output, below=True) == [copy, other / copy.name]
    with pytest.raises(SpecError, match=r"without indexed pairs; it holds \.hidden, copy, linked, newest, other"):
        find_prefixes(output)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match="it holds nothing"):
        find_prefixes(tmp_path / "empty", below=True)


def write_manifest(prefix, recipes, parts):
    report = verify(prefix)
    files = PairFiles(
        bin_bytes=bin_(prefix).stat().st_size,
        bin_checksum=checksum(bin_(prefix)),
        idx_bytes=idx(prefix).stat().st_size,
        idx_checksum=checksum(idx(prefix)),
    )
    entry = Prefix(
        name=prefix.name,
        num_documents=report.num_documents,
        num_sequences=report.num_sequences,
        num_tokens=report.num_tokens,
        dtype="uint16",
        files=files,
    )
    manifest = PairManifest(
        dataprep_version="0",
        command="merge",
        options={},
        recipes=recipes,
        parts=tuple(parts),
        prefixes=(entry,),
        lengths=Lengths(min=1, max=1, mean=1.0, quantiles={}),
        verification={},
        created="",
    )
    write_json(pair_manifest(prefix), manifest.to_json())
