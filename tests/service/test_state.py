"""What there is to see of runs: read once, read again when something is another, and nothing through links."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from dataprep.service import runs as runs_module
from dataprep.service.board import Board
from dataprep.service.folders import OutputFolder, output_id
from dataprep.service.records import RunRecord, write_record
from dataprep.service.runs import Works, read_plain, tail
from dataprep.service.state import State, pick
from dataprep.versions import Versions


@pytest.fixture
def output(published, tmp_path):
    """A copy of an output with one published run."""
    return shutil.copytree(published, tmp_path / "copy", symlinks=True)


@pytest.fixture
def work(output):
    (found,) = (output / "work").iterdir()
    return found


def make_old(*paths):
    for path in paths:
        os.utime(path, (1e9, 1e9))


def state_of(*outputs):
    return State(outputs, Board(None))


def record(job="news", run=1, **given):
    values = {"trigger": "hand", "started": "2026-01-01T00:00:00+00:00", "host": "a", "pid": 1, "state": "published"}
    return RunRecord(job=job, run=run, **(values | given))


def test_a_run_as_its_folder_shows_it(output, work):
    (run,) = Works("x", output).list()

    assert (run.id, run.state, run.corpus, run.tokenizer) == (work.name, "published", "in", "sample")
    assert (run.units, run.units_done, run.rejects) == (1, 1, {"text-not-a-string": 1})
    assert run.prefix == str(next(output.glob("in-sample-*/manifest.json")).parent / "in_text_document")
    detail = Works("x", output).detail(work.name)
    assert (detail.num_files, detail.files, detail.has_rejects) == (1, ("in.jsonl",), True)
    assert [event.name for event in detail.events] == ["resume", "start", "unit", "published"]
    assert "files" not in detail.recipe
    assert Works("x", output).detail("nothing") is None


def test_what_ended_long_ago_is_read_once(output, work, monkeypatch):
    works = Works("x", output)
    read = []
    monkeypatch.setattr(
        runs_module, "run_status", lambda folder, real=runs_module.run_status: read.append(1) or real(folder)
    )
    os.utime(work)
    works.list()
    works.list()
    assert len(read) == 2  # it changed a moment ago, and may again within one tick of the clock

    make_old(work, work / "claim", next(output.glob("in-sample-*/manifest.json")))
    works.list()
    works.list()
    assert len(read) == 3


@pytest.mark.parametrize("change", ["progress", "claim", "removed"])
def test_what_changes_is_read_again(change, output, work):
    works, manifest = Works("x", output), next(output.glob("in-sample-*/manifest.json"))
    make_old(work, work / "claim", manifest)
    assert works.list()[0].state == "published"
    if change == "progress":
        (work / "new").write_text("")
        (work / "progress.json").unlink()
        assert works.list()[0].progress is None
    elif change == "claim":
        (work / "claim" / "epoch-1.released").unlink()
        assert works.list()[0].holder is None  # its process has ended
    else:
        shutil.rmtree(manifest.parent)
        assert works.list()[0].state == "stopped"


def test_a_run_that_dies_is_seen_though_no_file_changes(output, work):
    shutil.rmtree(next(output.glob("in-sample-*/manifest.json")).parent)
    code = (
        "import sys; from pathlib import Path; from dataprep.claims import Claim\n"
        "with Claim(Path(sys.argv[1])): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, work / "claim"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        works = Works("x", output)
        assert works.list()[0].state == "running"
        holder.kill()
    assert works.list()[0].state == "stopped"


@pytest.mark.parametrize("name", ["recipe.json", "plan.jsonl", "progress.json", "events-1.jsonl", "claim"])
def test_links_are_not_followed(name, output, work, tmp_path):
    secret = tmp_path / "secret"
    shutil.move(work / name, secret)
    (work / name).symlink_to(secret)

    (run,) = Works("x", output).list()
    assert (run.state, run.detail) == ("unreadable", f"{name} is a link, and the pages follow none")
    assert Works("x", output).detail(run.id).recipe == {}


def test_a_run_that_is_a_link_is_none(output, work, tmp_path):
    shutil.move(work, tmp_path / "elsewhere")
    work.symlink_to(tmp_path / "elsewhere")
    assert Works("x", output).list() == []


def test_plain_files_alone_are_read(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")

    assert (tail(tmp_path / "a"), tail(tmp_path / "a", 5), tail(tmp_path / "a", 4)) == ("one\ntwo\n", "two\n", "")
    assert read_plain(tmp_path / "a", 3) == b"one"
    for name in ("link", "pipe", "nothing", "."):
        assert (tail(tmp_path / name), read_plain(tmp_path / name)) == ("", b"")


def test_an_output_that_is_not_there(tmp_path):
    seen = state_of(tmp_path / "nothing").seen()
    (output,) = seen.outputs.values()
    assert (output.exists, output.free_bytes, output.num_runs, seen.lines) == (False, None, 0, ())


def test_what_may_not_be_read_is_said_and_hides_nothing_else(output, work, tmp_path, monkeypatch):
    shutil.copytree(work, work.with_name("closed"))
    scandir, other = os.scandir, shutil.copytree(output, tmp_path / "other", symlinks=True)

    def refuse(path="."):
        if str(path) == str(work.with_name("closed")):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    states = {line.run: (line.state, line.detail) for line in state_of(output).seen().lines}
    assert states == {work.name: ("published", ""), "closed": ("unreadable", "cannot be read: Permission denied")}

    def refuse_all(folder, real=runs_module.runs):
        if folder == output:
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(runs_module, "runs", refuse_all)
    seen = state_of(output, other).seen()
    assert [each.problem for each in seen.outputs.values()] == ["cannot be read: Permission denied", ""]
    assert len(seen.lines) == 2


def test_a_recipe_that_goes_away_while_it_is_looked_at(output, work):
    works = Works("x", output)
    works.list()
    for text in ("{", "[]", '{"files": [{}]}'):
        (work / "recipe.json").write_text(text)
        assert works.detail(work.name).recipe == {}


def test_an_id_is_of_the_path_and_holds_none(tmp_path):
    assert output_id(tmp_path / "a" / "..") == output_id(tmp_path)
    assert output_id(tmp_path) != output_id(tmp_path / "a")
    assert len(output_id(tmp_path)) == 10


def test_runs_of_jobs_and_others_are_in_one_list(output, work):
    versions = Versions(output / "news")
    write_record(versions, record(run=1, work=work.name, num_documents=7, ended="2026-01-01T00:00:01+00:00", version=1))
    write_record(versions, record(run=2, state="failed", error="why", started="2026-01-02T00:00:00+00:00"))
    write_record(versions, record(run=0, state="skipped", started="2026-01-03T00:00:00+00:00", holder="b"))
    seen = state_of(output).seen()
    found = [(line.page, line.state, line.corpus, line.num_documents, line.detail) for line in seen.lines]

    name = output_id(output)
    assert found == [
        ("/runs?job=news", "skipped", "news", 0, ""),
        (f"/runs/{name}/news/2", "failed", "news", 0, "why"),
        (f"/runs/{name}/news/1", "published", "in", 7, ""),
    ]
    assert [line.number for line in pick(seen.lines, "bad")] == [2]
    assert pick(seen.lines, "published", job="other") == []
    assert len(pick(seen.lines, output=name)) == 3
    state = state_of(output)
    assert state.record(name, "news", 2).error == "why"
    for nothing in ((name, "news", 3), (name, "news", 0), (name, "work", 1), (name, "..", 1), ("x", "news", 1)):
        assert state.record(*nothing) is None


def test_of_runs_that_began_in_one_second_the_last_one_is_the_newest(tmp_path):
    for number in (1, 2, 3):
        write_record(Versions(tmp_path / "news"), record(run=number))
    assert [line.number for line in state_of(tmp_path).seen().lines] == [3, 2, 1]


def test_folders_of_jobs_are_no_links(output, tmp_path):
    write_record(Versions(tmp_path / "other" / "news"), record())
    (output / "linked").symlink_to(tmp_path / "other" / "news")
    (output / "half").mkdir()
    (output / "half" / "runs").symlink_to(tmp_path / "other" / "news" / "runs")

    assert OutputFolder.of(output).jobs() == []


def test_records_are_read_again_when_one_is_written(output):
    place, versions = OutputFolder.of(output), Versions(output / "news")
    write_record(versions, record())
    (versions.folder / "claim").mkdir()
    make_old(versions.folder / "runs", versions.claim)
    first = place.records("news")
    assert place.records("news") is first
    write_record(versions, record(run=2))
    assert [each.run for each in place.records("news")] == [1, 2]
    assert place.records("nothing") == []


def test_all_who_ask_at_once_share_one_look(output):
    now, looks = 0.0, []
    state = State([output], Board(None), lambda: now)
    state._look = lambda real=state._look: looks.append(1) or real()
    first = state.seen()
    assert state.seen() is first
    now = 1.0
    assert state.seen() is not first
    assert len(looks) == 2
    state.forget()
    state.seen()
    assert len(looks) == 3


def test_looking_takes_a_small_share_of_a_processor(output, monkeypatch):
    now, looks, used = 0.0, [], iter([0.0, 0.5, 0.0, 0.001])
    state = State([output], Board(None), lambda: now)
    state._look = lambda real=state._look: looks.append(1) or real()
    monkeypatch.setattr(time, "thread_time", lambda: next(used))
    state.seen()
    for now in (1.0, 9.9, 10.1):  # noqa: B007 - the clock
        state.seen()
    assert len(looks) == 2


def test_who_asks_while_somebody_looks_gets_what_was_seen_before(output):
    now = 0.0
    state = State([output], Board(None), lambda: now)
    first = state.seen()
    begun, go_on = threading.Event(), threading.Event()

    def slow(real=state._look):
        begun.set()
        assert go_on.wait(10)
        return real()

    state._look, now = slow, 1.0
    thread = threading.Thread(target=state.seen)
    thread.start()
    assert begun.wait(10)
    assert state.seen() is first
    go_on.set()
    thread.join()
    assert state.seen() is not first


def test_damaged_events_and_records_do_no_harm(output, work):
    (work / "events-1.jsonl").write_text(
        '\n{"event": "unit"}\n[1]\n{"a": 1}\nnull\n{"event": {"a": 1}, "time": 5}\n{"cut'
    )
    (output / "news" / "runs").mkdir(parents=True)
    (output / "news" / "runs" / "000001.json").write_text("[" * 10_000)
    detail = Works("x", output).detail(work.name)
    assert [(event.name, event.time) for event in detail.events] == [("unit", ""), ("{'a': 1}", "5")]
    assert len(state_of(output).seen().lines) == 1


@pytest.mark.slow
@pytest.mark.alone
def test_a_thousand_runs_and_ten_thousand_versions_are_seen_at_once(output, work, tmp_path):
    big = tmp_path / "big"
    for number in range(1000):
        copy = big / "work" / f"{number:016x}"
        shutil.copytree(work, copy)
    versions = Versions(big / "news")
    for number in range(1, 10_001):
        (versions.version(number)).mkdir(parents=True)
        (versions.version(number) / "manifest.json").write_text("{}")
    for number in range(1, 1001):
        (versions.folder / "runs").mkdir(exist_ok=True)
        path = versions.folder / "runs" / f"{number:06d}.json"
        path.write_text(json.dumps(record(run=number).to_json()))
    state = state_of(big)

    start = time.perf_counter()
    assert len(state.seen().lines) == 2000
    first = time.perf_counter() - start
    assert len(OutputFolder.of(big).versions("news")) == 10_000
    time.sleep(2.1)  # what changed a moment ago is read each time
    state.forget()
    state.seen()
    state.forget()
    start = time.perf_counter()
    state.seen()
    again = time.perf_counter() - start
    start = time.perf_counter()
    assert len([json.loads(path.read_bytes()) for path in big.rglob("*.json")]) >= 12_000
    parsed = time.perf_counter() - start
    print(f"first {first:.2f} s, again {again:.3f} s, all files parsed {parsed:.2f} s")
    assert first < 2 * parsed  # nothing is known yet
    assert again < parsed / 2
