"""Promises 2 and 3: kill it anywhere, run it again, same bytes; nothing half-made under a final name.

Two ways to die. The real process is killed at random moments; and, inside this process, the k-th call of everything
that changes the output fails, for every k.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dataprep import runner
from dataprep.cluster import WINDOW
from dataprep.errors import DataprepError
from dataprep.outputs import status

MARK = ".tmp-"
KILLED = -signal.SIGKILL


def _count_units(output: Path) -> int:
    plan = next(output.glob("work/*/plan.jsonl"))
    return sum(len(json.loads(line)["units"]) for line in plan.read_text().splitlines()[1:])


def _sha256(prefix: str | Path) -> tuple[str, str]:
    return tuple(hashlib.sha256(Path(f"{prefix}.{suffix}").read_bytes()).hexdigest() for suffix in ("bin", "idx"))


def _check_visible(output: Path, whole: bytes) -> set[str]:
    """Nothing with a final name is half-made; returns the units that are done.

    Args:
        output: the output folder, at rest.
        whole: the ``.bin`` of an undisturbed run, of which every shard must be a piece.
    """
    if not output.exists():
        return set()
    for path in output.iterdir():
        if path.name != "work" and MARK not in path.name:  # a link that leads nowhere fails as well
            for prefix in json.loads((path / "manifest.json").read_text())["prefixes"]:
                _check_pair(path / prefix["name"], prefix["files"])
    done = set()
    for path in output.glob("work/*/**/*"):
        if path.is_dir() or MARK in path.name or path.name.startswith("events-"):
            continue
        _check_file(path, whole)
    if any(output.glob("*/manifest.json")):
        return {path.stem for path in output.glob("work/*/shards/*.json")}  # on their way out
    for work in output.glob("work/*"):
        done |= _check_units(work)
    return done


def _check_units(work: Path) -> set[str]:
    """Every unit that is noted is whole in the merged file, behind all units before it; every other in its shard."""
    done, position = set(), 0
    for receipt in _receipts(work):
        data = next(work.glob("merged-*/dataset/*.bin")).read_bytes()
        for shard in receipt["shards"]:
            files = shard["files"]
            _check_data(data[position : position + files["bin_bytes"]], files, "bin")
            position += files["bin_bytes"]
        done.add(receipt["unit"])
    for path in sorted(work.glob("shards/*.json")):
        if path.stem not in done:
            _check_pair(path.with_suffix(""), json.loads(path.read_text())["files"])
            done.add(path.stem)
    return done


def _receipts(work: Path) -> list[dict[str, Any]]:
    """The units of a run that are merged for good; the last line may be being written."""
    paths = list(work.glob("merged-*/receipts.jsonl"))
    text = paths[0].read_text() if paths else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _done(output: Path) -> dict[str, int]:
    """The units that are done, each with when its shard was made; 0: it is merged, and that is gone."""
    shards = {path.stem: path.stat().st_mtime_ns for path in output.glob("work/*/shards/*.json")}
    return {receipt["unit"]: 0 for work in output.glob("work/*") for receipt in _receipts(work)} | shards


def _check_pair(prefix: Path, files: dict[str, Any]) -> None:
    for suffix in ("bin", "idx"):
        _check_data(Path(f"{prefix}.{suffix}").read_bytes(), files, suffix)


def _check_data(data: bytes, files: dict[str, Any], suffix: str) -> None:
    assert len(data) == files[f"{suffix}_bytes"]
    assert f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}" == files[f"{suffix}_checksum"]


def _check_file(path: Path, whole: bytes) -> None:
    if path.suffix in (".json", ".jsonl"):
        lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        for line in lines:
            json.loads(line)
    elif path.parent.name == "shards" and path.suffix == ".bin":
        assert path.read_bytes() in whole


def _check_clean(output: Path) -> None:
    """After a completed run: no leftovers, no shards, and the link leads to the dataset."""
    assert not [str(path.relative_to(output)) for path in output.rglob("*") if MARK in path.name]
    assert not list(output.glob("work/*/shards/*"))
    (dataset,) = (path for path in output.iterdir() if path.name != "work" and not path.is_symlink())
    (link,) = (path for path in output.iterdir() if path.is_symlink())
    assert os.readlink(link) == dataset.name


def _events(output: Path) -> list[dict[str, Any]]:
    paths = sorted(output.glob("work/*/events-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2]))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


# --- the real process

COMMAND = """
from dataprep.stages import merge
merge.FLUSH_BYTES = 300_000
from dataprep.cli import main
main()
"""  # as with a large dataset, most shards are gone before the run ends


@pytest.fixture(scope="module")
def job(write_nonsense, tmp_path_factory):
    folder = tmp_path_factory.mktemp("crash")
    return Job(write_nonsense(folder / "corpus.jsonl", 5_000_000), folder / "undisturbed")


class Job:
    """One command, what it makes when nobody disturbs it, and how long that takes."""

    def __init__(self, corpus: Path, output: Path) -> None:
        self.corpus = corpus
        start = time.monotonic()
        process = self.start(output)
        _, errors = process.communicate(timeout=120)
        self.seconds = time.monotonic() - start
        assert process.returncode == 0, errors
        (manifest,) = (path for path in output.glob("*/manifest.json") if not path.parent.is_symlink())
        self.dataset = manifest.parent.name
        self.prefix = manifest.parent / "corpus_text_document"
        self.expected = _sha256(self.prefix)
        self.whole = self.prefix.with_suffix(".bin").read_bytes()
        self.num_units = _count_units(output)
        assert self.num_units > 30
        _check_visible(output, self.whole)
        _check_clean(output)

    def start(self, output: Path, *extra: str) -> subprocess.Popen[str]:
        """In a process group of its own, so that a kill reaches its children too."""
        command = [
            sys.executable,
            "-c",
            COMMAND,
            "run",
            str(self.corpus),
            "--tokenizer",
            "sample",
            "--output",
            str(output),
        ]
        command += ["--workers", "2", "--set", "runtime.unit_bytes=100000", "--set", "runtime.max_rejects=0.1"]
        command += ["--set", "runtime.engine=reference"]  # slow enough that there is a middle to be killed in
        return subprocess.Popen(
            [*command, *extra],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, output: Path, *extra: str) -> None:
        """Run to the end; the bytes are those of the undisturbed run."""
        process = self.start(output, *extra)
        printed, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert _sha256(printed.splitlines()[-1]) == self.expected
        _check_visible(output, self.whole)
        _check_clean(output)

    def moments(self, draw: random.Random, output: Path):
        """A random moment: a time, or something that shows in the output folder. Returns a predicate."""
        kind = draw.choice(["time", "time", "units", "units", "units", "merged", "manifest", "dataset"])
        if kind == "time":
            end = time.monotonic() + draw.uniform(0, self.seconds)
            return lambda: time.monotonic() >= end
        if kind == "units":
            here = _num_done(output)
            number = here + draw.randint(0, max(1, (self.num_units - here) // 3))
            return lambda: _num_done(output) >= number
        pattern = {
            "merged": "work/*/merged-*/dataset/*.idx",
            "manifest": "work/*/merged-*/dataset/manifest.json*",
            "dataset": self.dataset,
        }[kind]
        return lambda: any(True for _ in output.glob(pattern))


def _num_done(output: Path) -> int:
    return len(_done(output))


def _wait(process: subprocess.Popen[str], happened) -> bool:
    """Whether it happened before the process ended."""
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # a folder that was renamed while `glob` looked into it
            if happened():
                return True
        time.sleep(0.002)
    return False


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _kill_again_and_again(job: Job, folder: Path, seed: int, num_kills: int, *extra: str) -> list[int]:
    """Kill, resume, kill, ..., at most 4 times one output; returns how many units were done at each kill."""
    draw = random.Random(seed)
    kills: list[int] = []
    output = folder / "out0"
    here = 0
    while len(kills) < num_kills:
        before = _done(output)
        num_events = len(_events(output))
        process = job.start(output, *extra)
        try:
            _wait(process, job.moments(draw, output))
        finally:
            _end(process)
        done = _check_visible(output, job.whole)
        _check_not_redone(output, before, num_events)
        if process.returncode == KILLED:
            kills.append(len(done))
            here += 1
            for entry in status(output):
                assert entry["state"] in ("stopped", "published", "unreadable")
                if entry["state"] == "stopped":  # what ended in the driver's last moments it could not note
                    assert len(done) - WINDOW <= entry["units_done"] <= len(done)
        if here == 4 or len(done) == job.num_units or process.returncode != KILLED or len(kills) == num_kills:
            _resume_to_the_end(job, output, *extra)
            output = folder / f"out{len(kills)}-{draw.random()}"
            here = 0
    return kills


def _resume_to_the_end(job: Job, output: Path, *extra: str) -> None:
    before = _done(output)
    num_events = len(_events(output))
    published = (output / job.dataset).exists()
    job.finish(output, *extra)
    _check_not_redone(output, before, num_events)
    if not published:
        units = [event["unit"] for event in _events(output)[num_events:] if event["event"] == "unit"]
        assert len(units) == job.num_units - len(before)
    (entry,) = status(output)
    assert entry["state"] == "published"


def _check_not_redone(output: Path, before: dict[str, int], num_events: int) -> None:
    events = _events(output)[num_events:]
    assert not {event["unit"] for event in events if event["event"] == "unit"} & set(before)
    for event in events:
        if event["event"] == "resume":
            assert event["done"] == len(before)
    for path in output.glob("work/*/shards/*.json"):
        assert path.stat().st_mtime_ns == before.get(path.stem, path.stat().st_mtime_ns), (
            f"{path.name} was written again"
        )


def test_kill_it_anywhere_and_run_it_again(job, tmp_path):
    kills = _kill_again_and_again(job, tmp_path, seed=1, num_kills=4)
    assert len(kills) == 4
    assert any(0 < number < job.num_units for number in kills), "none hit the middle of a run"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "num_kills", "extra"), [(2, 12, ()), (4, 4, ("--set", "runtime.processes=true"))])
def test_kill_it_anywhere_many_times(job, tmp_path, seed, num_kills, extra):
    """As of the default test, elsewhere; for months it was 30 and 10 of them, with no other outcome."""
    kills = _kill_again_and_again(job, tmp_path, seed, num_kills, *extra)
    print(f"units done at each of {len(kills)} kills: {kills}")
    assert len({number for number in kills if 0 < number < job.num_units}) >= num_kills // 4


@pytest.mark.slow
def test_workers_die_with_their_driver(job, tmp_path):
    """Only the driver is killed: its worker processes must not write on while the next run does."""
    output = tmp_path / "out"
    process = job.start(output, "--set", "runtime.processes=true")
    try:
        assert _wait(process, lambda: _num_done(output) >= 3)
        members = _group(process.pid)
        assert len(members) >= 3, "expected a driver and two workers"
        process.kill()
        process.wait()
        end = time.monotonic() + 60
        while _group(process.pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert not _group(process.pid)
    finally:
        _end(process)
    _resume_to_the_end(job, output, "--set", "runtime.processes=true")


def _group(number: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = path.parent.name, path.read_text().rpartition(")")[2].split()
            if int(rest[2]) == number and rest[0] != "Z":
                found.append(int(pid))
    return found


@pytest.mark.parametrize("processes", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_ctrl_c_is_one_line_and_130(job, tmp_path, processes):
    output = tmp_path / "out"
    extra = ("--set", f"runtime.processes={processes}")
    process = job.start(output, *extra)
    try:
        assert _wait(process, lambda: _num_done(output) >= 5)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        printed, errors = process.communicate(timeout=120)
    finally:
        _end(process)
    assert process.returncode == 130, errors
    # A line of progress comes every five seconds, which a busy machine may take until now.
    (said,) = (line for line in errors.splitlines() if not line.startswith("tokenize: "))
    assert "interrupted" in said
    assert "run the same command again" in said
    assert printed == ""
    end = time.monotonic() + 60
    while _group(process.pid) and time.monotonic() < end:
        time.sleep(0.01)  # multiprocessing's resource tracker ends when its pipe is closed
    assert not _group(process.pid)
    done = _check_visible(output, job.whole)
    assert 5 <= len(done) < job.num_units
    _resume_to_the_end(job, output, *extra)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_any_moment(job, tmp_path, number):
    """From the moment that the process holds the lock; before, it is Python that starts, not dataprep."""
    draw = random.Random(5)
    output = tmp_path / "out"
    codes = []
    for i in range(5):
        process = job.start(output)
        try:
            mine, claims = f'"pid": {process.pid},', "work/*/claim/epoch-*.json"
            _wait(process, lambda o=output, c=claims, m=mine: any(m in path.read_text() for path in o.glob(c)))
            happened = job.moments(draw, output)
            _wait(process, happened)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            _, errors = process.communicate(timeout=120)
        finally:
            _end(process)
        codes.append(process.returncode)
        assert "Traceback" not in errors, errors
        assert process.returncode in {0, 130 if number == signal.SIGINT else -signal.SIGTERM, 143}, errors
        _check_visible(output, job.whole)
        if process.returncode == 0 or i % 4 == 3:
            _resume_to_the_end(job, output)
            output = tmp_path / f"out{i}"
    print(codes)


@pytest.mark.slow
def test_sigterm_loses_nothing(job, tmp_path):
    output = tmp_path / "out"
    process = job.start(output)
    try:
        assert _wait(process, lambda: _num_done(output) >= 5)
        process.terminate()
        process.communicate(timeout=120)
    finally:
        _end(process)
    assert process.returncode != 0
    assert len(_check_visible(output, job.whole)) >= 5
    _resume_to_the_end(job, output)


def test_a_second_run_says_who_holds_the_output(job, tmp_path):
    output = tmp_path / "out"
    first = job.start(output)
    try:
        assert _wait(first, lambda: _num_done(output) >= 3)
        first.send_signal(signal.SIGSTOP)
        while not _is_stopped(first.pid):
            time.sleep(0.001)
        before = _tree(output)
        second = job.start(output)
        printed, errors = second.communicate(timeout=60)
        assert second.returncode == 1
        assert f"process {first.pid} " in errors
        assert "Traceback" not in errors
        assert printed == ""
        assert _tree(output) == before, "the second run wrote"
        (entry,) = status(output)
        assert entry["state"] == "running"
        assert f"process {first.pid} " in entry["holder"]
        first.send_signal(signal.SIGCONT)
        printed, errors = first.communicate(timeout=120)
    finally:
        _end(first)
    assert first.returncode == 0, errors
    assert _sha256(printed.splitlines()[-1]) == job.expected
    _check_clean(output)


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process stands still: the signal takes its time."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def _tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything but mere looks: name -> inode, size, mtime."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        found[str(path.relative_to(folder))] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


# --- the k-th call fails


class Faults:
    """Counts the calls of `os` functions that concern files below a folder, and lets some fail.

    What tells how the run gets on is left out: it may fail at any time, and the run does not.

    Args:
        folder: what counts.
        names: functions of `os`.
        error: errno of a failure.
        first: number of the first call that fails, from 0; None: none does.
        lasting: whether all later calls fail too.
    """

    def __init__(
        self, folder: Path, names: tuple[str, ...], error: int = 0, first: int | None = None, lasting: bool = False
    ) -> None:
        self.folder, self.names, self.error, self.first, self.lasting = str(folder), names, error, first, lasting
        self.calls: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in self.names:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, original):
        def call(*args, **kwargs):
            if not any(self._is_below(arg) for arg in args[:2]):
                return original(*args, **kwargs)
            number = len(self.calls)
            self.calls.append(name)
            if self.first is not None and (number == self.first or (self.lasting and number > self.first)):
                if name == "close":  # which lets go of the descriptor even where it fails
                    original(*args)
                raise OSError(self.error, os.strerror(self.error))
            return original(*args, **kwargs)

        return call

    def _is_below(self, value: object) -> bool:
        if isinstance(value, int):
            try:
                value = os.readlink(f"/proc/self/fd/{value}")
            except OSError:
                return False
        if not isinstance(value, str | os.PathLike):
            return False
        return os.fspath(value).startswith(self.folder) and "/progress.json" not in os.fspath(value)


COMMITMENTS = ("write", "fsync", "fdatasync", "replace", "rename", "copy_file_range")
OTHERS = ("open", "close", "link", "mkdir", "symlink", "ftruncate", "pwrite", "unlink", "rmdir", "sendfile")
SETTINGS = ("runtime.workers=1", "runtime.unit_bytes=1500", "runtime.max_rejects=1", "runtime.batch_bytes=1024")


@pytest.fixture(scope="module")
def tiny(write_nonsense, tmp_path_factory):
    """A corpus of a few units with rejects, and what becomes of it undisturbed."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = write_nonsense(folder / "tiny.jsonl", 4000)
    with corpus.open("a") as file:
        file.write('{"other": 1}\nno json\n')
    prefix = runner.run(str(corpus), "sample", folder / "undisturbed", settings=SETTINGS).prefix
    return corpus, _sha256(prefix), Path(f"{prefix}.bin").read_bytes()


@pytest.fixture
def small_flushes(monkeypatch):
    """Every shard is merged for good while others are worked, as with a large dataset, and in several ranges."""
    monkeypatch.setattr("dataprep.stages.merge.FLUSH_BYTES", 512)
    monkeypatch.setattr("dataprep.stages.merge.MAX_WAITING", 1)


def _fail_at_every_call(
    tiny, folder: Path, names: tuple[str, ...], error: int, lasting: bool, step: int = 1
) -> list[str]:
    """Let the k-th call fail, for every k, or one in `step`; returns the names of the calls."""
    corpus, expected, whole = tiny
    with pytest.MonkeyPatch.context() as patch:
        counter = Faults(folder / "count", names)
        counter.install(patch)
        runner.run(str(corpus), "sample", folder / "count", settings=SETTINGS)
    wrong = []
    for k, name in list(enumerate(counter.calls))[::step]:
        output = folder / str(k)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(output, names, error, k, lasting)
            faults.install(patch)
            try:
                runner.run(str(corpus), "sample", output, settings=SETTINGS)
            except DataprepError as problem:
                if os.strerror(error) not in str(problem) and "no space left" not in str(problem):
                    wrong.append((k, name, f"message: {problem}"))
            except Exception as problem:  # noqa: BLE001
                wrong.append((k, name, f"raised {problem!r}"))
            else:
                if faults.calls[k:] and name in COMMITMENTS:
                    wrong.append((k, name, "nothing raised"))
        try:
            done = _check_visible(output, whole)
            num_events = len(_events(output))
            again = runner.run(str(corpus), "sample", output, settings=SETTINGS)
            assert _sha256(again.prefix) == expected
            redone = {event["unit"] for event in _events(output)[num_events:] if event["event"] == "unit"} & done
            assert not redone
            _check_clean(output)
        except Exception as problem:  # noqa: BLE001  one list of all that is wrong says more than the first
            wrong.append((k, name, f"afterwards: {problem!r}"[:300]))
    assert not wrong, f"{len(wrong)} of {len(counter.calls)} calls:\n" + "\n".join(
        f"  call {k}, os.{n}: {text}" for k, n, text in wrong
    )
    return counter.calls


@pytest.mark.parametrize(
    ("error", "lasting", "step"), [pytest.param(errno.EIO, False, 1, marks=pytest.mark.slow), (errno.ENOSPC, True, 3)]
)
def test_every_write_sync_and_rename_may_fail(tiny, small_flushes, inline_cluster, tmp_path, error, lasting, step):
    """Every one of them where a single call fails; one in three where all later ones do as well."""
    calls = _fail_at_every_call(tiny, tmp_path, COMMITMENTS, error, lasting, step)
    print({name: calls.count(name) for name in COMMITMENTS})
    assert set(calls) == set(COMMITMENTS), "the corpus does not reach all of them"


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_other_calls_on_the_output_may_fail(tiny, small_flushes, inline_cluster, tmp_path, lasting):
    """Beyond the promise: what opens, makes, cuts and removes. One in three; every one of them was tried before."""
    calls = _fail_at_every_call(tiny, tmp_path, OTHERS, errno.EIO, lasting, 3)
    print({name: calls.count(name) for name in OTHERS})


@pytest.mark.slow
def test_the_same_through_dask(tiny, small_flushes, tmp_path):
    """One in five: every one fails the same way with the cluster inline, and did with Dask."""
    _fail_at_every_call(tiny, tmp_path, COMMITMENTS, errno.EIO, False, 5)
