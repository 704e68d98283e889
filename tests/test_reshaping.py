"""Merge, split and sample: no document is lost, cut, changed or moved, whatever the inputs are."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dataprep
from dataprep import cli
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CODES, Header, IndexedDataset, bin_path, idx_path, write_index
from dataprep.layout import pair_manifest
from dataprep.manifest import Preprocess, manifest_of
from dataprep.reshaping import Made, merge, sample, split
from dataprep.reshaping.draws import Draw
from dataprep.storage import AtomicFile, checksum, write_json

Documents = list[list[list[int]]]
"""Documents, each its sequences, each its ids."""

SEQUENCES = st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=3)
DOCUMENTS = st.lists(SEQUENCES, min_size=1, max_size=12)
DTYPES = st.sampled_from(["uint16", "int32"])


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """That files are synced is for tests/test_making.py; a thousand small pairs need not be."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def _write(prefix: Path, documents: Documents, dtype: str = "int32") -> Path:
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    bounds = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    bin_path(prefix).write_bytes(np.array(list(itertools.chain(*sequences)), dtype).tobytes())
    with AtomicFile(idx_path(prefix)) as file:
        write_index(file, Header(CODES[dtype], len(lengths), len(bounds)), lambda: [lengths], [bounds])
    return prefix


def _read(prefix: str | Path) -> Documents:
    pair = IndexedDataset(prefix)
    bounds = pair.document_indices
    return [[ids.tolist() for ids in pair[int(a) : int(b)]] for a, b in itertools.pairwise(bounds)]


def _bytes(prefix: str | Path) -> tuple[bytes, bytes]:
    return bin_path(Path(prefix)).read_bytes(), idx_path(Path(prefix)).read_bytes()


def _num_tokens(documents: Documents) -> int:
    return sum(len(sequence) for document in documents for sequence in document)


def _prefixes(made: list[Made]) -> list[str]:
    return [each.prefix for each in made]


# --- what comes out


@settings(max_examples=40)
@given(inputs=st.lists(DOCUMENTS, min_size=1, max_size=4), dtype=DTYPES)
def test_a_merge_holds_the_documents_of_all(inputs, dtype):
    """And is what would have been written at once, byte for byte."""
    together = [document for documents in inputs for document in documents]
    assume(_num_tokens(together))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [_write(folder / f"in{i}", documents, dtype) for i, documents in enumerate(inputs)]
        made = merge(paths, folder / "new")
        assert _bytes(made.prefix) == _bytes(_write(folder / "direct", together, dtype))
        (entry,) = made.manifest.prefixes
        assert (entry.num_documents, entry.num_tokens) == (len(together), _num_tokens(together))
        assert dataprep.verify(made.prefix, "index").ok
        assert sum(part.num_documents for part in made.manifest.parts) == len(together)


@settings(max_examples=15)
@given(inputs=st.lists(DOCUMENTS, min_size=3, max_size=3))
def test_it_does_not_matter_what_is_merged_first(inputs):
    assume(_num_tokens(inputs[0]) and _num_tokens(inputs[2]))
    with tempfile.TemporaryDirectory() as name:
        a, b, c = (_write(Path(name) / f"in{i}", documents) for i, documents in enumerate(inputs))
        once = merge([a, b, c], Path(name) / "once")
        left = merge([merge([a, b], Path(name) / "ab").prefix, c], Path(name) / "left")
        right = merge([a, merge([b, c], Path(name) / "bc").prefix], Path(name) / "right")
        assert _bytes(once.prefix) == _bytes(left.prefix) == _bytes(right.prefix)
        assert once.manifest.parts == left.manifest.parts == right.manifest.parts


@settings(max_examples=40)
@given(documents=DOCUMENTS, dtype=DTYPES, way=st.sampled_from(["documents", "tokens", "fractions"]), data=st.data())
def test_merging_what_was_split_gives_the_same_bytes(documents, dtype, way, data):
    if way == "fractions":
        parts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
        value = [Fraction(part, sum(parts)) for part in parts]
    else:
        value = data.draw(st.integers(1, 20))
    with tempfile.TemporaryDirectory() as name:
        prefix = _write(Path(name) / "in", documents, dtype)
        try:
            made = split(prefix, Path(name) / "part", **{way: value})
        except SpecError as error:
            if not _num_tokens(documents) or "would be empty" in str(error):
                assert sorted(os.listdir(name)) == ["in.bin", "in.idx"]
                return
            raise
        parts = [_read(each) for each in _prefixes(made)]
        assert list(itertools.chain(*parts)) == documents
        if way == "documents":
            assert {len(part) for part in parts[:-1]} <= {value}
        if way == "tokens":
            _check_filled(parts, value)
        assert _bytes(merge(_prefixes(made), Path(name) / "again").prefix) == _bytes(prefix)


def _check_filled(parts: list[Documents], limit: int) -> None:
    """No part is larger than the limit, unless it is one document, and none has room for the next document."""
    for part, following in itertools.zip_longest(parts, parts[1:]):
        sizes = [size for size in (_num_tokens([document]) for document in part) if size]
        assert sum(sizes) <= limit or len(sizes) == 1
        if following is not None:
            first = next(document for document in following if _num_tokens([document]))
            assert following[0] == first, "documents without tokens stay with the one before them"
            assert sum(sizes) + _num_tokens([first]) > limit


@settings(max_examples=40)
@given(documents=DOCUMENTS, dtype=DTYPES, seed=st.integers(0, 5), data=st.data())
def test_a_sample_is_some_documents_in_their_order(documents, dtype, seed, data):
    count = data.draw(st.integers(1, len(documents)))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for constant in ("BLOCK_DOCUMENTS", "READ_BYTES", "GAP_BYTES"):
            patch.setattr(
                f"dataprep.reshaping.selections.{constant}", data.draw(st.sampled_from([4, 8, 64]), label=constant)
            )
        prefix = _write(Path(name) / "in", documents, dtype)
        try:
            made = sample(prefix, Path(name) / "new", count, seed)
        except SpecError as error:
            if "would be empty" in str(error):
                return
            raise
        numbers = [part.start + i for part in made.manifest.parts for i in range(part.num_documents)]
        assert len(numbers) == count
        assert numbers == sorted(set(numbers))
        assert _read(made.prefix) == [documents[number] for number in numbers]
        if count < len(documents):
            more = sample(prefix, Path(name) / "more", count + 1, seed).manifest.parts
            assert set(numbers) < {part.start + i for part in more for i in range(part.num_documents)}


def test_samples_of_a_large_pair(tmp_path, monkeypatch):
    """With gaps that are read and gaps that are not, and more runs than a manifest names."""
    monkeypatch.setattr("dataprep.reshaping.selections.GAP_BYTES", 4096)
    monkeypatch.setattr("dataprep.reshaping.verbs.MAX_NAMED_RUNS", 2000)
    lengths = np.random.default_rng(0).integers(0, 40, 20_000)
    ids = np.arange(lengths.sum(), dtype=np.uint16)
    documents = [[piece] if len(piece) else [] for piece in np.split(ids, np.cumsum(lengths)[:-1])]
    prefix = _write(tmp_path / "in", documents, "uint16")
    for count in (20, 1_000, 10_000, 19_990):
        made = sample(prefix, tmp_path / f"s{count}", count, seed=1)
        pair, parts = IndexedDataset(made.prefix), made.manifest.parts
        numbers = np.flatnonzero(Draw.of(1, 20_000, count).chosen(0, 20_000)).tolist()
        assert pair.num_documents == count
        assert np.array_equal(pair.tokens, np.concatenate([piece for i in numbers for piece in documents[i]]))
        if count == 10_000:
            assert (len(parts), parts[0].num_documents, parts[0].drawn_from) == (1, count, 20_000)
        else:
            assert [part.start + i for part in parts for i in range(part.num_documents)] == numbers
    assert _bytes(sample(prefix, tmp_path / "all", 20_000).prefix) == _bytes(prefix)


def test_a_split_by_fractions_is_of_tokens(tmp_path):
    """Each part ends with the document whose end is nearest, the earlier of two."""
    prefix = _write(tmp_path / "in", [[[1] * 10], [[2] * 30], [], [[3] * 20], [[4] * 40]])
    made = split(prefix, tmp_path / "p", fractions="0.2,1/5,0.6")
    assert [_num_tokens(_read(each)) for each in _prefixes(made)] == [10, 30, 60]
    assert [len(_read(each)) for each in _prefixes(made)] == [1, 2, 2]
    assert made[1].manifest.options["fractions"] == ["1/5", "1/5", "3/5"]
    assert (made[1].manifest.options["part"], made[1].manifest.options["parts"]) == (1, 3)


def test_names_of_the_parts(tmp_path):
    prefix = _write(tmp_path / "v1.5", [[[1]], [[2]]])
    made = split(prefix, tmp_path / "new" / "x.bin", documents=1)
    assert _prefixes(made) == [str(tmp_path / "new" / "x-00000"), str(tmp_path / "new" / "x-00001")]
    assert sorted(os.listdir(tmp_path / "new")) == [
        f"x-0000{i}.{suffix}" for i in range(2) for suffix in ("bin", "idx", "manifest.json")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_documents": 3}, "its parts have 5 documents, and the pair 3"),
        ({"num_documents": 0}, "its parts have 2 documents, and the pair 3"),
        ({"recipe": 9}, "a part has fewer than no documents, or a recipe that is none of the 0 there"),
        ({"recipe": -1}, "a part has .* a recipe that is none"),
    ],
)
def test_parts_that_cannot_be_those_of_the_documents(workspace, caplog, changes, message):
    whole = [_write(workspace / "a", [[[1]], [[2]]]), _write(workspace / "b", [[[3]]])]
    made = Path(merge(whole, workspace / "new").prefix)
    value = json.loads(pair_manifest(made).read_text())
    assert [part["num_documents"] for part in value["parts"]] == [2, 1]
    value["parts"][1] |= changes
    write_json(pair_manifest(made), value)

    with pytest.raises(FormatError, match=rf"new\.manifest\.json was changed, or damaged: {message}.* or remove it"):
        manifest_of(made)
    (one, two) = split(made, workspace / "part", documents=2)
    assert f"going on as if it were not there: {pair_manifest(made)}" in caplog.text
    assert [part.prefix for each in (one, two) for part in each.manifest.parts] == [str(made), str(made)]


@pytest.mark.parametrize("verb", [lambda a, new: merge([a], new), lambda a, new: sample(a, new, documents=9)])
def test_an_index_that_gets_shorter_meanwhile(workspace, monkeypatch, verb):
    _write(workspace / "a", [[[i]] for i in range(10)])

    def change_and_write(*arguments):
        _write(workspace / "a", [[[i]] for i in range(3)])
        write_index(*arguments)

    monkeypatch.setattr("dataprep.reshaping.selections.write_index", change_and_write)
    with pytest.raises(FormatError, match=r"a\.idx was changed meanwhile: \d+ entries became \d+; run again"):
        verb(workspace / "a", workspace / "new")
    assert sorted(path.name for path in workspace.glob("new*")) == []


# --- which inputs


def test_a_folder_and_a_glob_stand_for_their_pairs_by_name(workspace):
    for i, name in enumerate(["b", "a", "c-1", "c[2]"]):
        _write(workspace / name, [[[i]]])
    shutil.copy(workspace / "a.bin", workspace / "z.bin.tmp-1")
    (workspace / "notes.txt").write_text("x")
    (workspace / "link").symlink_to(workspace)
    (workspace / "b" / "cache" / "GPTDataset_indices").mkdir(parents=True)
    order = lambda *names: [document[0][0] for document in _read(merge(names, tmp).prefix)]  # noqa: E731
    for names, expected in [
        ([workspace], [1, 0, 2, 3]),
        ([f"{workspace}/c*"], [2, 3]),
        ([f"{workspace}/*.idx"], [1, 0, 2, 3]),
        ([f"{workspace}/*"], [1, 0, 2, 3]),
        ([f"{workspace}/c[[]*", workspace / "b.idx"], [3, 0]),
        ([workspace / "c[2]", workspace / "b"], [3, 0]),
    ]:
        with tempfile.TemporaryDirectory() as name:
            tmp = Path(name) / "new"
            assert order(*names) == expected
    with pytest.raises(SpecError, match=r"a comes twice: by .*/a, and by .*link/a\.bin"):
        merge([workspace / "a", workspace / "link" / "a.bin"], workspace / "new")
    with pytest.raises(SpecError, match="no indexed pair matches"):
        merge([f"{workspace}/q*"], workspace / "new")
    (workspace / "empty").mkdir()
    with pytest.raises(SpecError, match="folder without indexed pairs"):
        merge([workspace / "empty"], workspace / "new")
    with pytest.raises(SpecError, match="no such prefix"):
        merge([workspace / "q"], workspace / "new")


def test_all_broken_inputs_are_named_at_once(tmp_path):
    for name in "abcd":
        _write(tmp_path / name, [[[1, 2]], [[3]]])
    os.truncate(tmp_path / "b.bin", 8)
    (tmp_path / "c.idx").unlink()
    with pytest.raises(FormatError) as raised:
        merge(tmp_path, tmp_path / "new" / "x")
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("2 of 4 inputs are broken; nothing was written")
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [str(tmp_path / "b"), str(tmp_path / "c")]
    assert not (tmp_path / "new").exists()


def test_a_pair_without_documents_or_tokens_is_an_input(tmp_path):
    """Some shards of a filter have nothing left."""
    a, b, c = (_write(tmp_path / "a", []), _write(tmp_path / "b", [[], [[]]]), _write(tmp_path / "c", [[[5]]]))
    assert _read(merge([a, b, c], tmp_path / "new").prefix) == [[], [[]], [[5]]]
    with pytest.raises(SpecError, match="new2 would be empty: 2 documents, 0 tokens"):
        merge([a, b], tmp_path / "new2")
    with pytest.raises(SpecError, match="a holds no token; there is nothing to split"):
        split(a, tmp_path / "p", documents=5)
    with pytest.raises(SpecError, match="holds 0"):
        sample(a, tmp_path / "s", 1)


def test_modes_are_not_dropped(tmp_path):
    _write(tmp_path / "a", [[[1]], [[2]]])
    with idx_path(tmp_path / "a").open("ab") as file:
        file.write(b"\0\1")
    with pytest.raises(FormatError, match="2 bytes behind the index: the modes of multimodal data"):
        merge([tmp_path / "a"], tmp_path / "new")


@pytest.mark.parametrize("code", [1, 2, 3, 5])
def test_other_dtypes_are_named(tmp_path, code):
    _write(tmp_path / "a", [[[1]]], {1: "uint8", 2: "int8", 3: "int16", 5: "int64"}[code])
    with pytest.raises(FormatError, match=r"expected uint16 or int32"):
        merge([tmp_path / "a"], tmp_path / "new")


def test_two_dtypes(tmp_path):
    for i in range(8):
        _write(tmp_path / f"a{i}", [[[1]]], "uint16" if i < 7 else "int32")
    with pytest.raises(
        SpecError, match=r"int32: .*a7; uint16: .*a0, .*a4 and 2 more.*dataprep repair .*a0 --output NEW --dtype"
    ):
        merge([tmp_path], tmp_path / "new" / "x")


def _said(caplog) -> list[str]:
    """What our own loggers said since it was last asked."""
    found = [record.getMessage() for record in caplog.records if record.name.startswith("dataprep")]
    caplog.clear()
    return found


def test_eods_that_differ_are_a_warning(tmp_path, caplog):
    for name, eod in [("a", 7), ("b", 9), ("c", 7)]:
        _write(tmp_path / name, [[[1, 2, eod]]] * 5)
    with caplog.at_level(logging.WARNING):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "same")
        assert _said(caplog) == []
        merge([tmp_path / name for name in "abc"], tmp_path / "new")
    (said,) = _said(caplog)
    assert f"with 7: {tmp_path / 'a'}, {tmp_path / 'c'}; with 9: {tmp_path / 'b'}" in said


def test_sentences_beside_whole_documents_are_a_warning_and_their_eods_are_not(tmp_path, caplog):
    """The ends of documents are held against each other, not those of sentences."""
    whole = _write(tmp_path / "whole", [[[1, 2, 7]]] * 5)
    sentences = _write(tmp_path / "sentences", [[[1], [2], [3, 7]]] * 5)
    with caplog.at_level(logging.WARNING):
        merge([sentences, whole], tmp_path / "new")
    (said,) = _said(caplog)
    assert f"in a document ({sentences}), and others have not ({whole}). " in said
    command = said.partition("join those of one: dataprep ")[2].replace("NEW", f"{tmp_path}/joined")
    assert CliRunner().invoke(cli.app, command.split()).exit_code == 0
    assert _read(tmp_path / "joined") == [[[1, 2, 3, 7]]] * 5


def test_documents_that_come_twice_are_a_warning(tmp_path, caplog):
    """As where a glob catches what an earlier merge made."""
    for i, documents in enumerate([[[[1, 9]], [[2, 9]]], [[[3, 9]]]]):
        _write(tmp_path / f"part-{i}", documents)
    with caplog.at_level(logging.WARNING):
        merge([f"{tmp_path}/part-*"], tmp_path / "part-merged")
        assert _said(caplog) == []
        twice = merge([f"{tmp_path}/part-*"], tmp_path / "part-again")
        (said,) = _said(caplog)
        assert said.startswith("warning: 3 documents come twice, by what the manifests say, from the same records: in ")
        assert f"in {tmp_path}/part-0, {tmp_path}/part-merged, {tmp_path}/part-1. Leave some of them out" in said
        assert twice.manifest.prefixes[0].num_documents == 6, "it may be meant"
        (few, _) = split(tmp_path / "part-merged", tmp_path / "few", documents=2)
        merge([tmp_path / "part-1", few.prefix], tmp_path / "apart")
        assert _said(caplog) == []
        merge([sample(few.prefix, tmp_path / "one", 1).prefix, few.prefix], tmp_path / "more")
        (said,) = _said(caplog)
        assert "warning: 1 document comes twice" in said


def test_documents_of_one_recipe_come_twice_through_a_copy(datasets, tmp_path, caplog):
    shutil.copytree(Path(datasets[0]).parent, tmp_path / "copy")
    copy = tmp_path / "copy" / Path(datasets[0]).name
    with caplog.at_level(logging.WARNING):
        merged = merge(datasets, tmp_path / "merged")
        assert _said(caplog) == []
        merge([merged.prefix, copy], tmp_path / "new")
    (said,) = _said(caplog)
    assert "24 documents come twice" in said
    assert f"in {merged.prefix}, {copy}. " in said


def test_an_index_that_is_not_the_manifests_is_refused(datasets, tmp_path):
    """The same documents in another order: counts, sizes and, for `merge`, the .bin are what the manifest says."""
    shutil.copytree(Path(datasets[0]).parent, tmp_path / "copy")
    copy = tmp_path / "copy" / Path(datasets[0]).name
    documents = _read(copy)
    _write(copy, documents[::-1], "uint16")
    for make in (
        lambda: merge([copy], tmp_path / "new"),
        lambda: sample(copy, tmp_path / "new", 5),
        lambda: split(copy, tmp_path / "new", documents=5),
    ):
        with pytest.raises(FormatError, match=r"the input is broken.*\n.*the \.idx is not what its manifest says"):
            make()
    assert os.listdir(tmp_path) == ["copy"]


def test_a_sample_of_a_bin_that_is_not_the_manifests_is_refused(datasets, tmp_path):
    shutil.copytree(Path(datasets[0]).parent, tmp_path / "copy")
    copy = tmp_path / "copy" / Path(datasets[0]).name
    with bin_path(copy).open("r+b") as file:
        file.write(b"\2")
    with pytest.raises(FormatError, match=r"\.bin is not what its manifest says; run: dataprep verify"):
        sample(copy, tmp_path / "new", 5)
    assert os.listdir(tmp_path) == ["copy"]


def test_a_manifest_of_somebody_else_is_a_warning(tmp_path, caplog):
    paths = [_write(tmp_path / name, [[[1, 7]]]) for name in "abc"]
    (tmp_path / "manifest.json").write_text("[]")
    pair_manifest(tmp_path / "c").write_text('{"schema_version": 99}')
    with caplog.at_level(logging.WARNING):
        made = merge(paths, tmp_path / "new" / "x")
    assert [each.partition(", found")[0] for each in _said(caplog)] == [
        f"warning: going on as if it were not there: {path}: expected schema_version 1"
        for path in (tmp_path / "manifest.json", pair_manifest(tmp_path / "c"))
    ]
    assert [part.recipe for part in made.manifest.parts] == [None] * 3


# --- what is refused


@pytest.mark.parametrize("suffix", ["bin", "idx", "manifest.json"])
def test_what_exists_is_not_replaced(tmp_path, suffix):
    prefix = _write(tmp_path / "in", [[[1]], [[2]]])
    for name in ("new", "p-00007"):
        (tmp_path / f"{name}.{suffix}").symlink_to("nowhere")
    for make in (
        lambda: merge([prefix], tmp_path / "new"),
        lambda: sample(prefix, tmp_path / "new", 1),
        lambda: split(prefix, tmp_path / "p", documents=1),
    ):
        with pytest.raises(SpecError, match=rf"\.{suffix} exists; choose another --output"):
            make()
    assert len(os.listdir(tmp_path)) == 4


def test_bad_requests(tmp_path):
    prefix = _write(tmp_path / "in", [[[1, 2]], [[3]]])
    (tmp_path / "old" / "cache" / "GPTDataset_indices").mkdir(parents=True)
    new = tmp_path / "new"
    for make, said in [
        (lambda: merge([prefix], tmp_path / "in.bin"), "is one of the inputs"),
        (lambda: merge([prefix], tmp_path), "is a folder; name the pair in it"),
        (
            lambda: merge([prefix], f"{tmp_path}/dir/new/"),
            "dir/new/ is a folder; name the pair in it",
        ),
        (lambda: split(prefix, f"{tmp_path}/new/", documents=1), "new/ is a folder; name the pair in it"),
        (lambda: sample(prefix, "", 1), "--output names nothing; name the new pair"),
        (lambda: sample(prefix, os.fsdecode(b"x\xff"), 1), "the path is not UTF-8, and the manifest .* rename it"),
        (lambda: merge([prefix], tmp_path / "old"), "Megatron's indices of a dataset"),
        (lambda: split(prefix, new), "one of --documents, --tokens and --fractions"),
        (lambda: split(prefix, new, documents=1, tokens=1), "one of --documents, --tokens and --fractions"),
        (lambda: split(prefix, new, documents=0), "--documents 0: expected at least 1"),
        (lambda: split(prefix, new, tokens=-1), "--tokens -1: expected at least 1"),
        (lambda: split(prefix, new, fractions="0.5,0.4"), "add up to 0.9, expected 1"),
        (lambda: split(prefix, new, fractions="1.5,-0.5"), "each has to be above 0"),
        (lambda: split(prefix, new, fractions="half"), "expected numbers, as in 0.9,0.1"),
        (lambda: split(prefix, new, fractions="1/0"), "expected numbers"),
        (lambda: split(prefix, new, fractions=[]), "each has to be above 0"),
        (lambda: split(prefix, new, fractions="0.1,0.9"), "new-00000 would be empty: 0 documents, 0 tokens"),
        (lambda: sample(prefix, new, 0), "holds 2; draw 1 to 2"),
        (lambda: sample(prefix, new, 3), "holds 2; draw 1 to 2"),
    ]:
        with pytest.raises(SpecError, match=said):
            make()
    assert sorted(os.listdir(tmp_path)) == ["in.bin", "in.idx", "old"]


def test_indices_that_megatron_left_of_an_earlier_dataset(tmp_path):
    """It keys them by the path alone; the folder is named like the prefix."""
    prefix = _write(tmp_path / "in", [[[1, 2]], [[3]]])
    (tmp_path / "new-00001" / "cache" / "GPTDataset_indices").mkdir(parents=True)
    with pytest.raises(SpecError, match="Megatron's indices of a dataset that lay here before"):
        split(prefix, tmp_path / "new", documents=1)


def test_too_many_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.reshaping.parting.MAX_PARTS", 3)
    prefix = _write(tmp_path / "in", [[[i]] for i in range(4)])
    for way in ("documents", "tokens"):
        with pytest.raises(SpecError, match=f"--{way} 1 makes more than 3 pairs"):
            split(prefix, tmp_path / "p", **{way: 1})
    assert len(split(prefix, tmp_path / "p", tokens=2)) == 2


def test_more_sequences_than_megatron_can_count(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.reshaping.verbs.MAX_SEQUENCES", 5)
    paths = [_write(tmp_path / f"a{i}", [[[1], [2]]] * (i + 1)) for i in range(3)]
    with pytest.raises(SpecError, match=r"have 12 sequences.*holds 5 of one pair; make at least 4 pairs"):
        merge(
            [
                paths[0],
                paths[0].with_name("a1"),
                _write(tmp_path / "b", [[[1]] * 3]),
                _write(tmp_path / "c", [[[1]] * 3]),
            ],
            tmp_path / "new",
        )
    with pytest.raises(SpecError, match=r"a2 alone has 6 sequences.*dataprep split .*a2"):
        merge(paths, tmp_path / "new")
    with pytest.raises(SpecError, match=r"p-00000 would have 6 sequences"):
        split(paths[2], tmp_path / "p", documents=3)
    assert len(split(paths[2], tmp_path / "p", documents=2)) == 2


# --- what is known of the inputs goes with them


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> list[str]:
    """Two datasets of one tokenizer, each of 24 documents in two files, with rejected and empty records between."""
    prefixes = []
    for name in ("one", "two"):
        folder = tmp_path_factory.mktemp("datasets") / name
        folder.mkdir()
        for part in "ab":
            lines = [json.dumps({"text": f"{name} {part} {i} " + "word " * i}) for i in range(12)]
            lines.insert(5, json.dumps({"text": ""}))
            lines.insert(3, "no json")
            (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
        result = dataprep.run(str(folder), "sample", folder / "out", settings=["runtime.max_rejects=1"])
        prefixes.append(result.prefix)
    return prefixes


def test_documents_are_traced_through_merge_split_and_sample(datasets, tmp_path):
    one, two = datasets
    merged = merge([one, two], tmp_path / "merged")
    parts = split(merged.prefix, tmp_path / "part", documents=10)
    drawn = sample(parts[2].prefix, tmp_path / "drawn", 4, seed=2)
    again = merge([parts[3].prefix, drawn.prefix, *_prefixes(parts[:3])], tmp_path / "again")
    expected = [_shown(prefix, i) for prefix in (one, two) for i in range(24)]
    assert expected[5][1][0].endswith("/one/a.jsonl")
    order = [*range(30, 40), *_numbers(drawn), *range(30)]
    for made, numbers in ((merged, range(48)), (parts[2], range(20, 30)), (drawn, _numbers(drawn)), (again, order)):
        found = [_shown(made.prefix, i) for i in range(made.manifest.prefixes[0].num_documents)]
        assert found == [expected[number] for number in numbers]
    assert [len(made.manifest.recipes) for made in (merged, *parts, again)] == [2, 1, 1, 2, 1, 1, 2]
    assert again.manifest.tokenizer == merged.manifest.tokenizer is not None
    assert again.manifest.policy is not None
    assert dataprep.verify(again.prefix).problems == []


def _shown(prefix: str, number: int) -> tuple[list[int], tuple[str, int, int]]:
    """The ids of a document, and where its manifest says that they are from."""
    recipe, span, i = manifest_of(Path(prefix)).locate(number)
    place = recipe.files[span.file].path, span.first_row, i
    return IndexedDataset(prefix).document(number).tolist(), place


def test_documents_that_were_dealt_out_are_led_to_their_input_alone(datasets, tmp_path):
    """`preprocess --partitions` deals them out: their run lengths are not in the pair's order."""
    documents = _read(datasets[0])
    prefix = _write(tmp_path / "dealt", documents[0::2] + documents[1::2], "uint16")
    manifest = manifest_of(Path(datasets[0]))
    (entry,) = manifest.prefixes
    sums = {"bin_checksum": checksum(bin_path(prefix)), "idx_checksum": checksum(idx_path(prefix))}
    entry = entry.model_copy(update={"name": "dealt", "files": entry.files.model_copy(update=sums)})
    changes = {"prefixes": (entry,), "preprocess": Preprocess(partitions=2)}
    write_json(pair_manifest(prefix), manifest.model_copy(update=changes).to_json())
    assert [_shown(str(prefix), i) for i in (1, 12)] == [_shown(datasets[0], i) for i in (2, 1)]

    merged = merge([datasets[1], prefix], tmp_path / "merged")
    (found,) = dataprep.where(merged.prefix, 25)["documents"]
    assert found == {"document": 25, "source": None, "input": {"prefix": str(prefix), "document": 1}}
    assert merged.manifest.tokenizer is not None


def _numbers(drawn: Made) -> list[int]:
    """Of the drawn documents, in the merged pair: the second dataset's begin at 24."""
    return [
        part.start + i + 24 * ("two" in Path(part.prefix).name)
        for part in drawn.manifest.parts
        for i in range(part.num_documents)
    ]


@pytest.fixture
def recipes(datasets) -> list:
    """A recipe, and others that differ from it in one thing each."""
    recipe = manifest_of(Path(datasets[0])).recipe
    tokenizer, policy = recipe.tokenizer, recipe.policy
    return [recipe] + [
        recipe.model_copy(update=change)
        for change in (
            {"tokenizer": tokenizer.model_copy(update={"name": "other", "files": {"tokenizer.json": "0" * 64}})},
            {"tokenizer": tokenizer.model_copy(update={"files": {"tokenizer.json": "0" * 64}})},
            {"policy": policy.model_copy(update={"bos": "always"})},
            {"policy": policy.model_copy(update={"eod": "none"})},
            {"policy": policy.model_copy(update={"bos": "never", "dtype": "int32"})},
        )
    ]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (1, "tokenizers sample and other"),
        (2, r"tokenizers tokenizer\.json \w{12} and tokenizer\.json 000000000000"),
        (3, "bos not written and written"),
        (4, "eod append and none"),
        (5, None),
    ],
)
def test_tokenizers_and_policies_that_do_not_go_together(tmp_path, recipes, other, said):
    """The dtype asked for is no difference, and neither is how the same BOS was asked for."""
    for name, recipe in (("a", recipes[0]), ("b", recipes[other])):
        made = merge([_write(tmp_path / f"{name}-in", [[[1, 0]], [[2, 0]]])], tmp_path / name)
        parts = tuple(part.model_copy(update={"recipe": 0}) for part in made.manifest.parts)
        manifest = made.manifest.model_copy(update={"recipes": (recipe,), "parts": parts})
        write_json(pair_manifest(tmp_path / name), manifest.to_json())
    if said is None:
        assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "new").manifest.tokenizer == recipes[0].tokenizer
        return
    with pytest.raises(SpecError, match=rf"{tmp_path / 'a'} and {tmp_path / 'b'} do not go together: {said}\. Build"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "new")
    assert not idx_path(tmp_path / "new").exists()


# --- sizes


def _sparse(prefix: Path, lengths: list[int], dtype: str = "int32") -> Path:
    """A pair of documents of these lengths, of zeros but for a 7 at the end of each; a file of holes."""
    array, size = np.array(lengths, np.int32), np.dtype(dtype).itemsize
    with AtomicFile(idx_path(prefix)) as file:
        bounds = np.arange(len(array) + 1)
        write_index(file, Header(CODES[dtype], len(array), len(array) + 1), lambda: [array], [bounds])
    with bin_path(prefix).open("wb") as file:
        for end in np.cumsum(array, dtype=np.int64).tolist():
            file.seek((end - 1) * size)
            file.write(np.array([7], dtype).tobytes())
    return prefix


def _is_sparse(prefix: str | Path) -> bool:
    return bin_path(Path(prefix)).stat().st_blocks * 512 < 1 << 20


BORDERS = [2**31 - 4, 2**31, 2**31 + 4, 2**32 - 4, 2**32, 2**32 + 4, 2**33, 2**33 + 8]
"""Where documents of the sparse pairs begin, in bytes."""


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_pointers_at_the_32_bit_boundaries(tmp_path, monkeypatch, dtype):
    """Of bytes and of tokens, in the first input and in a later one; nothing is read but the indices."""
    unread = "xxh3_128:" + "0" * 32

    def verify(prefix, level, expect, parts, progress):
        report = dataprep.verify(prefix, "index", expect)
        report.bin_checksum = unread
        return report

    monkeypatch.setattr("dataprep.reshaping.making.verify", verify)
    monkeypatch.setattr(
        "dataprep.reshaping.verbs.stretches", lambda prefix, ends, watcher: ([unread] * len(ends), unread)
    )
    size = np.dtype(dtype).itemsize
    lengths = (np.diff([0, *BORDERS]) // size).tolist()
    a, b = _sparse(tmp_path / "a", lengths, dtype), _sparse(tmp_path / "b", [1, *lengths[:2]], dtype)
    made = merge([a, b], tmp_path / "new")
    pair, end = IndexedDataset(made.prefix), BORDERS[-1]
    assert pair.sequence_pointers.tolist() == [0, *BORDERS, end + size, end + size + BORDERS[0]]
    assert pair.num_tokens == (end + size + BORDERS[1]) // size > 2**31
    assert made.manifest.prefixes[0].files.bin_bytes == pair.num_tokens * size
    assert [int(pair[i][-1]) for i in range(len(pair))] == [7] * len(pair)
    assert _is_sparse(made.prefix)
    for limit in {2**31 // size, 2**32 // size, 2**31}:
        parts = split(made.prefix, tmp_path / f"p{limit}", tokens=limit)
        assert _bytes_of_idx(merge(_prefixes(parts), tmp_path / f"m{limit}")) == _bytes_of_idx(made)
    seed, number = _draw_of_a_small_document(pair)
    drawn = sample(made.prefix, tmp_path / "drawn", 1, seed)
    assert pair.sequence_pointers[number] > 2**32
    assert IndexedDataset(drawn.prefix)[0].tolist() == pair[number].tolist()


def _draw_of_a_small_document(pair: IndexedDataset) -> tuple[int, int]:
    """A seed that draws a document behind 2**32 bytes that is not gigabytes itself, and its number."""
    small = np.flatnonzero((pair.lengths < 10) & (pair.sequence_pointers > 2**32))
    for seed in range(1000):
        (number,) = np.flatnonzero(Draw.of(seed, len(pair), 1).chosen(0, len(pair)))
        if number in small:
            return seed, int(number)
    raise AssertionError("no seed draws one")


def _bytes_of_idx(made: Made) -> bytes:
    return idx_path(Path(made.prefix)).read_bytes()


@pytest.mark.slow
def test_beyond_the_32_bit_boundaries_with_all_proofs(tmp_path):
    a = _sparse(tmp_path / "a", [2**29, 2])
    for suffix in (".bin", ".idx"):
        os.link(f"{a}{suffix}", tmp_path / f"b{suffix}")
    made = merge([a, tmp_path / "b", _sparse(tmp_path / "c", [3])], tmp_path / "new")
    assert made.manifest.verification["num_with_eod"] == 5
    assert IndexedDataset(made.prefix).sequence_pointers.tolist() == [0, 2**31, 2**31 + 8, 2**32 + 8, 2**32 + 16]
    assert _is_sparse(made.prefix)


@pytest.mark.slow
def test_two_thousand_inputs_take_little_memory_and_few_open_files(tmp_path):
    """A million documents; tools that keep Python objects for each take gigabytes per ten million."""
    _write(tmp_path / "x", [[[1, 2, 0]]] * 500, "uint16")
    for i in range(2000):
        for suffix in (".bin", ".idx"):
            os.link(tmp_path / f"x{suffix}", tmp_path / f"in{i:04d}{suffix}")
    script = """
import re, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
import dataprep
made = dataprep.merge(sys.argv[1], sys.argv[2])
print(made.manifest.prefixes[0].num_documents, re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
    command = [sys.executable, "-c", script, f"{tmp_path}/in*", str(tmp_path / "new")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    documents, kilobytes = map(int, done.stdout.split())
    assert documents == 2000 * 500
    assert kilobytes < 200_000


# --- the command line


def test_the_commands(tmp_path):
    prefix = _write(tmp_path / "in", [[[1, 2]], [[3]], [[4]]])

    def run(*arguments) -> tuple[int, list[str]]:
        done = CliRunner().invoke(cli.app, ["--quiet", *map(str, arguments)])
        return done.exit_code, done.stdout.splitlines()

    parts = [f"{tmp_path}/part-0000{i}" for i in range(2)]
    assert run("split", prefix, "--output", tmp_path / "part", "--tokens", 2) == (0, parts)
    assert run("merge", *parts, "-o", tmp_path / "new") == (0, [f"{tmp_path}/new"])
    code, lines = run("sample", prefix, "-o", tmp_path / "few", "--documents", 2, "--seed", 3, "--json")
    value = json.loads("\n".join(lines))
    assert (code, value["prefix"]) == (0, f"{tmp_path}/few")
    assert value["manifest"] == json.loads(pair_manifest(tmp_path / "few").read_text())
    assert value["manifest"]["options"] == {"input": str(prefix), "documents": 2, "seed": 3}
    code, lines = run("split", prefix, "-o", tmp_path / "f", "--fractions", "0.5,0.5", "--json")
    assert [each["prefix"] for each in json.loads("\n".join(lines))] == [f"{tmp_path}/f-00000", f"{tmp_path}/f-00001"]


@pytest.mark.megatron
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatrons_builder_merges_to_the_same_bytes(tmp_path, dtype):
    """Its `IndexedDatasetBuilder.add_index`, which tools/merge_datasets.py calls."""
    pytest.importorskip("torch")
    indexed_dataset = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    draw = np.random.default_rng(0)
    paths = []
    for i in range(9):
        documents = [
            [draw.integers(0, 60_000, draw.integers(0, 9)).tolist() for _ in range(draw.integers(0, 4))]
            for _ in range(i)
        ]
        paths.append(_write(tmp_path / f"in{i}", [*documents, [[1]]], dtype))
    builder = indexed_dataset.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.dtype(dtype).type)
    for path in paths:
        builder.add_index(str(path))
    builder.finalize(str(tmp_path / "theirs.idx"))
    assert _bytes(merge(paths, tmp_path / "ours").prefix) == _bytes(tmp_path / "theirs")
