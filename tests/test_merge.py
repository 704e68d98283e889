"""`dataprep.stages.merge`: shards go once they are merged for good, and what is merged outlives the run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dataprep
from dataprep import planning, runner
from dataprep.errors import OutputError
from dataprep.indexed import IndexedDataset, IndexWriter, bin_path, idx_path
from dataprep.layout import Layout
from dataprep.manifest import Counts, PairFiles, UnitManifest
from dataprep.outputs import status
from dataprep.stages import merge
from dataprep.storage import AtomicFile
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


def _stop(corpus: Path, output: Path, name: str = "finish", **options: Any) -> list[str]:
    """A run that dies before it publishes, all its units done; returns their keys in plan order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge.Merger, name, _die)
        with pytest.raises(OutputError, match="power failure"):
            _run(corpus, output, **options)
    return sorted(path.stem for path in output.glob("work/*/shards/*.json"))


def _units(output: Path) -> list[str]:
    """Units worked by all runs so far."""
    paths = sorted(output.glob("work/*/events-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2]))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [value["unit"] for value in lines if value["event"] == "unit"]


def _manifest(output: Path, key: str) -> dict[str, Any]:
    (path,) = output.glob(f"work/*/shards/{key}.json")
    return json.loads(path.read_text())


def _merged(output: Path) -> Path:
    (path,) = output.glob("work/*/merged-*/*.bin")
    return path


# --- what lies on disk


def test_the_disk_holds_the_output_once(corpus, tmp_path, monkeypatch):
    """Shards that are not merged yet, and the merged file, and until the next flush the shards that are in it."""
    output, sizes, append = tmp_path / "out", [], merge.Merger.append

    def measured(self, *args):
        append(self, *args)
        sizes.append(sum(path.stat().st_size for path in output.glob("work/*/*/*.bin")))

    monkeypatch.setattr(merge.Merger, "append", measured)
    result = _run(corpus, output)
    size = Path(f"{result.prefix}.bin").stat().st_size
    largest = size // len(sizes) * 2
    assert len(sizes) > 20
    assert max(sizes) <= size + FLUSH_BYTES + largest < 1.3 * size


def test_a_shard_goes_only_after_what_is_merged_of_it_is_synced(inline_cluster, corpus, tmp_path, monkeypatch):
    output, synced, gone = tmp_path / "out", [0], []
    fdatasync, unlink = os.fdatasync, os.unlink

    def sync(fd: int) -> None:
        fdatasync(fd)
        synced.append(os.fstat(fd).st_size)

    def remove(path, **options) -> None:
        if str(path).endswith(".bin") and Path(path).parent.name == "shards":
            gone.append((Path(path).stem, synced[-1]))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", sync)
        patch.setattr(os, "unlink", remove)
        keys = _stop(corpus, output)
    ends = dict(zip(keys, np.cumsum([_manifest(output, key)["files"]["bin_bytes"] for key in keys]), strict=True))
    assert [key for key, _ in gone] == keys[: len(gone)]
    assert len(keys) - 6 < len(gone) < len(keys)
    assert all(ends[key] <= end for key, end in gone)


def test_a_work_folder_on_another_disk_is_said_at_once(corpus, tmp_path, mounted):
    mounted(tmp_path / "out" / "work", "size=16m")
    with pytest.raises(OutputError, match="another file system"):
        _run(corpus, tmp_path / "out")
    assert not _units(tmp_path / "out")


# --- what the next run makes of it


def test_what_is_merged_is_neither_done_nor_copied_again(corpus, tmp_path, expected, monkeypatch):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    (entry,) = status(output)
    assert (entry["units_done"], entry["units"]) == (len(keys), len(keys))
    assert len(list(output.glob("work/*/shards/*.bin"))) < 6
    monkeypatch.setattr(merge.Merger, "_copy", _die)
    result = _run(corpus, output)
    assert sorted(_units(output)) == keys
    assert _digests(result) == expected
    assert not list(output.glob("work/*/merged*"))


def test_runs_that_die_again_and_again_copy_each_shard_once(inline_cluster, corpus, tmp_path, expected, monkeypatch):
    output, copied, copy = tmp_path / "out", [], merge.Merger._copy

    def once(self, source, num_bytes):
        if copied and len(copied) % 10 == 0 and copied[-1] != "died":
            copied.append("died")
            raise OutputError("power failure")
        copy(self, source, num_bytes)
        copied.append(source.stem)

    monkeypatch.setattr(merge.Merger, "_copy", once)
    for _ in range(30):
        try:
            result = _run(corpus, output)
            break
        except OutputError:
            continue
    assert copied.count("died") > 1
    copied = [key for key in copied if key != "died"]
    (entry,) = status(output)
    assert len(copied) == entry["units"]
    assert copied == sorted(set(copied))
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
    ends = np.cumsum([_manifest(output, key)["files"]["bin_bytes"] for key in keys]).tolist()
    left = {path.stem for path in output.glob("work/*/shards/*.bin")}
    damage(_merged(output), ends[4], ends[5])
    result = _run(corpus, output)
    assert sorted(_units(output)[len(keys) :]) == [key for key in keys[5:] if key not in left]
    assert _digests(result) == expected


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("json", "empty"),
        ("idx", "zero"),
        pytest.param("json", "remove", marks=pytest.mark.slow),
        pytest.param("idx", "remove", marks=pytest.mark.slow),
    ],
)
def test_a_unit_that_a_power_failure_left_hollow_beside_the_merged_file(
    inline_cluster, corpus, tmp_path, expected, suffix, damage
):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    left = {path.stem for path in output.glob("work/*/shards/*.bin")}
    (path,) = output.glob(f"work/*/shards/{keys[5]}.{suffix}")
    size = 0 if damage == "empty" else path.stat().st_size
    path.unlink()
    if damage != "remove":
        path.write_bytes(bytes(size))
    result = _run(corpus, output)
    assert sorted(_units(output)[len(keys) :]) == [key for key in keys[5:] if key not in left]
    assert _digests(result) == expected


def test_a_merged_file_that_is_too_long(inline_cluster, corpus, tmp_path, expected):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    with _merged(output).open("ab") as file:
        file.write(b"more")
    result = _run(corpus, output)
    assert _units(output) == keys
    assert _digests(result) == expected


def test_a_merged_file_that_is_gone(inline_cluster, corpus, tmp_path, expected):
    output = tmp_path / "out"
    keys = _stop(corpus, output)
    left = {path.stem for path in output.glob("work/*/shards/*.bin")}
    shutil.rmtree(_merged(output).parent)
    result = _run(corpus, output)
    assert _units(output)[len(keys) :] == [key for key in keys if key not in left]
    assert _digests(result) == expected


def test_what_is_damaged_while_it_is_merged_is_found_and_the_next_run_mends_it(
    inline_cluster, corpus, tmp_path, expected, monkeypatch
):
    output, verify = tmp_path / "out", runner.verify

    def damaged(*args, **kwargs):
        _flip(_merged(output), 60_000, 60_000)
        return verify(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "verify", damaged)
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
    left = {path.stem for path in output.glob("work/*/shards/*.bin")}
    engine = right.manifest.engine
    for path in output.glob("work/*/shards/*.json"):
        if path.stem not in keys[5:8]:
            label = f"{engine.reference} {engine.reference_version}"
            path.write_text(json.dumps({**json.loads(path.read_text()), "engine": label}))
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
    keys = _stop(corpus, output, limit=300)
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
        os.ftruncate(target, os.lseek(target, stop - start, os.SEEK_CUR))

    monkeypatch.setattr(merge, "copy_range", holes)
    layout = Layout.of(workspace, "c", "t", "0" * 64)
    layout.shards.mkdir(parents=True)
    number = 3 * 2**27  # tokens of a shard
    parts = []
    for i in range(4):
        index = IndexWriter(workspace)
        index.add(np.array([number - 1, 1], np.int64))
        with AtomicFile(idx_path(layout.shard(f"{i}"))) as file:
            index.write(file, "int32")
        index.close()
        with bin_path(layout.shard(f"{i}")).open("wb") as file:
            file.truncate(4 * number)
        files = PairFiles(bin_bytes=4 * number, bin_checksum=f"{i}", idx_bytes=0, idx_checksum="")
        parts.append(
            UnitManifest(
                unit=f"{i}",
                recipe_digest="",
                dtype="int32",
                counts=Counts(num_documents=2),
                slices=(),
                files=files,
                engine="",
                wall_seconds=0,
                cpu_seconds=0,
            )
        )
    with merge.Merger(layout, SimpleNamespace(dtype="int32", limit=None, writes_empty_sequences=False), 0) as merger:
        for part in parts:
            merger.append(part, 1)
        merger.finish()
    assert merger.num_bytes == 6 * 2**30
    assert merger.parts == [(4 * number * (i + 1), f"{i}") for i in range(4)]
    merged = IndexedDataset(layout.merged_prefix)
    assert merged.num_tokens == 4 * number
    assert not list(layout.shards.glob("*.bin"))
    pointers = [4 * (i * number + j) for i in range(4) for j in (0, number - 1)]
    assert merged.sequence_pointers.tolist() == pointers
    assert max(pointers) > 2**32
    assert dataprep.verify(layout.merged_prefix, "index").ok
