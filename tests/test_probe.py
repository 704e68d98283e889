"""What a file system can do, found out by doing it; what it cannot is simulated by a kernel that refuses."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

import dataprep
from dataprep import probe as module
from dataprep.errors import OutputError
from dataprep.probe import Probe, check, file_system, probe

ALL = ("exclusive", "replace", "link", "symlink", "sync_file", "sync_folder", "copy_file_range", "flock")


def _refuse(number: int):
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_here_everything_works_and_nothing_is_left(workspace):
    found = probe(workspace)
    assert [name for name in ALL if not getattr(found, name)] == []
    assert found.file_system == file_system(workspace) != ""
    assert found.lacks == []
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "function", "number"),
    [
        ("link", "link", errno.EPERM),
        ("link", "link", errno.EOPNOTSUPP),
        ("symlink", "symlink", errno.EPROTO),
        ("copy_file_range", "copy_file_range", errno.EXDEV),
        ("replace", "replace", errno.ENOSYS),
    ],
)
def test_what_the_kernel_refuses(workspace, monkeypatch, name, function, number):
    monkeypatch.setattr(os, function, _refuse(number))
    found = probe(workspace)
    assert [each for each in ALL if not getattr(found, each)] == [name]
    assert list(workspace.iterdir()) == []


def test_locks_that_do_not_work_and_those_that_lie(workspace, monkeypatch):
    for call in (_refuse(errno.ENOLCK), lambda fd, how: None):
        monkeypatch.setattr(fcntl, "flock", call)
        assert not probe(workspace).flock


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_is_not_taken_for_an_answer(workspace, monkeypatch, number):
    monkeypatch.setattr(os, "link", _refuse(number))
    with pytest.raises(OutputError, match="cannot write to"):
        probe(workspace)
    assert list(workspace.iterdir()) == []


def test_a_folder_in_which_a_name_can_be_taken_twice_is_refused(workspace, monkeypatch):
    monkeypatch.setitem(module.TESTS, "exclusive", lambda place: False)
    assert probe(workspace).lacks == ["exclusive"]
    with pytest.raises(OutputError, match=r"no working exclusive.*Choose another --output"):
        check(workspace)


def test_a_folder_that_cannot_be_written_to(workspace, monkeypatch):
    monkeypatch.setattr(os, "mkdir", _refuse(errno.EROFS))
    with pytest.raises(OutputError, match="Read-only file system"):
        probe(workspace)


def test_the_file_system_is_that_of_the_mount(tmp_path, monkeypatch):
    lines = [
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
        rf"30 22 0:40 / {tmp_path}/a\040b rw,relatime shared:1 - nfs4 server:/x rw,vers=4.2",
        "31 22 0:41 / /proc rw - proc proc rw",
        "garbage",
    ]
    text = "\n".join(lines)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert file_system(tmp_path / "a b" / "c") == "nfs4"
    assert file_system(tmp_path / "a bc") == "ext4"


def test_a_run_notes_what_it_found_and_goes_on_without_links(tmp_path, monkeypatch, inline_cluster):
    for name in ("link", "symlink"):
        monkeypatch.setattr(os, name, _refuse(errno.EPERM))
    (tmp_path / "c.jsonl").write_text('{"text": "one"}\n')
    result = dataprep.run(str(tmp_path / "c.jsonl"), "sample", tmp_path / "out")
    found = result.manifest.probe
    assert isinstance(found, Probe)
    assert (found.link, found.symlink, found.replace) == (False, False, True)
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert dataprep.run(str(tmp_path / "c.jsonl"), "sample", tmp_path / "out").manifest == result.manifest
