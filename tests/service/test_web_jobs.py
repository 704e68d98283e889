"""Pages and API of jobs: what they show of one, what can be done with it, and what they keep to themselves."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dataprep.claims import Claim
from dataprep.errors import OutputError, SpecError
from dataprep.service.board import Board
from dataprep.service.records import RunRecord, pause, paused, write_record
from dataprep.versions import Versions

TOKEN = "correct-horse-battery-staple"
SECRET = "s3cr3t"
NAMES = re.compile(r"\bdataprep_\w+")


@pytest.fixture
def folder(tmp_path):
    """A folder of jobs with one in it, which was there before today."""
    (tmp_path / "jobs" / "inbox").mkdir(parents=True)
    (tmp_path / "jobs" / "inbox" / "a.jsonl").write_text('{"text": "a"}\n')
    write(tmp_path / "jobs")
    return tmp_path / "jobs"


def write(folder, name="news", **given):
    values = {"corpus": "./inbox/*.jsonl", "tokenizer": "sample", "output": "../out", "schedule": "30 2 * * *"}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values | {"time_zone": "Europe/Berlin"} | given))
    os.utime(path, (1e9, 1e9))


def record(run=1, **given):
    values = {"job": "news", "run": run, "trigger": "schedule", "host": "a", "pid": 1, "state": "published"}
    times = {"started": f"2026-01-0{run}T00:00:00+00:00", "ended": f"2026-01-0{run}T00:01:00+00:00"}
    return RunRecord(**(values | times | given))


@pytest.fixture
def versions(tmp_path):
    return Versions(tmp_path / "out" / "news")


@pytest.fixture
def client(make_client, folder):
    """A client of a server with the jobs, and the names of jobs that it was told to start."""
    started = []
    made = make_client(started.append, jobs=folder)
    made.started = started
    return made


@pytest.fixture
def post(client, csrf_of):
    """Sends a form as the pages have it."""

    def send(path):
        return client.post(path, data={"csrf": csrf_of(client.get("/jobs").text)})

    return send


def test_a_job_that_waits(client, versions):
    write_record(versions, record(slot="2026-01-01T00:00:00+00:00"))
    write_record(versions, record(2, state="unchanged", slot=datetime.now(UTC).isoformat(timespec="seconds")))
    listed, text = client.get("/jobs").text, client.get("/jobs/news").text

    assert 'href="/jobs/news"' in listed
    for part in ("waiting", "30 2 * * *", "Europe/Berlin", ", 02:30", "Run now", "Pause", "tokenizer: sample", "#2"):
        assert part in text, part
    assert text.count('<li class="row"><time') == 5
    job = client.get("/api/v1/jobs/news").json()
    assert (job["job"]["state"], job["job"]["succeeded"]) == ("waiting", "2026-01-02T00:01:00+00:00")
    assert [each["run"] for each in job["runs"]] == [2, 1]
    assert client.get("/api/v1/jobs").json() == [job["job"]]
    assert "Comes next" in client.get("/").text


def test_a_job_that_is_due_or_runs_by_hand(client, folder):
    assert client.get("/api/v1/jobs").json()[0]["state"] == "due"
    write(folder, schedule=None)
    client.app.state.state.forget()
    (job,) = client.get("/api/v1/jobs").json()
    assert (job["state"], job["next"]) == ("by hand", [])
    text = client.get("/jobs/news").text
    assert "Run now" in text
    assert "/pause" not in text


def test_a_job_is_run(client, post):
    answer = post("/jobs/news/run")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/news?said=run")
    assert client.started == ["news"]
    assert "It was started." in client.get("/jobs/news?said=run").text
    assert "<b>" not in client.get("/jobs/news?said=<b>").text


def test_a_job_is_paused_and_goes_on(client, post, versions):
    assert post("/jobs/news/pause").headers["location"] == "/jobs/news?said=pause"
    assert paused(versions).who == "the page, from testclient"
    text = client.get("/jobs/news").text
    assert "Paused" in text
    assert "/resume" in text
    assert client.get("/api/v1/jobs").json()[0]["state"] == "paused"
    assert post("/jobs/news/resume").status_code == 303
    assert paused(versions) is None
    assert client.get("/api/v1/jobs").json()[0]["state"] == "due"


def test_a_run_that_failed_is_tried_again(client, post, versions):
    assert post("/jobs/news/retry").status_code == 409
    write_record(versions, record(state="failed", error="it <b>broke</b>", retry_at="2026-01-01T00:06:00+00:00"))
    client.app.state.state.forget()
    text = client.get("/jobs/news").text
    for part in ("Try again", "it &lt;b&gt;broke", "2026-01-01 00:06 UTC", "The newest run failed"):
        assert part in text
    assert post("/jobs/news/retry").status_code == 303
    assert client.started == ["news"]


def test_a_job_that_runs_is_not_started_again(client, post, versions):
    with Claim(versions.claim) as claim:
        write_record(versions, record(claim.epoch, state="running", ended=None))
        client.app.state.state.forget()
        text = client.get("/jobs/news").text
        assert "running" in text
        assert "Run now" not in text
        answer = post("/jobs/news/run")
    assert (answer.status_code, "at work already" in answer.text) == (409, True)
    assert client.started == []


def test_what_cannot_be_done_is_said(make_client, folder, csrf_of):
    def refuse(name):
        raise OutputError("no space left")

    headers = {"authorization": f"Bearer {TOKEN}"}
    full, still = make_client(refuse, jobs=folder, token=TOKEN), make_client(jobs=folder, token=TOKEN)
    answer = full.post("/api/v1/jobs/news/run", headers=headers)
    assert (answer.status_code, answer.json()) == (409, {"detail": "no space left"})
    answer = still.post("/api/v1/jobs/news/run", headers=headers)
    assert (answer.status_code, "starts no runs" in answer.json()["detail"]) == (409, True)
    assert "Run now" not in still.get("/jobs/news", headers=headers).text
    for path, status in (("/nothing/run", 404), ("/news/explode", 422), ("/..%2fnews/run", 404), ("/%00/run", 404)):
        assert full.post(f"/api/v1/jobs{path}", headers=headers).status_code == status
        assert full.post(f"/jobs{path}", headers=headers).status_code == status
    done = make_client(lambda name: None, jobs=folder, token=TOKEN).post("/api/v1/jobs/news/run", headers=headers)
    assert (done.status_code, done.json()) == (202, {"job": "news", "action": "run"})


def test_a_read_only_server_has_no_buttons(make_client, folder):
    client = make_client(lambda name: None, jobs=folder, read_only=True)
    text = client.get("/jobs/news").text
    assert "Run now" not in text
    assert "<form" not in text


def test_a_job_that_is_broken(client, folder, post):
    (folder / "odd.yaml").write_text("corpus: a\ntokeniser: b\n")
    write(folder, "hostile", corpus="<img src=x onerror=alert(1)>", tokenizer="<script>alert(1)</script>")
    names = {job["name"]: job for job in client.get("/api/v1/jobs").json()}

    assert (names["odd"]["state"], "tokeniser: unknown key" in names["odd"]["problem"]) == ("broken", True)
    for path in ("/jobs", "/jobs/odd", "/jobs/hostile", "/"):
        text = client.get(path).text
        assert "<img src=x" not in text
        assert not re.search(r"<script(?! src=\"/static)", text)
    assert "Run now" not in client.get("/jobs/odd").text
    answer = post("/jobs/odd/run")
    assert (answer.status_code, "unknown key" in answer.text, client.started) == (409, True, [])
    assert client.get("/jobs/nothing").status_code == 404
    assert client.get("/api/v1/jobs/nothing").status_code == 404


def test_a_job_that_names_what_lies_elsewhere_is_refused(client, folder, tmp_path, post, make_client):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.jsonl").write_text('{"text": "a"}\n')
    write(folder, "reads", corpus="../secret/*.jsonl")
    write(folder, "writes", output="../elsewhere")
    (folder / "inbox" / "link.jsonl").symlink_to(tmp_path / "secret" / "a.jsonl")
    write(folder, "links", corpus="./inbox/*.jsonl")

    for name in ("reads", "writes", "links"):
        text = client.get(f"/jobs/{name}").text
        assert "This job cannot be run" in text
        assert "Run now" not in text
        assert client.get(f"/api/v1/jobs/{name}").json()["job"]["state"] == "broken"
        with pytest.raises(SpecError, match="outside of where jobs may reach"):
            Board(folder, [tmp_path / "out"]).find(name)
    assert [output["path"] for output in client.get("/api/v1/outputs").json()] == [str(tmp_path / "out")]
    allowing = make_client(jobs=folder, allowed=(tmp_path / "secret", tmp_path / "elsewhere"))
    assert allowing.get("/api/v1/jobs/reads").json()["job"]["problem"] == ""
    assert len(allowing.get("/api/v1/outputs").json()) == 2


def test_secrets_of_a_job_are_shown_nowhere(client, folder):
    notify = {"webhook": f"https://user:{SECRET}@hooks.example/{SECRET}?x={SECRET}", "command": ["./tell", SECRET]}
    write(folder, corpus=f"https://{SECRET}@host.example/a.jsonl?token={SECRET}", notify=notify)

    for path in ("/jobs", "/jobs/news", "/", "/api/v1/jobs", "/api/v1/jobs/news", "/metrics"):
        assert SECRET not in client.get(path).text, path
    text = client.get("/api/v1/jobs/news").json()["text"]
    assert "webhook: https://hooks.example/..." in text
    assert "https://host.example/a.jsonl" in text


def test_a_mark_that_cannot_be_read_stops_a_job(client, versions):
    versions.folder.mkdir(parents=True)
    (versions.folder / "paused").write_text("{")
    (job,) = client.get("/api/v1/jobs").json()
    assert (job["state"], "paused" in job["problem"]) == ("broken", True)


def test_a_folder_that_went_away(client, folder):
    folder.rename(folder.with_name("gone"))
    client.app.state.state.forget()
    (job,) = client.get("/api/v1/jobs").json()
    assert job["state"] == "broken"
    assert client.get("/jobs").status_code == 200


def test_metrics_of_jobs(client, versions, folder):
    write_record(versions, record())
    write_record(versions, record(2, state="failed"))
    pause(versions, "me")
    (folder / "odd.yaml").write_text("{")
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}

    def value(name, **labels):
        return [
            sample.value
            for sample in families[f"dataprep_job_{name}"].samples
            if labels.items() <= sample.labels.items()
        ]

    assert value("broken", job="odd") == [1]
    assert value("paused", job="news") == [1]
    assert value("last_success_timestamp_seconds", job="news") == [1767225660]
    assert value("last_state", job="news", state="failed") == [1]
    assert value("versions", job="news") == [0]
    assert "dataprep_job_next_timestamp_seconds" not in families


def test_the_dashboard_asks_for_metrics_that_there_are():
    from dataprep import metrics
    from dataprep.service.web import telemetry
    from dataprep.service.web.showing import STATIC

    dashboard = json.loads((STATIC / "grafana.json").read_text())
    asked = {name for panel in dashboard["panels"] for each in panel["targets"] for name in NAMES.findall(each["expr"])}
    sources = [Path(module.__file__).read_text() for module in (metrics, telemetry)]
    there = {f"dataprep_{name}" for source in sources for name in re.findall(r'"([a-z_]+)", "', source)}
    there |= {f"dataprep_{name}" for source in sources for name in re.findall(r'^        "([a-z_]+)",$', source, re.M)}

    assert asked
    assert asked <= there
