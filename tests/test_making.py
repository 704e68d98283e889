"""`dataprep.reshaping.making`: new pairs appear whole and proven, all or none, whenever their maker dies."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep import storage
from dataprep.batches import TokenBatch
from dataprep.errors import BusyError, OutputError, SpecError
from dataprep.indexed import IndexedDataset, IndexedWriter, bin_path
from dataprep.layout import pair_manifest
from dataprep.reshaping import making, merge, sample, split
from dataprep.reshaping.making import Outputs
from dataprep.storage import MARK

STEPS = ("open", "mkdir", "write", "copy_file_range", "fsync", "replace", "link", "rmdir")


class PowerFailure(BaseException):
    """The process is gone: nothing of it runs any more."""


@pytest.fixture
def pair(workspace) -> Path:
    """Three documents of 9 tokens."""
    prefix = workspace / "in" / "a"
    prefix.parent.mkdir()
    with IndexedWriter(prefix, "int32") as writer:
        writer.append(TokenBatch(np.array([1, 2, 7, 3, 7, 4, 5, 6, 7], np.int32), np.array([0, 3, 5, 9])))
        writer.commit()
    return prefix


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def _complete(prefixes: list[str]) -> list[str]:
    return sorted(f"{prefix}{suffix}" for prefix in prefixes for suffix in (".bin", ".idx", ".manifest.json"))


def _fail_at(patch: pytest.MonkeyPatch, step: int, error: BaseException) -> list[str]:
    """Let the step-th call into the kernel raise; returns the list in which calls are noted."""
    calls: list[str] = []

    def failing(name: str):
        original = getattr(os, name)

        def call(*args, **options):
            calls.append(name)
            if len(calls) == step:
                raise error
            return original(*args, **options)

        return call

    for name in STEPS:
        patch.setattr(os, name, failing(name))
    return calls


COMMANDS = {
    "merge": (lambda pair, new: [merge([pair], new)], ["new"]),
    "split": (lambda pair, new: split(pair, new, documents=2), ["new-00000", "new-00001"]),
    "sample": (lambda pair, new: [sample(pair, new, 2)], ["new"]),
}


@pytest.mark.parametrize(
    "command", ["merge", *(pytest.param(name, marks=pytest.mark.slow) for name in ("split", "sample"))]
)
def test_a_power_failure_at_any_step(pair, workspace, command):
    """Nothing is complete that is not whole, and the same command works afterwards; if all is named, it is done."""
    make, prefixes = COMMANDS[command]
    complete = _complete(prefixes)
    folder, seen = workspace / "out", set()
    for step in range(1, 200):
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outputs, "_discard", lambda self: None)
            patch.setattr(storage.AtomicFile, "discard", lambda self: None)
            calls = _fail_at(patch, step, PowerFailure())
            try:
                make(pair, folder / "new")
                break
            except PowerFailure:
                pass
        named = [name for name in _names(folder) if MARK not in name]
        manifests = [name for name in named if name.endswith(".manifest.json")]
        seen.add(calls[-1])
        assert not manifests or set(complete) - set(named) <= {f"{prefix}.manifest.json" for prefix in prefixes}
        if named == complete:
            with pytest.raises(SpecError, match="exists"):
                make(pair, folder / "new")
        else:
            make(pair, folder / "new")
        assert [name for name in _names(folder) if MARK not in name] == complete
        assert sum(IndexedDataset(folder / prefix).num_tokens for prefix in prefixes) in (9, 5, 7, 6)
    else:
        pytest.fail("never done")
    assert seen >= {"open", "mkdir", "write", "fsync", "replace", "link"}


@pytest.mark.parametrize(
    "command", ["merge", *(pytest.param(name, marks=pytest.mark.slow) for name in ("split", "sample"))]
)
def test_a_refusal_at_any_step_leaves_nothing(pair, workspace, command):
    """Or all, where there is another way: a copy without the kernel, a rename for a link."""
    make, prefixes = COMMANDS[command]
    folder = workspace / "out"
    folder.mkdir()
    failed = 0
    for step in range(1, 200):
        with pytest.MonkeyPatch.context() as patch:
            calls = _fail_at(patch, step, OSError(errno.EIO, "Input/output error"))
            try:
                make(pair, folder / "new")
            except (OutputError, dataprep.errors.FormatError):
                failed += 1
                assert not [name for name in _names(folder) if MARK not in name], calls[-1]
                assert _names(folder) == [] or calls[-1] == "rmdir"
                continue
        assert [name for name in _names(folder) if MARK not in name] == _complete(prefixes)
        shutil.rmtree(folder)
        folder.mkdir()
        if step > len(calls):
            break
    assert failed > 10


def test_a_process_that_is_killed_between_two_names(pair, workspace):
    script = """
import os, signal, sys
from dataprep.reshaping import merge
link = os.link
def die(source, target):
    if str(target).endswith(".manifest.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    link(source, target)
os.link = die
merge([sys.argv[1]], sys.argv[2])
"""
    new = workspace / "new"
    done = subprocess.run([sys.executable, "-c", script, str(pair), str(new)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in _names(workspace) if MARK not in name] == ["in", "new.bin", "new.idx"]
    merge([pair], new)
    assert _names(workspace) == ["in", "new.bin", "new.idx", "new.manifest.json"]


def test_two_makers_of_one_name(pair, workspace):
    with Outputs(workspace / "new", 0), pytest.raises(BusyError, match=f"held by process {os.getpid()}"):
        merge([pair], workspace / "new")
    assert _names(workspace) == ["in"]
    merge([pair], workspace / "new")


def test_a_name_that_is_taken_meanwhile(pair, workspace, monkeypatch):
    link = os.link

    def late(source, target):
        if target == workspace / "new.idx":
            target.write_text("somebody's")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(OutputError, match=r"new\.idx was made by somebody else meanwhile"):
        merge([pair], workspace / "new")
    assert _names(workspace) == ["in", "new.idx"]
    assert (workspace / "new.idx").read_text() == "somebody's"


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links(pair, workspace, monkeypatch, error):
    def refuse(source, target):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refuse)
    merge([pair], workspace / "new")
    assert _names(workspace) == ["in", "new.bin", "new.idx", "new.manifest.json"]


def test_all_is_synced_before_it_is_named(pair, workspace, monkeypatch):
    synced: set[int] = set()
    fsync, link = os.fsync, os.link

    def note(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    def check(source, target) -> None:
        assert os.stat(source).st_ino in synced
        link(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "link", check)
    split(pair, workspace / "new", documents=1)
    assert workspace.stat().st_ino in synced


def test_there_is_to_be_room_for_all(pair, workspace, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 900, 100))
    needed = 36 + 34 + 12 * 3 + 8 * 4
    with pytest.raises(OutputError, match=rf"{needed} bytes are needed, 100 are free; make room, or choose another"):
        merge([pair], workspace / "out" / "new")
    assert _names(workspace / "out") == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 0))  # a mount that knows no sizes
    merge([pair], workspace / "out" / "new")


def test_a_disk_that_is_full_or_read_only(pair, workspace, mounted, monkeypatch):
    small = mounted(workspace / "small", "size=64k")
    monkeypatch.setattr(Outputs, "_check_room", lambda self: None)
    (small / "ballast").write_bytes(bytes((60 << 10) - 4096))
    with pytest.raises(OutputError, match="no space left"):
        merge([pair], small / "new")
    assert _names(small) == ["ballast"]
    locked = mounted(workspace / "locked", "ro")
    with pytest.raises(OutputError, match=r"Read-only file system; choose a folder you can write to"):
        merge([pair], locked / "new")


def test_what_was_copied_is_held_to_the_manifest_of_the_input(pair, workspace):
    made = Path(merge([pair], workspace / "made").prefix)
    with bin_path(made).open("r+b") as file:
        file.write(b"\2")
    with pytest.raises(OutputError, match=rf"what was copied of {made} has another checksum .*dataprep verify {made}"):
        merge([pair, made], workspace / "new")
    with pytest.raises(dataprep.errors.FormatError, match=r"made\.bin is not what its manifest says"):
        split(made, workspace / "part", documents=1)
    assert _names(workspace) == ["in", "made.bin", "made.idx", "made.manifest.json"]


def test_a_copy_that_goes_wrong_is_found_without_a_manifest(pair, workspace, monkeypatch):
    def zeros(source: int, target: int, start: int, stop: int) -> None:
        os.write(target, bytes(stop - start))

    monkeypatch.setattr("dataprep.reshaping.selections.copy_range", zeros)
    with pytest.raises(OutputError, match=r"what was copied of .*/in/a has another checksum"):
        merge([pair], workspace / "new")
    assert _names(workspace) == ["in"]


def test_what_no_training_could_use_is_not_made(pair, workspace):
    with bin_path(pair).open("r+b") as file:
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(OutputError, match=r"new was not made, because it would be broken: id-negative: "):
        merge([pair], workspace / "new")


def test_the_manifest_names_the_final_names_alone(pair, workspace):
    made = merge([pair], workspace / "new")
    text = pair_manifest(Path(made.prefix)).read_text()
    assert MARK not in text
    assert made.manifest.verification["prefix"] == "new"
    assert making.LOCK not in _names(workspace)


@pytest.mark.parametrize("name", ["new.tmp-old", "new.tmp-12-0123abcd"])
def test_a_folder_of_a_person_stays(tmp_path, make_pair, name):
    pair = make_pair([[1, 2], [3]])
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("precious")
    merge([pair], tmp_path / "new")
    assert (tmp_path / name / "thesis.txt").read_text() == "precious"
