"""Merge, split and sample: no document is lost, cut, changed or moved, whatever the inputs are."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dataprep
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CODES, Header, IndexedDataset, bin_path, idx_path, write_index
from dataprep.manifest import manifest_of
from dataprep.reshaping import Made, merge, sample, split
from dataprep.storage import AtomicFile

Documents = list[list[list[int]]]
"""Documents, each its sequences, each its ids."""

SEQUENCES = st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=3)
DOCUMENTS = st.lists(SEQUENCES, min_size=1, max_size=12)
DTYPES = st.sampled_from(["uint16", "int32"])


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """That files are synced is for tests/test_outputs.py; a thousand small pairs need not be."""
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
            patch.setattr(f"dataprep.selections.{constant}", data.draw(st.sampled_from([4, 8, 64]), label=constant))
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


def test_samples_of_a_large_pair(tmp_path):
    """With gaps that are read and gaps that are not, and more runs than a manifest names."""
    lengths = np.random.default_rng(0).integers(0, 40, 60_000)
    ids = np.arange(lengths.sum(), dtype=np.uint16)
    documents = [[piece] if len(piece) else [] for piece in np.split(ids, np.cumsum(lengths)[:-1])]
    prefix = _write(tmp_path / "in", documents, "uint16")
    for count in (20, 2_000, 30_000, 59_990):
        made = sample(prefix, tmp_path / f"s{count}", count, seed=1)
        pair = IndexedDataset(made.prefix)
        assert pair.num_documents == count
        parts = made.manifest.parts
        if parts[0].drawn_from is None:
            numbers = [part.start + i for part in parts for i in range(part.num_documents)]
            assert np.array_equal(
                pair.tokens, np.concatenate([ids[:0], *itertools.chain(*(documents[i] for i in numbers))])
            )
        else:
            assert (count, len(parts), parts[0].num_documents, parts[0].drawn_from) == (30_000, 1, count, 60_000)
    assert _bytes(sample(prefix, tmp_path / "all", 60_000).prefix) == _bytes(prefix)


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


# --- which inputs


def test_a_folder_and_a_glob_stand_for_their_pairs_by_name(workspace):
    for i, name in enumerate(["b", "a", "c-1", "c[2]"]):
        _write(workspace / name, [[[i]]])
    shutil.copy(workspace / "a.bin", workspace / "z.bin.tmp-1")
    (workspace / "notes.txt").write_text("x")
    (workspace / "link").symlink_to(workspace)
    order = lambda *names: [document[0][0] for document in _read(merge(names, tmp).prefix)]  # noqa: E731
    for names, expected in [
        ([workspace], [1, 0, 2, 3]),
        ([f"{workspace}/c*"], [2, 3]),
        ([f"{workspace}/*.idx"], [1, 0, 2, 3]),
        ([f"{workspace}/*"], [1, 0, 2, 3]),
        ([f"{workspace}/c[[]*", workspace / "b.idx"], [3, 0]),
        ([workspace / "c[2]"], [3]),
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


def test_eods_that_differ_are_a_warning(tmp_path, caplog):
    for name, eod in [("a", 7), ("b", 9), ("c", 7)]:
        _write(tmp_path / name, [[[1, 2, eod]]] * 5)
    with caplog.at_level(logging.WARNING):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "same")
        assert not caplog.records
        merge([tmp_path / name for name in "abc"], tmp_path / "new")
    (record,) = caplog.records
    assert f"with 7: {tmp_path / 'a'}, {tmp_path / 'c'}; with 9: {tmp_path / 'b'}" in record.getMessage()


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
        (lambda: merge([prefix], tmp_path / "old"), "is a folder"),
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
    monkeypatch.setattr("dataprep.parting.MAX_PARTS", 3)
    prefix = _write(tmp_path / "in", [[[i]] for i in range(4)])
    for way in ("documents", "tokens"):
        with pytest.raises(SpecError, match=f"--{way} 1 makes more than 3 pairs"):
            split(prefix, tmp_path / "p", **{way: 1})
    assert len(split(prefix, tmp_path / "p", tokens=2)) == 2


def test_more_sequences_than_megatron_can_count(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.reshaping.MAX_SEQUENCES", 5)
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


def _numbers(drawn: Made) -> list[int]:
    """Of the drawn documents, in the merged pair: the second dataset's begin at 24."""
    return [
        part.start + i + 24 * ("two" in Path(part.prefix).name)
        for part in drawn.manifest.parts
        for i in range(part.num_documents)
    ]
