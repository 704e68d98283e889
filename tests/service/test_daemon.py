"""What is due is started as a process of its own, once, whoever looks; what may not run is named, once."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dataprep.errors import OutputError, SpecError
from dataprep.service import daemon
from dataprep.service.daemon import Daemon
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import find_job
from dataprep.service.records import pause, read_records
from dataprep.versions import Versions


@pytest.fixture
def add(tmp_path: Path, write_texts: Callable[..., Path]) -> Callable[..., Versions]:
    """Write a job of three documents that is due every minute since yesterday; gives its dataset."""
    (tmp_path / "inbox").mkdir()
    write_texts(["one", "two", "three"], "inbox/a.jsonl")

    def add(name: str, **keys: Any) -> Versions:
        given = {
            "corpus": "../inbox/*.jsonl",
            "tokenizer": "sample",
            "output": "../data",
            "settle_seconds": 0,
            "schedule": "* * * * *",
            **keys,
        }
        path = tmp_path / "jobs" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(given))
        os.utime(path, (time.time() - 86400,) * 2)
        return dataset_of(find_job(path.parent, name))

    return add


def _ended(versions: Versions) -> list[str]:
    """How the runs ended."""
    return [record.state for record in read_records(versions)]


def test_two_that_look_start_one_run_of_what_is_due(tmp_path, add):
    versions = add("news")
    add("by-hand", schedule=None)
    moment = datetime.now(UTC)  # a slot stays the newest one, however long this takes
    one, two = (Daemon(tmp_path / "jobs", [tmp_path], lambda: moment) for _ in range(2))
    assert one.look() == ["news"]
    assert one.look() == []  # its process goes on
    two.look()
    for process in (*one._started.values(), *two._started.values()):
        assert process.wait(120) == 0
    assert "published" in _ended(versions)
    assert set(_ended(versions)) <= {"published", "skipped"}
    assert versions.numbers() == [1]
    assert two.look() == []
    assert not (tmp_path / "data" / "by-hand").exists()
    assert (versions.folder / "runs" / "launched.log").read_text().count("Traceback") == 0


def test_what_may_not_run_is_named_once(tmp_path, add, said, monkeypatch):
    started: list[str] = []
    monkeypatch.setattr(Daemon, "_start", lambda self, job, words: started.append(" ".join(words)))
    pause(add("paused"), "me")
    add("later", schedule=f"0 0 {(datetime.now(UTC) + timedelta(days=20)):%-d %-m} *")
    add("away")
    (tmp_path / "jobs" / "wrong.yaml").write_text("corpus: [")
    found = Daemon(tmp_path / "jobs", [])
    for _ in range(3):
        assert found.look() == []
    assert len(said().splitlines()) == 2
    assert "the job away names" in said()
    assert "wrong.yaml is not YAML" in said()
    with pytest.raises(SpecError, match="--allow"):
        found.launch("away")
    with pytest.raises(SpecError, match="no job 'nothing'"):
        found.launch("nothing")
    allowed = Daemon(tmp_path / "jobs", [tmp_path])
    assert allowed.look() == ["away"]
    allowed.launch("paused")
    assert started == ["due away", "run paused"]


def test_a_job_that_cannot_be_started_does_not_keep_others_from_it(tmp_path, add, said):
    (add("a-bad").folder / "runs" / "launched.log").mkdir(parents=True)
    versions = add("news")
    found = Daemon(tmp_path / "jobs", [tmp_path])
    assert found.look() == ["news"]
    assert found._started["news"].wait(120) == 0
    assert versions.numbers() == [1]
    found.look()
    assert said().count("cannot start a process that logs in") == 1
    with pytest.raises(OutputError, match="cannot start a process that logs in"):
        found.launch("a-bad")


def test_so_many_at_once(tmp_path, add, monkeypatch):
    class Going:
        def poll(self) -> None:
            return None

    monkeypatch.setattr(Daemon, "_start", lambda self, job, words: self._started.__setitem__(job.name, Going()))
    for i in range(daemon.AT_ONCE + 2):
        add(f"job{i}")
    found = Daemon(tmp_path / "jobs", [tmp_path])
    assert len(found.look()) == daemon.AT_ONCE
    assert found.look() == []


def test_it_looks_until_it_is_told_to_end(tmp_path, add, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "dataprep")
    monkeypatch.setattr(daemon, "LOOK_SECONDS", 0.01)
    stop, looks = threading.Event(), [0]
    found = Daemon(tmp_path / "jobs", [])

    def look() -> list[str]:
        looks[0] += 1
        if looks[0] == 1:
            raise RuntimeError("a fault")
        if looks[0] == 3:
            stop.set()
        return Daemon.look(found)

    monkeypatch.setattr(found, "look", look)
    found.run(stop)  # there is no such folder
    assert looks == [3]
    assert caplog.text.count("cannot read the jobs folder") == 1
    assert caplog.text.count("RuntimeError: a fault") == 1
