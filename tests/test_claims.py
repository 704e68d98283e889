"""Claims: one holder at a time, whatever dies, sleeps, lies or is torn."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dataprep import claims
from dataprep.claims import Claim, look
from dataprep.errors import BusyError, LostClaimError, OutputError
from dataprep.holders import Holder
from dataprep.layout import Layout
from dataprep.outputs import unlock
from dataprep.remains import adopt, sweep
from dataprep.storage import MARK

HOLDER = """
import sys
from pathlib import Path
from dataprep.claims import Claim
from dataprep.errors import DataprepError
folder, beat = Path(sys.argv[1]), float(sys.argv[2])
for command in sys.stdin:
    try:
        with Claim(folder, beat_seconds=beat) as claim:
            print("holds", claim.epoch, flush=True)
            for command in sys.stdin:
                if command == "release\\n":
                    break
                try:
                    claim.check()
                    print("held", flush=True)
                except DataprepError as error:
                    print(type(error).__name__, error, flush=True)
    except DataprepError as error:
        print(type(error).__name__, error, flush=True)
        sys.stdin.readline()
    print("free", flush=True)
"""


class Other:
    """A process that claims, checks and releases when it is told to."""

    def __init__(self, folder: Path, beat: float = 10.0, before: str = "") -> None:
        command = [sys.executable, "-c", before + HOLDER, str(folder), str(beat)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def say(self, command: str) -> None:
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().rstrip()

    def ask(self, command: str) -> str:
        self.say(command)
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def folder(workspace: Path) -> Path:
    return workspace / "work" / "claim"


@contextlib.contextmanager
def _others(number: int, folder: Path, beat: float = 10.0, before: str = "") -> Iterator[list[Other]]:
    found = [Other(folder, beat, before) for _ in range(number)]
    try:
        yield found
    finally:
        for other in found:
            other.end()


def _write(folder: Path, epoch: int, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"epoch-{epoch}.json").write_bytes(data)


def _foreign(folder: Path, epoch: int = 1) -> None:
    """The claim of a process of another machine."""
    there = replace(Holder.me(), host="elsewhere", boot="another", since="2026-11-21 01:00:00 +0000")
    _write(folder, epoch, json.dumps(asdict(there)).encode())


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- one at a time


def test_a_claim_says_who_has_it_and_is_taken_at_once_when_it_is_released(folder):
    with Claim(folder) as first:
        says = rf"/work is held by process {os.getpid()} on .* since \d{{4}}-.*--wait"
        with pytest.raises(BusyError, match=says), Claim(folder):
            pytest.fail("claimed twice")
        first.check()
        assert look(folder).is_free is False
    with Claim(folder) as second:
        assert (first.epoch, second.epoch) == (1, 2)
        assert second.overtook == ""
    assert look(folder).is_free
    assert _names(folder) == [f"epoch-{n}.{end}" for n in (1, 2) for end in ("beat", "json", "released")]


def test_an_error_in_the_block_releases(folder):
    with pytest.raises(ZeroDivisionError), Claim(folder):
        1 / 0  # noqa: B018
    assert look(folder).released


@pytest.mark.parametrize(
    ("links", "rounds"),
    [
        pytest.param("", 20, id="links"),
        pytest.param("", 200, id="links-200", marks=pytest.mark.slow),
        pytest.param("import os; del os.link\ndef no(*a): raise OSError(1, 'no')\nos.link = no\n", 10, id="no-links"),
    ],
)
def test_of_eight_processes_one_wins_each_round(folder, links, rounds):
    with _others(8, folder, before=links) as others:
        for number in range(rounds):
            for other in others:
                other.say("claim")
            said = [other.hear() for other in others]
            assert sorted(said)[-1] == f"holds {number + 1}"
            assert [text.partition(" ")[0] for text in sorted(said)[:-1]] == ["BusyError"] * 7
            for other in others:
                other.say("release")
            assert [other.hear() for other in others] == ["free"] * 8
    assert not [name for name in _names(folder) if MARK in name]


def test_a_waiting_one_takes_it_when_it_is_released(folder):
    told = []
    with _others(1, folder) as (other,):
        assert other.ask("claim") == "holds 1"
        with Claim(folder, wait=True, told=lambda who: (told.append(who), other.say("release"))) as claim:
            assert claim.epoch == 2
    assert told == [f"process {other.process.pid} on {Holder.me().host} since {told[0][-25:]}"]


# --- holders that are gone


def test_a_dead_process_of_this_machine_is_not_waited_for(folder):
    with _others(1, folder) as (other,):
        other.ask("claim")
        other.process.kill()
        other.process.wait()
        with Claim(folder) as claim:
            assert claim.epoch == 2


def test_a_zombie_is_dead(folder):
    with _others(1, folder) as (other,):
        other.ask("claim")
        other.process.kill()
        threads = Path(f"/proc/{other.process.pid}/task")
        while any(path.read_text().rpartition(")")[2].split()[0] != "Z" for path in threads.glob("*/stat")):
            time.sleep(0.001)
        with Claim(folder) as claim:
            assert claim.epoch == 2


def test_another_process_with_the_number_of_a_dead_one(folder):
    with _others(1, folder) as (other,):
        other.ask("claim")
        found = json.loads((folder / "epoch-1.json").read_bytes())
        assert not look(folder).is_free
        _write(folder, 1, json.dumps({**found, "started": found["started"] - 1}).encode())
        assert look(folder).is_free


def test_a_claim_of_this_process_that_nobody_holds_any_more(folder):
    _write(folder, 1, json.dumps(asdict(Holder.me())).encode())
    with Claim(folder) as claim:
        assert claim.epoch == 2


@pytest.mark.parametrize("other", ["host", "boot", "namespace"])
def test_what_is_of_another_machine_is_not_judged_by_its_number(folder, other):
    """The process that has this number here is another one."""
    _write(folder, 1, json.dumps({**asdict(Holder.me()), "pid": 1 << 22, other: "another"}).encode())
    assert not look(folder).is_free
    assert not look(folder).is_near


# --- holders that nobody can see


def test_a_silent_one_is_overtaken_after_a_ttl(folder):
    _foreign(folder)
    start, told = time.monotonic(), []
    with Claim(folder, told=told.append, ttl_seconds=0.3) as claim:
        assert claim.epoch == 2
    assert claim.overtook == told[0] == f"process {os.getpid()} on elsewhere since 2026-11-21 01:00:00 +0000"
    assert time.monotonic() - start >= 0.3


@pytest.mark.parametrize("sign", ["beat", "epoch", "record"])
def test_a_sign_of_life_is_enough(folder, sign):
    _foreign(folder)
    signs = {
        "beat": lambda: (folder / "epoch-1.beat").write_text("1"),
        "epoch": lambda: _foreign(folder, 2),
        "record": lambda: _write(folder, 1, b""),
    }
    with pytest.raises(BusyError, match="held by"), Claim(folder, told=lambda who: signs[sign](), ttl_seconds=2):
        pytest.fail("claimed twice")


def test_with_wait_a_sign_of_life_begins_the_time_anew(folder, monkeypatch):
    _foreign(folder)
    looks = []

    def beats(where: Path) -> claims.Seen:
        looks.append(where)
        if len(looks) < 8:
            (folder / "epoch-1.beat").write_text(str(len(looks)))
        return look(where)

    monkeypatch.setattr(claims, "look", beats)
    with Claim(folder, wait=True, ttl_seconds=0.1) as claim:
        assert claim.epoch == 2
    assert len(looks) >= 8 + 5


def test_time_in_which_nobody_could_look_does_not_count(folder, monkeypatch):
    """The contender was stopped, or the server hung: the holder may have been as still."""
    _foreign(folder)
    clock, looks = iter(range(0, 10**9, 1000)), []
    monkeypatch.setattr(claims.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(claims.time, "sleep", looks.append)
    with Claim(folder, beat_seconds=1e6, ttl_seconds=180) as claim:
        monkeypatch.undo()
        assert claim.epoch == 2
    assert len(looks) >= 180 / (2 * claims.LOOK_SECONDS) - 1


GARBAGE = {
    "empty": b"",
    "cut": b'{"host": "h", "pi',
    "zeros": bytes(300),
    "list": b"[]",
    "few keys": b'{"pid": 1}',
    "other keys": b'{"a": 1, "b": 2}',
    "a group of processes": json.dumps({**asdict(Holder.me()), "pid": -1}).encode(),
    "no number": json.dumps({**asdict(Holder.me()), "pid": "1"}).encode(),
    "true": json.dumps({**asdict(Holder.me()), "pid": True}).encode(),
    "too large": json.dumps({**asdict(Holder.me()), "pid": 1 << 70}).encode(),
    "no text": json.dumps({**asdict(Holder.me()), "host": None}).encode(),
    "deep": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe{}",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_a_claim_that_cannot_be_read_is_held_by_somebody(folder, data):
    _write(folder, 7, data)
    seen = look(folder)
    assert (seen.epoch, seen.who, seen.is_free, seen.is_near) == (7, "another process", False, False)
    with Claim(folder, ttl_seconds=0.05) as claim:
        assert claim.epoch == 8


def test_names_that_are_no_claims(folder):
    folder.mkdir(parents=True)
    for name in ("epoch-x.json", "epoch-5.json.old", f"epoch-9.json{MARK}x", "epoch--1.json"):
        (folder / name).touch()
    assert look(folder).epoch == 0
    (folder / "epoch-3.json").mkdir()
    assert (look(folder).epoch, look(folder).is_free) == (3, False)
    (folder / f"epoch-{10**40 - 1}.json").touch()
    with Claim(folder, ttl_seconds=0.05) as claim, pytest.raises(BusyError), Claim(folder):
        pytest.fail("claimed twice")
    assert claim.epoch == 10**40


def test_one_whose_beats_cannot_be_read_does_not_pass_for_dead(folder):
    _foreign(folder)
    (folder / "epoch-1.beat").mkdir()
    with pytest.raises(OutputError, match="cannot look into"), Claim(folder, ttl_seconds=0.05):
        pytest.fail("claimed")


@pytest.mark.parametrize("left", ["beat", "released"])
def test_a_claim_whose_file_is_lost_keeps_its_number(folder, left):
    """Or its `released` would free the next claim of that number."""
    with Claim(folder):
        pass
    (folder / "epoch-1.json").unlink()
    (folder / f"epoch-1.{'beat' if left == 'released' else 'released'}").unlink()
    with Claim(folder, ttl_seconds=0.05) as claim:
        assert claim.epoch == 2
        assert not look(folder).is_free


# --- holders that were overtaken


def test_a_frozen_holder_is_overtaken_and_told(folder):
    with _others(1, folder, beat=0.05) as (other,):
        assert other.ask("claim") == "holds 1"
        os.kill(other.process.pid, signal.SIGSTOP)
        with Claim(folder, wait=True, ttl_seconds=0.5) as claim:
            assert claim.epoch == 2
            assert f"process {other.process.pid} " in claim.overtook
            os.kill(other.process.pid, signal.SIGCONT)
            assert other.ask("check").startswith("LostClaimError ")
            assert other.ask("release") == "free"
            claim.check()
            assert not look(folder).is_free


def test_the_heart_notices_and_the_rest_is_not_released_by_who_lost_it(folder):
    with Claim(folder, beat_seconds=0.01) as claim:
        assert claim.held
        _foreign(folder, 2)
        while claim.held:
            time.sleep(0.001)
        with pytest.raises(LostClaimError, match=r"taken over by process .* on elsewhere"):
            claim.check()
    assert "epoch-1.released" not in _names(folder)


def test_a_claim_that_is_removed_ends_the_run_that_had_it(folder):
    """By somebody who deletes what he takes for left over: the next run would find nothing and begin beside it."""
    with Claim(folder, beat_seconds=0.01) as claim:
        shutil.rmtree(folder)
        deadline = time.monotonic() + 60
        while claim.held:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(LostClaimError, match="was removed while this run went on"):
            claim.check()
    assert not folder.exists()


def test_the_heart_beats(folder):
    with Claim(folder, beat_seconds=0.01):
        first = look(folder).beat
        while look(folder).beat == first:
            time.sleep(0.001)


def test_unlock_takes_it_from_anyone_and_leaves_it_free(workspace):
    held, free = workspace / "work" / "a" / "claim", workspace / "work" / "b" / "claim"
    with Claim(held) as mine:
        _foreign(free)
        (found, foreign) = unlock(workspace)
        assert (found["work"], found["is_alive"]) == (str(held.parent), True)
        assert (foreign["work"], foreign["is_alive"]) == (str(free.parent), False)
        with pytest.raises(LostClaimError):
            mine.check()
    assert unlock(workspace) == []
    assert look(held).epoch == 2
    assert look(free).is_free


# --- file systems


def _refuse(number: int):
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def _refuse_to_write(number: int):
    original = os.open

    def call(path: Path, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return original(path, flags, *rest, **named)
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EIO])
def test_without_hard_links(folder, monkeypatch, number):
    """Simulated: in this process they are refused."""
    monkeypatch.setattr(os, "link", _refuse(number))
    with Claim(folder) as first:
        with pytest.raises(BusyError, match=f"process {os.getpid()} "), Claim(folder):
            pytest.fail("claimed twice")
        first.check()
    with Claim(folder) as second:
        assert second.epoch == 2
    assert not [name for name in _names(folder) if MARK in name]


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT])
def test_a_link_whose_reply_was_lost(folder, monkeypatch, number):
    link = os.link

    def made_but(source: Path, target: Path) -> None:
        link(source, target)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", made_but)
    with Claim(folder) as claim:
        assert claim.epoch == 1


def test_somebody_is_faster(folder, monkeypatch):
    link = os.link

    def too_late(source: Path, target: Path) -> None:
        monkeypatch.undo()
        _foreign(folder)
        link(source, target)

    monkeypatch.setattr(os, "link", too_late)
    with pytest.raises(BusyError, match="on elsewhere"), Claim(folder):
        pytest.fail("claimed twice")
    assert _names(folder) == ["epoch-1.json"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO])
def test_a_folder_that_cannot_be_written_to(folder, monkeypatch, number):
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "open", _refuse_to_write(number))
    says = "no space left" if number == errno.ENOSPC else os.strerror(number)
    with pytest.raises(OutputError, match=f"cannot claim .*{says}"), Claim(folder):
        pytest.fail("claimed")
    assert _names(folder) == []


def test_a_full_disk_keeps_nobody_from_clearing_up(folder, monkeypatch):
    with Claim(folder) as claim:
        monkeypatch.setattr(os, "open", _refuse_to_write(errno.ENOSPC))
        claim.check()
        monkeypatch.setattr(os, "open", _refuse_to_write(errno.EIO))
        with pytest.raises(OutputError, match="Input/output error"):
            claim.check()
        monkeypatch.undo()
        claim.check()


CRASHES = """
import os, sys
from pathlib import Path
from dataprep.claims import Claim

def dying(original):
    def call(*args, **kwargs):
        global left
        if left == 0:
            os._exit(1)
        left -= 1
        return original(*args, **kwargs)
    return call

base = Path(sys.argv[1])
for k in range(100):
    left = k
    folder = base / str(k)
    child = os.fork()
    if not child:
        for name in ("open", "write", "close", "link", "replace", "unlink", "mkdir", "listdir"):
            setattr(os, name, dying(getattr(os, name)))
        with Claim(folder):
            pass
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with Claim(folder) as claim:
        claim.check()
        names = sorted(path.name for path in folder.iterdir())
        assert not [name for name in names if ".tmp-" in name], (k, names)
        assert claim.epoch in (1, 2), (k, names)
    if not os.waitstatus_to_exitcode(status):
        print(k)
        break
"""


def test_whoever_dies_at_any_step_is_followed_at_once(tmp_path):
    """The k-th call of everything that touches the folder is the last, for every k."""
    done = subprocess.run([sys.executable, "-c", CRASHES, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 12, "fewer steps than it takes"


# --- what is fenced


def test_what_was_merged_goes_to_the_newest_claim(workspace):
    layout = Layout.of(workspace, "c", "t", "0" * 64).at(12)
    for number in (2, 9, 10):
        layout.at(number).merged.mkdir(parents=True)
        (layout.at(number).merged / "of").write_text(str(number))
    (layout.work / "merged-old").mkdir()

    def lost() -> None:
        raise LostClaimError("lost")

    with pytest.raises(LostClaimError):
        adopt(layout, lost)
    assert [path.name for path in layout.all_merged()] == ["merged-2", "merged-9", "merged-10"]
    adopt(layout, lambda: None)
    assert [path.name for path in layout.all_merged()] == ["merged-12"]
    assert (layout.merged / "of").read_text() == "10"
    adopt(layout.at(3), lambda: None)  # a power failure took the later claims
    assert (layout.at(3).merged / "of").read_text() == "10"
    adopt(layout.at(4), lambda: None)
    adopt(layout.at(4), lambda: None)
    assert [path.name for path in layout.all_merged()] == ["merged-4"]


def test_what_comes_while_the_fence_is_asked_is_not_swept(workspace):
    old, new = workspace / f"a{MARK}1", workspace / f"b{MARK}1"
    old.touch()
    assert sweep(workspace, new.touch) == 1
    assert new.exists()
    with pytest.raises(LostClaimError):
        sweep(workspace, lambda: (_ for _ in ()).throw(LostClaimError("lost")))
    assert new.exists()


def test_a_job_that_slurm_began_again_need_not_wait_for_itself(folder, monkeypatch):
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "big")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    there = replace(Holder.me(), host="elsewhere", boot="another")
    assert (there.job, there.restarts) == ("big/17", 0)
    _write(folder, 1, json.dumps(asdict(there)).encode())
    assert not look(folder).is_free
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert look(folder).is_free
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert not look(folder).is_free, "another job's"


def test_a_pod_that_took_the_place_of_another_need_not_wait_for_it(folder, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tls://dataprep-1:8786")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    there = replace(Holder.me(), namespace="pid:[1]")
    assert there.job == "tls://dataprep-1:8786/0"
    _write(folder, 1, json.dumps(asdict(there)).encode())
    assert look(folder).is_free
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tls://dataprep-2:8786")
    assert not look(folder).is_free, "of another Job"
    monkeypatch.delenv("JOB_COMPLETION_INDEX")
    assert not look(folder).is_free
