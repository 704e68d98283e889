"""Published datasets and the state of runs, from files alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dataprep
from dataprep import tables
from dataprep.claims import Claim
from dataprep.outputs import datasets, status, unlock


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("first", "second")))
    result = dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out")
    shutil.copytree(folder / "out", folder / "untouched", symlinks=True)
    return folder, result


def test_datasets_are_found_once_and_foreign_manifests_left_out(made):
    folder, result = made
    (folder / "out" / "foreign").mkdir()
    (folder / "out" / "foreign" / "manifest.json").write_text("{}")

    (entry,) = datasets(folder / "out")

    assert (entry["prefix"], entry["num_documents"]) == (result.prefix, 2)
    assert datasets(folder / "nothing") == []


def test_unlock_says_that_nothing_is_held(made):
    folder, _ = made
    assert unlock(folder / "out") == []
    assert unlock(folder / "nothing") == []


def test_status_survives_cut_and_missing_files(made, tmp_path):
    folder, _ = made
    (entry,) = status(folder / "out")
    assert (entry["state"], entry["units"]) == ("published", 1)

    events = next((folder / "out" / "work").iterdir()) / "events-1.jsonl"
    text = events.read_text()
    events.write_text(text + '{"cut')
    assert status(folder / "out")[0]["state"] == "published"
    events.unlink()
    assert status(folder / "out")[0]["state"] == "published"
    (events.parent / "plan.jsonl").write_text("{")
    assert status(folder / "out")[0]["state"] == "unreadable"
    assert status(tmp_path) == []


def _copy(made, tmp_path, *, published: bool) -> Path:
    """A copy of the output with a run of 3 units of which 2 are done, or published."""
    output = shutil.copytree(made[0] / "untouched", tmp_path / "copy", symlinks=True)
    (work,) = (output / "work").iterdir()
    if not published:
        (dataset,) = output.glob("in-sample-*")
        shutil.rmtree(dataset)
        head, line = (work / "plan.jsonl").read_text().splitlines()
        line = json.dumps({**json.loads(line), "units": json.loads(line)["units"] * 3})
        (work / "plan.jsonl").write_text(f"{head}\n{line}\n")
        events = [{"event": "resume", "done": 1}, {"event": "start"}, {"event": "unit", "unit": "b"}]
        (work / "events-1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        _change(work, state="running", stage="tokenize", units=3, units_done=2, num_documents=1234, num_tokens=5)
    return work


def _change(work: Path, **values) -> None:
    path = work / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_status_of_a_run_whose_driver_died(made, tmp_path):
    work = _copy(made, tmp_path, published=False)
    _change(work, updated="2026-11-21T12:03:04+00:00", host="node07", pid=12)
    (entry,) = status(tmp_path / "copy")
    assert (entry["state"], entry["units_done"], entry["units"], entry["holder"]) == ("stopped", 2, 3, None)
    assert entry["progress"]["num_documents"] == 1234
    assert list(tables.status([entry])) == [
        "in-sample  stopped  2 of 3 units, 1,234 documents, 5 tokens  "
        "process 12 on node07 last wrote 2026-11-21 12:03:04 UTC"
    ]


def test_status_of_a_run_that_goes_on(made, tmp_path):
    work = _copy(made, tmp_path, published=False)
    _change(work, updated="2026-11-21T12:03:04+00:00", stage_bytes=100, stage_bytes_done=45, seconds=12.3)
    _change(work, seconds_left=15.1, text_bytes_per_second=3.1e8, workers=16, retries=2)
    with Claim(work / "claim"):
        (entry,) = status(tmp_path / "copy")
    assert entry["state"] == "running"
    (line,) = tables.status([entry])
    assert line.startswith(
        "in-sample  running  2 of 3 units, tokenize: 45%, 12 s, about 15 s left, 1,234 documents, 5 tokens, 310 MB/s, "
        f"16 workers, 2 retries  by process {os.getpid()} on "
    )
    assert line.endswith("  updated 2026-11-21 12:03:04 UTC")


def test_status_of_a_failed_run_says_why(made, tmp_path):
    work = _copy(made, tmp_path, published=False)
    with (work / "events-1.jsonl").open("a") as file:
        file.write(json.dumps({"event": "failed", "error": "no space left"}) + "\n")
    assert next(iter(tables.status(status(tmp_path / "copy")))).endswith("  error: no space left")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b'{"schema_version": 2}',
        b"[" * 100_000,
        b'{"units_done": 1e400}',
        pytest.param(None, id="missing"),
    ],
)
def test_status_without_a_progress_file_of_use(made, tmp_path, value):
    """As of a run of an older version, or of a newer one."""
    work = _copy(made, tmp_path, published=False)
    (work / "progress.json").unlink()
    if value is not None:
        (work / "progress.json").write_bytes(value)
    (entry,) = status(tmp_path / "copy")
    assert (entry["state"], entry["units_done"], entry["progress"]) == ("stopped", 2, None)
    assert list(tables.status([entry])) == ["in-sample  stopped  2 of 3 units"]


def test_status_without_events_asks_the_progress_file(made, tmp_path):
    work = _copy(made, tmp_path, published=False)
    (work / "events-1.jsonl").unlink()
    assert status(tmp_path / "copy")[0]["units_done"] == 2
    _change(work, units_done=10**30)
    assert status(tmp_path / "copy")[0]["units_done"] == 3


def test_status_never_contradicts_what_is_published(made, tmp_path):
    """A driver that was killed right behind the rename, and a dataset that was moved away."""
    work = _copy(made, tmp_path, published=True)
    (entry,) = status(tmp_path / "copy")
    assert (entry["state"], entry["units_done"], entry["progress"]["num_documents"]) == ("published", 1, 2)
    (line,) = tables.status([entry])
    assert line == f"in-sample  published  1 of 1 units, 2 documents, 4 tokens  {entry['prefix']}"
    _change(work, state="running", num_documents=1)
    (entry,) = status(tmp_path / "copy")
    assert (entry["state"], entry["units_done"], entry["progress"]) == ("published", 1, None)
    _change(work, state="published")
    shutil.rmtree(Path(entry["prefix"]).parent)
    (entry,) = status(tmp_path / "copy")
    assert (entry["state"], entry["units_done"], entry["progress"]) == ("stopped", 0, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recipe.json", "[]"),
        ("recipe.json", '{"files": [1], "corpus": "a", "tokenizer": {"name": "b"}}'),
        ("recipe.json", '{"files": [{"url": "x"}], "corpus": "in", "tokenizer": {"name": "sample"}}'),
        ("recipe.json", "[" * 100_000),
        ("plan.jsonl", ""),
        ("plan.jsonl", '{"digest": 1}'),
        ("plan.jsonl", '{"digest": "x"}\n{"units": 1}'),
    ],
)
def test_status_of_a_work_folder_full_of_garbage(made, tmp_path, name, text):
    work = _copy(made, tmp_path, published=False)
    (work / name).write_text(text)
    (entry,) = status(tmp_path / "copy")
    assert entry["state"] == "unreadable"
    assert next(iter(tables.status([entry]))).startswith(f"{work}  unreadable: ")


@pytest.mark.parametrize("text", ["1\n", '{"event": "resume", "done": "x"}\n', "[" * 100_000 + "\n", '{"event": []}\n'])
def test_status_with_events_that_are_none(made, tmp_path, text):
    work = _copy(made, tmp_path, published=False)
    with (work / "events-1.jsonl").open("a") as file:
        file.write(text)
    assert status(tmp_path / "copy")[0]["state"] in ("stopped", "unreadable")


@pytest.mark.slow
def test_status_reads_what_a_killed_driver_left(tmp_path):
    """The real thing, followed by `--watch`: it ends when the driver does, with 1."""
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": f"text {i} " * 500}) + "\n" for i in range(4000))
    command = [sys.executable, "-m", "dataprep"]
    options = ["-w", "1", "--set", "runtime.unit_bytes=100000", "--set", "runtime.engine=reference"]
    driver = subprocess.Popen(
        [*command, "-q", "run", str(tmp_path / "in.jsonl"), "-t", "sample", "-o", str(tmp_path / "out"), *options],
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 60
        while not (found := status(tmp_path / "out")) or found[0].get("units_done", 0) < 2:
            assert time.monotonic() < end
            assert driver.poll() is None
        watching = subprocess.Popen(
            [*command, "status", str(tmp_path / "out"), "--watch"], stdout=subprocess.PIPE, text=True
        )
        assert "in-sample  running  " in watching.stdout.readline()
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    rest, _ = watching.communicate(timeout=60)
    assert watching.returncode == 1
    assert "in-sample  stopped  " in rest.splitlines()[-1]
    assert f"process {driver.pid} on " in rest.splitlines()[-1]
    (entry,) = status(tmp_path / "out")
    assert entry["state"] == "stopped"
    assert 2 <= entry["units_done"] < entry["units"]
    done = subprocess.run(
        [*command, "status", str(tmp_path / "out"), "--watch", "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, json.loads(done.stdout)[0]["state"]) == (1, "stopped")


def test_watching_what_is_published_ends_at_once(made):
    done = subprocess.run(
        [sys.executable, "-m", "dataprep", "status", str(made[0] / "untouched"), "--watch"], check=False
    )
    assert done.returncode == 0


def test_watching_where_nothing_runs_is_no_success(tmp_path):
    done = subprocess.run([sys.executable, "-m", "dataprep", "status", str(tmp_path), "--watch"], check=False)
    assert done.returncode == 1
