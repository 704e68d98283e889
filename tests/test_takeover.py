"""Two runs of one output: one makes it, the other one says so, waits, or takes over; nothing is published twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dataprep import claims, runner
from dataprep.claims import Claim
from dataprep.errors import LostClaimError
from dataprep.holders import Holder
from dataprep.layout import Layout
from dataprep.outputs import status
from dataprep.remains import adopt
from dataprep.stages import publish

COMMAND = """
from dataprep import claims
claims.BEAT_SECONDS, claims.TTL_SECONDS = 0.1, 1.0
from dataprep.cli import main
main()
"""

SETTINGS = ("runtime.unit_bytes=10000", "runtime.engine=reference", "runtime.workers=2")


@pytest.fixture(scope="module")
def corpus(write_nonsense, tmp_path_factory) -> Path:
    return write_nonsense(tmp_path_factory.mktemp("takeover") / "c.jsonl", 550_000, rejects=False)


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory) -> str:
    return _sha256(runner.run(str(corpus), "sample", tmp_path_factory.mktemp("expected"), settings=SETTINGS).prefix)


def _sha256(prefix: str) -> str:
    return hashlib.sha256(Path(f"{prefix}.bin").read_bytes() + Path(f"{prefix}.idx").read_bytes()).hexdigest()


def _start(corpus: Path, output: Path, *options: str) -> subprocess.Popen[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["run", str(corpus), "--tokenizer", "sample", "--output", str(output), *settings, *options]
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", COMMAND, *words], stdout=pipe, stderr=pipe, text=True)


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    printed, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    return process.returncode, printed, said


@contextlib.contextmanager
def _frozen(corpus: Path, output: Path, when: Callable[[], bool]) -> Iterator[subprocess.Popen[str]]:
    """A run that stands still from some moment on."""
    process = _start(corpus, output)
    try:
        while not when():
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        while not _stands_still(process.pid):
            time.sleep(0.001)
        yield process
    finally:
        process.kill()
        process.communicate()


def _stands_still(pid: int) -> bool:
    stats = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(stats) == {"T"}


def _exists(output: Path, pattern: str, number: int = 1) -> Callable[[], bool]:
    def look() -> bool:
        with contextlib.suppress(FileNotFoundError):  # a folder that is renamed while `glob` looks into it
            return len(list(output.glob(pattern))) >= number
        return False

    return look


def test_a_frozen_driver_is_left_alone_told_of_taken_over_and_publishes_nothing(corpus, tmp_path, expected):
    output = tmp_path / "out"
    with _frozen(corpus, output, _exists(output, "work/*/shards/*.json", 3)) as first:
        code, printed, said = _finish(_start(corpus, output, "--if-free", "--json"))
        assert code == 0
        assert json.loads(printed)["prefix"] is None
        assert f"left alone: {output}" in said
        assert f"is held by process {first.pid} on " in said
        (entry,) = status(output)
        assert entry["state"] == "running"
        assert f"process {first.pid} on " in entry["holder"]

        code, printed, said = _finish(_start(corpus, output, "--wait"))
        assert code == 0, said
        assert f"in place of process {first.pid} " in said
        prefix = printed.splitlines()[-1]
        before = _tree(Path(prefix).parent)

        first.send_signal(signal.SIGCONT)
        code, printed, said = _finish(first)
        assert (code, printed) == (1, "")
        assert "taken over by process" in said
    assert _sha256(prefix) == expected
    assert _tree(Path(prefix).parent) == before
    assert [path for path in output.iterdir() if path.name != "work" and not path.is_symlink()] == [Path(prefix).parent]
    assert runner.run(str(corpus), "sample", output, settings=SETTINGS).fresh is False


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["work/*/merged-*/**/*.bin", "work/*/merged-*/**/*.idx", "work/*/merged-*/**/man*"])
def test_a_driver_that_is_frozen_later(corpus, tmp_path, expected, pattern):
    output = tmp_path / "out"
    with _frozen(corpus, output, lambda: _exists(output, pattern)() or _exists(output, "c-sample")()) as first:
        code, printed, said = _finish(_start(corpus, output, "--wait"))
        assert code == 0, said
        prefix = printed.splitlines()[-1]
        first.send_signal(signal.SIGCONT)
        code, _, said = _finish(first)
        assert code == 0 or "taken over by process" in said
    assert _sha256(prefix) == expected


def _tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_two_drivers_that_start_together(corpus, tmp_path, expected):
    both = [_start(corpus, tmp_path / "out", *options) for options in ((), ("--if-free",))]
    ended = [_finish(process) for process in both]
    assert {code for code, _, _ in ended} <= {0, 1}
    prefixes = {printed.splitlines()[-1] for _, printed, _ in ended if printed}
    assert len(prefixes) == 1
    assert sum("MB of memory at most" in said for _, _, said in ended) == 1, "published by one of them"
    assert _sha256(prefixes.pop()) == expected
    for code, printed, said in ended:
        assert printed or "is held by process" in said
        assert code == 0 or not printed


def test_unlocked_by_hand_a_living_run_stops(corpus, tmp_path, expected):
    output = tmp_path / "out"
    with _frozen(corpus, output, _exists(output, "work/*/shards/*.json", 2)) as process:
        command = [sys.executable, "-m", "dataprep", "unlock", str(output)]
        unlocked = subprocess.run(command, capture_output=True, text=True, check=True)
        process.send_signal(signal.SIGCONT)
        code, printed, said = _finish(process)
    assert f"was held by process {process.pid} on " in unlocked.stdout
    assert "is alive, and stops" in unlocked.stderr
    assert (code, printed) == (1, "")
    assert "was unlocked" in said
    assert _sha256(runner.run(str(corpus), "sample", output, settings=SETTINGS).prefix) == expected


# --- in one process, at the very moment


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(100)))
    return path


def test_who_is_overtaken_at_the_last_moment_does_not_publish(small, tmp_path, monkeypatch, inline_cluster):
    output, rename = tmp_path / "out", publish.run

    def late(layout: Layout, manifest: object) -> None:
        monkeypatch.undo()
        with Claim(layout.claim, wait=True, ttl_seconds=0) as other:
            adopt(layout.at(other.epoch), other.check)
        rename(layout, manifest)

    monkeypatch.setattr(publish, "run", late)
    with pytest.raises(LostClaimError):
        runner.run(str(small), "sample", output)
    assert [path.name for path in output.iterdir()] == ["work"]
    assert runner.run(str(small), "sample", output).fresh


def test_who_is_overtaken_by_one_that_published_changes_nothing(small, tmp_path, monkeypatch, inline_cluster):
    output, rename, made = tmp_path / "out", publish.run, []

    def late(layout: Layout, manifest: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(claims, "TTL_SECONDS", 0.1)
        made.append(runner.run(str(small), "sample", output, wait=True))
        made.append(_tree(Path(made[0].prefix).parent))
        rename(layout, manifest)

    monkeypatch.setattr(publish, "run", late)
    with pytest.raises(LostClaimError):
        runner.run(str(small), "sample", output)
    result, before = made
    assert result.fresh
    assert _tree(Path(result.prefix).parent) == before
    (entry,) = status(output)
    assert entry["state"] == "published"


def test_a_rename_whose_reply_was_lost_is_no_failure(small, tmp_path, monkeypatch, inline_cluster):
    rename = os.rename

    def twice(source: Path, target: Path) -> None:
        rename(source, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", twice)
    assert runner.run(str(small), "sample", tmp_path / "out").fresh


def test_a_run_that_died_on_another_machine_is_gone_on_with(small, tmp_path, monkeypatch, inline_cluster):
    """Also by what a cron job starts: it takes one TTL to find out."""
    monkeypatch.setattr(claims, "TTL_SECONDS", 0.2)
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(publish, "run", lambda layout, manifest: (_ for _ in ()).throw(LostClaimError("power failure")))
        with pytest.raises(LostClaimError, match="power failure"):
            runner.run(str(small), "sample", output)
    (folder,) = output.glob("work/*/claim")
    there = replace(Holder.me(), host="elsewhere", since="long ago")
    (folder / "epoch-2.json").write_text(json.dumps(asdict(there)))
    (entry,) = status(output)
    assert entry["state"] == "claimed"
    assert entry["holder"].endswith(" on elsewhere since long ago")
    assert runner.run(str(small), "sample", output).fresh
    (entry,) = status(output)
    assert entry["state"] == "published"
    events = [json.loads(line) for line in next(output.glob("work/*/events-3.jsonl")).read_text().splitlines()]
    assert events[0]["event"] == "overtook"
    assert "elsewhere" in events[0]["holder"]
