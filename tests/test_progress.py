"""What is shown while the work goes on."""

import threading
import time

from dataprep import progress


def test_a_step_that_counts_nothing_is_shown_again_and_again(monkeypatch, capsys):
    monkeypatch.setattr(progress, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    said, end = "", time.monotonic() + 20
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
