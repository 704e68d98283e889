"""The pass over a ``.bin`` counts what plain numpy counts, whatever the blocks, the threads and the documents."""

import struct
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.checks import scan
from dataprep.checks.documents import Documents
from dataprep.checks.report import Expected
from dataprep.checks.tally import NEVER, Looked
from dataprep.errors import FormatError
from dataprep.indexed import CODES, MAGIC, Index, bin_path, idx_path
from dataprep.specs import TokenizerIdentity
from dataprep.stages.verify import verify

EOD, BOS = 90, 91


def write(prefix, sequences, dtype, bounds=None):
    """A pair of these sequences, by the specification and nothing else."""
    lengths = np.array([len(ids) for ids in sequences], "<i4")
    width = np.dtype(dtype).itemsize
    pointers = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]]) * width if len(lengths) else lengths
    bounds = np.arange(len(lengths) + 1) if bounds is None else np.array(bounds)
    head = struct.pack("<9sQBQQ", MAGIC, 1, CODES[dtype], len(lengths), len(bounds))
    arrays = (lengths, pointers.astype("<i8"), bounds.astype("<i8"))
    idx_path(prefix).write_bytes(head + b"".join(array.tobytes() for array in arrays))
    bin_path(prefix).write_bytes(np.concatenate([*sequences, []]).astype(dtype).tobytes())
    return prefix


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokens")


@st.composite
def corpora(draw):
    """Sequences of some ids, among them EODs and BOSes at ends and elsewhere, empty ones, runs of zeros; boundaries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sequences = []
    for _ in range(draw(st.integers(1, 60))):
        ids = rng.integers(1, 96, rng.choice([0, 1, 2, 50, 3000]))
        if len(ids) and rng.random() < 0.8:
            ids[-1] = EOD
        if len(ids) and rng.random() < 0.5:
            ids[0] = BOS
        if rng.random() < 0.1:
            ids[len(ids) // 4 :] = 0
        if draw(st.booleans()):
            ids = np.where((ids >= 90) & (np.arange(len(ids)) % len(ids) > 0), 1, ids)
        sequences.append(ids)
    cuts = sorted(rng.integers(0, len(sequences) + 1, draw(st.integers(0, 20))).tolist())
    bounds = draw(st.sampled_from([None, [0, *cuts, len(sequences)]]))
    return sequences, bounds


@settings(max_examples=60)
@given(
    corpora(),
    st.sampled_from(["uint16", "int32"]),
    st.sampled_from([((EOD, EOD),), ((EOD, 95),), ((0, 0), (EOD, BOS)), ()]),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_counts_are_those_of_numpy(folder, corpus, dtype, marks, is_top, threads):
    sequences, bounds = corpus
    prefix = write(folder / "a", sequences, dtype, bounds)
    all_ids = np.concatenate(sequences)
    if not len(all_ids):
        return
    starts = np.cumsum([0, *map(len, sequences)])[bounds if bounds is not None else slice(None)]
    starts = np.unique(starts)
    starts, ends = starts[:-1], starts[1:] - 1
    looked = Looked(np.dtype(dtype), EOD, BOS, marks, 1000, is_top and bool(marks))  # only a guess, may be wrong
    documents = Documents(Index(idx_path(prefix)), bounds is None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK", 4096)
        patch.setattr(scan, "THREADS", threads)
        patch.setattr("dataprep.checks.documents.PIECE", 17)
        done = []
        found = scan.Scan(bin_path(prefix), bin_path(prefix).stat().st_size, documents, looked, done.append)
        tally = found.run()

    assert found.checksum == f"xxh3_128:{xxhash.xxh3_128(bin_path(prefix).read_bytes()).hexdigest()}"
    assert sum(done) == bin_path(prefix).stat().st_size
    assert (tally.largest, tally.smallest, tally.num_documents) == (all_ids.max(), 0, len(starts))
    assert tally.num_ends == np.count_nonzero(all_ids[ends] == EOD)
    assert tally.num_begins == np.count_nonzero(all_ids[starts] == BOS)
    marked = {id_ for low, high in marks for id_ in range(low, high + 1)}
    assert +tally.counts == {id_: n for id_ in marked if (n := np.count_nonzero(all_ids == id_))}
    missing = ends[all_ids[ends] != EOD]
    assert tally.first_missing == (missing[0] if len(missing) else NEVER)
    assert (tally.num_over, tally.num_negative, tally.first_over) == (0, 0, NEVER)
    assert (tally.num_zero_bytes > 0) == has_hole(bin_path(prefix).read_bytes())


def has_hole(data):
    words = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
    return any(not words[i : i + 511].any() for i in range(max(0, len(words) - 510)))


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_the_first_eod_inside_is_named(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(scan, "BLOCK", 4096)
    sequences = [np.array([*range(1, 60), EOD])] * 200
    sequences[150] = np.array([1, EOD, 2, EOD])
    write(tmp_path / "a", sequences, dtype)

    report = verify(tmp_path / "a")

    assert report.codes == {"eod-inside"}
    place = report.problems[0].place
    assert (place.sequence, place.document, place.byte) == (150, 150, (150 * 60 + 1) * np.dtype(dtype).itemsize)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int64", "uint16", "int32"])
def test_negative_and_large_ids_are_found_in_every_dtype(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(scan, "BLOCK", 4096)
    ids = np.tile(np.array([3, 4, 5, 7]), 3000)
    ids[9001] = 100
    signed = np.dtype(dtype).kind == "i"
    if signed:
        ids[6001], ids[6002] = -1, -9
    write(tmp_path / "a", ids.reshape(-1, 4), dtype)

    report = verify(tmp_path / "a", expect=Expected(vocab_size=50))

    assert report.max_id == 100
    assert report.num_with_eod == 3000
    found = {problem.code: problem.place.sequence for problem in report.problems}
    expected = {"id-padding": 2250} | ({"id-negative": 1500} if signed else {})
    assert {code: place for code, place in found.items() if code.startswith("id-")} == expected
    assert ("dtype-unusual" in found) == (dtype not in ("uint16", "int32"))


@pytest.mark.parametrize(
    ("largest", "vocab_size", "code", "words"),
    [
        (50300, 50257, "id-padding", "padding of the vocabulary to 50304"),
        (50304, 50257, "id-range", "padding of the vocabulary to 50432 with 2 ranks"),
        (51000, 50257, "id-range", "padding of the vocabulary to 51200 with 8 ranks"),
        (60000, 50257, "id-range", "others up to 60000"),
        (2**23, None, "id-range", "no vocabulary is so large"),
    ],
)
def test_ids_in_the_padding_are_told_from_others(tmp_path, largest, vocab_size, code, words):
    write(tmp_path / "a", [[1, largest, 7], [2, 7]], "int32")

    problems = verify(tmp_path / "a", expect=Expected(vocab_size=vocab_size, eod_id=7)).problems

    assert [problem.code for problem in problems if problem.code != "dtype-band"] == [code]
    assert words in next(problem for problem in problems if problem.code == code).message
    assert next(problem.place.sequence for problem in problems if problem.code == code) == 0


DOCUMENTS = [[1, 2, 3, 7], [4, 7], [5, 6, 7], [1, 7]] * 30


@pytest.mark.parametrize(
    ("change", "expect", "codes"),
    [
        (lambda ids: ids, {}, set()),
        (lambda ids: ids, {"eod_id": 7}, set()),
        (lambda ids: ids[:-1], {}, {"eod-unclear"}),  # no EOD
        (lambda ids: ids[:-1], {"eod_id": 7}, {"eod-missing"}),
        (lambda ids: [7, *ids[:-1]], {}, {"eod-unclear"}),  # at the beginning
        (lambda ids: [7, *ids[:-1]], {"eod_id": 7}, {"eod-missing", "eod-inside"}),
        (lambda ids: [7, *ids], {}, {"eod-inside"}),
        (lambda ids: [*ids[:-1], 8], {"eod_id": 7}, {"eod-other"}),
        (lambda ids: [9, 9, 9, *ids[:-1], 9], {}, {"eod-unclear"}),  # a word that also ends most documents
        (lambda ids: ids if len(ids) > 2 else ids[:-1], {}, {"eod-unclear"}),  # half of them
        (lambda ids: ids if len(ids) < 4 else ids[:-1], {}, {"eod-unclear"}),
        (lambda ids: ids if len(ids) < 4 else ids[:-1], {"eod_id": 7}, {"eod-missing"}),
        (lambda ids: [9, 9, 7, *ids], {}, {"eod-inside"}),
    ],
)
def test_how_documents_end(tmp_path, change, expect, codes):
    write(tmp_path / "a", [change(ids) for ids in DOCUMENTS], "uint16")

    assert verify(tmp_path / "a", expect=Expected(**expect)).codes == codes


@pytest.mark.parametrize("is_certain", [True, False])
@pytest.mark.parametrize("asked", [2, 5, 9])  # often inside, seldom, never
def test_the_eod_of_another_tokenizer_is_told_before_the_files_are_blamed(tmp_path, asked, is_certain):
    write(tmp_path / "a", [[2, 2, *ids] for ids in DOCUMENTS], "uint16")
    tokenizer = TokenizerIdentity(
        name="wrong", type="HuggingFaceTokenizer", path="", files={}, vocab_size=60_000,
        bos_id=None, bos_text=None, eod_id=asked, eod_text="", adds_bos=False,
    )  # fmt: skip
    expect = Expected(eod_id=asked) if is_certain else Expected(tokenizer=tokenizer)

    report = verify(tmp_path / "a", expect=expect)

    problem = next(problem for problem in report.problems if problem.code == "eod-other")
    assert (
        f"expected documents to end with {asked}, 0 do; 100% of a sample end with 7, which stands 120 times in 120"
        in (problem.message)
    )
    assert not report.codes & {"eod-misplaced", "eod-missing", "eod-unclear"}


def test_a_word_that_ends_all_documents_is_no_other_eod(tmp_path):
    write(tmp_path / "a", [[7, 7, *ids] for ids in DOCUMENTS], "uint16")

    assert verify(tmp_path / "a", expect=Expected(eod_id=9)).codes == {"eod-missing"}


def test_an_index_of_another_run_is_recognised_by_its_eods(tmp_path):
    write(tmp_path / "a", DOCUMENTS, "uint16")
    data = bin_path(tmp_path / "a").read_bytes()
    bin_path(tmp_path / "a").write_bytes(data[-6:] + data[:-6])

    assert "eod-misplaced" in verify(tmp_path / "a", expect=Expected(eod_id=7)).codes


def test_documents_of_several_sentences_end_once(tmp_path):
    sentences = [[1, 2], [3], [4, 7]] * 20
    write(tmp_path / "a", sentences, "uint16", bounds=[0, *range(3, 61, 3)])

    report = verify(tmp_path / "a")

    assert report.codes == {"sentence-level"}
    assert (report.num_documents, report.num_sequences, report.num_with_eod, report.eod_id) == (20, 60, 20, 7)


def test_a_hole_inside_one_long_document_is_seen(tmp_path):
    ids = np.full(50_000, 3)
    ids[-1] = 7
    ids[20_000:22_048] = 0
    write(tmp_path / "a", [ids, [1, 7]], "uint16")

    (problem,) = verify(tmp_path / "a").problems

    assert (problem.code, problem.place.byte) == ("zero-block", 40_000)


def test_a_file_that_ends_early_is_an_error(tmp_path):
    write(tmp_path / "a", DOCUMENTS, "uint16")
    index = Index(idx_path(tmp_path / "a"))
    looked = Looked(index.dtype, None, None, (), 100)
    scan_ = scan.Scan(bin_path(tmp_path / "a"), 10_000, Documents(index, True), looked, lambda _: None)

    with pytest.raises(FormatError, match="ends at byte 660, and had 10000"):
        scan_.run()


def test_parts_are_held_to_their_checksums(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "BLOCK", 4096)
    write(tmp_path / "a", [np.arange(1, 5001)], "uint16")
    data = bin_path(tmp_path / "a").read_bytes()
    cuts = [0, 10, 10, 4096, 8000, 10_000, 10_000]
    parts = [(b, f"xxh3_128:{xxhash.xxh3_128(data[a:b]).hexdigest()}") for a, b in pairwise(cuts)]

    assert verify(tmp_path / "a", parts=parts).codes == set()
    for i in range(len(parts)):
        wrong = [*parts[:i], (parts[i][0], "xxh3_128:0"), *parts[i + 1 :]]
        (problem,) = verify(tmp_path / "a", parts=wrong).problems
        assert (problem.code, problem.message) == ("shard", f"bytes up to {parts[i][0]} are not those of shard {i}")
