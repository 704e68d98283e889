"""`diff` says where two pairs part, and nothing that is not so."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dataprep
from dataprep import cli, differences, tables
from dataprep.differences import diff
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CODES, Header, bin_path, idx_path, write_index
from dataprep.storage import AtomicFile

Documents = list[list[list[int]]]
"""Documents, each its sequences, each its ids."""

DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=2), max_size=7)
DTYPES = st.sampled_from(["uint16", "int32"])


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """A thousand small pairs need not be durable."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def _write(prefix: Path, documents: Documents, dtype: str = "int32") -> Path:
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    bounds = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    bin_path(prefix).write_bytes(np.array(list(itertools.chain(*sequences)), dtype).tobytes())
    with AtomicFile(idx_path(prefix)) as file:
        write_index(file, Header(CODES[dtype], len(lengths), len(bounds)), lambda: [lengths], [bounds])
    return prefix


def _flat(document: list[list[int]]) -> list[int]:
    return list(itertools.chain(*document))


def _first_unequal(one: list, other: list) -> int:
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def _expected(a: Documents, b: Documents) -> tuple:
    """Relation, document, token, documents that differ, and those that only one has: by the plainest code there is."""
    if a == b:
        return "same", None, None, 0, 0, 0
    number = _first_unequal(a, b)
    only = [sum((Counter(map(json.dumps, x)) - Counter(map(json.dumps, y))).values()) for x, y in ((a, b), (b, a))]
    if number == min(len(a), len(b)):
        return "beginning", number, 0, 0, *only
    x, y = _flat(a[number]), _flat(b[number])
    token = None if x == y else _first_unequal(x, y)
    differing = sum(x != y for x, y in zip(a, b, strict=False))
    return "different" if any(only) else "reordered", number, token, differing, *only


@st.composite
def _pairs(draw) -> tuple[Documents, Documents]:
    """Documents, and the same after some changes."""
    documents = draw(DOCUMENTS)
    changed = [[list(sequence) for sequence in document] for document in documents]
    for change in draw(st.lists(st.sampled_from(["id", "insert", "remove", "shuffle", "join", "other"]), max_size=2)):
        place = draw(st.integers(0, max(0, len(changed) - 1)))
        if change == "insert":
            changed.insert(place, draw(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=2)))
        elif change == "shuffle":
            changed = draw(st.permutations(changed))
        elif change == "other":
            changed = draw(DOCUMENTS)
        elif change == "remove" and changed:
            del changed[place]
        elif change == "join" and changed:
            changed[place] = [_flat(changed[place])]
        elif change == "id" and changed and any(changed[place]):
            sequence = next(sequence for sequence in changed[place] if sequence)
            sequence[draw(st.integers(0, len(sequence) - 1))] += draw(st.integers(0, 1))
    return documents, changed


@settings(max_examples=100)
@given(pair=_pairs(), dtypes=st.tuples(DTYPES, DTYPES))
def test_what_it_says_is_what_is_so(pair, dtypes):
    a, b = pair
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences, "COPY_BYTES", 16)
        patch.setattr(differences, "CHUNK", 3)
        patch.setattr(differences, "BLOCK_DOCUMENTS", 2)
        found = diff(_write(Path(name) / "a", a, dtypes[0]), _write(Path(name) / "b", b, dtypes[1]))
    event(found.relation)
    place = (found.first.document, found.first.token) if found.first else (None, None)
    assert (found.relation, *place, found.num_differing, found.num_only_a, found.num_only_b) == _expected(a, b)
    assert found.same == (a == b)
    assert [found.a["num_tokens"], found.b["num_tokens"]] == [sum(map(len, map(_flat, side))) for side in (a, b)]
    for side, excerpt in zip((a, b), (found.first.a, found.first.b) if found.first else (), strict=False):
        document = _flat(side[found.first.document]) if found.first.document < len(side) else None
        assert (excerpt and list(excerpt.ids)) == ((document and document[:16]) or document)
    assert list(tables.difference(found.to_json()))
    json.dumps(found.to_json())


def test_a_document_larger_than_a_block(tmp_path):
    """And the ids around the first that differs, in the middle of it."""
    ids = np.random.default_rng(0).integers(0, 60_000, 700_000)
    other = ids.copy()
    other[654_321] ^= 1
    a = _write(tmp_path / "a", [[[1, 2]], [ids.tolist()], [[3]]], "uint16")
    b = _write(tmp_path / "b", [[[1, 2]], [other.tolist()], [[3]]], "int32")
    found = diff(a, b)
    assert (found.relation, found.first.document, found.first.token) == ("different", 1, 654_321)
    assert (found.num_differing, found.num_only_a, found.num_only_b) == (1, 1, 1)
    assert found.first.b.ids == tuple(other[654_313:654_337].tolist())
    assert (found.first.b.start, found.first.b.num_tokens) == (654_313, 700_000)
    shown = list(tables.difference(found.to_json()))
    assert f"[{ids[654_321]}]" in shown[4]
    assert diff(a, _write(tmp_path / "c", [[[1, 2]], [ids.tolist()], [[3]]], "int32")).same


# --- what a person sees


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A dataset of ten documents from two files."""
    folder = tmp_path_factory.mktemp("made") / "in"
    folder.mkdir()
    for name in "ab":
        texts = [f"{name} the {i} words" for i in range(5)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Path(dataprep.run(str(folder), "sample", folder / "out").prefix)


def _damaged(made: Path, folder: Path, document: int) -> Path:
    """A copy, the manifest with it, in which the second id of a document is another."""
    copy = folder / "copy"
    shutil.copytree(made.parent, copy)
    pair = dataprep.open_dataset(made)
    with bin_path(copy / made.name).open("r+b") as file:
        file.seek(int(pair.sequence_pointers[document]) + 2)
        file.write(b"\x21\x01")
    return copy / made.name


def test_a_damaged_copy_with_the_manifest_of_the_original(made, tmp_path):
    copy = _damaged(made, tmp_path, 7)
    found = diff(made, copy)
    first = found.first
    assert (found.relation, first.document, first.token, found.num_differing) == ("different", 7, 1, 1)
    assert (first.a.text, first.a.file, first.a.first_row, first.a.last_row) == (
        "b the 2 words<|endoftext|>",
        str(made.parent.parent.parent / "b.jsonl"),
        2,
        2,
    )
    assert first.b.ids[0] == first.a.ids[0]
    assert first.b.ids[1] == 0x121
    lines = list(tables.difference(found.to_json()))
    assert lines[0] == "different"
    assert "document 7, token 1 is the first that differs:" in lines
    assert f"   from {first.a.file}, record 3" in lines
    assert lines[-1] == "1 of 10 documents differ from the other one of their number; 1 are in A only, 1 in B only"


def test_a_manifest_of_other_files_names_no_source(made, tmp_path):
    """It is not needed to compare."""
    other = _write(tmp_path / made.name, [[[3, 0]], [[4, 0]]], "uint16")
    shutil.copy(made.parent / "manifest.json", tmp_path)
    found = diff(made, other)
    assert found.relation == "different"
    assert found.first.a.file.endswith("/in/a.jsonl")
    assert (found.first.b.file, found.first.b.first_row) == (None, None)


def test_a_pair_is_the_same_through_a_link(made, tmp_path):
    (tmp_path / "link").symlink_to(made.parent)
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").symlink_to(f"{made}{suffix}")
    assert diff(made, tmp_path / "link" / made.name).same
    assert diff(tmp_path / "x", made).same


def test_a_tokenizer_decodes_what_has_no_manifest(made, tmp_path):
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{_damaged(made, tmp_path / suffix, 3)}{suffix}", tmp_path / f"x{suffix}")
    assert diff(tmp_path / "x", made).first.a.text is not None, "the other's manifest names one"
    for path in made.parent.iterdir():
        if path.suffix in (".bin", ".idx"):
            shutil.copy(path, tmp_path / f"y{path.suffix}")
    assert diff(tmp_path / "x", tmp_path / "y").first.a.text is None
    assert diff(tmp_path / "x", tmp_path / "y", "sample").first.b.text == "a the 3 words<|endoftext|>"
    with pytest.raises(SpecError, match="unknown tokenizer"):
        diff(tmp_path / "x", tmp_path / "y", "nosuch")


def test_ids_that_no_tokenizer_knows(tmp_path):
    a, b = (_write(tmp_path / name, [[[1, ids]]]) for name, ids in (("a", -5), ("b", 2**31 - 1)))
    found = diff(a, b, "sample")
    assert (found.first.token, found.first.a.ids, found.first.b.ids) == (1, (1, -5), (1, 2**31 - 1))


def test_exit_codes_and_json(tmp_path):
    a = _write(tmp_path / "a", [[[1, 2]], [[3]]])
    b = _write(tmp_path / "b", [[[1, 2]], [[3]]], "uint16")
    c = _write(tmp_path / "c", [[[3]], [[1, 2]]])
    d = _write(tmp_path / "d", [[[1, 2]]])

    def run(*arguments):
        done = CliRunner().invoke(cli.app, ["--quiet", "diff", *map(str, arguments)])
        return done.exit_code, done.stdout.splitlines()

    assert run(a, f"{b}.idx") == (0, ["same  2 documents, 3 tokens, int32 and uint16"])
    code, lines = run(a, c)
    assert (code, lines[0]) == (1, "reordered")
    assert (
        lines[-1] == "2 of 2 documents differ from the other one of their number; the same documents in another order"
    )
    code, lines = run(d, a)
    assert (code, lines[3]) == (1, "A is what B begins with; there is more from document 1 on:")
    code, lines = run(a, c, "--json")
    value = json.loads("\n".join(lines))
    assert (code, value["same"], value["relation"], value["first"]["a"]["ids"]) == (1, False, "reordered", [1, 2])


def test_what_is_broken_or_not_there(tmp_path):
    a, b = (_write(tmp_path / name, [[[1, 2]], [[3]]]) for name in "ab")
    with pytest.raises(SpecError, match="no such prefix"):
        diff(a, tmp_path / "nothing")
    os.truncate(bin_path(b), 8)
    with pytest.raises(FormatError, match=r"b is broken: bin-size: .*dataprep verify"):
        diff(a, b)
    idx_path(b).write_bytes(b"nonsense")
    with pytest.raises(FormatError, match="b is broken"):
        diff(b, a)


def test_a_pair_that_is_cut_while_it_is_compared(tmp_path, monkeypatch):
    a, b = (_write(tmp_path / name, [[[1, 2]], [[3, 4]]]) for name in "ab")
    uneven = differences._first_uneven

    def cut(*args):
        os.truncate(bin_path(b), 4)
        return uneven(*args)

    monkeypatch.setattr(differences, "_first_uneven", cut)
    with pytest.raises(FormatError, match=r"b\.bin ended early"):
        diff(a, b)


@pytest.mark.slow
def test_beyond_the_32_bit_boundaries(tmp_path):
    """More than 2**32 bytes, and more than 2**31 tokens before the document that differs; the files are sparse."""
    size = 2**31 - 1
    lengths, bounds = np.array([size, 9, 9], np.int32), np.arange(4)
    for name, last in (("a", 5), ("b", 6)):
        with AtomicFile(idx_path(tmp_path / name)) as file:
            write_index(file, Header(CODES["uint16"], 3, 4), lambda: [lengths], [bounds])
        with bin_path(tmp_path / name).open("wb") as file:
            file.truncate(2 * (size + 18))
            file.seek(-4, os.SEEK_END)
            file.write(bytes([last, 0, 7, 0]))
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (found.first.document, found.first.token, found.num_differing) == (2, 7, 1)
    assert found.first.b.ids == (0, 0, 0, 0, 0, 0, 0, 6, 7)
