"""What `verify` catches: every known way to break a pair, on both dtypes, at every level; and no false alarm.

Each mutation is applied to a copy of a dataset that dataprep wrote (uint16 without BOS, int32 with), and looked at four
times: by the index alone, by the tokens as well, with the tokenizer named, and with the manifest beside it. The file
mutations.txt says which codes each must give; what only the manifest catches has none.
"""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.checks.report import Expected
from dataprep.errors import DataprepError
from dataprep.repairs import repair
from dataprep.stages.verify import verify, with_tokenizer

HEADER = struct.Struct("<9sQBQQ")
DTYPES = ("uint16", "int32")


class Pair:
    """A copy of a dataset as plain arrays; `save` writes it, with a header that may say anything."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.bin, self.idx = prefix.with_name(f"{prefix.name}.bin"), prefix.with_name(f"{prefix.name}.idx")
        raw = self.idx.read_bytes()
        self.magic, self.version, self.code, self.n, self.d = HEADER.unpack(raw[:34])
        self.dtype = np.dtype({4: "<i4", 8: "<u2"}[self.code])
        self.width = self.dtype.itemsize
        self.lengths = np.frombuffer(raw, "<i4", self.n, 34).copy()
        self.pointers = np.frombuffer(raw, "<i8", self.n, 34 + 4 * self.n).copy()
        self.bounds = np.frombuffer(raw, "<i8", self.d, 34 + 12 * self.n).copy()
        self.tail = b""
        self.ids = np.fromfile(self.bin, self.dtype)

    @property
    def ends(self):
        return np.cumsum(self.lengths, dtype=np.int64) - 1

    def point(self):
        """Pointers by the lengths."""
        self.pointers = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)[:-1]]) * self.width

    def save(self, **head):
        values = {name: head.get(name, getattr(self, name)) for name in ("magic", "version", "code", "n", "d")}
        arrays = (self.lengths.astype("<i4"), self.pointers.astype("<i8"), self.bounds.astype("<i8"))
        self.idx.write_bytes(HEADER.pack(*values.values()) + b"".join(a.tobytes() for a in arrays) + self.tail)
        self.bin.write_bytes(self.ids.astype(self.dtype).tobytes())


@dataclass(frozen=True, eq=False)
class World:
    """The datasets, what a training brings, and a folder for copies."""

    prefixes: dict[str, Path]
    expect: Expected
    scratch: Path

    @property
    def eod(self):
        return self.expect.tokenizer.eod_id


@pytest.fixture(scope="module")
def world(bos_bpe, written_text, tmp_path_factory):
    """400 documents, of which number 200 is long, as uint16 without BOS and as int32 with."""
    folder = tmp_path_factory.mktemp("mutations")
    texts = [" ".join(written_text[3 * i : 3 * i + 1 + i % 7]) for i in range(1, 401)]
    texts[200] = " ".join(written_text[:300])
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prefixes = {}
    for dtype, bos in (("uint16", "never"), ("int32", "always")):
        settings = [f"policy.dtype={dtype}", f"policy.bos={bos}"]
        result = dataprep.run(str(folder / "in.jsonl"), str(bos_bpe.path), folder / dtype, settings=settings)
        prefixes[dtype] = type(folder)(result.prefix)
    return World(prefixes, with_tokenizer(Expected(), str(bos_bpe.path)), folder / "copy")


# --- the mutations: what they do to a Pair; `world` where another dataset is needed

MUTATIONS = {}


def mutation(function):
    MUTATIONS[function.__name__] = function
    return function


def many(names, make):
    """One mutation for each name and value."""
    for name, *values in names:
        MUTATIONS[name] = lambda pair, world, values=values: make(pair, *values)


def at(array, places, values):
    array = array.copy()
    array[places] = values
    return array


def set_(pair, field, places, values):
    setattr(pair, field, at(getattr(pair, field), places, values))
    pair.save()


def cut(path, size):
    data = path.read_bytes()
    path.write_bytes(data[: size if size >= 0 else len(data) + size])


# sizes of the .bin
many(
    [("bin_cut_by_a_tenth", -3000), ("bin_cut_by_a_token", -4), ("bin_cut_by_a_byte", -1), ("bin_of_no_bytes", 0)],
    lambda pair, size: cut(pair.bin, size),
)
many(
    [
        ("bin_longer_by_a_byte", b"\x01"),
        ("bin_longer_by_a_token", b"\x01\0\0\0"),
        ("bin_longer_by_a_page_of_zeros", bytes(4096)),
        ("bin_longer_by_itself", None),
    ],
    lambda pair, data: pair.bin.write_bytes(pair.bin.read_bytes() + (pair.bin.read_bytes() if data is None else data)),
)


@mutation
def bin_missing(pair, world):
    pair.bin.unlink()


@mutation
def bin_compressed(pair, world):
    pair.bin.write_bytes(gzip.compress(pair.bin.read_bytes()))


# tokens
@mutation
def bin_byte_swapped(pair, world):
    pair.bin.write_bytes(pair.ids.byteswap().tobytes())


@mutation
def bin_of_another_run(pair, world):
    pair.bin.write_bytes(np.concatenate(np.split(pair.ids, pair.ends[:-1] + 1)[::-1]).tobytes())


@mutation
def bin_of_another_tokenizer(pair, world):
    rng = np.random.default_rng(0)
    pair.ids = rng.integers(300, 900, len(pair.ids)).astype(pair.dtype)
    pair.save()


@mutation
def bin_rolled_by_a_token(pair, world):
    pair.ids = np.roll(pair.ids, 1)
    pair.save()


@mutation
def bin_halves_exchanged(pair, world):
    pair.ids = np.roll(pair.ids, len(pair.ids) // 2)
    pair.save()


@mutation
def bin_documents_exchanged(pair, world):
    starts = pair.pointers // pair.width
    i, j = (int(np.flatnonzero(pair.lengths == pair.lengths[10])[k]) for k in (0, 1))
    a, b, size = starts[i], starts[j], pair.lengths[10]
    pair.ids[a : a + size], pair.ids[b : b + size] = pair.ids[b : b + size].copy(), pair.ids[a : a + size].copy()
    pair.save()


@mutation
def a_page_written_twice(pair, world):
    page = 4096 // pair.width
    pair.ids[page : 2 * page] = pair.ids[:page]
    pair.save()


@mutation
def ids_in_the_padding(pair, world):
    set_(pair, "ids", 10_000, world.expect.tokenizer.vocab_size)


@mutation
def ids_behind_the_padding(pair, world):
    set_(pair, "ids", 10_000, 60_000)


@mutation
def ids_of_no_vocabulary(pair, world):
    set_(pair, "ids", 10_000, 65_535 if pair.width == 2 else 2**30)


@mutation
def an_id_of_minus_5(pair, world):
    set_(pair, "ids", 10_000, np.int32(-5).astype(pair.dtype))


@mutation
def ids_of_minus_1(pair, world):
    set_(pair, "ids", slice(10_000, 15_000), np.int32(-1).astype(pair.dtype))


@mutation
def eods_missing(pair, world):
    set_(pair, "ids", pair.ends, 5)


@mutation
def eods_a_frequent_word(pair, world):
    word = int(np.bincount(pair.ids).argmax())
    set_(pair, "ids", pair.ends, word)


@mutation
def eods_never_written(pair, world):
    pair.ids = np.delete(pair.ids, pair.ends)
    pair.lengths -= 1
    pair.point()
    pair.save()


@mutation
def an_eod_missing(pair, world):
    set_(pair, "ids", pair.ends[100], 5)


@mutation
def eods_of_another_kind(pair, world):
    set_(pair, "ids", pair.ends, world.eod + 1)


@mutation
def eods_inside_documents(pair, world):
    set_(pair, "ids", pair.ends[5:200:10] - 1, world.eod)


@mutation
def special_ids_inside_documents(pair, world):
    set_(pair, "ids", pair.ends[5:200:10] - 1, world.eod + 1)


@mutation
def bos_in_half_of_the_documents(pair, world):
    bos = world.expect.tokenizer.bos_id
    set_(pair, "ids", (pair.pointers // pair.width)[::2], bos if pair.width == 2 else 5)


@mutation
def a_flipped_bit_in_the_bin(pair, world):
    set_(pair, "ids", 10_000, pair.ids[10_000] ^ 1)


@mutation
def the_highest_bit_flipped_in_the_bin(pair, world):
    data = bytearray(pair.bin.read_bytes())
    data[10_000 * pair.width + pair.width - 1] ^= 0x80
    pair.bin.write_bytes(data)


@mutation
def a_page_of_zeros(pair, world):
    set_(pair, "ids", slice(4096, 4096 + 4096 // pair.width), 0)


@mutation
def a_hole_inside_a_document(pair, world):
    start = pair.pointers[200] // pair.width + 10
    set_(pair, "ids", slice(start, start + 4096 // pair.width), 0)


@mutation
def zeros_everywhere(pair, world):
    set_(pair, "ids", slice(None), 0)


# the header
many(
    [
        ("magic_wrong", {"magic": b"MMIDIDY\0\0"}),
        ("magic_of_zeros", {"magic": bytes(9)}),
        ("magic_of_fairseq_lazy", {"magic": b"TNTIDX\0\0\0"}),
        ("version_2", {"version": 2}),
        ("version_big_endian", {"version": 1 << 56}),
        *((f"dtype_code_{code}", {"code": code}) for code in (0, 1, 2, 3, 5, 6, 7, 9, 10, 255)),
        ("dtype_code_of_the_other", None),
        ("count_of_sequences_2_to_63", {"n": 2**63}),
        ("count_of_sequences_all_ones", {"n": 2**64 - 1}),
        ("count_of_boundaries_2_to_63", {"d": 2**63}),
        ("count_of_boundaries_all_ones", {"d": 2**64 - 1}),
        ("count_of_boundaries_0", {"d": 0}),
        ("count_of_sequences_0", {"n": 0}),
    ],
    lambda pair, head: pair.save(**({"code": 12 - pair.code} if head is None else head)),
)
many(
    [
        ("one_sequence_less", -1, 0),
        ("one_sequence_more", 1, 0),
        ("one_boundary_less", 0, -1),
        ("one_boundary_more", 0, 1),
        ("two_sequences_more_three_boundaries_less", 2, -3),
        ("two_sequences_less_three_boundaries_more", -2, 3),
    ],
    lambda pair, n, d: pair.save(n=pair.n + n, d=pair.d + d),
)

# the .idx as a file
many(
    [
        *((f"idx_cut_at_{size}", lambda n, size=size: size) for size in (0, 1, 9, 17, 18, 26, 33, 34)),
        ("idx_cut_at_the_pointers", lambda n: 34 + 4 * n),
        ("idx_cut_at_the_boundaries", lambda n: 34 + 12 * n),
        ("idx_cut_after_a_boundary", lambda n: 34 + 12 * n + 8),
        ("idx_cut_by_a_boundary", lambda n: -8),
        ("idx_cut_by_a_byte", lambda n: -1),
    ],
    lambda pair, edge: cut(pair.idx, edge(pair.n)),
)
many(
    [
        ("idx_longer_by_a_byte", lambda pair: 1),
        ("idx_longer_by_modes", lambda pair: pair.n),
        ("idx_longer_by_as_many_lengths", lambda pair: 4 * pair.n),
    ],
    lambda pair, count: pair.idx.write_bytes(pair.idx.read_bytes() + bytes(count(pair))),
)
many(
    [
        ("idx_numpy", b"\x93NUMPY\x01\0"),
        ("idx_gzip", b"\x1f\x8b\x08\0"),
        ("idx_zstd", b"\x28\xb5\x2f\xfd"),
        ("idx_zip", b"PK\x03\x04"),
        ("idx_parquet", b"PAR1\x15\0"),
        ("idx_arrow", b"ARROW1\0\0"),
        ("idx_json", b'{"text": "some words'),
        ("idx_text", b"Once upon a time\n"),
        ("idx_git_lfs", b"version https://git-lfs.github.com/spec/v1\n"),
    ],
    lambda pair, head: pair.idx.write_bytes(head + pair.idx.read_bytes()[len(head) :] if b"\0" in head else head * 9),
)


@mutation
def idx_missing(pair, world):
    pair.idx.unlink()


@mutation
def idx_of_fairseq(pair, world):
    arrays = pair.lengths.tobytes() + pair.pointers.tobytes()
    pair.idx.write_bytes(struct.pack("<9sQBQ", pair.magic, 1, pair.code, pair.n) + arrays)


@mutation
def idx_of_zeros(pair, world):
    pair.idx.write_bytes(bytes(pair.idx.stat().st_size))


@mutation
def idx_byte_swapped(pair, world):
    head = struct.pack(">9sQBQQ", pair.magic, 1, pair.code, pair.n, pair.d)
    pair.idx.write_bytes(head + b"".join(a.byteswap().tobytes() for a in (pair.lengths, pair.pointers, pair.bounds)))


@mutation
def idx_and_bin_exchanged(pair, world):
    data = pair.idx.read_bytes()
    pair.idx.write_bytes(pair.bin.read_bytes())
    pair.bin.write_bytes(data)


# lengths
many(
    [
        ("a_length_of_0", 100, lambda old: 0),
        ("a_length_of_minus_1", 100, lambda old: -1),
        ("a_length_of_minus_2_million", 100, lambda old: -2_000_000),
        ("a_length_of_2_to_31_less_1", 100, lambda old: 2**31 - 1),
        ("a_length_too_large_by_1", 100, lambda old: old + 1),
        ("a_length_too_small_by_1", 100, lambda old: old - 1),
        ("the_last_length_too_large_by_1", -1, lambda old: old + 1),
        ("the_last_length_too_small_by_1", -1, lambda old: old - 1),
        ("lengths_of_0", slice(None), lambda old: 0),
        ("lengths_shifted_by_a_document", slice(None), lambda old: np.roll(old, 1)),
        ("lengths_doubled", slice(None), lambda old: old * 2),
    ],
    lambda pair, where, change: set_(pair, "lengths", where, change(pair.lengths[where])),
)


@mutation
def a_document_cut_in_two(pair, world):
    pair.lengths = np.insert(pair.lengths, 100, 1)
    pair.lengths[101] -= 1
    pair.bounds = np.arange(len(pair.lengths) + 1)
    pair.point()
    pair.save(n=pair.n + 1, d=pair.d + 1)


@mutation
def an_empty_sequence(pair, world):
    pair.lengths = np.insert(pair.lengths, 100, 0)
    pair.bounds = np.arange(len(pair.lengths) + 1)
    pair.point()
    pair.save(n=pair.n + 1, d=pair.d + 1)


@mutation
def idx_of_a_reordered_run(pair, world):
    pair.lengths = np.sort(pair.lengths)
    pair.point()
    pair.save()


@mutation
def idx_of_a_shorter_run(pair, world):
    pair.lengths, pair.pointers, pair.bounds = pair.lengths[:150], pair.pointers[:150], pair.bounds[:151]
    pair.save(n=150, d=151)


@mutation
def bin_of_a_shorter_run(pair, world):
    pair.bin.write_bytes(pair.ids[: pair.ends[150] + 1].tobytes())


@mutation
def bin_of_the_other_dtype(pair, world):
    pair.bin.write_bytes(pair.ids.astype("<i4" if pair.width == 2 else "<u2").tobytes())


@mutation
def eods_that_the_lengths_leave_out(pair, world):
    pair.lengths -= 1
    pair.point()
    pair.save()


# pointers
many(
    [
        ("pointers_1_byte_on_from_200", lambda p, w: np.where(np.arange(len(p)) < 200, p, p + 1)),
        ("pointers_1_token_back_from_200", lambda p, w: np.where(np.arange(len(p)) < 200, p, p - w)),
        ("pointers_wrapped_from_200", lambda p, w: np.where(np.arange(len(p)) < 200, p, p - 2**32)),
        ("a_pointer_1_token_on", lambda p, w: at(p, 100, p[100] + w)),
        ("a_pointer_negative", lambda p, w: at(p, 100, -1)),
        ("the_first_pointer_wrong", lambda p, w: at(p, 0, w)),
        ("the_last_pointer_wrong", lambda p, w: at(p, -1, p[-1] + w)),
        ("pointers_in_tokens", lambda p, w: p // w),
        ("pointers_of_the_other_dtype", lambda p, w: p // w * (6 - w)),
        ("pointers_of_the_ends", lambda p, w: np.append(p[1:], p[-1] + w)),
        ("pointers_behind_a_header", lambda p, w: p + 34),
        ("pointers_of_0", lambda p, w: p * 0),
        ("pointers_backwards", lambda p, w: p[::-1]),
    ],
    lambda pair, change: set_(pair, "pointers", slice(None), change(pair.pointers, pair.width)),
)


# boundaries
many(
    [
        ("boundaries_from_1", lambda b: at(b, 0, 1)),
        ("boundaries_from_minus_1", lambda b: at(b, 0, -1)),
        ("boundaries_to_one_less", lambda b: at(b, -1, b[-1] - 1)),
        ("boundaries_to_one_more", lambda b: at(b, -1, b[-1] + 1)),
        ("boundaries_in_disorder", lambda b: at(b, [100, 101], b[[101, 100]])),
        ("boundaries_of_0", lambda b: b * 0),
        ("a_boundary_twice", lambda b: at(b, 100, b[101])),
        ("a_boundary_far_off", lambda b: at(b, 100, 2**62)),
        ("a_boundary_negative", lambda b: at(b, 100, -1)),
        ("boundaries_in_tokens", lambda b: b * 10),
    ],
    lambda pair, change: set_(pair, "bounds", slice(None), change(pair.bounds)),
)


@mutation
def boundaries_of_sentences(pair, world):
    pair.bounds = np.append(pair.bounds[:-1:4], pair.n)
    pair.save(d=len(pair.bounds))


@mutation
def an_empty_document(pair, world):
    pair.bounds = np.insert(pair.bounds, 100, 100)
    pair.save(d=pair.d + 1)


@mutation
def no_documents(pair, world):
    pair.bounds = pair.bounds[:0]
    pair.save(d=0)


@mutation
def no_sequences(pair, world):
    pair.lengths, pair.pointers, pair.bounds, pair.ids = (a[:0] for a in (pair.lengths,) * 4)
    pair.bounds = np.zeros(1)
    pair.save(n=0, d=1)


# --- what is said of them

LEVELS = ("index", "tokens", "tokenizer", "manifest")


@cache
def found(world: World, name: str | None, dtype: str) -> dict[str, set[str]]:
    """The codes that a mutation gives at each level; None: no mutation."""
    shutil.rmtree(world.scratch, ignore_errors=True)
    shutil.copytree(world.prefixes[dtype].parent, world.scratch)
    prefix = world.scratch / world.prefixes[dtype].name
    if name is not None:
        MUTATIONS[name](Pair(prefix), world)
    manifest = verify(prefix).codes
    (world.scratch / "manifest.json").unlink()
    codes = [verify(prefix, "index").codes, verify(prefix).codes, verify(prefix, expect=world.expect).codes, manifest]
    usual = (
        {"dtype-band"} if dtype == "int32" else set()
    )  # int32 for a vocabulary of 1,004, known by tokenizer and manifest
    return dict(zip(LEVELS, [*codes[:2], *(some - usual for some in codes[2:])], strict=True))


def expected() -> dict[tuple[str, str], list[set[str]]]:
    """mutations.txt: codes by index, tokens, tokenizer, parted by bars, the last of them for all that follow; names."""
    result = {}
    for line in Path(__file__).with_name("mutations.txt").read_text().splitlines():
        if not line.startswith(" "):
            codes = [set(part.split()) - {"-"} for part in line.split("|")]
            codes += codes[-1:] * (3 - len(codes))
            continue
        for name in line.split():
            name, _, only = name.partition(":")
            result |= {(name, dtype): codes for dtype in DTYPES if dtype.startswith(only)}
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sound_dataset_gives_no_alarm(world, dtype):
    assert found(world, None, dtype) == {level: set() for level in LEVELS}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_named(world, name, dtype):
    codes = found(world, name, dtype)

    assert [codes[level] for level in LEVELS[:3]] == expected()[name, dtype]
    assert "manifest" in codes["manifest"] or codes["manifest"] in ({"missing-bin"}, {"missing-idx"})


def test_how_many_are_caught(world):
    """The figures of dataprep/README.md."""
    outcomes = [found(world, name, dtype) for name in MUTATIONS for dtype in DTYPES]
    caught = {level: sum(bool(codes[level]) for codes in outcomes) for level in LEVELS}

    print(f"{len(MUTATIONS)} mutations, {len(outcomes)} broken pairs, caught: {caught}")
    assert set(expected()) == {(name, dtype) for name in MUTATIONS for dtype in DTYPES}
    assert caught == {"index": 222, "tokens": 258, "tokenizer": 272, "manifest": 276}


HARMLESS = {"an_empty_sequence", "bin_of_the_other_dtype"}
"""What repair makes right, though not the same: the empty sequence goes, the index follows the .bin's dtype."""


@pytest.mark.slow
@pytest.mark.parametrize(("has_manifest", "mended"), [(True, 187), (False, 149)])
def test_repair_gives_the_very_bytes_back_or_refuses(world, has_manifest, mended):
    """The figures of dataprep/README.md."""
    count = 0
    for name, dtype in ((name, dtype) for name in MUTATIONS for dtype in DTYPES):
        source = world.prefixes[dtype]
        shutil.rmtree(world.scratch, ignore_errors=True)
        shutil.copytree(source.parent, world.scratch)
        if not has_manifest:
            (world.scratch / "manifest.json").unlink()
        MUTATIONS[name](Pair(world.scratch / source.name), world)
        try:
            result = repair(world.scratch / source.name, world.scratch / "new")
        except DataprepError:
            assert not list(world.scratch.glob("new*"))
            continue
        if result.changes:
            files = [(world.scratch / f"new{suffix}").read_bytes() for suffix in (".idx", ".bin")]
            same = files == [source.with_name(source.name + suffix).read_bytes() for suffix in (".idx", ".bin")]
            assert same or name in HARMLESS, name
            count += same
    assert count == mended


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bit_flipped_in_the_index_is_caught_by_the_index_alone(world, dtype):
    shutil.rmtree(world.scratch, ignore_errors=True)
    world.scratch.mkdir()
    pair = Pair(world.prefixes[dtype])
    pair.bin, pair.idx = world.scratch / "a.bin", world.scratch / "a.idx"
    pair.save()
    original = pair.idx.read_bytes()
    for bit in [*range(9 * 8, 34 * 8, 3), *np.random.default_rng(1).integers(0, 8 * len(original), 100).tolist()]:
        data = bytearray(original)
        data[bit // 8] ^= 1 << bit % 8
        pair.idx.write_bytes(data)
        assert verify(world.scratch / "a", "index").codes, bit
