"""`dataprep.cuts`, and datasets of several prefixes: where they are cut, and that all that reads them knows."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dataprep
from dataprep import cuts, planning, runner
from dataprep.checks.scan import Proof
from dataprep.cli import app
from dataprep.copies import copy
from dataprep.cuts import Cuts
from dataprep.errors import OutputError, SourceError, SpecError
from dataprep.indexed import IndexedDataset, IndexWriter, bin_path, idx_path
from dataprep.journal import Merged
from dataprep.layout import Layout
from dataprep.manifest import Counts, PairFiles, Slice, SliceRows, Unit, UnitManifest, manifest_of
from dataprep.outputs import datasets, status
from dataprep.prefixes import find_prefixes
from dataprep.reshaping.inputs import find_inputs
from dataprep.stages import merge
from dataprep.stages.verify import verify, verify_all
from dataprep.storage import AtomicFile
from dataprep.watcher import Silent

SETTINGS = ("runtime.workers=2", "runtime.unit_bytes=2000", "runtime.max_rejects=1")


def _starts(lengths: list[int], limit: int, chunk: int = 1000) -> list[int]:
    found = Cuts(limit)
    for start in range(0, len(lengths), chunk):
        found.add(np.array(lengths[start : start + chunk], np.int64))
    assert found.num_documents == len(lengths)
    assert found.num_tokens == sum(lengths)
    return [found.documents(number)[0] for number in range(len(found))]


def _reference(lengths: list[int], limit: int) -> list[int]:
    """Document by document, as it is said."""
    starts, size, count = [0], 0, 0
    for number, length in enumerate(lengths):
        if (length and size and size + length > limit) or count == cuts.MAX_DOCUMENTS:
            starts.append(number)
            size = count = 0
        size, count = size + length, count + 1
    return starts


@pytest.mark.parametrize(
    ("lengths", "starts"),
    [
        ([], [0]),
        ([4, 6], [0]),  # exactly full
        ([4, 6, 1], [0, 2]),
        ([4, 7, 3], [0, 1]),
        ([25], [0]),  # larger than the limit, alone
        ([3, 25, 3], [0, 1, 2]),
        ([25, 26, 27], [0, 1, 2]),
        ([10, 0, 0, 1], [0, 3]),  # what is empty never begins a prefix
        ([0, 0, 25, 0, 1, 0], [0, 4]),
        ([10, 10, 0], [0, 1]),
        ([0, 0, 0], [0]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_exact_cuts(lengths, starts, chunk):
    assert _starts(lengths, 10, chunk) == starts == _reference(lengths, 10)


@given(
    lengths=st.lists(st.integers(0, 12), max_size=60),
    limit=st.integers(1, 30),
    chunk=st.integers(1, 61),
    most=st.integers(1, 20),
)
@settings(max_examples=200, deadline=None)
def test_cuts_are_those_of_a_loop_however_lengths_come(lengths, limit, chunk, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "MAX_DOCUMENTS", most)
        assert _starts(lengths, limit, chunk) == _reference(lengths, limit)


@given(
    lengths=st.lists(st.integers(0, 12), max_size=60),
    limit=st.integers(1, 30),
    ends=st.tuples(st.integers(0, 700), st.integers(0, 700)),
)
@settings(max_examples=100, deadline=None)
def test_a_split_range_is_that_range(lengths, limit, ends):
    found = Cuts(limit)
    found.add(np.array(lengths, np.int64))
    start, stop = sorted(min(end, found.num_tokens) for end in ends)
    place = start
    for number, first, end in found.split(start, stop):
        begin, behind = found.tokens(number)
        assert begin + first == place < begin + end <= behind
        place = begin + end
    assert place == stop


def test_what_is_undone_leaves_nothing():
    found = Cuts(10)
    found.add(np.array([6, 6], np.int64))
    mark = found.mark()
    found.add(np.array([6, 9, 9], np.int64))
    found.undo(mark)
    found.add(np.array([4, 1], np.int64))
    assert [found.documents(i) for i in range(len(found))] == [(0, 1), (1, 3), (3, 4)]


def test_positions_are_64_bits():
    found = Cuts(2**31)
    found.add(np.full(4, 2**31 - 1, np.int64))
    found.add(np.full(2, 2**30, np.int64))
    assert [found.tokens(i)[0] for i in range(len(found))] == [(2**31 - 1) * i for i in range(5)]


def test_a_prefix_is_full_before_its_boundaries_do_not_fit(monkeypatch):
    """2**31 - 2 documents, counted without having them."""
    found = Cuts()
    found.add(np.array([1], np.int64))
    monkeypatch.setattr(found, "num_documents", 2**31 - 4)
    found.add(np.array([1, 1, 1, 1], np.int64))
    assert [found.documents(i) for i in range(len(found))] == [(0, 2**31 - 2), (2**31 - 2, 2**31)]


def test_too_many_prefixes_are_said(monkeypatch):
    monkeypatch.setattr(cuts, "MAX_PREFIXES", 3)
    with pytest.raises(OutputError, match=r"3 prefixes.*max_prefix_bytes"):
        _starts([5] * 4, 5)


# --- runs


@pytest.fixture
def small_flushes(monkeypatch):
    monkeypatch.setattr(merge, "FLUSH_BYTES", 512)
    monkeypatch.setattr(merge, "MAX_WAITING", 1)


def _write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def _some_texts(number: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["ab " * draw.choice([0, 1, 2, 5, 20, 90]) for _ in range(number)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = _write(tmp_path_factory.mktemp("corpus") / "c.jsonl", _some_texts(300))
    with path.open("a") as file:
        file.write("no json\n")
    return path


def _run(corpus: Path, output: Path, *more: str) -> runner.Result:
    request = planning.resolve([str(corpus)], "sample", output, settings=[*SETTINGS, *more])
    return runner.execute(request, Silent())


def _files(result: runner.Result) -> list[tuple[str, bytes, bytes]]:
    """Names and contents, in order."""
    return [
        (Path(prefix).name, bin_path(Path(prefix)).read_bytes(), idx_path(Path(prefix)).read_bytes())
        for prefix in result.prefixes
    ]


def _documents(*prefixes: str) -> list[list[int]]:
    pairs = [IndexedDataset(prefix) for prefix in prefixes]
    return [pair.document(i).tolist() for pair in pairs for i in range(pair.num_documents)]


@pytest.mark.parametrize("empty", [pytest.param("drop", marks=pytest.mark.slow), "keep", "sequence"])
def test_several_prefixes_hold_what_one_would(inline_cluster, small_flushes, corpus, tmp_path, empty):
    policy = f"policy.empty={empty}"
    whole = _run(corpus, tmp_path / "whole", policy)
    several = _run(corpus, tmp_path / "several", policy, "output.max_prefix_bytes=1000")
    names = [f"c_{i:05d}_text_document" for i in range(len(several.prefixes))]
    assert len(names) > 5
    assert [name for name, *_ in _files(several)] == names
    assert several.prefix == several.prefixes[0]
    documents = _documents(whole.prefix)
    assert _documents(*several.prefixes) == documents
    starts = _reference([len(document) for document in documents], 1000 // 2)
    entries = several.manifest.prefixes
    assert [0, *np.cumsum([entry.num_documents for entry in entries]).tolist()] == [*starts, len(documents)]
    assert max(entry.files.bin_bytes for entry in entries) <= 1000
    assert several.manifest.counts == whole.manifest.counts
    assert several.manifest.lengths == whole.manifest.lengths
    folder = Path(several.prefix).parent
    assert find_prefixes(folder) == find_inputs([folder]) == [Path(prefix) for prefix in several.prefixes]
    assert all(report.ok for report in verify_all(several.prefixes))
    shares = [line.split() for line in Path(several.data_args).read_text().splitlines()]
    assert [prefix for _, prefix in shares] == list(several.prefixes)
    total = several.manifest.counts.num_tokens
    assert [float(share) for share, _ in shares] == pytest.approx([e.num_tokens / total for e in entries], abs=1e-9)
    (run,) = status(tmp_path / "several")
    assert run["prefix"] == several.prefix
    listed = CliRunner().invoke(app, ["list", "datasets", "--output", str(tmp_path / "several")])
    assert listed.stdout.startswith(f"{several.prefix} and {len(names) - 1} more  ")
    (entry,) = datasets(tmp_path / "several")
    assert (entry["prefix"], entry["prefixes"]) == (several.prefix, list(several.prefixes))


def test_one_prefix_is_called_as_ever(inline_cluster, corpus, tmp_path):
    plain = _run(corpus, tmp_path / "plain")
    roomy = _run(corpus, tmp_path / "roomy", "output.max_prefix_bytes=1GB")
    assert _files(plain) == _files(roomy)
    assert plain.manifest.recipe_digest != roomy.manifest.recipe_digest
    assert roomy.data_args is None
    assert Path(roomy.prefix).name == "c_text_document"


@pytest.mark.slow
@given(
    seed=st.integers(0, 99),
    limit=st.integers(2, 1500),
    unit_bytes=st.integers(50, 4000),
    flush=st.sampled_from([64, 512, 1 << 20]),
)
@settings(max_examples=5, deadline=None)
def test_neither_units_nor_ranges_decide(tmp_path_factory, seed, limit, unit_bytes, flush):
    folder = tmp_path_factory.mktemp("any")
    corpus = _write(folder / "c.jsonl", [*_some_texts(40, seed), "end"])
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "FLUSH_BYTES", flush)
        for number, more in enumerate((f"runtime.unit_bytes={unit_bytes}", "runtime.unit_bytes=1GB")):
            settings = ["runtime.workers=2", f"output.max_prefix_bytes={limit}", "policy.empty=keep", more]
            found.append(_files(_run_with(corpus, folder / str(number), settings)))
    whole = _run_with(corpus, folder / "whole", ["runtime.workers=1", "policy.empty=keep"])
    assert found[0] == found[1]
    assert b"".join(data for _, data, _ in found[0]) == bin_path(Path(whole.prefix)).read_bytes()
    lengths = [len(document) for document in _documents(whole.prefix)]
    assert len(found[0]) == len(_reference(lengths, limit // 2))


def _run_with(corpus: Path, output: Path, settings: list[str]) -> runner.Result:
    return runner.execute(planning.resolve([str(corpus)], "sample", output, settings=settings), Silent())


# --- runs that die


class Power:
    """Fails at the k-th copy, sync or rename below a folder, and from then on."""

    def __init__(self, folder: Path, first: int) -> None:
        self.folder, self.first, self.count = str(folder), first, 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("fdatasync", "fsync", "rename", "ftruncate", "replace"):
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.fspath(args[0])
            if path.startswith(self.folder) and "merged-" in path:
                self.count += 1
                if self.count > self.first:
                    raise OSError(5, "power failure")
            return original(*args, **options)

        return call


@pytest.mark.slow
def test_killed_at_any_call_it_goes_on_where_it_was(inline_cluster, small_flushes, tmp_path):
    corpus = _write(tmp_path / "c.jsonl", _some_texts(40))
    _kill_at_any_call(corpus, tmp_path, ["output.max_prefix_bytes=500", "runtime.workers=1", "runtime.unit_bytes=700"])


def _kill_at_any_call(corpus: Path, folder: Path, more: list[str]) -> None:
    counter = Power(folder / "whole", 10**9)
    with pytest.MonkeyPatch.context() as patch:
        counter.install(patch)
        right = _run_with(corpus, folder / "whole", more)
    expected = _files(right)
    assert len(expected) > 3
    assert counter.count > 20
    for first in range(0, counter.count, 4):
        output = folder / str(first)
        with pytest.MonkeyPatch.context() as patch:
            Power(output, first).install(patch)
            with pytest.raises(OutputError, match="power failure"):
                _run_with(corpus, output, more)
        assert not list(output.glob("*/manifest.json"))
        assert _files(_run_with(corpus, output, more)) == expected
        assert not list(output.glob("work/*/merged*"))


def _stop_behind_the_merge(corpus: Path, output: Path, *more: str) -> Path:
    def stop(*_: Any) -> None:
        raise OutputError("power failure")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "prove", stop)
        with pytest.raises(OutputError, match="power failure"):
            _run(corpus, output, *more)
    (folder,) = output.glob("work/*/merged-*/dataset")
    return folder


@pytest.mark.parametrize("number", [0, 3])
def test_damage_in_any_prefix_is_found_and_mended(inline_cluster, small_flushes, corpus, tmp_path, number):
    limit = "output.max_prefix_bytes=1000"
    expected = _files(_run(corpus, tmp_path / "right", limit))
    folder = _stop_behind_the_merge(corpus, tmp_path / "out", limit)
    path = sorted(folder.glob("*.bin"), key=lambda path: (path.name != "c_text_document.bin", path.name))[number]
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"\xff\xff\xff\xff")
    units = len(list((tmp_path / "out").glob("work/*/shards/*.json")))
    assert units == 0
    assert _files(_run(corpus, tmp_path / "out", limit)) == expected


def test_the_first_of_several_has_its_final_name_already(inline_cluster, small_flushes, corpus, tmp_path, monkeypatch):
    """A run that died when it had given it that one."""
    limit = "output.max_prefix_bytes=1000"
    expected = _files(_run(corpus, tmp_path / "right", limit))
    folder = _stop_behind_the_merge(corpus, tmp_path / "out", limit)
    (folder / "c_text_document.bin").rename(folder / "c_00000_text_document.bin")

    def forbidden(*_: Any) -> None:
        raise AssertionError("a unit is copied again")

    monkeypatch.setattr("dataprep.merging.copy", forbidden)
    assert _files(_run(corpus, tmp_path / "out", limit)) == expected


def test_a_shard_that_a_cut_parts_is_proven_as_a_whole():
    data = bytes(range(100))
    pieces = data[:30], data[30:80], b"", data[80:]
    parts = [(end, _checksum(piece)) for end, piece in zip((30, 80, 80, 100), pieces, strict=True)]
    for sizes in ((100,), (50, 50), (30, 1, 69), (10,) * 10):
        for wrong in (None, 10, 60, 99):
            changed = bytearray(data)
            if wrong is not None:
                changed[wrong] ^= 1
            proof, start = Proof(parts, continues=True), 0
            for size in sizes:
                proof.add(memoryview(changed)[start : start + size])
                start += size
            proof.finish()
            assert proof.wrong == ([] if wrong is None else [_part_of(parts, wrong)])
    short = Proof(parts, continues=True)
    short.add(memoryview(data)[:79])
    short.finish()
    assert short.wrong == [(1, 80), (2, 80), (3, 100)]


def _part_of(parts: list[tuple[int, str]], place: int) -> tuple[int, int]:
    number = next(i for i, (end, _) in enumerate(parts) if place < end)
    return number, parts[number][0]


def _checksum(data: bytes) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


# --- without a merge

UNMERGED = ("output.merge=false", "output.max_prefix_bytes=2000", "runtime.max_rejects=1")


def _starts_of_units(units: list[list[int]]) -> list[int]:
    found = Cuts(by_unit=True)
    for unit in units:
        found.add(np.array(unit, np.int64))
        found.end_unit()
    return [found.documents(number)[0] for number in range(len(found))]


@pytest.mark.parametrize(
    ("units", "starts"),
    [
        ([[1, 2], [3]], [0, 2]),
        ([[1], [], [0, 0], [2]], [0, 3]),
        ([[0, 0], [0, 4], [0]], [0]),
        ([[5], [0, 1, 1], [0]], [0, 2]),
    ],
)
def test_every_unit_with_tokens_begins_a_prefix(units, starts):
    assert _starts_of_units(units) == starts


def _linked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that copies copy."""
    copied: list[int] = []

    def counted(item, report):
        copied.append(sum(stop - start for _, start, stop in item.pieces))
        copy(item, report)

    monkeypatch.setattr("dataprep.merging.copy", counted)
    return copied


@pytest.mark.parametrize("more", [("runtime.workers=1",), ("runtime.workers=3", "policy.empty=keep")])
def test_unmerged_shards_are_the_prefixes(inline_cluster, small_flushes, corpus, tmp_path, monkeypatch, more):
    copied = _linked(monkeypatch)
    made = _run_with(corpus, tmp_path / "out", [*UNMERGED, *more])
    policy = [setting for setting in more if setting.startswith("policy")]
    whole = _run_with(corpus, tmp_path / "whole", [*policy, "runtime.workers=2", "runtime.max_rejects=1"])
    assert len(copied) > len(made.prefixes) > 5
    assert sum(copied) == bin_path(Path(whole.prefix)).stat().st_size  # of the one that is whole
    assert _documents(*made.prefixes) == _documents(whole.prefix)
    assert all(report.ok for report in verify_all(made.prefixes))
    assert Path(made.data_args).is_file()
    assert not list((tmp_path / "out").glob("work/*/shards/*"))


def test_unmerged_units_are_the_recipes(corpus, tmp_path):
    with pytest.raises(SpecError, match=r"runtime\.unit_bytes"):
        _run_with(corpus, tmp_path, [*UNMERGED, "runtime.unit_bytes=100"])
    made = [_run_with(corpus, tmp_path / str(n), [*UNMERGED, f"runtime.workers={n}"]) for n in (1, 3)]
    assert _files(made[0]) == _files(made[1])


def test_without_links_they_are_copied(inline_cluster, corpus, tmp_path, monkeypatch):
    right = _run_with(corpus, tmp_path / "right", list(UNMERGED))
    link = os.link

    def refused(source: Any, target: Any, **options: Any) -> None:
        if "shards" in os.fspath(source):
            raise OSError(1, "no links here")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", refused)
    copied = _linked(monkeypatch)
    assert _files(_run_with(corpus, tmp_path / "out", list(UNMERGED))) == _files(right)
    assert sum(copied) == sum(entry.files.bin_bytes for entry in right.manifest.prefixes)


@pytest.mark.slow
def test_unmerged_and_killed_at_any_call(inline_cluster, small_flushes, tmp_path):
    corpus = _write(tmp_path / "c.jsonl", _some_texts(40))
    _kill_at_any_call(corpus, tmp_path, ["output.merge=false", "output.max_prefix_bytes=400", "runtime.workers=1"])


# --- what reads them


@pytest.fixture(scope="module")
def several(corpus, tmp_path_factory) -> runner.Result:
    return _run(corpus, tmp_path_factory.mktemp("several"), "output.max_prefix_bytes=1000", "policy.empty=drop")


def test_where_is_of_the_document_of_the_prefix(several, corpus):
    rows = [i for i, line in enumerate(corpus.read_text().splitlines()) if "ab" in line]
    number = 0
    for prefix in several.prefixes:
        manifest = manifest_of(Path(prefix))
        assert [entry.name for entry in manifest.prefixes] == [Path(prefix).name]
        assert manifest.before == number
        for i in range(IndexedDataset(prefix).num_documents):
            _, span, place = manifest.locate(i)
            assert 0 <= place < span.num_documents
            first, last = span.first_row, span.first_row + span.num_records - 1
            assert first <= rows[number] <= last
            inside = [row for row in rows if first <= row <= last]
            assert inside[place] == rows[number]
            number += 1
        assert manifest.locate(IndexedDataset(prefix).num_documents + 100_000) is None
    assert number == len(rows)


def test_every_prefix_is_held_to_its_source_and_its_claims(several, tmp_path):
    reports = verify_all(several.prefixes, "source")
    assert [report.codes for report in reports] == [set()] * len(reports)
    assert [report.num_sampled for report in reports] == [min(100, report.num_documents) for report in reports]
    for path in (bin_path, idx_path):  # the files of another prefix under this one's name
        path(tmp_path / Path(several.prefixes[2]).name).write_bytes(path(Path(several.prefixes[1])).read_bytes())
    manifest = Path(several.prefix).with_name("manifest.json")
    (tmp_path / "manifest.json").write_bytes(manifest.read_bytes())
    assert "manifest" in verify(tmp_path / Path(several.prefixes[2]).name).codes


def test_merged_again_they_are_one_and_know_where_they_are_from(several, tmp_path, caplog):
    made = dataprep.merge(list(several.prefixes), tmp_path / "new")
    assert _documents(made.prefix) == _documents(*several.prefixes)
    assert verify(made.prefix, "source").codes == set()
    manifest = manifest_of(Path(made.prefix))
    number = 0
    for prefix in several.prefixes:
        one = manifest_of(Path(prefix))
        for i in range(IndexedDataset(prefix).num_documents):
            mine, theirs = manifest.locate(number), one.locate(i)
            assert (mine[1].first_row, mine[2]) == (theirs[1].first_row, theirs[2])
            number += 1
    assert "twice" not in caplog.text


def test_the_command_prints_the_file_for_megatron(corpus, tmp_path):
    command = ["run", str(corpus), "-t", "sample", "--output", str(tmp_path / "o"), "--set", "runtime.max_rejects=1"]
    for more, name in ((["--set", "output.max_prefix_bytes=1000"], "data_args.txt"), ([], "c_text_document")):
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == 0
        assert Path(done.stdout.splitlines()[-1]).name == name


def test_a_path_that_megatron_would_split_is_refused_at_once(corpus, workspace):
    with pytest.raises(SpecError, match="spaces"):
        _run(corpus, workspace, "output.max_prefix_bytes=1000")
    assert not list(workspace.iterdir())


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_limit_that_is_none(corpus, tmp_path, value):
    with pytest.raises(SpecError, match="max_prefix_bytes"):
        planning.resolve([str(corpus)], "sample", tmp_path, settings=[f"output.max_prefix_bytes={value}"])


def test_no_limit_is_the_default(corpus, tmp_path):
    plain = planning.resolve([str(corpus)], "sample", tmp_path)
    assert planning.resolve([str(corpus)], "sample", tmp_path, settings=["output.max_prefix_bytes=null"]) == plain


def test_more_documents_than_megatron_counts_are_cut_in_any_case(
    inline_cluster, corpus, tmp_path, workspace, monkeypatch, caplog
):
    whole = _run(corpus, tmp_path / "whole")
    monkeypatch.setattr(cuts, "MAX_DOCUMENTS", 70)
    made = _run(corpus, workspace)
    assert [entry.num_documents for entry in made.manifest.prefixes[:-1]] == [70] * (len(made.prefixes) - 1)
    assert made.manifest.recipe_digest == whole.manifest.recipe_digest
    assert _documents(*made.prefixes) == _documents(whole.prefix)
    assert "at spaces" in caplog.text


def test_a_dataset_that_lacks_a_file_is_said(inline_cluster, corpus, tmp_path):
    limit = "output.max_prefix_bytes=1000"
    made = _run(corpus, tmp_path, limit)
    assert not _run(corpus, tmp_path, limit).fresh
    for path in (Path(made.data_args), idx_path(Path(made.prefixes[-1]))):
        path.rename(f"{path}.away")
        with pytest.raises(OutputError, match=f"{path.name} is missing"):
            _run(corpus, tmp_path, limit)
        Path(f"{path}.away").rename(path)


@pytest.mark.parametrize(
    "more", [["output.max_prefix_bytes=300"], ["output.merge=false", "output.max_prefix_bytes=900"]]
)
def test_of_a_few_documents(inline_cluster, corpus, tmp_path, more):
    request = planning.resolve([str(corpus)], "sample", tmp_path / "some", limit=20, settings=more)
    some = runner.execute(request, Silent())
    plain = planning.resolve([str(corpus)], "sample", tmp_path / "plain", limit=20)
    assert len(some.prefixes) > 1
    assert _documents(*some.prefixes) == _documents(runner.execute(plain, Silent()).prefix)


def test_without_documents_nothing_is_published(tmp_path):
    corpus = _write(tmp_path / "c.jsonl", ["", ""])
    with pytest.raises(SourceError, match="no document"):
        _run(corpus, tmp_path / "out", "output.max_prefix_bytes=10")


# --- large ones


@pytest.mark.parametrize("boundary", [2**31, 2**32])
def test_sparse_files_beyond_2_to_the_31_and_32_bytes(tmp_path, monkeypatch, boundary):
    """Documents of just below 1 GiB, and small ones, in prefixes of about `boundary` bytes."""

    def holes(source: int, target: int, start: int, stop: int) -> None:
        os.lseek(target, stop - start, os.SEEK_CUR)

    monkeypatch.setattr("dataprep.copies.copy_range", holes)
    layout = Layout.of(tmp_path, "c", "t", "0" * 64)
    layout.shards.mkdir(parents=True)
    lengths = [2**28 - 1, 1, 2**28 - 7, 9] * (boundary // 2**31 + 1)
    merged, copies = Merged(Cuts((boundary + 40) // 4)), []
    recipe = SimpleNamespace(dtype="int32", limit=None, writes_empty_sequences=False)
    with merge.Merger(layout, recipe, merged) as merger:
        for i in range(0, len(lengths), 4):
            unit = Unit(group=i, index=0, slices=(Slice(file=i, start=0, stop=1, num_bytes=1),))
            merger.append(unit, [_sparse_shard(layout, unit, lengths[i : i + 4])])
            for each in [*merger.take(), *merger.take(last=i + 4 == len(lengths))]:
                copy(each, lambda _: None)
                merger.copied(each)
                copies.append(each)
        files = merger.finish()
    starts = _reference(lengths, (boundary + 40) // 4)
    assert [name for name, *_ in files] == [f"c_{i:05d}_text_document" for i in range(len(starts))]
    assert len(starts) > 1
    assert all(each.start % merge.FLUSH_BYTES == 0 for each in copies)
    for (name, *_), start, stop in zip(files, starts, [*starts[1:], len(lengths)], strict=True):
        pair = IndexedDataset(layout.staged / name)
        assert pair.sequence_lengths.tolist() == lengths[start:stop]
        pointers = np.cumsum([0, *lengths[start:stop]], dtype=np.int64) * 4
        assert pair.sequence_pointers.tolist() == pointers[:-1].tolist()
        assert bin_path(layout.staged / name).stat().st_size == pointers[-1]
        assert pointers[-1] <= boundary + 40
    assert bin_path(layout.staged / files[0][0]).stat().st_size > boundary - 40


def _sparse_shard(layout: Layout, unit: Unit, lengths: list[int]) -> UnitManifest:
    index = IndexWriter(layout.shards)
    index.add(np.array(lengths, np.int64))
    with AtomicFile(idx_path(layout.shard(unit.key))) as file:
        index.write(file, "int32")
    index.close()
    with bin_path(layout.shard(unit.key)).open("wb") as file:
        file.truncate(4 * sum(lengths))
    part, number = unit.slices[0], len(lengths)
    rows = SliceRows(file=part.file, start=0, stop=1, num_records=number, num_documents=number, num_lines=number)
    return UnitManifest(
        unit=unit.key,
        recipe_digest="",
        dtype="int32",
        counts=Counts(num_documents=number),
        slices=(rows,),
        files=PairFiles(bin_bytes=4 * sum(lengths), bin_checksum=f"xxh3_128:{0:032x}", idx_bytes=0, idx_checksum=""),
        engine="",
        wall_seconds=0,
        cpu_seconds=0,
    )
