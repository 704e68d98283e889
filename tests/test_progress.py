"""What is shown while the work goes on."""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import threading
import time

import pytest

from dataprep import progress
from dataprep.watcher import Progress


def test_a_step_that_counts_nothing_is_shown_again_and_again(monkeypatch, capsys):
    monkeypatch.setattr(progress, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    said, end = "", time.monotonic() + 60
    with progress.watch(quiet=False) as watcher:
        watcher.stage("a long step", 100)
        while said.count("a long step: 0%, ") < 2 and time.monotonic() < end:
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert said.count("a long step: 0%, ") >= 2
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_quiet_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.watch(quiet=True) as watcher:
        watcher.stage("a long step", 100)
    assert capsys.readouterr().err == ""


def test_a_plain_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "BEAT_SECONDS", 100)
    with progress.watch(quiet=False) as watcher:
        watcher.stage("tokenize", 1000)
        watcher(Progress(source_bytes=450, documents=3, tokens=1234, units=1, planned=3, workers=2, retries=1))
    assert re.fullmatch(
        r"tokenize: 45%, 1 s, about 1 s left, 1 of 3 units, 3 documents, 1,234 tokens, 2 workers, 1 retry\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("columns", [80, pytest.param(200, marks=pytest.mark.slow)])
def test_one_line_on_a_terminal(tmp_path, columns):
    """On a real pseudo-terminal: it is drawn in its place, fits, is wiped out, and shows what there is."""
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": f"text {i} " * 500}) + "\n" for i in range(600))
    script = "import sys; sys.argv[0] = 'dataprep'; from dataprep.cli import main; main()"
    options = ["-w", "1", "--set", "runtime.unit_bytes=100000", "--set", "runtime.engine=reference"]
    command = ["run", str(tmp_path / "in.jsonl"), "-t", "sample", "-o", str(tmp_path / "out"), *options]
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, "-c", script, *command])
    printed = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        printed += data
        if not data:
            break
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    drawn = [line for line in re.split(r"[\r\n]+", printed.decode()) if line.startswith("tokenize:")]
    assert max(map(len, drawn)) <= columns
    full = [
        line
        for line in drawn
        if re.search(r"\d+%\|.*\| \d+ s left, \d+/\d\d units, [\d,]+ documents, \S+ tokens", line)
    ]
    assert full
    if columns == 200:
        assert all(re.search(r" tokens, \d+ MB/s *$", line) for line in full)
    assert re.search(r"verify: [^\n]*\r *\r", printed.decode())
