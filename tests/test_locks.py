"""The lock that processes of one machine share."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys

import pytest

from dataprep import locks
from dataprep.errors import BusyError, OutputError
from dataprep.locks import Users, hold


def test_one_holder_at_a_time(workspace):
    path = workspace / "lock"
    message = rf" is held by process {os.getpid()} on .* since \d{{4}}-.*wait for it"
    with hold(path), pytest.raises(BusyError, match=message), hold(path):
        pytest.fail("held twice")
    with hold(path):
        pass


def test_the_lock_of_a_dead_process_is_free(workspace):
    path = workspace / "lock"
    code = "import sys\nfrom pathlib import Path\nfrom dataprep.locks import hold\n"
    code += "with hold(Path(sys.argv[1])):\n    print('held', flush=True)\n    input()"
    command = [sys.executable, "-c", code, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {process.pid} "), hold(path):
            pytest.fail("held twice")
    finally:
        process.kill()
        process.communicate()
    with hold(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_an_unreadable_record_still_says_held(workspace, monkeypatch):
    path = workspace / "lock"
    with hold(path):
        monkeypatch.setattr(locks.time, "monotonic", itertools.count().__next__)  # half a second each
        for text in ("", "{", '{"pid": 1}', "[]", "1"):
            path.write_text(text)
            with pytest.raises(BusyError, match="held by another process"), hold(path):
                pytest.fail("held twice")


def test_a_lock_is_also_that_of_a_process_that_it_was_lent_to(workspace, monkeypatch):
    path = workspace / "lock"
    with hold(path) as fd:
        process = subprocess.Popen(["sleep", "60"], pass_fds=(fd,))
        locks.lend(fd, process.pid)
    try:
        message = f"held by process {process.pid}, which process {os.getpid()} started, on .* since "
        with monkeypatch.context() as patch:
            patch.setattr(locks.time, "monotonic", itertools.count().__next__)
            with pytest.raises(BusyError, match=message), hold(path):
                pytest.fail("held twice")
    finally:
        process.kill()
        process.wait()
    with hold(path):
        pass


def test_a_lock_that_was_let_go_is_nobodys(workspace):
    path = workspace / "lock"
    with hold(path) as fd:
        process = subprocess.Popen(["sleep", "60"], pass_fds=(fd,))
        locks.let_go(fd)
    try:
        with hold(path):
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_errors_of_the_block_are_not_the_locks(workspace):
    with pytest.raises(FileNotFoundError), hold(workspace / "lock"):
        (workspace / "missing").read_bytes()


def test_a_lock_on_a_file_system_without_locks(workspace, monkeypatch):
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(OutputError, match=r"cannot lock .*No locks available"), hold(workspace / "lock"):
        pytest.fail("not held")


def test_where_no_lock_file_can_be_made_nobody_else_is_known(tmp_path):
    (tmp_path / "file").write_text("")
    with Users(tmp_path / "file" / "lock") as users, users.alone() as alone:
        assert alone
