"""The command lease: by hand, for a time, and around a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dataprep.claims import Claim
from dataprep.cli import _noted_interrupts, app
from dataprep.errors import SpecError
from dataprep.versions import VersionManifest, Versions, leases_of, take_lease


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    versions = Versions(tmp_path / "it's news")
    with Claim(versions.claim) as claim:
        for number in (1, 2):
            empty = {"parts": (), "changed": (), "vanished": (), "previous": None, "run": 1, "created": ""}
            names = {"dataprep_version": "", "dataset": "news", "corpus": "", "tokenizer": ""}
            versions.publish(VersionManifest(number=number, **empty, **names), claim)
    return versions


def _lease(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dataprep", "lease", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _here(*words: object) -> Any:
    """The command in this process."""
    words = ("--quiet", "lease", *words) if words[-1] == "--json" else ("lease", *words)
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_for_a_time_and_ended_by_hand(versions):
    taken = _here(versions.folder / "v1", "--for", "12h", "--who", "run 42")
    assert (taken.exit_code, taken.stderr) == (0, "")
    name, path = taken.stdout.split("  ")[:2]
    assert path == str(versions.version(1))
    listed = json.loads(_here(versions.folder, "--json").stdout)
    assert [(each["id"], each["version"], each["who"]) for each in listed] == [(name, 1, "run 42")]
    assert _here(versions.folder, "--release", name).stderr == f"lease {name} has ended\n"
    with pytest.raises(SpecError, match="has no lease"):
        _here(versions.folder, "--release", name)
    assert _here(versions.folder).stderr == f"nobody has a lease of {versions.folder}\n"


def test_around_a_command(versions):
    """It sees which version it has, the lease holds meanwhile, and its exit code is ours."""
    asks = "import os, subprocess, sys; print(os.environ['DATAPREP_VERSION'], flush=True); sys.exit(subprocess.call("
    asks += "[sys.executable, '-m', 'dataprep', 'lease', os.path.dirname(os.environ['DATAPREP_VERSION'])]) or 7)"
    done = _lease(versions.folder, "--who", "me", "--", sys.executable, "-c", asks)
    assert done.returncode == 7, done.stderr
    folder, line = done.stdout.splitlines()
    assert folder == str(versions.version(2))
    assert f"{folder}  until " in line
    assert " me (process " in line
    assert leases_of(versions) == []


def test_told_to_end_it_tells_the_command(versions):
    waits = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print(1, flush=True); time.sleep(60)"
    command = [sys.executable, "-m", "dataprep", "lease", str(versions.folder), "--", sys.executable, "-c", waits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "1\n"
        assert len(leases_of(versions)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5
    assert leases_of(versions) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_told_to_end_while_the_command_starts_it_tells_it(versions, number, code):
    """Just when the command is there, and its number has no name yet."""

    def watch(frame: object, event: str, arg: Any) -> None:
        if event == "c_return" and arg.__name__ == "fork_exec":
            sys.setprofile(None)
            os.kill(os.getpid(), number)

    children = Path(f"/proc/self/task/{os.getpid()}/children")
    there = children.read_text()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _noted_interrupts()
    sys.setprofile(watch)
    try:
        done = _here(versions.folder, "--", "sleep", "60")
    finally:
        sys.setprofile(None)
        for each, handler in before.items():
            signal.signal(each, handler)
    assert children.read_text() == there, "the end of the command was waited for"
    assert done.exit_code == code
    assert leases_of(versions) == []


def test_of_a_command_that_was_killed_it_holds_on(versions):
    """The trainer that it ran may have lived on."""
    command = [sys.executable, "-m", "dataprep", "lease", str(versions.folder), "--", "sleep", "0.1"]
    killing = [*command[:-2], "sh", "-c", "kill -9 $PPID"]
    assert subprocess.run(killing, timeout=60, check=False).returncode == -signal.SIGKILL
    assert len(leases_of(versions)) == 1
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    assert len(leases_of(versions)) == 1


def test_those_of_one_version(versions):
    take_lease(versions, "1", "one")
    take_lease(versions, "2", "two")
    listed = {
        word: sorted(each["who"] for each in json.loads(_here(versions.folder / word, "--json").stdout))
        for word in ("", "current", "v1", "v000002")
    }
    assert listed == {"": ["one", "two"], "current": ["one", "two"], "v1": ["one"], "v000002": ["two"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["v3"], "has no version v3; the newest are: v000001, v000002"),
        (["v000001/manifest.json", "--for", "1h"], "is no versioned dataset"),
        (["v3", "--for", "1h"], "has no version v3; the newest are: v000001, v000002"),
        ([".", "--for", "soon"], "--for soon: expected a number and m, h, d or w"),
        ([".", "--for", "0h"], "give a time above 0"),
        ([".", "--for", "1h", "--", "true"], "exclude each other"),
        ([".", "--", "no-such-program-here"], "cannot run no-such-program-here: No such file or directory"),
        (["..", "--for", "1h"], "is no versioned dataset"),
    ],
)
def test_a_bad_request(versions, words, said, monkeypatch):
    monkeypatch.chdir(versions.folder)
    with pytest.raises(SpecError, match=said):
        _here(*words)
    assert leases_of(versions) == []
    assert os.listdir(versions.folder / "leases") == [] if versions.leases.exists() else True
