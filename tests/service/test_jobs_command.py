"""The commands of jobs: what they print, their exit codes, and that they do what they say. Runs are real."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from dataprep.claims import Claim
from dataprep.commands.app import app
from dataprep.errors import DataprepError
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import find_job
from dataprep.service.records import RunRecord, read_records, utc, write_record

SLOT = f"{datetime.now(UTC).year}-01-01T00:00:00+00:00"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def dataprep(capsys, monkeypatch, workspace):
    """The command line in this process, in an empty folder; errors of ours become an exit code, as in `cli.main`."""
    from dataprep import cli

    assert cli.app is app
    monkeypatch.chdir(workspace)
    logger = logging.getLogger("dataprep")
    before, level = list(logger.handlers), logger.level

    def call(*words):
        capsys.readouterr()
        code, error = 0, ""
        try:
            code = app(list(map(str, words)), standalone_mode=False) or 0
        except DataprepError as raised:
            code, error = raised.exit_code, f"error: {raised}"
        out, err = capsys.readouterr()
        return Done(code, out, err + error)

    yield call
    logger.handlers[:] = before
    logger.setLevel(level)


@pytest.fixture
def place(workspace, bpe):
    """An inbox with a file, and a job of it that is due once a year, since the beginning of this one."""
    (workspace / "inbox").mkdir()
    land(workspace, "a.jsonl", "one text", "another")
    write(workspace, "news", bpe)
    return workspace


def land(place, name, *texts):
    (place / "inbox" / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write(place, name, tokenizer, **keys):
    given = {
        "corpus": "../inbox/*.jsonl",
        "tokenizer": str(tokenizer.path),
        "output": "../data",
        "schedule": "0 0 1 1 *",
        "settle_seconds": 0,
        "set": ["runtime.workers=1"],
        **keys,
    }
    (place / "jobs").mkdir(exist_ok=True)
    path = place / "jobs" / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in given.items() if value is not None}))
    long_ago = (datetime.now(UTC) - timedelta(days=800)).timestamp()
    os.utime(path, (long_ago, long_ago))


def remember(job, run, state, **more):
    """The record of a run that was."""
    started = utc(datetime.now(UTC) - timedelta(hours=3 - run / 100))
    fields = {"slot": None, "attempt": 1, "ended": started, **more}
    record = RunRecord(job=job.name, run=run, trigger="hand", state=state, started=started, host="h", pid=1, **fields)
    write_record(dataset_of(job), record)


# --- running


def test_due_runs_what_is_due_once(place, dataprep):
    first = dataprep("jobs", "due")
    again = dataprep("jobs", "due")

    assert (first.code, again.code) == (0, 0)
    assert re.search(r"^news: published v000001, 2 documents, \d+ tokens new$", first.err, re.MULTILINE)
    assert again.err == "nothing is due\n"
    (record,) = read_records(dataset_of(find_job(place / "jobs", "news")))
    assert (record.state, record.trigger, record.attempt, record.version) == ("published", "schedule", 1, 1)
    assert record.slot == SLOT


def test_quiet_says_nothing_when_nothing_is_due(place, dataprep, bpe):
    write(place, "news", bpe, schedule=None)

    done = dataprep("--quiet", "jobs", "due")

    assert (done.code, done.out, done.err) == (0, "", "")


def test_one_that_fails_or_is_wrong_keeps_no_other_from_running(place, dataprep, bpe):
    (place / "bad.jsonl").write_text("no json\n")
    write(place, "bad", bpe, corpus="../bad.jsonl")
    write(place, "broken", bpe, shedule="0 0 1 1 *")

    done = dataprep("jobs", "due", "--json")

    assert done.code == 1
    found = {each["job"]: each for each in done.json}
    assert found["news"]["record"]["state"] == "published"
    assert "shedule: unknown key" in found["broken"]["error"]
    assert "error: broken: " in done.err
    assert "rejected" in found["bad"]["error"]
    assert "error: bad: " in done.err


def test_due_of_named_jobs_alone(place, dataprep, bpe):
    write(place, "other", bpe)
    (place / "jobs" / "broken.yaml").write_text("]")

    assert dataprep("jobs", "due", "news").code == 0
    assert not (place / "data" / "other").exists()
    assert dataprep("jobs", "due", "nwes").code == 2
    assert dataprep("jobs", "due", "broken").code == 2


def test_run_prints_the_version_alone_and_says_when_nothing_is_new(place, dataprep):
    first = dataprep("jobs", "run", "news")
    second = dataprep("jobs", "run", "news")
    land(place, "b.jsonl", "a third")
    third = dataprep("jobs", "run", "news", "--json")

    folder = place / "data" / "news"
    assert first.out == second.out == f"{folder}/v000001\n"
    assert "published v000001, 2 documents" in first.err
    assert second.err.splitlines()[-1] == "news: unchanged"
    assert (third.json["state"], third.json["version"], third.json["num_documents"]) == ("published", 2, 1)
    assert third.json["trigger"] == "hand"
    assert [dataprep("-q", "jobs", "run", "news").err, (folder / "current").resolve().name] == ["", "v000002"]


def test_run_leaves_alone_what_somebody_works_at(place, dataprep):
    with Claim(dataset_of(find_job(place / "jobs", "news")).claim):
        done = dataprep("jobs", "run", "news")

    assert (done.code, done.out) == (0, "")
    assert re.search(r"^news: skipped: .*process \d+.* is at work$", done.err, re.MULTILINE)
    assert dataprep("jobs", "history", "--json").json[0]["state"] == "skipped"


def test_a_run_that_fails_is_code_1_and_is_tried_again(place, dataprep):
    (place / "inbox" / "a.jsonl").write_text("no json\n")
    failed = dataprep("jobs", "run", "news")
    land(place, "a.jsonl", "mended")
    again = dataprep("jobs", "retry", "news")
    nothing = dataprep("jobs", "retry", "news")

    assert (failed.code, again.code, nothing.code) == (1, 0, 2)
    assert failed.err.splitlines()[-1].startswith("error: ")
    assert again.out.endswith("/data/news/v000001\n")
    assert "nothing to try again, its last run: published; to run it: dataprep jobs run news" in nothing.err


def test_due_tries_again_when_it_is_time(place, dataprep):
    job = find_job(place / "jobs", "news")
    long_ago = utc(datetime.now(UTC) - timedelta(hours=1))
    remember(job, 1, "failed", slot=SLOT, retry_at=long_ago)

    done = dataprep("jobs", "due", "--json")

    (outcome,) = done.json
    assert (outcome["record"]["trigger"], outcome["record"]["attempt"]) == ("retry", 2)


# --- pausing


def test_a_paused_job_waits_for_resume_and_runs_by_hand(place, dataprep):
    assert dataprep("jobs", "pause", "news", "--why", "disk full").err.startswith("news is paused")
    assert dataprep("jobs", "due").err == "nothing is due\n"
    (entry,) = dataprep("jobs", "list", "--json").json
    assert (entry["state"], entry["paused"]["why"]) == ("paused", "disk full")
    assert "paused     since" in dataprep("jobs", "show", "news").out
    assert dataprep("jobs", "run", "news").code == 0

    assert dataprep("jobs", "resume", "news").err == "news goes on\n"
    assert dataprep("jobs", "resume", "news").err == "news was not paused\n"
    assert "published" not in dataprep("jobs", "due").err, "nothing is new"
    assert dataprep("jobs", "list", "--json").json[0]["state"] == "waiting"


# --- looking


def test_list_tells_jobs_that_are_wrong_beside_the_others(place, dataprep, bpe):
    (place / "jobs" / "bad.yaml").write_text("corpus: x\n")
    write(place, "hand", bpe, schedule=None)
    news = find_job(place / "jobs", "news")
    remember(news, 1, "published", version=4)

    done = dataprep("jobs", "list")

    assert done.code == 0
    bad, hand, line = done.out.splitlines()
    assert re.match(r"bad   wrong    .*tokenizer: Field required", bad)
    assert hand == "hand  by hand"
    assert re.fullmatch(r"news  due      next \S+ \S+:00:00 UTC  last published v000004 \S+ \S+ UTC", line)


def test_show_tells_where_everything_is(place, dataprep):
    dataprep("jobs", "run", "news")

    shown = dict(line.split(None, 1) for line in dataprep("jobs", "show", "news").out.splitlines() if " " in line)
    value = dataprep("jobs", "show", "news", "--json").json

    assert shown["corpus"] == f"{place}/inbox/*.jsonl"
    assert shown["schedule"] == "0 0 1 1 *  in UTC"
    assert re.match(r"v000001, 2 documents, \d+ tokens", shown["version"])
    assert value["dataset"] == f"{place}/data/news"
    assert value["version"]["path"] == f"{place}/data/news/v000001"
    assert len(value["next"]) == 5
    assert [each["state"] for each in value["runs"]] == ["published"]
    assert value["yaml"]["settle_seconds"] == 0


def test_history_is_newest_first(place, dataprep, bpe):
    job = find_job(place / "jobs", "news")
    write(place, "other", bpe)
    other = find_job(place / "jobs", "other")
    remember(job, 1, "failed", error="no space left", retry_at="2026-11-21T03:00:00+00:00", attempt=2)
    remember(job, 2, "published", version=1, num_documents=1000, num_tokens=20000)
    remember(other, 3, "interrupted")

    lines = dataprep("jobs", "history").out.splitlines()

    assert [line.split("  ")[1:3] for line in lines] == [["other", "run 3"], ["news", "run 2"], ["news", "run 1"]]
    assert lines[1].endswith("published v000001, 1,000 documents, 20,000 tokens new")
    assert lines[2].endswith("hand, attempt 2  failed: no space left; again 2026-11-21 03:00:00 UTC")
    assert [each["run"] for each in dataprep("jobs", "history", "news", "--json").json] == [2, 1]
    assert len(dataprep("jobs", "history", "-n", 1).out.splitlines()) == 1


def test_where_there_is_nothing_it_is_said(place, dataprep):
    (place / "none").mkdir()

    assert dataprep("jobs", "history").err == "nothing has run yet\n"
    assert "make one with: dataprep jobs add" in dataprep("jobs", "list", "--jobs", "none").err
    assert dataprep("jobs", "list", "--jobs", "nowhere").code == 2
    assert dataprep("jobs", "show", "other").code == 2


# --- adding


def test_add_writes_a_job_that_runs(place, dataprep, bpe):
    tokenizer = os.path.relpath(bpe.path)

    done = dataprep("jobs", "add", "more", "inbox/*.jsonl", "-t", tokenizer, "--schedule", "30 2 * * *", "-o", "data")

    path = place / "jobs" / "more.yaml"
    given = yaml.safe_load(path.read_text())
    assert (done.code, done.out) == (0, f"{path}\n")
    assert "it is due at " in done.err
    assert given == {
        "corpus": "../inbox/*.jsonl",
        "tokenizer": str(bpe.path),
        "output": "../data",
        "schedule": "30 2 * * *",
    }
    path.write_text(f"{path.read_text()}settle_seconds: 0\n")
    assert dataprep("jobs", "run", "more").out == f"{place}/data/more/v000001\n"
    assert dataprep("jobs", "add", "more", "x", "-t", "sample").code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sample", "-t", "sample"], {"corpus": "sample", "tokenizer": "sample", "output": "../data"}),
        (["hf:org/name", "-t", "org/model", "-o", "/srv/x"], {"corpus": "hf:org/name", "output": "/srv/x"}),
        (["/srv/in/*.gz", "-t", "gpt2"], {"corpus": "/srv/in/*.gz"}),
        (["in", "new.jsonl", "-t", "gpt2"], {"corpus": ["../in", "../new.jsonl"]}),
        (["../in", "-t", "gpt2"], {"corpus": "UP/in"}),
        (["jobs/in/*", "-t", "gpt2"], {"corpus": "./in/*"}),
        (
            ["in", "-t", "gpt2", "--changes", "mirror", "--set", "reader.text=body", "--time-zone", "Asia/Tokyo"],
            {"changes": "mirror", "set": ["reader.text=body"], "time_zone": "Asia/Tokyo"},
        ),
        (["in", "-t", "gpt2", "--cluster", "slurm"], {"cluster": "slurm"}),
        (["in", "-t", "gpt2", "--cluster", "mine.yaml"], {"cluster": "../mine.yaml"}),
    ],
)
def test_add_writes_paths_that_start_at_the_yaml(dataprep, workspace, words, expected):
    (workspace / "mine.yaml").write_text("cluster: {kind: local}")

    done = dataprep("jobs", "add", "x", *words)

    assert done.code == 0, done.err
    given = yaml.safe_load((workspace / "jobs" / "x.yaml").read_text())
    assert {key: given[key] for key in expected} == json.loads(
        json.dumps(expected).replace("UP", str(workspace.parent).replace('"', '\\"'))
    )


def test_add_from_a_yaml(dataprep, workspace):
    (workspace / "mine.yaml").write_text("# why\ncorpus: ./in\ntokenizer: sample\noutput: out\n")

    assert dataprep("jobs", "add", "x", "--from", "mine.yaml").code == 0
    assert (workspace / "jobs" / "x.yaml").read_text().startswith("# why\n")
    assert dataprep("jobs", "add", "y", "in", "--from", "mine.yaml").code == 2
    assert dataprep("jobs", "add", "y", "--from", "none.yaml").code == 2
    assert dataprep("jobs", "add", "y").code == 2
    assert dataprep("jobs", "add", "../y", "in", "-t", "sample").code == 2
    assert os.listdir(workspace / "jobs") == ["x.yaml"]


def test_add_warns_of_a_glob_that_the_shell_took(dataprep, workspace):
    for name in "ab":
        (workspace / f"{name}.jsonl").write_text("")

    assert "these 2 files, and no later ones" in dataprep("jobs", "add", "x", "a.jsonl", "b.jsonl", "-t", "sample").err


# --- rendering, and the real command


def test_render_prints_the_entry_alone(dataprep, workspace):
    done = dataprep("jobs", "render", "cron", "--jobs", workspace / "jobs")

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("*/10 * * * * ")
    assert dataprep("jobs", "render", "launchd").code == 2
    pods = ["--set", "cluster.image=x", "--set", "cluster.claim=y"]
    assert yaml.safe_load(dataprep("jobs", "render", "kubernetes", *pods).out)["kind"] == "CronJob"


@pytest.mark.slow
def test_the_line_for_cron_runs_what_is_due(place, dataprep):
    line = dataprep("jobs", "render", "cron").out.splitlines()[-1]

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["/bin/sh", "-c", line.split(None, 5)[5]], cwd="/", env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")
    (said,) = done.stderr.splitlines()  # the only thing, since the folder is of that kind
    assert said.startswith("Megatron splits --data-args-path at spaces")
    assert (place / "data" / "news" / "v000001" / "manifest.json").exists()
    wrong = [sys.executable, "-m", "dataprep", "jobs", "due", "--jobs", "nowhere"]
    assert subprocess.run(wrong, cwd="/", env=environment, capture_output=True, check=False).returncode == 2
