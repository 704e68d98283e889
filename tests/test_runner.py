"""`dataprep.runner`: resuming, full disks, sources that change, damage, and 100,000 units."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dataprep import planning, runner, supply
from dataprep.errors import OutputError, SourceError
from dataprep.outputs import status
from dataprep.stages import tokenize
from dataprep.supply import Supply
from dataprep.watcher import Silent

SETTINGS = ("runtime.workers=2", "runtime.unit_bytes=50000", "runtime.max_rejects=1")


def _count_units(output: Path) -> int:
    plan = next(output.glob("work/*/plan.jsonl"))
    return sum(len(json.loads(line)["units"]) for line in plan.read_text().splitlines()[1:])


def _write_corpus(path: Path, num_bytes: int = 400_000, seed: int = 0, bad: int = 0) -> Path:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(2000)]
    size = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("no json\n" * bad)
        while size < num_bytes:
            size += file.write(json.dumps({"text": " ".join(draw.choices(words, k=draw.randint(1, 200)))}) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path) -> Path:
    return _write_corpus(tmp_path / "c.jsonl")


def _run(corpus: Path, output: Path, *settings: str, watcher: Any = None) -> runner.Result:
    request = planning.resolve([str(corpus)], "sample", output, settings=[*SETTINGS, *settings])
    return runner.execute(request, watcher or Silent())


def _sha256(result: runner.Result) -> tuple[str, str]:
    files = [Path(f"{result.prefix}.{suffix}") for suffix in ("bin", "idx")]
    return tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


def _events(output: Path, event: str) -> list[dict[str, Any]]:
    paths = sorted(output.glob("work/*/events-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2]))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [value for value in map(json.loads, lines) if value["event"] == event]


def _stop_before_publishing(corpus: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A run that does every unit and dies before it merges them; returns the manifests of the units."""

    def die(*_: Any) -> None:
        raise OutputError("power failure")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "copy_rest", die)
        with pytest.raises(OutputError, match="power failure"):
            _run(corpus, output)
    return sorted(output.glob("work/*/shards/*.json"))


class OnBatch(Silent):
    """Does something at the first report of a stage."""

    def __init__(self, stage: str, action) -> None:
        self._wanted, self._action, self._now = stage, action, ""

    def stage(self, name: str, *sizes: int) -> None:
        self._now = name

    def __call__(self, progress: object) -> None:
        if self._now == self._wanted and self._action is not None:
            action, self._action = self._action, None
            action()


def _command(corpus: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dataprep", "run", str(corpus), "--tokenizer", "sample", "--output", str(output)]
    for setting in SETTINGS:
        command += ["--set", setting]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# --- done already


def test_done_is_done(corpus, tmp_path):
    first = _run(corpus, tmp_path / "out")
    again = _run(corpus, tmp_path / "out")
    assert (first.fresh, again.fresh) == (True, False)
    assert again.prefix == first.prefix
    assert again.manifest == first.manifest
    assert len(_events(tmp_path / "out", "start")) == 1


def test_a_file_that_was_only_touched_is_the_same(corpus, tmp_path):
    first = _run(corpus, tmp_path / "out")
    os.utime(corpus, ns=(1, 1))
    done = _command(corpus, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr
    assert done.stdout.splitlines()[-1] == first.prefix


def test_new_content_of_equal_size_gets_a_new_path(corpus, tmp_path):
    output = tmp_path / "out"
    first = _run(corpus, output)
    before = _sha256(first)
    stat = Path(f"{first.prefix}.bin").stat()
    text = corpus.read_text()
    corpus.write_text(text.replace("a", "b"))
    second = _run(corpus, output)
    assert second.fresh
    assert Path(second.prefix).parent != Path(first.prefix).parent
    assert _sha256(first) == before != _sha256(second)
    assert Path(f"{first.prefix}.bin").stat().st_ino == stat.st_ino
    assert os.readlink(output / "c-sample") == Path(second.prefix).parent.name
    assert not _run(corpus, output).fresh
    corpus.write_text(text)
    back = _run(corpus, output)
    assert (back.fresh, back.prefix) == (False, first.prefix)


# --- resuming


def test_nothing_is_done_twice(corpus, tmp_path, monkeypatch):
    output = tmp_path / "out"
    units = _stop_before_publishing(corpus, output, monkeypatch)
    assert len(units) >= 8
    (entry,) = status(output)
    assert (entry["state"], entry["units_done"], entry["units"]) == ("failed", len(units), len(units))
    result = _run(corpus, output)
    assert len(_events(output, "unit")) == len(units)
    assert [event["done"] for event in _events(output, "resume")] == [0, len(units)]
    assert _sha256(result) == _sha256(_run(corpus, tmp_path / "other"))
    (entry,) = status(output)
    assert (entry["state"], entry["units_done"]) == ("published", len(units))


def test_the_plan_on_disk_is_kept(corpus, tmp_path, monkeypatch):
    """Other units would mean other shards: what was done stays of use."""
    output = tmp_path / "out"
    units = _stop_before_publishing(corpus, output, monkeypatch)
    result = _run(corpus, output, "runtime.unit_bytes=1MB", "runtime.workers=1")
    assert len(_events(output, "unit")) == len(units)
    assert _sha256(result) == _sha256(_run(corpus, tmp_path / "other"))


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES = {"zero": _zero, "flip": _flip, "cut": _cut, "empty": lambda path: os.truncate(path, 0), "remove": Path.unlink}


# Not a flipped bit of a manifest: it may be one of its figures; what is merged is verified.
HOLLOW = [pair for pair in itertools.product(("bin", "idx", "json"), DAMAGES) if pair != ("json", "flip")]


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [pair if i % 3 == 0 else pytest.param(*pair, marks=pytest.mark.slow) for i, pair in enumerate(HOLLOW)],
)
def test_a_shard_that_a_power_failure_left_hollow_is_done_again(corpus, tmp_path, monkeypatch, suffix, damage):
    output = tmp_path / "out"
    units = _stop_before_publishing(corpus, output, monkeypatch)
    hollow = {units[1].stem, units[-1].stem}
    shutil.rmtree(units[0].parent.with_name("merged-1"))  # where what the shards hold stands, too
    for name in hollow:
        DAMAGES[damage](units[0].with_name(f"{name}.{suffix}"))
    result = _run(corpus, output)
    assert {event["unit"] for event in _events(output, "unit")[len(units) :]} == hollow
    assert _sha256(result) == _sha256(_run(corpus, tmp_path / "other"))


@pytest.mark.parametrize("name", ["recipe.json", "plan.jsonl", "events-1.jsonl", "claim/epoch-1.json"])
@pytest.mark.parametrize(
    "damage", ["zero", *(pytest.param(d, marks=pytest.mark.slow) for d in ("cut", "empty", "remove"))]
)
def test_a_hollow_file_of_the_work_folder(corpus, tmp_path, monkeypatch, name, damage):
    output = tmp_path / "out"
    _stop_before_publishing(corpus, output, monkeypatch)
    (path,) = output.glob(f"work/*/{name}")
    DAMAGES[damage](path)
    assert status(output) is not None
    assert _sha256(_run(corpus, output)) == _sha256(_run(corpus, tmp_path / "other"))


def test_rejects_of_an_earlier_plan_are_not_kept(tmp_path, monkeypatch):
    """The input changed while its run was interrupted: other units, so other files of rejects."""
    output = tmp_path / "out"
    corpus = _write_corpus(tmp_path / "c.jsonl", bad=5)
    _stop_before_publishing(corpus, output, monkeypatch)
    text = corpus.read_text()
    corpus.write_text("x" * 7 + text[7:])
    result = _run(corpus, output, "runtime.unit_bytes=70000")
    lines = [line for path in output.glob("work/*/rejects/*") for line in path.read_text().splitlines()]
    assert sum(json.loads(line).get("count", 1) for line in lines) == result.manifest.counts.num_rejected == 5


# --- sources that change


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"text": "more"}\n')


def _rewrite(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a", b"b"))
    os.utime(path, ns=(5, 5))


CHANGES = {
    "append": _append,
    "rewrite": _rewrite,
    "remove": Path.unlink,
    "replace": lambda path: _write_corpus(path, seed=9),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_changes_stops_the_run(corpus, tmp_path, change):
    output = tmp_path / "out"
    # A file that goes between the look at it and its opening cannot be opened.
    says = r"c\.jsonl.* changed (during the run|while)|c\.jsonl was listed|cannot (open|read) .*c\.jsonl"
    with pytest.raises(SourceError, match=says) as caught:
        _run(corpus, output, watcher=OnBatch("tokenize", lambda: CHANGES[change](corpus)))
    assert caught.value.exit_code == 1
    assert not list(output.glob("*/manifest.json"))
    if change != "remove":
        result = _run(corpus, output)
        assert _sha256(result) == _sha256(_run(corpus, tmp_path / "other"))


def test_a_source_that_changes_after_it_was_read_stops_the_run(corpus, tmp_path, monkeypatch):
    """All units are done; what is hashed for the manifest must be what was read, or the manifest lies."""
    output = tmp_path / "out"
    original = supply.with_checksum
    done: list[int] = []

    def late(file, stop=None):
        while not _events(output, "start") or len(_events(output, "unit")) < _events(output, "start")[0]["units"]:
            time.sleep(0.001)
        _rewrite(corpus)
        done.append(1)
        return original(file, stop)

    monkeypatch.setattr(supply, "with_checksum", late)
    with pytest.raises(SourceError, match="changed during the run"):
        _run(corpus, output)
    assert done
    assert not list(output.glob("*/manifest.json"))


# --- damage after publishing


@pytest.mark.parametrize("damage", ["cut", "remove", "empty"])
@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_damaged_dataset_is_said_and_left_alone(corpus, tmp_path, suffix, damage):
    result = _run(corpus, tmp_path / "out")
    path = Path(f"{result.prefix}.{suffix}")
    DAMAGES[damage](path)
    with pytest.raises(OutputError, match=rf"\.{suffix} (is missing|has \d+ bytes, expected \d+).*mv ") as caught:
        _run(corpus, tmp_path / "out")
    assert caught.value.exit_code == 1
    assert path.exists() == (damage != "remove")


def test_the_command_for_a_damaged_dataset_works(corpus, tmp_path):
    result = _run(corpus, tmp_path / "out")
    expected = _sha256(result)
    os.truncate(f"{result.prefix}.bin", 10)
    done = _command(corpus, tmp_path / "out")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    advice = done.stderr[done.stderr.index("mv ") :].splitlines()[0]
    subprocess.run(advice, shell=True, check=True)  # as a person would
    again = _run(corpus, tmp_path / "out")
    assert again.fresh
    assert _sha256(again) == expected


def test_a_folder_of_the_datasets_name_without_manifest(corpus, tmp_path):
    result = _run(corpus, tmp_path / "out")
    (Path(result.prefix).parent / "manifest.json").unlink()
    with pytest.raises(OutputError, match=r"[Mm]ove it away"):
        _run(corpus, tmp_path / "out")


# --- outputs that refuse


@pytest.mark.parametrize("size", [pytest.param(size, marks=pytest.mark.slow) for size in ("64k", "400k", "700k")])
def test_a_full_disk(tmp_path, mounted, size):
    """Full at the first shards, among the shards, and while merging; enlarged, the same command completes."""
    corpus = _write_corpus(tmp_path / "c.jsonl", 1_000_000)
    expected = _run(corpus, tmp_path / "other")
    output = mounted(tmp_path / "mounted", f"size={size}")
    for _ in range(2):  # still full the second time
        done = _command(corpus, output)
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert "no space left" in done.stderr
        assert "make room or choose another --output" in done.stderr
        assert "Traceback" not in done.stderr
        assert len([line for line in done.stderr.splitlines() if not line.startswith("tokenize: ")]) <= 2
        assert not list(output.glob("*/manifest.json"))
    finished = len(list(output.glob("work/*/shards/*.json")))
    subprocess.run(["mount", "-o", "remount,size=64m", str(output)], check=True)
    before = len(_events(output, "unit"))
    done = _command(corpus, output)
    assert done.returncode == 0, done.stderr
    redone = len(_events(output, "unit")) - before
    assert redone == _count_units(output) - finished
    prefix = done.stdout.splitlines()[-1]
    for suffix in ("bin", "idx"):
        assert Path(f"{prefix}.{suffix}").read_bytes() == Path(f"{expected.prefix}.{suffix}").read_bytes()


def test_the_cluster_is_closed_before_an_error_is_seen(corpus, tmp_path, monkeypatch):
    """And not when Python frees what it was used by, where a Ctrl-C that comes meanwhile would be dropped."""
    closed = []
    leave = runner.Cluster.__exit__

    def fail(*arguments):
        raise OutputError("no more")

    monkeypatch.setattr(runner, "_collect", fail)
    monkeypatch.setattr(runner.Cluster, "__exit__", lambda self, *error: (leave(self, *error), closed.append(True))[0])
    with pytest.raises(OutputError, match="no more") as found:
        _run(corpus, tmp_path / "out")
    assert closed, found.traceback  # which keeps alive what it goes through


def test_a_read_only_output(corpus, tmp_path, mounted):
    output = mounted(tmp_path / "mounted", "size=1m,ro")
    for place in (output, output / "deeper"):
        done = _command(corpus, place)
        assert done.returncode in (1, 2)
        assert "Read-only file system; choose a folder you can write to with --output" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == ""


def test_a_dataset_on_a_read_only_disk_is_found(corpus, tmp_path, mounted):
    output = mounted(tmp_path / "mounted", "size=16m")
    first = _run(corpus, output)
    subprocess.run(["mount", "-o", "remount,ro", str(output)], check=True)
    again = _run(corpus, output)
    assert (again.fresh, again.prefix) == (False, first.prefix)


def test_an_output_that_is_a_file(corpus, tmp_path):
    (tmp_path / "file").write_text("precious")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="is a file, not a folder"):
            _run(corpus, place)
    assert (tmp_path / "file").read_text() == "precious"


# --- at scale


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_20_000_units_plan_and_resume(tmp_path):
    """Planned, written, read back, and as many done ones looked through: in a time that grows with their number alone.

    With 100,000 it is 0.01, 0.01 and 0.15 ms each, and 1.8 KB.
    """
    number = 20_000
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(b'{"text": "abc"}\n' * number)
    output = tmp_path / "out"
    request = planning.resolve([str(corpus)], "sample", output, settings=["runtime.unit_bytes=16", "runtime.workers=2"])
    before, start = _resident_bytes(), time.monotonic()
    request.layout.work.mkdir(parents=True)
    job = tokenize.Job(request.layout, request.digest, request.runtime)
    units_of = Supply(request, job, print, lambda: None)
    units = units_of.known()
    assert len(units) == number
    planned = time.monotonic() - start
    start = time.monotonic()
    assert Supply(request, job, print, lambda: None).known() == units
    read_back = time.monotonic() - start
    _make_one_shard(corpus, request, units, tmp_path)
    scans = []
    for done in range(0, number, 1000):
        start = time.monotonic()
        assert all(units_of.is_whole(unit) for unit in units[done : done + 1000])
        scans.append(time.monotonic() - start)
    growth = (_resident_bytes() - before) / 1e6
    ms = 1e3 / number
    figures = {"plan_ms": planned * ms, "read_ms": read_back * ms, "scan_ms": sum(scans) * ms, "growth_mb": growth}
    print(json.dumps(figures))
    assert min(scans[10:]) < 3 * min(scans[:10]), "a later one takes no longer"
    assert planned + read_back < 3 * sum(scans), "a plan is read faster than what it names"
    assert growth < 150


def _make_one_shard(corpus: Path, request: planning.Request, units: list, folder: Path) -> None:
    """Do one unit, and give its shard to all: every unit holds the same document."""
    from dataprep.stages import tokenize

    layout = request.layout
    layout.shards.mkdir()
    tokenize.run(tokenize.Job(layout, request.digest, request.runtime), units[0], lambda progress: None)
    manifest = layout.unit_manifest(units[0].key).read_text()
    source = layout.shard(units[0].key)
    for i, unit in enumerate(units[1:]):
        if i % 30_000 == 0:  # file systems allow some 65,000 links to a file
            source = folder / f"copy{i}"
            for suffix in ("bin", "idx"):
                shutil.copy(layout.shard(units[0].key).with_name(f"{units[0].key}.{suffix}"), f"{source}.{suffix}")
        for suffix in ("bin", "idx"):
            os.link(f"{source}.{suffix}", f"{layout.shard(unit.key)}.{suffix}")
        layout.unit_manifest(unit.key).write_text(manifest.replace(units[0].key, unit.key))


@pytest.mark.slow
def test_ten_large_documents_in_a_row_take_the_memory_of_two(tmp_path, written_text):
    """Of 30 MB each; of what is larger, the README says how much more it takes."""
    text = json.dumps("\n".join(written_text))[1:-1]
    text *= 30_000_000 // len(text)
    peaks = []
    for number in (2, 10):
        path, output = tmp_path / f"{number}.jsonl", tmp_path / f"out{number}"
        with path.open("w") as file:
            file.writelines(f'{{"text": "{i} {text}"}}\n' for i in range(number))
        run = ["-q", "run", path, "-t", "sample", "-o", output, "--workers", "1"]
        done = subprocess.run([sys.executable, "-m", "dataprep", *map(str, run)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        manifest = json.loads(Path(done.stdout.strip()).with_name("manifest.json").read_text())
        assert manifest["counts"]["num_documents"] == number
        peaks.append(manifest["peak_memory_bytes"] / 1e6)
    assert peaks[1] < 1.25 * peaks[0], peaks
