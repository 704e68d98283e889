"""What `repair` writes is what was there before the damage: several damages at once do not pass for a sound pair."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataprep
from dataprep.checks.report import Expected
from dataprep.errors import FormatError
from dataprep.repairs import Wanted, repair
from dataprep.stages.verify import verify

EOD = 1
CODES = {"uint8": 1, "int32": 4, "uint16": 8}


class Parts:
    """A sound pair, of which any part can be changed before it is written."""

    def __init__(self, documents, dtype="uint16"):
        """Each document is a list of sequences, which are lists of ids."""
        sequences = [sequence for document in documents for sequence in document]
        self.documents = documents
        self.code, self.item = CODES[dtype], np.dtype(dtype).itemsize
        self.lengths = [len(sequence) for sequence in sequences]
        self.pointers = [sum(self.lengths[:i]) * self.item for i in range(len(sequences))]
        self.bounds = [sum(map(len, documents[:i])) for i in range(len(documents) + 1)]
        self.tokens = np.array([i for sequence in sequences for i in sequence], dtype).tobytes()

    def swap(self, i):
        """Let two neighbouring lengths change places."""
        self.lengths[i : i + 2] = self.lengths[i : i + 2][::-1]

    def write(self, folder):
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, self.code, len(self.lengths), len(self.bounds))
        arrays = [(self.lengths, "<i4"), (self.pointers, "<i8"), (self.bounds, "<i8")]
        (folder / "old.idx").write_bytes(head + b"".join(np.array(a).astype(kind).tobytes() for a, kind in arrays))
        (folder / "old.bin").write_bytes(self.tokens)
        return folder / "old"


def parts(count=40, eod=EOD, **others):
    """Documents of one sequence of 2 to 9 ids; none is as long as the one before it."""
    return Parts([[[*range(100 + i, 101 + i + i % 8), eod]] for i in range(count)], **others)


def written(prefix):
    """The documents of a pair as lists of sequences."""
    pair = dataprep.open_dataset(prefix)
    bounds = pair.document_indices.tolist()
    return [[pair[i].tolist() for i in range(*bound)] for bound in pairwise(bounds)]


def mend(damaged, folder, **wanted):
    return repair(damaged.write(folder), folder / "new", Wanted(**wanted))


# --- lengths and pointers that contradict each other


@pytest.mark.parametrize("eod", [None, EOD])
@pytest.mark.parametrize("chunk", [1, 2, 3, 2**20])
def test_swapped_lengths_are_not_believed_because_they_fill_the_bin(tmp_path, eod, chunk, monkeypatch):
    monkeypatch.setattr("dataprep.repairs.arrays.CHUNK", chunk)
    damaged = parts()
    damaged.swap(20)
    damaged.pointers[30] = 0

    with pytest.raises(FormatError, match="end of sequence 20, and by the lengths the EOD 1 does not stand there"):
        mend(damaged, tmp_path, eod=eod)


@pytest.mark.parametrize("eod", [None, EOD])
def test_a_wrong_pointer_is_not_believed_because_the_others_are_right(tmp_path, eod):
    damaged = parts()
    damaged.lengths[7] += 1
    damaged.pointers[30] += 2

    with pytest.raises(FormatError, match=r"end of sequence 29, and by the pointers the EOD 1|does not say which"):
        mend(damaged, tmp_path, eod=eod)


def test_within_documents_nothing_tells(tmp_path):
    damaged = Parts([[[100 + i] * (2 + i % 5), [101, EOD]] for i in range(30)])
    damaged.swap(22)
    damaged.pointers[50] = 0

    with pytest.raises(FormatError, match="end of sequence 22, and nothing tells which are right"):
        mend(damaged, tmp_path, eod=EOD)

    damaged.swap(22)
    assert [change.code for change in mend(damaged, tmp_path, eod=EOD).changes] == ["pointers"]
    assert written(tmp_path / "new") == damaged.documents


@pytest.mark.parametrize("eod", [None, EOD])
@pytest.mark.parametrize("document", [10, 30])
def test_a_byte_too_many_is_not_cut_off_where_it_may_have_come_in_before(tmp_path, eod, document):
    damaged = parts()
    place = damaged.pointers[document]
    damaged.tokens = damaged.tokens[:place] + b"\0" + damaged.tokens[place:]

    with pytest.raises(FormatError, match=r"bin-tail: the \.bin has 1 bytes more .*: truncate -s 440; else copy both"):
        mend(damaged, tmp_path, eod=eod)


@pytest.mark.parametrize("count", [2, 40])
def test_a_byte_too_many_is_cut_off_where_the_last_document_ends_with_the_eod(tmp_path, count):
    damaged = parts(count)
    damaged.tokens += b"\n"

    assert [change.code for change in mend(damaged, tmp_path).changes] == ["bin-tail"]
    assert written(tmp_path / "new") == damaged.documents


def test_what_verify_warns_of_in_the_new_pair_is_said(tmp_path):
    """Lengths and pointers agree, and are those of another pair; only the version is seen to be wrong."""
    damaged = parts()
    damaged.lengths = [*damaged.lengths[1:], damaged.lengths[0]]
    damaged.pointers = [sum(damaged.lengths[:i]) * damaged.item for i in range(len(damaged.lengths))]
    prefix = damaged.write(tmp_path)
    index = prefix.with_name("old.idx")
    index.write_bytes(index.read_bytes().replace(struct.pack("<Q", 1), struct.pack("<Q", 2), 1))

    result = repair(prefix, tmp_path / "new")

    assert [change.code for change in result.changes] == ["version"]
    assert [text.split(":")[0] for text in result.warnings] == ["eod-unclear"]


MORE = np.array([99, 98, 97, EOD, 50, 51, EOD], "<u2").tobytes()
"""Two documents, as a longer run left them behind the others."""


@pytest.mark.parametrize("length", [0, 70])
def test_documents_behind_the_last_one_do_not_become_its_end_because_a_length_is_wrong(tmp_path, length):
    damaged = parts()
    damaged.lengths[5] = length
    damaged.tokens += MORE

    with pytest.raises(FormatError, match=r"pointers: .* the end of sequence 39.*, and the EOD 1 stands at both"):
        mend(damaged, tmp_path, eod=EOD)


@pytest.mark.parametrize("chunk", [1, 2, 2**20])
def test_an_end_that_only_the_other_array_has_is_not_dropped(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr("dataprep.repairs.arrays.CHUNK", chunk)
    damaged = parts()
    damaged.lengths[20:22] = [damaged.lengths[20] + damaged.lengths[21], 0]
    damaged.pointers[7] = 0

    with pytest.raises(FormatError, match=r"pointers: .* the end of sequence 20 .*, and the EOD 1 stands at both"):
        mend(damaged, tmp_path, eod=EOD)


def test_an_eod_in_the_text_does_not_make_a_wrong_length_right(tmp_path):
    """By the lengths the document ends at the EOD in its text, by the pointers at its own, later on."""
    damaged = Parts([[[100, EOD, 101 + i % 2, EOD]] for i in range(40)])
    damaged.lengths[20:22] = [2, 6]
    damaged.pointers[7] = 0

    with pytest.raises(FormatError, match=r"pointers: .* the end of sequence 20, and the EOD 1 stands at both"):
        mend(damaged, tmp_path, eod=EOD)


def test_pointers_that_are_all_too_large_by_a_token_are_not_believed(tmp_path):
    """Of sentences: the first and the last of them lie within documents, where no EOD tells."""
    damaged = Parts([[*[[100 + i] * (2 + i % 3)] * 4, [101, EOD]] for i in range(40)])
    damaged.lengths[6] += 1
    damaged.pointers[17:43] = [pointer + 2 for pointer in damaged.pointers[17:43]]

    with pytest.raises(FormatError, match=r"by the pointers 5 of 40 documents do not end with the EOD 1, which stands"):
        mend(damaged, tmp_path, eod=EOD)


def test_documents_without_eod_are_mended_where_the_pointers_cannot_be_right(tmp_path):
    damaged = Parts([[[*range(100 + i, 102 + i + i % 8)]] for i in range(40)])
    damaged.pointers[9] = damaged.pointers[20] = 2**40
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    mend(damaged, tmp_path / "one")
    assert written(tmp_path / "one/new") == damaged.documents

    damaged.swap(30)
    with pytest.raises(FormatError, match="end of sequence 30, and nothing tells which are right; name the EOD"):
        mend(damaged, tmp_path / "two")


def test_an_eod_that_the_text_lacks_elsewhere_is_a_warning(tmp_path):
    damaged = parts()
    damaged.documents[3][0][-1] = 99
    damaged = Parts(damaged.documents)
    damaged.pointers[20] = 0

    result = mend(damaged, tmp_path, eod=EOD)

    assert written(tmp_path / "new") == damaged.documents
    assert result.warnings[0].startswith("1 of 40 documents do not end with the EOD 1;")
    assert verify(tmp_path / "new").ok


# --- bytes, and their order


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("code", [1, 2])
@pytest.mark.parametrize("eod", [None, 0])
def test_bytes_are_not_taken_for_tokens(tmp_path, dtype, code, eod):
    damaged = parts(eod=0, dtype=dtype)
    damaged.lengths[7] += 1
    damaged.code = code

    documents = [list(document) for document in damaged.documents]
    if eod is None or dtype == "uint16":
        with pytest.raises(FormatError):
            mend(damaged, tmp_path, eod=eod)
        assert not list(tmp_path.glob("new*"))
    else:  # no other dtype makes ids of these bytes, and the EODs say where documents end
        mend(damaged, tmp_path, eod=eod)
        assert written(tmp_path / "new") == documents


def test_a_lost_index_of_bytes_needs_a_dtype(tmp_path):
    damaged = parts(eod=0)
    damaged.code, damaged.lengths = 2, [0] * 40

    with pytest.raises(FormatError, match="say with --dtype uint16 or --dtype int32"):
        mend(damaged, tmp_path, eod=0)
    mend(damaged, tmp_path, eod=0, dtype="uint16")
    assert written(tmp_path / "new") == damaged.documents


def test_tokens_of_one_byte_are_read_where_all_agrees(tmp_path):
    sound = parts(dtype="uint8")

    assert [change.code for change in mend(sound, tmp_path).changes] == ["dtype"]
    assert written(tmp_path / "new") == sound.documents


def test_an_eod_that_is_the_same_turned_around_proves_no_order(tmp_path):
    damaged = parts(eod=0, dtype="int32")
    damaged.write(tmp_path).with_suffix(".idx").unlink()

    with pytest.raises(FormatError, match=r"the \.bin holds int32, not uint16"):
        repair(tmp_path / "old", tmp_path / "new", Wanted(eod=0, dtype="uint16"))
    repair(tmp_path / "old", tmp_path / "new", Wanted(eod=0, dtype="int32"))
    assert written(tmp_path / "new") == damaged.documents


def test_eods_that_were_not_counted_have_to_be_many(tmp_path):
    for count in (2, 15):
        damaged = parts(count)
        damaged.lengths = [length - 1 for length in damaged.lengths]
        damaged.pointers = [pointer - damaged.item * i for i, pointer in enumerate(damaged.pointers)]

        with pytest.raises(FormatError, match="bin-tail"):
            mend(damaged, tmp_path, eod=EOD)


# --- document boundaries


def test_boundaries_that_the_eods_contradict_are_not_believed(tmp_path):
    damaged = parts()
    damaged.bounds[20] += 1

    assert mend(damaged, tmp_path, eod=EOD).changes == ()  # it can be meant
    damaged.pointers[3] = 0
    with pytest.raises(FormatError, match=r"boundaries-order.*as many documents as sequences"):
        mend(damaged, tmp_path, eod=EOD)


@pytest.mark.parametrize("wanted", [{"dtype": "int32"}, {"documents": True}, {}])
def test_boundaries_are_held_to_the_eods_whenever_something_is_written(tmp_path, wanted):
    damaged = parts()
    damaged.bounds[20] += 1
    if not wanted:
        damaged.code = 3  # int16, which becomes uint16

    with pytest.raises(FormatError, match=r"boundaries-order.*as many documents as sequences"):
        mend(damaged, tmp_path, eod=EOD, **wanted)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_boundaries_of_a_few_documents_are_held_to_a_guessed_eod(tmp_path, count):
    """It proves nothing, but makes another reading as likely."""
    damaged = parts(count)
    damaged.bounds[1] = 2 if count > 2 else 0
    damaged.pointers[-1] = 2**40
    with pytest.raises(FormatError, match=r"boundaries-order: .*each of these ends with the EOD 1; yet"):
        mend(damaged, tmp_path)


def test_boundaries_of_which_one_is_lost_are_held_to_the_eods(tmp_path):
    """[0 2 2] lost its end, and what is left holds: one document of both sequences."""
    damaged = parts(2)
    damaged.bounds[1] = 2
    prefix = damaged.write(tmp_path)
    index = prefix.with_name("old.idx")
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(FormatError, match=r"boundaries-order: there are, or were, as many documents as sequences"):
        repair(prefix, tmp_path / "new", Wanted(eod=EOD))


@pytest.mark.parametrize("count", [2, 40])
def test_a_wrong_first_pointer_does_not_hide_that_the_others_are_right(tmp_path, count):
    damaged = parts(count)
    damaged.swap(0)
    damaged.pointers[0] = 2**20
    with pytest.raises(FormatError, match="pointers: lengths and pointers contradict each other"):
        mend(damaged, tmp_path)


@pytest.mark.parametrize("documents", [[[[100, EOD]], [], *[[[101, EOD]]] * 30], [[[100], [101, EOD]]] * 30])
def test_boundaries_that_were_overwritten_are_not_empty_documents(tmp_path, documents):
    damaged = Parts(documents)
    damaged.bounds[:8] = [0] * 8
    damaged.pointers[-4:] = [0] * 4

    with pytest.raises(
        FormatError, match=r"boundaries-order: \d sequences within documents end with the EOD 1, and by"
    ):
        mend(damaged, tmp_path, eod=EOD)


def test_empty_documents_are_kept_where_the_text_holds_eods(tmp_path):
    damaged = Parts([[], [[100, EOD, 101, EOD]]] * 20)
    damaged.pointers[3] = 2**40

    mend(damaged, tmp_path, eod=EOD)
    assert written(tmp_path / "new") == damaged.documents


@pytest.mark.parametrize("place", ["pointers", "bounds", None])
def test_an_index_is_not_thrown_away_because_one_number_is_wrong_and_the_bin_is_longer(tmp_path, place):
    damaged = parts()
    if place is not None:
        getattr(damaged, place)[9] = 0
    damaged.tokens += MORE

    with pytest.raises(FormatError, match=r"move the \.idx away to go by the EODs in the \.bin alone"):
        mend(damaged, tmp_path, eod=EOD)


def test_sentences_in_as_many_documents_keep_them(tmp_path):
    damaged = Parts([[], [[100], [101, EOD]]] * 20)
    damaged.pointers[3] = 2**40

    mend(damaged, tmp_path, eod=EOD)
    assert written(tmp_path / "new") == damaged.documents


def test_a_sequence_with_a_length_does_not_go_because_the_last_pointer_is_wrong(tmp_path):
    damaged = parts(5)
    damaged.swap(2)
    damaged.pointers[4] = len(damaged.tokens)

    with pytest.raises(FormatError, match="pointers"):
        mend(damaged, tmp_path, eod=EOD)


@pytest.mark.parametrize("eod", [None, 0])
@pytest.mark.parametrize("length", [0, 1])
def test_zeros_behind_are_no_padding_where_they_can_end_the_last_document(tmp_path, eod, length):
    damaged = Parts([*parts(20, eod=0).documents, [[7, 0]] if length else [[0]]])
    damaged.lengths[-1] = length

    with pytest.raises(FormatError):
        mend(damaged, tmp_path, eod=eod)


# --- any damage


def damages(parts):
    """1 to 3 changes, each of any one place."""
    n, total = len(parts.lengths), len(parts.tokens)
    place = st.integers(0, n - 1)
    return st.lists(
        st.tuples(st.just("lengths"), place, st.sampled_from([-1, 0, 1, 2, 1000]))
        | st.tuples(st.just("more"), place, st.integers(-2, 2))
        | st.tuples(st.just("swap"), st.integers(0, n - 2), st.none())
        | st.tuples(st.just("pointers"), place, st.sampled_from([0, -4, 2, 4, total, 2**33]) | st.integers(0, total))
        | st.tuples(st.just("bounds"), st.integers(0, n), st.integers(-1, n + 1))
        | st.tuples(st.just("code"), st.none(), st.integers(0, 9)),
        min_size=1,
        max_size=3,
    )


def harm(parts, damage):
    what, place, value = damage
    if what == "swap":
        parts.swap(place)
    elif what == "more":
        parts.lengths[place] += value
    elif what == "code":
        parts.code = value
    else:
        getattr(parts, what)[place] = value


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    count=st.integers(8, 20),
    eod=st.sampled_from([0, 1, 299]),
    dtype=st.sampled_from(["uint16", "int32"]),
)
def test_some_damages_at_once_are_mended_or_refused(tmp_path_factory, data, count, eod, dtype):
    folder = tmp_path_factory.mktemp("pair")
    bodies = st.lists(st.integers(2, 290), max_size=6)
    damaged = Parts([[[*data.draw(bodies), eod]] for _ in range(count)], dtype)
    for damage in data.draw(damages(damaged)):
        harm(damaged, damage)
    known = data.draw(st.sampled_from([None, eod]))
    try:
        result = mend(damaged, folder, eod=known)
    except FormatError:
        assert not list(folder.glob("new*"))
        return
    if result.changes:
        assert written(folder / "new") == damaged.documents
        assert verify(folder / "new", expect=Expected(eod_id=eod)).ok
    else:
        assert verify(folder / "old", expect=Expected(eod_id=known)).ok
