"""The command for folders that we cannot test on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep import doctor
from dataprep.errors import LostClaimError, OutputError
from dataprep.storage import AtomicFile


def _doctor(*words: str | Path, before: str = "") -> subprocess.Popen[str]:
    code = before + "import sys; from dataprep.cli import main; sys.argv = ['dataprep', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, "--quiet", "doctor", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_folder_is_examined_and_left_as_it_was(workspace):
    printed, said = (process := _doctor(workspace / "later" / "output")).communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    assert [line.split()[0] for line in printed.splitlines() if " ok: " in line] == [
        "claims",
        "overtaking",
        "visibility",
        "parallel",
    ]
    assert list(workspace.iterdir()) == []


def test_processes_that_are_started_by_hand_meet(workspace):
    both = [_doctor(workspace, "--peers", "2", "--json") for _ in range(2)]
    reports = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for report in reports:
        report.pop("free_bytes")
    assert reports[0] == reports[1]
    assert reports[0]["ok"]
    assert sorted(int(name.rpartition("-")[2]) for name in reports[0]["processes"]) == sorted(p.pid for p in both)
    assert list(workspace.iterdir()) == []


def test_who_is_alone_does_not_wait_for_ever(workspace, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(OutputError, match=r"1 processes met, expected 2 .*rm -r"):
        doctor.examine(workspace, 2, lambda name: None)


# --- what it would find on a bad file system; of the meeting there is one process, which says what all would


class Alone(doctor.Meeting):
    """A meeting of one."""

    def __init__(self, folder: Path, rank: int = 0, answers: dict[str, list[object]] | None = None) -> None:
        self.folder, self.peers, self.rank, self.answers = folder, 2, rank, answers or {}

    def gather(self, step: str, value: object) -> list[object]:
        return self.answers.get(step, [value])


def test_two_winners_are_found(workspace):
    ok, detail = doctor._claims(Alone(workspace, answers={"won3": [True, True], "won7": [False, False]}))
    assert (ok, detail) == (False, "10 rounds; 2 with [2, 0] winners")


def test_a_holder_that_is_not_fenced_is_found(workspace, monkeypatch):
    ok, detail = doctor._overtaking(Alone(workspace))
    assert (ok, detail) == (False, "not told, not fenced")
    monkeypatch.setattr(doctor.Claim, "check", lambda claim: (_ for _ in ()).throw(LostClaimError("lost")))
    (workspace / "overtaking" / "final").rmdir()
    (workspace / "overtaking" / "merged-1").mkdir()
    monkeypatch.setattr(doctor.Claim, "__enter__", lambda claim: claim)
    monkeypatch.setattr(doctor.Claim, "__exit__", lambda claim, *error: None)
    assert doctor._overtaking(Alone(workspace)) == (False, "not fenced")


def test_files_that_are_not_whole_are_found(workspace, monkeypatch):
    monkeypatch.setattr(doctor, "PATIENCE_SECONDS", 0.1)
    with AtomicFile(workspace / "data1") as file:
        file.write(b"other")
    answers = {"written": [[0, "xxh3_128:0"], [1, file.checksum], [2, "xxh3_128:1"]]}
    assert doctor._visibility(Alone(workspace, answers=answers)) == (False, "2 files were not seen")


def test_bytes_that_are_lost_are_found(workspace):
    """As where two machines write to one page: the other one's blocks are not there."""
    assert doctor._writes(Alone(workspace)) == (False, "4 of 8 blocks are wrong")
    assert os.path.getsize(workspace / "shared") == 8 << 20
