"""`repair` gives back the very bytes that a damage took, or refuses; it never changes what it reads."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataprep
from dataprep.errors import DataprepError, EncodeError, FormatError, OutputError, SpecError
from dataprep.manifest import manifest_of
from dataprep.repairs import Wanted, repair
from dataprep.repairs.sequences import Sequences, cuts
from dataprep.stages.verify import verify
from dataprep.storage import MARK
from dataprep.watcher import Silent

EOD = 50
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


@dataclass(frozen=True)
class Pair:
    """All that a pair of files says, so that any of it can be changed on its own; None: what follows from the rest."""

    tokens: np.ndarray
    lengths: np.ndarray
    bounds: np.ndarray
    pointers: np.ndarray | None = None
    code: int | None = None
    magic: bytes = b"MMIDIDX\0\0"
    version: int = 1
    counts: tuple[int, int] | None = None
    order: str = "<"
    idx_tail: bytes = b""
    bin_tail: bytes = b""

    def idx(self) -> bytes:
        size = self.tokens.itemsize
        pointers = np.cumsum(self.lengths) * size - self.lengths * size if self.pointers is None else self.pointers
        code = CODES[self.tokens.dtype.name] if self.code is None else self.code
        counts = self.counts or (len(self.lengths), len(self.bounds))
        head = self.magic + struct.pack(f"{self.order}QBQQ", self.version, code, *counts)
        arrays = [(self.lengths, "i4"), (pointers, "i8"), (self.bounds, "i8")]
        return head + b"".join(a.astype(self.order + kind).tobytes() for a, kind in arrays) + self.idx_tail

    def bin(self) -> bytes:
        return self.tokens.tobytes() + self.bin_tail

    def write(self, prefix: Path) -> Path:
        prefix.with_name(prefix.name + ".idx").write_bytes(self.idx())
        prefix.with_name(prefix.name + ".bin").write_bytes(self.bin())
        return prefix


def pair(documents, dtype="int32") -> Pair:
    """One sequence for each document that holds a token, as Megatron's own writer does."""
    lengths = np.array([len(document) for document in documents], np.int64)
    tokens = np.array([i for document in documents for i in document], dtype)
    return Pair(tokens, lengths[lengths > 0], np.concatenate([[0], np.cumsum(lengths > 0)]))


def sentences(documents, dtype="int32") -> Pair:
    """One sequence for each sentence."""
    lengths = np.array([len(sentence) for document in documents for sentence in document], np.int64)
    tokens = np.array([i for document in documents for sentence in document for i in sentence], dtype)
    return Pair(tokens, lengths, np.concatenate([[0], np.cumsum([len(document) for document in documents])]))


def some_documents(count=60, seed=0):
    """Documents of 1 to 20 ids and an EOD, some of them empty."""
    rng = np.random.default_rng(seed)
    found = [[*rng.integers(100, 60_000, rng.integers(1, 20)).tolist(), EOD] for _ in range(count)]
    return [[] if i % 13 == 5 else document for i, document in enumerate(found)]


@pytest.fixture(params=["uint16", "int32"])
def sound(request):
    return pair(some_documents(), request.param)


def files(prefix):
    """Content of the two files of a pair."""
    return [prefix.with_name(prefix.name + suffix).read_bytes() for suffix in (".idx", ".bin")]


def mend(damaged, folder, **wanted):
    """Repair a pair in a folder of its own; the input stays as it is, and nothing is left but the new pair."""
    prefix = damaged.write(folder / "old") if isinstance(damaged, Pair) else damaged
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        result = repair(prefix, folder / "new", Wanted(**wanted))
    except DataprepError:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        raise
    new = {"new.idx", "new.bin", "new.manifest.json"} if result.changes else set()
    assert {path.name for path in folder.iterdir()} == set(before) | new
    assert {name: (folder / name).read_bytes() for name in before} == before
    return result


def codes(result):
    return [change.code for change in result.changes]


# --- what the real tools do


def overflowed(sound, bits=10):
    """Pointers summed in too few bits: what numpy 2 made of int32 lengths; here in fewer, so that small files do."""
    right = np.cumsum(sound.lengths) * sound.tokens.itemsize - sound.lengths * sound.tokens.itemsize
    return replace(sound, pointers=(right + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1))


def deepspeed(sound):
    """Megatron-DeepSpeed's --append-eod: an EOD for each document in the .bin, and none in the lengths."""
    last = sound.bounds[1:][np.diff(sound.bounds) > 0] - 1
    lengths = sound.lengths.copy()
    lengths[last] -= 1
    return replace(sound, lengths=lengths)


def test_pointers_that_overflowed_are_computed_anew(sound, tmp_path):
    result = mend(overflowed(sound), tmp_path)

    assert codes(result) == ["pointers"]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]


def test_eods_that_deepspeed_did_not_count_are_counted(sound, tmp_path):
    result = mend(deepspeed(sound), tmp_path)

    assert codes(result) == ["eod-uncounted"]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]


def test_deepspeeds_sentences_get_their_eod_at_the_end_of_the_document(tmp_path):
    documents = [[[7, 8, 9], [1000 + i, EOD]] for i in range(15)]
    sound = sentences([*documents, [], [[3, EOD]]])

    assert codes(mend(deepspeed(sound), tmp_path)) == ["eod-uncounted"]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]


def test_an_uncounted_token_that_is_not_always_the_same_is_not_taken_for_an_eod(sound, tmp_path):
    tokens = sound.tokens.copy()
    tokens[sound.lengths[0] - 1] = 99

    with pytest.raises(FormatError, match="bin-tail"):
        mend(deepspeed(replace(sound, tokens=tokens)), tmp_path)


def test_a_few_documents_prove_no_eod(tmp_path):
    documents = [[100 + i, 101, EOD] for i in range(16)]

    for eod in (None, EOD):
        with pytest.raises(FormatError, match="bin-tail"):
            mend(deepspeed(pair(documents[:15])), tmp_path, eod=eod)
    mend(deepspeed(pair(documents)), tmp_path)
    assert files(tmp_path / "new") == [pair(documents).idx(), pair(documents).bin()]


@pytest.mark.parametrize("keep", [0, 10, 33, 34, 60, 190])
def test_a_lost_index_is_rebuilt_from_eods(tmp_path, keep):
    sound = pair([[100 + i] * (i % 7 + 1) + [EOD] for i in range(40)])
    prefix = sound.write(tmp_path / "old")
    os.truncate(tmp_path / "old.idx", keep)

    with pytest.raises(FormatError, match="--eod"):
        mend(prefix, tmp_path, dtype="int32")
    result = mend(prefix, tmp_path, eod=EOD, dtype="int32")

    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]
    assert "literal" not in result.warnings
    assert len(result.warnings) == 1


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_dtype_of_a_lost_index_is_told_by_the_ids_where_they_allow_one(sound, tmp_path, order):
    held = replace(sound, tokens=sound.tokens.astype(sound.tokens.dtype.newbyteorder(order)))
    prefix = held.write(tmp_path / "old")
    (tmp_path / "old.idx").unlink()

    if sound.tokens.itemsize == 4 and order == ">":  # by their size alone, uint16 is as likely
        with pytest.raises(FormatError, match=r"; say with --dtype uint16 or --dtype int32 what the \.bin holds to"):
            mend(prefix, tmp_path, eod=EOD)
        return
    with pytest.raises(FormatError, match=r"; name the EOD with --eod ID or --tokenizer T to rebuild"):
        mend(prefix, tmp_path)
    mend(prefix, tmp_path, eod=EOD)
    assert files(tmp_path / "new")[1] == sound.bin()


def test_all_that_a_lost_index_leaves_open_is_asked_for_at_once(tmp_path):
    prefix = pair([[1, 2, EOD]]).write(tmp_path / "old")
    (tmp_path / "old.idx").unlink()

    with pytest.raises(FormatError, match=r"--eod ID or --tokenizer T, and say with --dtype uint16"):
        mend(prefix, tmp_path)


def test_a_wrong_dtype_is_refused(sound, tmp_path):
    prefix = sound.write(tmp_path / "old")
    (tmp_path / "old.idx").unlink()

    wrong = "int32" if sound.tokens.itemsize == 2 else "uint16"
    with pytest.raises(FormatError, match=r"int32, not uint16|no ids"):
        mend(prefix, tmp_path, eod=EOD, dtype=wrong)


def test_documents_without_an_end_are_named(tmp_path):
    sound = pair([[100, 101, EOD], [102, EOD], [103, 104]])
    prefix = sound.write(tmp_path / "old")
    (tmp_path / "old.idx").unlink()

    with pytest.raises(FormatError, match=r"from byte 20 on, there are 2 tokens.*truncate -s 20"):
        mend(prefix, tmp_path, eod=EOD, dtype="int32")
    with pytest.raises(FormatError, match="the id 77 stands nowhere"):
        mend(prefix, tmp_path, eod=77, dtype="int32")


def test_literal_eods_cannot_be_told_and_are_warned_of(tmp_path):
    sound = pair([[100, EOD, 101, EOD], [], [102, EOD]])
    prefix = sound.write(tmp_path / "old")
    (tmp_path / "old.idx").unlink()

    result = mend(prefix, tmp_path, eod=EOD, dtype="int32")

    assert dataprep.open_dataset(tmp_path / "new").lengths.tolist() == [2, 2, 2]
    assert "inside became several" in result.warnings[0]


# --- one field after the other


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        ("magic", lambda p: replace(p, magic=b"MMIDIDY\0\0")),
        ("version", lambda p: replace(p, version=2)),
        ("version", lambda p: replace(p, version=1 << 56)),
        ("version", lambda p: replace(p, order=">")),
        ("dtype-code", lambda p: replace(p, code=99)),
        ("dtype-width", lambda p: replace(p, code=4 if p.tokens.itemsize == 2 else 8)),
        ("dtype-width", lambda p: replace(p, code=6)),
        ("idx-size", lambda p: replace(p, counts=(2**63, len(p.bounds)))),
        ("idx-size", lambda p: replace(p, counts=(len(p.lengths), 2**63))),
        ("idx-size", lambda p: replace(p, counts=(0, len(p.bounds)))),
        ("idx-size", lambda p: replace(p, counts=(len(p.lengths), 0))),
        ("length-negative", lambda p: replace(p, lengths=changed(p.lengths, 7, -1), pointers=pointers(p))),
        ("length-negative", lambda p: replace(p, lengths=changed(p.lengths, -1, -5), pointers=pointers(p))),
        ("pointers", lambda p: replace(p, lengths=changed(p.lengths, 7, 2**31 - 1), pointers=pointers(p))),
        ("pointers", lambda p: replace(p, lengths=np.roll(p.lengths, 1), pointers=pointers(p))),
        ("pointers", lambda p: replace(p, pointers=pointers(p) + (np.arange(len(p.lengths)) >= 9))),
        ("pointers", lambda p: replace(p, pointers=pointers(p) - p.tokens.itemsize * (np.arange(len(p.lengths)) >= 9))),
        ("pointers", lambda p: replace(p, pointers=np.zeros_like(p.lengths))),
        ("bin-tail", lambda p: replace(p, bin_tail=b"\1")),
        ("bin-tail", lambda p: replace(p, bin_tail=bytes(4096))),
        ("bin-tail", lambda p: replace(p, bin_tail=b"\7\1\2\3\4\5")),
        ("idx-tail", lambda p: replace(p, idx_tail=b"\0" * 5)),
        ("idx-tail", lambda p: replace(p, idx_tail=b"\0" * len(p.lengths))),
        ("idx-tail", lambda p: replace(p, idx_tail=bytes(range(100, 100 + len(p.lengths))))),
        ("byte-order", lambda p: replace(p, tokens=p.tokens.byteswap())),
    ],
)
def test_a_damage_is_named_and_mended(sound, tmp_path, code, damage):
    result = mend(damage(sound), tmp_path, eod=EOD)

    assert codes(result) == [code]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]
    assert verify(tmp_path / "new").ok


def pointers(p):
    return np.cumsum(p.lengths) * p.tokens.itemsize - p.lengths * p.tokens.itemsize


def test_what_looks_like_modes_is_not_thrown_away(sound, tmp_path):
    with pytest.raises(FormatError, match="modes of multimodal data"):
        mend(replace(sound, idx_tail=bytes([0, 1] * len(sound.lengths))[: len(sound.lengths)]), tmp_path)


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        ("boundaries-start", lambda p: replace(p, bounds=changed(p.bounds, 0, 1))),
        ("boundaries-start", lambda p: replace(p, bounds=p.bounds + 1)),
        ("boundaries-order", lambda p: replace(p, bounds=changed(p.bounds, 9, 3))),
        ("boundaries-end", lambda p: replace(p, bounds=changed(p.bounds, -1, 7))),
        ("boundaries-end", lambda p: replace(p, bounds=np.concatenate([p.bounds[:31], p.bounds[:-30]]))),
        ("boundaries-end", lambda p: replace(p, bounds=p.bounds[:-9])),
        ("no-documents", lambda p: replace(p, bounds=p.bounds[:0])),
    ],
)
def test_boundaries_of_single_sequences_are_rebuilt(tmp_path, code, damage):
    sound = pair([[100 + i, EOD] for i in range(60)])

    assert codes(mend(damage(sound), tmp_path)) in ([code], ["boundaries-order"])
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]


def test_an_index_that_ends_behind_its_lengths_is_completed(tmp_path):
    sound = pair([[100 + i] * (i % 5 + 1) for i in range(60)])  # no EOD, and none is needed
    for size in range(34 + 60 * 4, len(sound.idx()), 97):
        folder = tmp_path / str(size)
        folder.mkdir()
        prefix = sound.write(folder / "old")
        os.truncate(folder / "old.idx", size)

        assert set(codes(mend(prefix, folder))) == {"idx-size"}
        assert files(folder / "new") == [sound.idx(), sound.bin()]


def test_sentences_get_their_documents_back_by_the_eod(tmp_path):
    sound = sentences([[[100 + i]] * (i % 3) + [[101, EOD]] for i in range(40)])
    damaged = replace(sound, bounds=changed(sound.bounds, 7, 10**9))

    with pytest.raises(FormatError, match="--eod"):
        mend(damaged, tmp_path)
    result = mend(damaged, tmp_path, eod=EOD)

    assert codes(result) == ["boundaries-order"]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]
    assert "if there were any" in result.warnings[0]


def test_documents_that_are_lost_are_counted(tmp_path):
    sound = sentences([[[100, EOD]], [], [[101], [102, EOD]], [], [[103, EOD]]])

    result = mend(replace(sound, bounds=changed(sound.bounds, 3, -1)), tmp_path, eod=EOD)

    assert result.warnings[0] == "2 documents without tokens are gone: where they were is not known"
    assert [text.split(":")[0] for text in result.warnings[1:]] == ["sentence-level"]  # of the new pair
    assert dataprep.open_dataset(tmp_path / "new").document_indices.tolist() == [0, 1, 3, 4]


def test_an_eod_inside_a_sentence_proves_no_document(tmp_path):
    sound = sentences([[[100, EOD]], [[101, EOD, 7], [102, EOD]]])

    with pytest.raises(FormatError, match="inside sequences"):
        mend(replace(sound, bounds=changed(sound.bounds, 1, 9)), tmp_path, eod=EOD)


def test_boundaries_that_are_all_shifted_are_shifted_back(tmp_path):
    sound = sentences([[[1], [2, 3]], [], [[4]]])

    assert codes(mend(replace(sound, bounds=sound.bounds + 5), tmp_path)) == ["boundaries-start"]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]


def test_empty_sequences_are_dropped(tmp_path):
    sound = sentences([[[1], [], [2, 3]], [], [[]], [[], [4]]])

    assert codes(mend(sound, tmp_path)) == ["sequences-empty"]
    new = dataprep.open_dataset(tmp_path / "new")
    assert new.lengths.tolist() == [1, 2, 1]
    assert new.document_indices.tolist() == [0, 2, 2, 2, 3]


# --- what is asked for


def test_sentences_are_joined_to_documents(tmp_path):
    documents = [[[1], [2, 3]], [], [[4]], [[5], [6], [7, EOD]]]

    result = mend(sentences(documents), tmp_path, documents=True)

    assert codes(result) == ["sentence-level"]
    joined = pair([[i for sentence in document for i in sentence] for document in documents])
    assert files(tmp_path / "new") == [joined.idx(), joined.bin()]


@pytest.mark.parametrize(
    ("held", "wanted", "made", "code"),
    [
        ("int32", "uint16", "uint16", "dtype"),
        ("uint16", "int32", "int32", "dtype"),
        ("int64", None, "int32", "dtype"),
        ("int64", "uint16", "uint16", "dtype"),
        ("uint8", None, "uint16", "dtype"),
        ("int8", "int32", "int32", "dtype"),
        ("int16", None, "uint16", "dtype-unusual"),
    ],
)
def test_tokens_get_another_dtype(tmp_path, held, wanted, made, code):
    documents = [[i + 1, i + 2, EOD] for i in range(50)]

    result = mend(pair(documents, held), tmp_path, dtype=wanted)

    assert codes(result) == [code]
    assert files(tmp_path / "new") == [pair(documents, made).idx(), pair(documents, made).bin()]


def test_negative_int16_are_the_upper_half_of_uint16(tmp_path):
    sound = pair([[40_000 + i, 65_535, EOD] for i in range(20)], "uint16")

    assert codes(mend(replace(sound, code=3), tmp_path)) == ["dtype-unusual"]
    assert files(tmp_path / "new") == [sound.idx(), sound.bin()]


@pytest.mark.parametrize(("largest", "fits"), [(65_535, True), (65_536, False)])
def test_an_id_that_does_not_fit_is_refused(tmp_path, largest, fits):
    prefix = pair([[1, 2, EOD], [largest, EOD]]).write(tmp_path / "old")

    if fits:
        assert codes(mend(prefix, tmp_path, dtype="uint16")) == ["dtype"]
        assert dataprep.open_dataset(tmp_path / "new")[1].tolist() == [largest, EOD]
    else:
        with pytest.raises(EncodeError, match="holds the id 65536, which uint16 cannot hold"):
            mend(prefix, tmp_path, dtype="uint16")


def test_floats_and_negative_ids_are_no_tokens(tmp_path):
    floats = pair([[1, 2, 3]] * 9, "float32")
    with pytest.raises(FormatError, match=r"dtype-float|dtype-code"):
        mend(floats, tmp_path)
    for ids in ([5, -1, EOD], [5, -(2**31), EOD]):
        with pytest.raises(FormatError, match="id-negative"):
            mend(overflowed(pair([ids] * 9)), tmp_path)


def test_a_sound_pair_is_left_alone(sound, tmp_path):
    result = mend(sound, tmp_path)

    assert result.changes == ()
    assert result.prefixes == (str(tmp_path / "old"),)
    dtype = sound.tokens.dtype.name
    assert mend(tmp_path / "old", tmp_path, eod=EOD, dtype=dtype, documents=True).changes == ()


def test_what_verify_calls_an_error_is_not_called_sound(tmp_path):
    with pytest.raises(FormatError, match="id-negative"):
        mend(pair([[5, -1, EOD]] * 9), tmp_path)


def test_an_index_of_another_bin_is_refused(sound, tmp_path):
    other = replace(sound, tokens=np.roll(sound.tokens, 1))

    with pytest.raises(FormatError, match=r"eod-missing.*may be of another \.bin"):
        mend(other, tmp_path, eod=EOD)


def test_a_sound_index_is_not_thrown_away(sound, tmp_path):
    with pytest.raises(FormatError, match=r"bin-size.*move the \.idx away"):
        mend(replace(sound, tokens=sound.tokens[:-50]), tmp_path, eod=EOD)
    assert "bytes; copy both files again" in str(_refusal(replace(sound, tokens=sound.tokens[:-50]), tmp_path))


def _refusal(damaged, folder):
    with pytest.raises(FormatError) as caught:
        mend(damaged, folder, eod=EOD)
    return caught.value


def test_documents_behind_the_last_one_are_not_cut_off(sound, tmp_path):
    with pytest.raises(FormatError, match=r"bin-tail.*documents, perhaps, that the .idx does not know"):
        mend(replace(sound, bin_tail=sound.bin()), tmp_path)
    assert not list(tmp_path.glob("new*"))


def test_a_tail_is_not_cut_off_where_the_last_length_may_be_wrong(sound, tmp_path):
    short = replace(sound, lengths=changed(sound.lengths, -1, sound.lengths[-1] - 1))

    with pytest.raises(FormatError, match=r"bin-tail.*no EOD proves"):
        mend(short, tmp_path)
    no_eod = pair([[i + 100, i + 200] for i in range(40)])
    with pytest.raises(FormatError, match="bin-tail"):
        mend(replace(no_eod, bin_tail=bytes(8)), tmp_path)


@pytest.mark.parametrize("head", [b"TNTIDX\0\0\1", b"MMIDIDX\0\0"])
def test_other_formats_are_named(tmp_path, head):
    (tmp_path / "old.bin").write_bytes(bytes(400))
    (tmp_path / "old.idx").write_bytes(head + struct.pack("<QBQ", 1, 4, 3) + b"\7" * 36)

    with pytest.raises(FormatError, match=r"format-foreign.*(TNTIDX|fairseq)"):
        mend(tmp_path / "old", tmp_path)


# --- where it goes


def test_names_that_are_taken_are_refused(sound, tmp_path):
    prefix = overflowed(sound).write(tmp_path / "old")
    for name in ("old", "old.bin"):
        with pytest.raises(SpecError, match="nothing is mended in place"):
            repair(prefix, tmp_path / name)
    for name in ("new.bin", "new.idx", "new.manifest.json"):
        (tmp_path / name).touch()
        with pytest.raises(SpecError, match="exists"):
            repair(prefix, tmp_path / "new")
        (tmp_path / name).unlink()
    (tmp_path / "new/cache/GPTDataset_indices").mkdir(parents=True)
    with pytest.raises(SpecError):
        repair(prefix, tmp_path / "new")
    with pytest.raises(SpecError, match="no such prefix"):
        repair(tmp_path / "nothing", tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old.bin", "old.idx"]


def test_a_missing_or_empty_bin_is_refused(sound, tmp_path):
    prefix = sound.write(tmp_path / "old")
    os.truncate(tmp_path / "old.bin", 0)
    with pytest.raises(FormatError, match="no-tokens"):
        mend(prefix, tmp_path)
    (tmp_path / "old.bin").unlink()
    with pytest.raises(FormatError, match="missing-bin"):
        mend(prefix, tmp_path)


def test_a_dry_run_writes_nothing(sound, tmp_path):
    prefix = overflowed(sound).write(tmp_path / "old")

    result = repair(prefix, tmp_path / "folder/new", dry_run=True)

    assert codes(result) == ["pointers"]
    assert not result.is_written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.bin", "old.idx"]


def test_folders_are_made_and_hostile_names_are_names(sound, workspace):
    prefix = overflowed(sound).write(workspace / "a.b% c")

    repair(prefix, workspace / "new/folder/x.y")

    assert files(workspace / "new/folder/x.y") == [sound.idx(), sound.bin()]


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_what_is_no_file_is_refused(sound, tmp_path, suffix):
    prefix = sound.write(tmp_path / "old")
    for make in (os.mkfifo, os.mkdir):
        path = prefix.with_suffix(suffix)
        path.unlink()
        make(path)
        with pytest.raises(FormatError, match="is no file"):
            repair(prefix, tmp_path / "new")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        sound.write(prefix)


def test_a_full_disk_leaves_nothing(sound, tmp_path, mounted):
    folder = mounted(tmp_path / "small", "size=16k")
    prefix = overflowed(sound).write(tmp_path / "old")
    (folder / "ballast").write_bytes(bytes(12_000))

    with pytest.raises(OutputError):
        repair(prefix, folder / "new")
    assert [path.name for path in folder.iterdir()] == ["ballast"]


@pytest.mark.parametrize("when", ["examine", "write", "verify"])
def test_ctrl_c_leaves_nothing(sound, tmp_path, when):
    class Stopping(Silent):
        def stage(self, name, total_bytes, done_bytes=0, fetch_bytes=0):
            if name == when:
                raise KeyboardInterrupt

    prefix = overflowed(sound).write(tmp_path / "old")
    with pytest.raises(KeyboardInterrupt):
        repair(prefix, tmp_path / "new", watcher=Stopping())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.bin", "old.idx"]


def test_the_tokenizer_tells_eod_and_vocabulary(tmp_path, make_tokenizer):
    folder = tmp_path / "pair"
    folder.mkdir()
    prefix = pair([[i, i + 1, 257] for i in range(50)]).write(folder / "old")
    (folder / "old.idx").unlink()

    result = mend(prefix, folder, tokenizer=str(make_tokenizer()), dtype="int32")

    assert codes(result) == ["missing-idx"]
    assert len(dataprep.open_dataset(folder / "new")) == 50
    with pytest.raises(SpecError, match="add --eod ID"):
        repair(prefix, folder / "other", Wanted(tokenizer=str(make_tokenizer(eos=None))))
    pair([[i, 260, 257] for i in range(50)]).write(folder / "old")
    with pytest.raises(FormatError, match=r"id-range: .* holds the id 260, the vocabulary has 260"):
        repair(prefix, folder / "other", Wanted(tokenizer=str(make_tokenizer())))


# --- too many sequences


@pytest.mark.parametrize("limit", [20, 54, 7])
def test_too_many_sequences_are_split(sound, tmp_path, monkeypatch, limit):
    monkeypatch.setattr("dataprep.repairs.diagnosis.MAX_SEQUENCES", limit)

    result = mend_parts(overflowed(sound), tmp_path)

    documents = [ds.document(i).tolist() for ds in map(dataprep.open_dataset, result) for i in range(ds.num_documents)]
    assert documents == some_documents()
    sizes = [len(dataprep.open_dataset(prefix)) for prefix in result]
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1


def mend_parts(damaged, folder):
    result = repair(damaged.write(folder / "old"), folder / "new")
    assert result.prefixes == tuple(str(folder / f"new-{i:05d}") for i in range(len(result.prefixes)))
    for prefix in result.prefixes:
        assert verify(prefix).ok
    return result.prefixes


@pytest.mark.parametrize("limit", [2**31 - 1, 30])
def test_parts_of_an_earlier_split_are_in_the_way(sound, tmp_path, monkeypatch, limit):
    monkeypatch.setattr("dataprep.repairs.diagnosis.MAX_SEQUENCES", limit)
    pair([[1, EOD]]).write(tmp_path / "new-00007")
    pair([[1, EOD]]).write(tmp_path / "new-7")

    with pytest.raises(SpecError, match=r"new-00007\.bin exists"):
        mend(overflowed(sound), tmp_path)


def test_a_split_cuts_between_documents(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.repairs.diagnosis.MAX_SEQUENCES", 6)
    documents = [[[1]] * count for count in (1, 3, 0, 2, 3, 3, 0, 1, 2)]

    prefixes = mend_parts(sentences(documents, "uint16"), tmp_path)

    counts = [np.diff(dataprep.open_dataset(prefix).document_indices).tolist() for prefix in prefixes]
    assert [count for part in counts for count in part] == [1, 3, 0, 2, 3, 3, 0, 1, 2]
    assert all(sum(part) <= 6 for part in counts)


def test_a_document_that_no_pair_can_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.repairs.diagnosis.MAX_SEQUENCES", 6)

    with pytest.raises(FormatError, match="a document has so many sequences"):
        mend(sentences([[[1]] * 7, [[2]]]), tmp_path)


# --- with a manifest


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A dataset with a manifest, of 60 records, some empty: its prefix."""
    folder = tmp_path_factory.mktemp("published")
    texts = [f"document {i} " + "word " * (i % 7) if i % 9 else "" for i in range(60)]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Path(dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out", settings=["policy.empty=keep"]).prefix)


@pytest.fixture
def copied(published, tmp_path):
    """A copy of it with its manifest, to be damaged."""
    folder = tmp_path / "copy"
    shutil.copytree(published.parent, folder)
    return folder / published.name


def damage(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_what_the_manifest_knows_is_kept(published, copied, tmp_path):
    pair = dataprep.open_dataset(copied)
    damage(copied.with_suffix(".idx"), 34 + 4 * len(pair), struct.pack("<q", -7))

    repair(copied, tmp_path / "new")

    assert files(tmp_path / "new") == files(published)
    manifest = manifest_of(tmp_path / "new")
    assert (manifest.command, manifest.tokenizer.name) == ("repair", "sample")
    assert manifest.options["changes"][0]["code"] == "pointers"
    assert [part.num_documents for part in manifest.parts] == [60]
    assert manifest.verification["ok"] is True
    for number in (0, 1, 59):
        assert manifest.locate(number) == manifest_of(published).locate(number)
    assert verify(tmp_path / "new").ok


def test_a_lost_index_is_proven_by_the_manifest(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(50)))
    prefix = Path(dataprep.run(str(tmp_path / "in.jsonl"), "sample", tmp_path / "out").prefix)
    before = files(prefix)
    prefix.with_suffix(".idx").unlink()

    result = repair(prefix, tmp_path / "new")  # the EOD and the dtype are the manifest's

    assert files(tmp_path / "new") == before
    assert result.warnings == ()


def test_documents_that_the_eods_do_not_tell_are_refused_by_the_manifest(copied, tmp_path):
    copied.with_suffix(".idx").unlink()

    with pytest.raises(FormatError, match=r"manifest: documents: the manifest says 60, found 53"):
        repair(copied, tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_bytes_that_are_not_those_published_are_refused(copied, tmp_path):
    damage(copied.with_suffix(".bin"), 2, b"\1")
    with pytest.raises(FormatError, match=r"manifest: checksum of \.bin"):
        repair(copied, tmp_path / "new")


def test_another_sound_index_than_the_published_one_is_refused(copied, tmp_path):
    pair = dataprep.open_dataset(copied)
    first = 34 + 12 * len(pair)
    bounds = pair.document_indices.copy()
    bounds[1] = 1 - bounds[1]
    damage(copied.with_suffix(".idx"), first, bounds.tobytes())
    for wanted in (Wanted(), Wanted(documents=True), Wanted(dtype="int32")):
        with pytest.raises(FormatError, match=r"manifest: the \.idx is sound.*move the manifest away"):
            repair(copied, tmp_path / "new", wanted)

    damage(copied.with_suffix(".idx"), 34 + 4 * len(pair), struct.pack("<q", -7))
    with pytest.raises(FormatError, match="would not be the one that was published; move the manifest away"):
        repair(copied, tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_an_unreadable_manifest_is_left_out_with_a_warning(copied, tmp_path):
    (copied.parent / "manifest.json").write_text("{")
    damage(copied.with_suffix(".idx"), 9, b"\2")

    result = repair(copied, tmp_path / "new")

    assert "cannot read the manifest" in result.warnings[0]
    assert manifest_of(tmp_path / "new").recipes == ()


def test_parts_of_a_split_know_where_their_documents_come_from(copied, tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.repairs.diagnosis.MAX_SEQUENCES", 30)

    prefixes = repair(copied, tmp_path / "new").prefixes

    manifests = [manifest_of(Path(prefix)) for prefix in prefixes]
    assert sum(manifest.parts[0].num_documents for manifest in manifests) == 60
    last = manifests[-1].parts[0].num_documents - 1
    assert manifests[-1].locate(last) == manifest_of(copied).locate(59)


# --- never wrong


def documents_of(lengths, bounds, tokens):
    """Every document as a list of sequences."""
    starts = np.cumsum(lengths) - lengths
    sequences = [tokens[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
    return [sequences[a:b] for a, b in pairwise(bounds)]


ids = st.integers(100, 60_000)
bodies = st.builds(lambda rest, last: [*rest, last], st.lists(ids | st.just(EOD), max_size=5), ids)


@st.composite
def pairs(draw):
    """Sound pairs: both dtypes, documents or sentences, with or without EOD, empty documents, EODs inside."""
    has_eod, by_sentence = draw(st.booleans()), draw(st.booleans())
    end = [EOD] if has_eod else []
    dtype = draw(st.sampled_from(["uint16", "int32"]))
    texts = draw(st.lists(st.lists(bodies, max_size=3), min_size=3, max_size=25))
    if by_sentence:
        return sentences([[*text[:-1], text[-1] + end] if text else [] for text in texts], dtype), has_eod
    return pair([[i for part in text for i in part] + end if text else [] for text in texts], dtype), has_eod


def at(draw, array):
    return draw(st.integers(0, len(array) - 1))


DAMAGES = {
    "overflow": lambda draw, p: overflowed(p, draw(st.integers(4, 10))),
    "deepspeed": lambda draw, p: deepspeed(p),
    "pointer": lambda draw, p: replace(
        p, pointers=changed(pointers(p), at(draw, p.lengths), draw(st.integers(-99, 2**40)))
    ),
    "shift": lambda draw, p: replace(
        p, pointers=pointers(p) + draw(st.integers(-9, 9)) * (np.arange(len(p.lengths)) >= at(draw, p.lengths))
    ),
    "length": lambda draw, p: replace(
        p, pointers=pointers(p), lengths=changed(p.lengths, at(draw, p.lengths), draw(st.integers(-(2**31), 2**31 - 1)))
    ),
    "lengths": lambda draw, p: replace(p, pointers=pointers(p), lengths=np.roll(p.lengths, 1)),
    "code": lambda draw, p: replace(p, code=draw(st.integers(0, 255))),
    "magic": lambda draw, p: replace(p, magic=draw(st.binary(min_size=9, max_size=9))),
    "version": lambda draw, p: replace(p, version=draw(st.integers(0, 2**64 - 1))),
    "counts": lambda draw, p: replace(
        p,
        counts=draw(
            st.tuples(st.integers(0, 2**64 - 1), st.just(len(p.bounds)))
            | st.tuples(st.just(len(p.lengths)), st.integers(0, 60))
        ),
    ),
    "big-endian": lambda draw, p: replace(p, order=">"),
    "swapped": lambda draw, p: replace(p, tokens=p.tokens.byteswap()),
    "bin-tail": lambda draw, p: replace(p, bin_tail=draw(st.binary(min_size=1, max_size=40))),
    "bin-short": lambda draw, p: replace(p, tokens=p.tokens[: at(draw, p.tokens)]),
    "idx-tail": lambda draw, p: replace(p, idx_tail=draw(st.binary(min_size=1, max_size=40))),
    "bounds-shift": lambda draw, p: replace(p, bounds=p.bounds + draw(st.integers(-5, 5))),
    "bounds-wild": lambda draw, p: replace(p, bounds=changed(p.bounds, at(draw, p.bounds), 10**9)),
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_repair_is_right_or_is_refused(tmp_path_factory, data):
    check_right_or_refused(tmp_path_factory.mktemp("pair"), data, data.draw(st.sampled_from(sorted(DAMAGES))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_repair_of_any_damage_is_right_or_is_refused(tmp_path_factory, kind, data):
    check_right_or_refused(tmp_path_factory.mktemp("pair"), data, kind)


def check_right_or_refused(folder, data, kind):
    sound, has_eod = data.draw(pairs())
    if not len(sound.lengths):
        return
    known = data.draw(st.booleans()) and has_eod
    try:
        result = mend(DAMAGES[kind](data.draw, sound), folder, eod=EOD if known else None)
    except DataprepError:
        return
    if not result.changes:  # nothing tells, and nothing was done
        return
    new = dataprep.open_dataset(result.prefixes[0])
    assert np.array_equal(new.tokens, sound.tokens)
    if any("became several" in warning for warning in result.warnings):
        assert new.lengths.tolist() == np.diff(np.flatnonzero(sound.tokens == EOD) + 1, prepend=0).tolist()
    elif any("are gone" in warning for warning in result.warnings):
        filled = [d for d in documents_of(sound.lengths, sound.bounds, sound.tokens) if d]
        assert documents_of(new.lengths, new.document_indices, new.tokens) == filled
    elif any("one each" in change.text for change in result.changes):  # as many documents as sequences, by accident
        assert new.lengths.tolist() == sound.lengths.tolist()
    else:
        assert files(Path(result.prefixes[0])) == [sound.idx(), sound.bin()]


# --- the command


def command(*arguments, cwd):
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dataprep", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def test_the_command_says_what_it_changed_and_prints_the_prefix(workspace):
    sound = pair(some_documents())
    overflowed(sound).write(workspace / "old")

    dry = command("repair", "old", "--output", "new", "--dry-run", cwd=workspace)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout.startswith("pointers: sequence ")
    done = command("repair", "old.idx", "--output", "new", cwd=workspace)

    assert (done.returncode, done.stdout) == (0, f"{workspace / 'new'}\n")
    assert done.stderr == dry.stdout
    assert files(workspace / "new") == [sound.idx(), sound.bin()]


def test_the_command_as_json(tmp_path):
    sound = pair(some_documents())
    deepspeed(sound).write(tmp_path / "old")

    done = command("repair", "old", "-o", "new", "--json", "--eod", EOD, cwd=tmp_path)

    assert done.returncode == 0
    value = json.loads(done.stdout)
    assert value["prefixes"] == [str(tmp_path / "new")]
    assert [change["code"] for change in value["changes"]] == ["eod-uncounted"]
    assert (value["warnings"], value["is_written"]) == ([], True)
    again = command("repair", "new", "-o", "other", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, f"{tmp_path / 'new'}\n")
    assert again.stderr == "nothing to repair: new is sound\n"
    pair([[1, EOD]] * 9).write(tmp_path / "whole")
    assert command("repair", "whole", "-o", "x", cwd=tmp_path).stderr == "nothing to repair: whole is sound\n"
    sentences([[[1], [2, EOD]]] * 9).write(tmp_path / "s")
    left = command("repair", "s", "-o", "x", cwd=tmp_path).stderr
    assert left.splitlines()[0].endswith("18 sequences in 9 documents; dataprep repair s --output NEW --documents")


def test_files_that_have_each_others_names_are_renamed_and_not_rebuilt(sound, tmp_path):
    prefix = sound.write(tmp_path / "old")
    (tmp_path / "old.bin").rename(tmp_path / "x")
    (tmp_path / "old.idx").rename(tmp_path / "old.bin")
    (tmp_path / "x").rename(tmp_path / "old.idx")

    with pytest.raises(FormatError, match=r"swapped: .*rename them: mv"):
        mend(prefix, tmp_path, eod=EOD, dtype="int32")
    (problem,) = verify(prefix).problems
    assert problem.code == "swapped"
    subprocess.run(problem.fix.removeprefix("rename them: "), shell=True, check=True)
    assert files(prefix) == [sound.idx(), sound.bin()]


def test_a_bin_of_another_size_is_told_in_bytes(tmp_path):
    sound = pair([[100 + i % 50] * 30_000 + [EOD] for i in range(40)])
    text = str(_refusal(replace(sound, tokens=sound.tokens[:-1]), tmp_path))
    assert "counts 1200040 tokens of 4 bytes, which are 4800160 bytes; the .bin holds 4800156 bytes" in text


def test_the_command_refuses_with_one_message(tmp_path):
    pair(some_documents()).write(tmp_path / "old")
    (tmp_path / "old.idx").unlink()

    for arguments, code, says in (
        (["old", "-o", "new"], 1, "error: old cannot be repaired: missing-idx"),
        (["old", "-o", "new", "--dtype", "int64"], 2, "expected uint16 or int32"),
    ):
        done = command("repair", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["old.bin"]


KILLED = """
import os, signal, sys
from dataprep import repairs, storage
left = [int(sys.argv[1])]
def dying(function):
    def call(*arguments, **options):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
for name in ("mkdir", "link", "rename", "replace", "fsync", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
storage.copy_range = dying(storage.copy_range)
repairs.repair("old", "new")
print(left[0])
"""


@pytest.mark.slow
def test_killed_anywhere_it_leaves_no_half_and_does_it_again(tmp_path):
    sound = pair(some_documents())
    died = 0
    for k in range(1, 100, 2):
        folder = tmp_path / str(k)
        folder.mkdir()
        overflowed(sound).write(folder / "old")
        before = files(folder / "old")
        done = subprocess.run([sys.executable, "-c", KILLED, str(k)], cwd=folder, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        died += 1
        assert files(folder / "old") == before
        whole = all((folder / f"new{suffix}").exists() for suffix in (".bin", ".idx", ".manifest.json"))
        if (folder / "new.manifest.json").exists() or whole:
            assert files(folder / "new") == [sound.idx(), sound.bin()]
        else:
            repair(folder / "old", folder / "new")
            assert files(folder / "new") == [sound.idx(), sound.bin()]
            assert sorted(path.name for path in folder.iterdir() if MARK in path.name) == []
    assert died > 5


# --- beyond 2**31 and 2**32


@pytest.mark.slow
def test_pointers_that_overflowed_for_real(tmp_path):
    lengths = np.full(7, 100_000_000)
    right = np.cumsum(lengths) * 4 - lengths * 4
    wrapped = right.astype(np.int32).astype(np.int64)  # what a writer with numpy 2 and int32 lengths makes of them
    assert int(wrapped.min()) < 0
    hole = Pair(np.empty(0, np.int32), lengths, np.arange(8), pointers=wrapped)
    hole.write(tmp_path / "old")
    with (tmp_path / "old.bin").open("wb") as file:
        file.truncate(2_800_000_000)
        for end in np.cumsum(lengths).tolist():
            file.seek(end * 4 - 4)
            file.write(struct.pack("<i", EOD))

    result = repair(tmp_path / "old", tmp_path / "new")

    assert codes(result) == ["pointers"]
    assert dataprep.open_dataset(tmp_path / "new").sequence_pointers.tolist() == right.tolist()
    assert os.stat(tmp_path / "new.bin").st_blocks * 512 < 1_000_000  # holes stay holes


def test_cuts_of_more_sequences_than_int32_counts():
    step = 300_000_007
    count = 8
    sequences = Sequences(
        step * count, count, lambda: iter(()), lambda: iter([np.arange(count + 1, dtype=np.int64) * step])
    )

    found = cuts(sequences, 2**31 - 1)

    assert found == [(0, 0), (4, 4 * step), (8, 8 * step)]


# --- what Megatron makes of it


@pytest.mark.megatron
@pytest.mark.parametrize("damage", [overflowed, deepspeed])
def test_megatrons_reader_gets_the_documents_back(sound, tmp_path, damage):
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core", reason="pip install --no-deps megatron-core==0.16.1")
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    def read(prefix):
        pairs = IndexedDataset(str(prefix))
        try:
            return [pairs[i].tolist() for i in range(len(pairs))]
        except ValueError:  # a pointer before the start of the file
            return None

    documents = [document for document in some_documents() if document]
    assert read(damage(sound).write(tmp_path / "old")) != documents

    repair(tmp_path / "old", tmp_path / "new")

    assert read(tmp_path / "new") == documents
    assert IndexedDataset(str(tmp_path / "new")).document_indices.tolist() == sound.bounds.tolist()
