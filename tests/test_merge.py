"""`dataprep.stages.merge`: shards go once they are merged for good, and what is merged outlives the run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dataprep
from dataprep import merging, planning, runner
from dataprep.copies import copy
from dataprep.errors import OutputError
from dataprep.indexed import IndexedDataset, IndexWriter, bin_path, idx_path
from dataprep.journal import Merged
from dataprep.layout import Layout
from dataprep.manifest import Counts, PairFiles, Slice, SliceRows, Unit, UnitManifest
from dataprep.outputs import status
from dataprep.stages import merge
from dataprep.storage import MARK, AtomicFile
from dataprep.watcher import Silent

SETTINGS = ("runtime.workers=2", "runtime.unit_bytes=10000", "runtime.max_rejects=1")
FLUSH_BYTES = 30_000  # three shards


@pytest.fixture(autouse=True)
def small_flushes(monkeypatch):
    """As with a large dataset, most shards are gone before the run ends."""
    monkeypatch.setattr(merge, "FLUSH_BYTES", FLUSH_BYTES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Some 24 units, with rejects in some of them."""
    path = tmp_path_factory.mktemp("corpus") / "c.jsonl"
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(2000)]
    with path.open("w", encoding="utf-8") as file:
        size = 0
        while size < 240_000:
            size += file.write(json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(1, 200)))}) + "\n")
            if draw.random() < 0.02:
                size += file.write("no json\n")
    return path


@pytest.fixture(scope="module")
def right(corpus, tmp_path_factory) -> runner.Result:
    """An undisturbed run."""
    return runner.run(str(corpus), "sample", tmp_path_factory.mktemp("right"), settings=SETTINGS)


@pytest.fixture(scope="module")
def expected(right) -> list[str]:
    """What it makes."""
    return _digests(right)


def _digests(result: runner.Result) -> list[str]:
    """Checksums of the pair, and of the rejects in the order of the source."""
    paths = [Path(f"{result.prefix}.bin"), Path(f"{result.prefix}.idx"), *sorted(Path(result.rejects).iterdir())]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def _run(corpus: Path, output: Path, *settings: str, limit: int | None = None) -> runner.Result:
    request = planning.resolve([str(corpus)], "sample", output, limit=limit, settings=[*SETTINGS, *settings])
    return runner.execute(request, Silent())


def _die(*_: Any) -> None:
    raise OutputError("power failure")


def _stop(corpus: Path, output: Path, name: str = "runner.copy_rest", **options: Any) -> list[str]:
    """A run that dies before it publishes, all its units done; returns their keys in plan order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dataprep.{name}", _die)
        with pytest.raises(OutputError, match="power failure"):
            _run(corpus, output, **options)
    return [receipt["unit"] for receipt in _receipts(output)] + _left(output)


def _receipts(output: Path) -> list[dict[str, Any]]:
    """What is merged for good."""
    paths = output.glob("work/*/merged-*/receipts.jsonl")
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def _left(output: Path) -> list[str]:
    """Units that are still shards, in plan order."""
    return sorted(path.stem for path in output.glob("work/*/shards/*.json"))


def _units(output: Path) -> list[str]:
    """Units worked by all runs so far."""
    paths = sorted(output.glob("work/*/events-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2]))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [value["unit"] for value in lines if value["event"] == "unit"]


def _ends(output: Path) -> list[int]:
    """Where the units that are merged for good end in the merged file."""
    sizes = [sum(shard["files"]["bin_bytes"] for shard in receipt["shards"]) for receipt in _receipts(output)]
    return np.cumsum(sizes).tolist()


def _merged(output: Path) -> Path:
    (path,) = output.glob("work/*/merged-*/dataset/*.bin")
    return path


# --- what lies on disk


def test_the_disk_holds_the_output_once(inline_cluster, corpus, tmp_path, monkeypatch):
    """The merged file, and the shards that wait for a range to be full, or to be copied."""
    output, sizes, append = tmp_path / "out", [], merge.Merger.append

    def measured(self, *args):
        append(self, *args)
        sizes.append(sum(path.stat().st_size for path in output.glob("work/*/**/*.bin")))

    monkeypatch.setattr(merge.Merger, "append", measured)
    result = _run(corpus, output)
    size = Path(f"{result.prefix}.bin").stat().st_size
    largest = size // len(sizes) * 2
    assert len(sizes) > 20
    assert max(sizes) <= size + FLUSH_BYTES + largest < 1.3 * size


def test_a_shard_goes_only_after_it_is_durable_and_noted(inline_cluster, corpus, tmp_path, monkeypatch):
    output, log = tmp_path / "out", []
    fdatasync, unlink = os.fdatasync, os.unlink

    def sync(fd: int) -> None:
        fdatasync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        log.append((path.suffix, path.read_bytes()))

    def remove(path, **options) -> None:
        if Path(path).parent.name == "shards" and MARK not in str(path):
            log.append(("gone", Path(path).name))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", sync)
        patch.setattr(os, "unlink", remove)
        keys = _stop(corpus, output)
    ends, data, noted, gone = dict(zip(keys, _ends(output), strict=False)), b"", [], set()
    for what, value in log:
        if what == "gone":
            key = value.partition(".")[0]
            gone.add(key)
            assert key in noted
        elif what == ".jsonl":
            noted = [json.loads(line)["unit"] for line in value.splitlines() if b'"shards"' in line]
            assert all(ends[key] <= len(data) for key in noted)
        elif what == ".bin":
            data = value
    assert sorted(gone) == keys[: len(gone)]
    assert len(keys) - 6 < len(gone) < len(keys)
    assert {path.name.partition(".")[0] for path in output.glob("work/*/shards/*")} == set(keys[len(gone) :])


def test_a_work_folder_on_another_disk_is_said_at_once(corpus, tmp_path, mounted):
    mounted(tmp_path / "out" / "work", "size=16m")
    with pytest.raises(OutputError, match="another file system"):
        _run(corpus, tmp_path / "out")
    assert not _units(tmp_path / "out")


# --- what the next run makes of it


def test_what_is_merged_is_neither_done_nor_copied_again(corpus, tmp_path, expected, monkeypatch):
    output = tmp_path / "out"
    keys = _stop(corpus, output, "stages.merge.Merger.finish")
    (entry,) = status(output)
    assert (entry["units_done"], entry["units"]) == (len(keys), len(keys))
    assert not list(output.glob("work/*/shards/*"))
    monkeypatch.setattr("dataprep.merging.copy", _die)
    result = _run(corpus, output)
    assert sorted(_units(output)) == keys
    assert _digests(result) == expected
    assert not list(output.glob("work/*/merged*"))


def test_runs_that_die_again_and_again_copy_what_they_have_to_once(
    inline_cluster, corpus, tmp_path, expected, monkeypatch
):
    """But for the unit whose copy they die in."""
    output, copied = tmp_path / "out", []

    def once(item, report):
        copied.append(0)
        if len(copied) % 4 == 0:
            raise OutputError("power failure")
        copy(item, report)
        copied[-1] = item.stop - item.start

    monkeypatch.setattr("dataprep.merging.copy", once)
    for _ in range(30):
        try:
            result = _run(corpus, output)
            break
        except OutputError:
            continue
    num_deaths = copied.count(0)
    (entry,) = status(output)
    size = Path(f"{result.prefix}.bin").stat().st_size
    assert num_deaths > 1
    assert size <= sum(copied) <= size + num_deaths * (2 * size // entry["units"])
    assert len(_units(output)) == entry["units"]
    assert _digests(result) == expected


def _flip(path: Path, start: int, stop: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, (start + stop) // 2)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), (start + stop) // 2)


def _zero(path: Path, start: int, stop: int) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(stop - start), start)


def _cut(path: Path, start: int, stop: int) -> None:
    os.truncate(path, (start + stop) // 2)


@pytest.mark.parametrize("damage", [_flip, _zero, _cut])
def test_a_damaged_merged_file_is_taken_up_to_the_damage(inline_cluster, corpus, tmp_path, expected, damage):
    """And a unit behind it whose shard is gone is done again."""
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    ends, left = _ends(output), _left(output)
    damage(_merged(output), ends[4], ends[5])
    result = _run(corpus, output)
    assert sorted(_units(output)[len(keys) :]) == [key for key in keys[5:] if key not in left]
    assert _digests(result) == expected


@pytest.mark.parametrize("damage", [_flip, _zero, pytest.param(_cut, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["merged-*/lengths", "rejects/rejects.jsonl", "merged-*/receipts.jsonl"])
def test_what_is_merged_is_taken_as_far_as_all_files_bear_it_out(
    inline_cluster, corpus, tmp_path, expected, name, damage
):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    receipts, left = _receipts(output), _left(output)
    (path,) = output.glob(f"work/*/{name}")
    sizes = {
        "merged-*/lengths": [4 * shard["counts"]["num_documents"] for each in receipts for shard in each["shards"]],
        "rejects/rejects.jsonl": [each["rejects"][0] for each in receipts],
        "merged-*/receipts.jsonl": [len(line) for line in path.read_bytes().splitlines(keepends=True)],
    }[name]
    ends = np.cumsum(sizes).tolist()
    number = next(i for i in range(5, len(sizes)) if sizes[i])
    damage(path, ends[number - 1], ends[number - 1] + 2 if damage == _flip else ends[number])
    result = _run(corpus, output)
    assert sorted(_units(output)[len(keys) :]) == [key for key in keys[number:] if key not in left]
    assert _digests(result) == expected


@pytest.mark.parametrize("name", ["merged-*/lengths", "merged-*/receipts.jsonl", "merged-*/dataset", "merged-*"])
def test_what_is_merged_and_misses_a_part_is_not_taken(inline_cluster, corpus, tmp_path, expected, name):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    left = _left(output)
    (path,) = output.glob(f"work/*/{name}")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = _run(corpus, output)
    assert _units(output)[len(keys) :] == [key for key in keys if key not in left]
    assert _digests(result) == expected


def test_a_journal_of_another_run_is_not_taken(inline_cluster, corpus, tmp_path, right, expected):
    """Of other units, of another recipe, of lines that are no receipts."""
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    (path,) = output.glob("work/*/merged-*/receipts.jsonl")
    first, second, *rest = path.read_text().splitlines()
    other = second.replace(right.manifest.recipe_digest, "0" * 64)
    assert other != second
    for lines in ([second, *rest], [first, other, *rest], [first, "{}", second], [first, "[1]"], [first, "\0" * 99]):
        folder = tmp_path / f"out{len(lines)}{hash(tuple(lines))}"
        shutil.copytree(output, folder)
        (path,) = folder.glob("work/*/merged-*/receipts.jsonl")
        path.write_text("\n".join(lines) + "\n")
        num_units, left = len(_units(folder)), _left(folder)
        assert _digests(_run(corpus, folder)) == expected
        taken = 1 if lines[0] == first else 0
        assert _units(folder)[num_units:] == [key for key in keys[taken:] if key not in left]


def test_a_merged_file_that_is_too_long(inline_cluster, corpus, tmp_path, expected):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    with _merged(output).open("ab") as file:
        file.write(b"more")
    result = _run(corpus, output)
    assert _units(output) == keys
    assert _digests(result) == expected


def test_what_is_damaged_while_it_is_merged_is_found_and_the_next_run_mends_it(
    inline_cluster, corpus, tmp_path, expected, monkeypatch
):
    output, verify = tmp_path / "out", merging.verify

    def damaged(*args, **kwargs):
        _flip(_merged(output), 60_000, 60_000)
        return verify(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(merging, "verify", damaged)
        with pytest.raises(OutputError, match=r"not those of shard \d+; run again"):
            _run(corpus, output)
    assert not list(output.glob("*/manifest.json"))
    num_units = len(_units(output))
    result = _run(corpus, output)
    assert 0 < len(_units(output)) - num_units < num_units
    assert _digests(result) == expected


def test_what_another_engine_made_is_not_taken_and_what_the_reference_made_is(
    inline_cluster, corpus, tmp_path, right, expected
):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    left, engine = _left(output), right.manifest.engine
    label = f"{engine.reference} {engine.reference_version}"
    for path in output.glob("work/*/shards/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "engine": label}))
    receipts = _receipts(output)
    for receipt in receipts[:5] + receipts[8:]:
        receipt["shards"][0]["engine"] = label
    (path,) = output.glob("work/*/merged-*/receipts.jsonl")
    path.write_text("".join(json.dumps(receipt) + "\n" for receipt in receipts))
    result = _run(corpus, output, "runtime.engine=reference")
    assert sorted(_units(output)[len(keys) :]) == [key for key in keys[5:] if key not in left]
    assert _digests(result) == expected


def test_a_plan_that_is_lost_and_cut_otherwise(inline_cluster, corpus, tmp_path, expected):
    output = tmp_path / "out"
    _stop(corpus, output)
    next(output.glob("work/*/plan.jsonl")).unlink()
    assert _digests(_run(corpus, output, "runtime.unit_bytes=17000"))[:2] == expected[:2]


def test_a_limit_keeps_its_shards_and_goes_on_with_them(inline_cluster, corpus, tmp_path):
    output = tmp_path / "out"
    keys = _stop(corpus, output, "stages.merge.Merger.finish", limit=300)
    assert _merged(output).stat().st_size > 2 * FLUSH_BYTES
    assert sorted(path.stem for path in output.glob("work/*/shards/*.bin")) == keys
    result = _run(corpus, output, limit=300)
    assert sorted(_units(output)) == keys
    assert _digests(result) == _digests(_run(corpus, tmp_path / "other", limit=300))
    assert not list(output.glob("work/*/shards/*"))


# --- sizes


def test_merging_passes_the_32_bit_boundaries(workspace, monkeypatch):
    """Shards of 1.5 GiB each, sparse; the copy makes holes as well."""

    def holes(source: int, target: int, start: int, stop: int) -> None:
        os.lseek(target, stop - start, os.SEEK_CUR)

    monkeypatch.setattr("dataprep.copies.copy_range", holes)
    monkeypatch.setattr(merge, "FLUSH_BYTES", 64 << 20)
    layout = Layout.of(workspace, "c", "t", "0" * 64)
    layout.shards.mkdir(parents=True)
    number = 3 * 2**27  # tokens of a shard
    checksums = [f"xxh3_128:{i:032x}" for i in range(4)]
    merged = Merged()
    ranges = []
    with merge.Merger(
        layout, SimpleNamespace(dtype="int32", limit=None, writes_empty_sequences=False), merged
    ) as merger:
        for i in range(4):
            unit = Unit(group=i, index=0, slices=(Slice(file=i, start=0, stop=1, num_bytes=1),))
            merger.append(unit, [_sparse_shard(layout, unit, number, checksums[i])])
            for each in [*merger.take(), *merger.take(last=i == 3)]:
                copy(each, lambda _: None)
                merger.copied(each)
                ranges.append((each.start, each.stop))
        merger.finish()
    assert merged.num_bytes == 6 * 2**30
    assert list(merged.parts) == [(4 * number * (i + 1), checksums[i]) for i in range(4)]
    assert [span.first_document for span in merged.spans()] == [0, 2, 4, 6]
    assert [stop for _, stop in ranges] == list(range(64 << 20, 6 * 2**30 + 1, 64 << 20))
    pair = IndexedDataset(layout.growing(0))
    assert pair.num_tokens == 4 * number
    assert not list(layout.shards.iterdir())
    pointers = [4 * (i * number + j) for i in range(4) for j in (0, number - 1)]
    assert pair.sequence_pointers.tolist() == pointers
    assert max(pointers) > 2**32
    assert dataprep.verify(layout.growing(0), "index").ok


def _sparse_shard(layout: Layout, unit: Unit, num_tokens: int, checksum: str) -> UnitManifest:
    """A shard of two documents, the second of one token."""
    index = IndexWriter(layout.shards)
    index.add(np.array([num_tokens - 1, 1], np.int64))
    with AtomicFile(idx_path(layout.shard(unit.key))) as file:
        index.write(file, "int32")
    index.close()
    with bin_path(layout.shard(unit.key)).open("wb") as file:
        file.truncate(4 * num_tokens)
    part = unit.slices[0]
    rows = SliceRows(file=part.file, start=0, stop=1, num_records=2, num_documents=2, num_lines=2)
    return UnitManifest(
        unit=unit.key,
        recipe_digest="",
        dtype="int32",
        counts=Counts(num_documents=2),
        slices=(rows,),
        files=PairFiles(bin_bytes=4 * num_tokens, bin_checksum=checksum, idx_bytes=0, idx_checksum=""),
        engine="",
        wall_seconds=0,
        cpu_seconds=0,
    )


MANY = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from dataprep.batches import TokenBatch
from dataprep.copies import copy
from dataprep.indexed import IndexedDataset, IndexedWriter
from dataprep.journal import Merged
from dataprep.layout import Layout
from dataprep.manifest import Counts, PairFiles, Slice, SliceRows, Unit, UnitManifest
from dataprep.stages.merge import Merger

folder, num_shards, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
layout = Layout.of(folder, "c", "t", "0" * 64)
layout.shards.mkdir(parents=True)
batch = TokenBatch(np.ones(2 * each, np.uint16), np.arange(0, 2 * each + 1, 2))
merged, recipe = Merged(), SimpleNamespace(dtype="uint16", limit=None, writes_empty_sequences=False)
with Merger(layout, recipe, merged) as merger:
    for i in range(num_shards):
        unit = Unit(group=i, index=0, slices=(Slice(file=i, start=0, stop=1, num_bytes=1),))
        with IndexedWriter(layout.shard(unit.key), "uint16", durable=False) as writer:
            writer.append(batch)
            idx = writer.commit()
        files = PairFiles(
            bin_bytes=writer.bin.num_bytes, bin_checksum=writer.bin.checksum, idx_bytes=idx.num_bytes,
            idx_checksum=idx.checksum,
        )
        rows = SliceRows(file=i, start=0, stop=1, num_records=each, num_documents=each, num_lines=each)
        shard = UnitManifest(
            unit=unit.key, recipe_digest="", dtype="uint16", counts=Counts(num_documents=each), slices=(rows,),
            files=files, engine="", wall_seconds=0, cpu_seconds=0,
        )
        merger.append(unit, [shard])
        for item in [*merger.take(), *merger.take(last=i == num_shards - 1)]:
            copy(item, lambda _: None)
            merger.copied(item)
    merger.finish()
assert IndexedDataset(layout.growing(0)).num_documents == num_shards * each
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_documents(tmp_path):
    """Five million: their lengths, pointers and boundaries alone would take 100 MB."""
    peaks = []
    for num_shards in (4, 200):
        command = [sys.executable, "-c", MANY, str(tmp_path / str(num_shards)), str(num_shards), "25000"]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 60, peaks
