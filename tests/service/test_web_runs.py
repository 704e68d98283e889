"""Pages and API of runs: what they show, and that nothing in names, logs and errors gets out of its place."""

import json
import re
import shutil

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataprep.service.folders import output_id
from dataprep.service.records import RunRecord, log_path, write_record
from dataprep.versions import Versions

HTML = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


@pytest.fixture
def output(published, tmp_path):
    """A copy of an output with one published run."""
    return shutil.copytree(published, tmp_path / "copy", symlinks=True)


@pytest.fixture
def work(output):
    (found,) = (output / "work").iterdir()
    return found


def record(**given):
    values = {"job": "news", "run": 1, "trigger": "hand", "started": "2026-01-01T00:00:00+00:00", "host": "a", "pid": 1}
    return RunRecord(**(values | {"state": "failed"} | given))


def change(work, **values):
    path = work / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def going(output, work, **values):
    """Let a run look as if a process of another machine worked on it."""
    shutil.rmtree(next(output.glob("in-sample-*/manifest.json")).parent)
    (work / "claim" / "epoch-1.released").unlink()
    claim = work / "claim" / "epoch-1.json"
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"host": "node7", "boot": "another"}))
    change(work, state="running", **values)


def is_harmless(html):
    """No tag and no attribute that was not in a template."""
    return not re.search(r"<(script(?! src=\"/static/)|img src=x)|\sonerror\s*=\s*[^&]*>", html.replace("&lt;", ""))


def test_an_empty_server_says_what_to_do(make_client, tmp_path):
    client = make_client()
    page = client.get("/")
    assert page.status_code == 200
    assert "Nothing is running" in page.text
    assert f"--output {tmp_path / 'out'}" in page.text
    assert "This folder does not exist yet" in page.text
    assert "No runs yet" in client.get("/runs").text
    assert "This server has no jobs" in client.get("/jobs").text
    assert client.get("/api/v1/runs").json() == {"runs": [], "total": 0, "page": 1, "pages": 1}
    assert client.get("/api/v1/jobs").json() == []


def test_a_run_that_is_published(make_client, output, work):
    client = make_client(outputs=(output,))
    page = f"/runs/{output_id(output)}/{work.name}"

    for text in (client.get("/").text, client.get("/runs").text):
        assert f'href="{page}"' in text
        assert "published" in text
    shown = client.get(page).text
    for part in ("What it made", "in_text_document", "text-not-a-string", f'href="{page}/rejects"', str(work)):
        assert part in shown
    detail = client.get(f"/api/v1{page}").json()
    assert detail["run"]["state"] == "published"
    assert detail["run"]["rejects"] == {"text-not-a-string": 1}
    assert client.get("/api/v1/outputs").json()[0]["num_runs"] == 1


def test_a_run_that_goes_on(make_client, output, work):
    going(
        output,
        work,
        stage="tokenize",
        stage_bytes=1000,
        stage_bytes_done=250,
        text_bytes_per_second=12_300_000.0,
        seconds_left=600.0,
        workers=3,
        retries=2,
        num_tokens=1_234_567,
    )
    client = make_client(outputs=(output,))

    for path in ("/", f"/runs/{output_id(output)}/{work.name}"):
        text = client.get(path).text
        for part in ("claimed", 'max="1000" value="250"', "25 %", "12.3 MB/s", "10 min left", "tokenize"):
            assert part in text, (path, part)
    assert "node7" in text
    assert "1,234,567" in text
    (line,) = client.get("/api/v1/runs?state=going").json()["runs"]
    assert line["progress"]["workers"] == 3
    families = {each.name: each for each in text_string_to_metric_families(client.get("/metrics").text)}
    (sample,) = families["dataprep_tokens"].samples
    assert (sample.labels["corpus"], sample.value) == ("in", 1_234_567)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8787/status", "javascript:alert(1)", "", None, 5])
def test_the_pages_of_dask_are_linked_while_they_are_there(address, make_client, output, work):
    events = work / "events-1.jsonl"
    events.write_text(json.dumps({"event": "dashboard", "address": address}) + "\nnull\n" + events.read_text())
    client = make_client(outputs=(output,))
    page = f"/runs/{output_id(output)}/{work.name}"
    assert "<dt>Dask</dt>" not in client.get(page).text
    going(output, work)
    client.app.state.state.forget()

    assert (f'href="{address}"' in client.get(page).text) == str(address).startswith("http")


def test_counters_never_fall_while_one_driver_works(make_client, output, work):
    going(output, work, num_tokens=100)
    client = make_client(outputs=(output,))

    def tokens(**values):
        change(work, **values)
        client.app.state.state.forget()
        families = {each.name: each for each in text_string_to_metric_families(client.get("/metrics").text)}
        return families["dataprep_tokens"].samples[0].value

    assert [tokens(), tokens(num_tokens=90), tokens(num_tokens=110)] == [100, 100, 110]
    assert tokens(num_tokens=5, started="2030-01-01T00:00:00+00:00") == 5


def test_one_recipe_in_two_outputs_is_one_metric(make_client, output, work, tmp_path):
    going(output, work, num_tokens=100)
    other = shutil.copytree(output, tmp_path / "other", symlinks=True)
    families = list(text_string_to_metric_families(make_client(outputs=(output, other)).get("/metrics").text))

    for family in families:
        labels = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(set(labels)) == len(labels)
    assert len(families) == len({family.name for family in families})


def test_a_run_that_failed(make_client, output):
    versions = Versions(output / "news")
    write_record(versions, record(error=f"it broke {HTML}", host=HTML, retry_at="2026-01-02T00:00:00+00:00"))
    log_path(versions, 1).write_text(f"line {HTML}\x1b[31m red\n")
    client = make_client(outputs=(output,))
    page = f"/runs/{output_id(output)}/news/1"

    for path in ("/", "/runs", "/runs?state=bad", page):
        text = client.get(path).text
        assert "it broke &lt;script&gt;" in text
        assert is_harmless(text), path
    assert "\\u001b[31m red" in text
    assert "Tried again" in text
    answer = client.get(f"/api/v1{page}").json()
    assert answer["record"]["error"] == f"it broke {HTML}"
    assert (answer["detail"], answer["log"]) == (None, f"line {HTML}\x1b[31m red\n")


def test_nothing_in_a_work_folder_gets_out_of_its_place(make_client, output, work):
    recipe = json.loads((work / "recipe.json").read_text())
    recipe["corpus"] = HTML
    recipe["files"][0]["name"] = HTML
    (work / "recipe.json").write_text(json.dumps(recipe))
    change(work, corpus=HTML, host=HTML, stage=HTML)
    (work / "events-2.jsonl").write_text(json.dumps({"event": "failed", "error": HTML, "time": HTML}) + "\n")
    hostile = f"a {HTML.replace('/', '-')}\u202e"
    work.rename(work.with_name(hostile))
    client = make_client(outputs=(output,))

    (line,) = client.get("/api/v1/runs").json()["runs"]
    assert line["run"] == hostile
    for path in ("/", "/runs", "/runs?state=bad", line["page"]):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "alert(1)" in answer.text
        assert is_harmless(answer.text), path
        assert "\u202e" not in answer.text


def test_hostile_questions_are_shown_as_text(make_client, output):
    client = make_client(outputs=(output,))
    for name in ("state", "job", "output"):
        answer = client.get("/runs", params={name: HTML})
        assert (answer.status_code, is_harmless(answer.text)) == (200, True)
        assert "No run matches" in answer.text
    assert is_harmless(client.get(f"/{HTML}").text)


def test_hostile_labels_of_metrics(make_client, output):
    write_record(Versions(output / "news"), record())
    hostile = output.rename(output.with_name('a"\\\n}b'))
    families = {x.name: x for x in text_string_to_metric_families(make_client(outputs=(hostile,)).get("/metrics").text)}
    assert families["dataprep_output_runs"].samples[0].labels == {"output": str(hostile)}


@pytest.mark.parametrize(
    "path",
    [
        "/runs/{id}/nothing",
        "/runs/{id}/%2e%2e",
        "/runs/{id}/..%2f..%2fetc",
        "/runs/{id}/%00",
        "/runs/nothing/{work}",
        "/runs/{id}/news/1",
        "/runs/{id}/work/1",
        "/runs/{id}/news/99999999999999999999999",
        "/runs/{id}/news/-1",
        "/runs/{id}/news/x",
    ],
)
def test_what_is_not_listed_is_not_there(path, make_client, output, work):
    client = make_client(outputs=(output,))
    where = path.format(id=output_id(output), work=work.name)
    assert client.get(where).status_code in (404, 422)
    assert client.get(f"/api/v1{where}").status_code in (404, 422)


def test_links_lead_nowhere(make_client, output, work, tmp_path):
    (tmp_path / "secret").write_text('{"event": "secret", "error": "top secret"}\n')
    events = work / "events-9.jsonl"
    events.symlink_to(tmp_path / "secret")
    versions = Versions(output / "news")
    write_record(versions, record())
    log_path(versions, 1).symlink_to(tmp_path / "secret")
    client = make_client(outputs=(output,))

    for path in (f"/runs/{output_id(output)}/{work.name}", f"/runs/{output_id(output)}/news/1"):
        for answer in (client.get(path), client.get(f"/api/v1{path}")):
            assert (answer.status_code, "top secret" in answer.text) == (200, False)


def test_pages_of_a_list(make_client, output):
    versions = Versions(output / "news")
    for number in range(1, 121):
        write_record(versions, record(run=number, started=f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}+00:00"))
    client = make_client(outputs=(output,))

    answer = client.get("/api/v1/runs?job=news&page=3").json()
    assert (answer["total"], answer["page"], answer["pages"]) == (120, 3, 3)
    assert [line["number"] for line in answer["runs"]] == list(range(20, 0, -1))
    text = client.get("/runs?job=news&page=2").text
    assert 'href="/runs?job=news&amp;page=1"' in text
    assert 'href="/runs?job=news&amp;page=3"' in text
    assert "Page 2 of 3" in text
    assert "No run matches" in client.get("/runs?page=4").text
    for wrong in ("0", "-1", "1.5", "x", "99999999999999999999"):
        answer = client.get(f"/api/v1/runs?page={wrong}")
        assert (answer.status_code, answer.json()["detail"].startswith("query.page: ")) == (422, True)
        assert client.get(f"/runs?page={wrong}").status_code == 422
    assert text.count("<tr>") == 51


def test_every_link_of_a_page_leads_somewhere(make_client, output, work):
    write_record(Versions(output / "news"), record(error="why"))
    client = make_client(outputs=(output,))
    seen, todo = set(), ["/"]
    while todo:
        path = todo.pop()
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        if "html" in answer.headers["content-type"]:
            found = re.findall(r'(?:href|src)="([^"#]+)"', answer.text)
            todo += {each.replace("&amp;", "&") for each in found} - seen - set(todo)
    assert f"/runs/{output_id(output)}/{work.name}" in seen
    assert any(path.endswith("/documents/0") for path in seen)


def test_the_api_describes_its_answers(make_client, output):
    document = make_client(outputs=(output,)).get("/api/v1/openapi.json").json()

    for path, methods in document["paths"].items():
        assert path.startswith("/api/v1/")
        for method, route in methods.items():
            codes = set(route["responses"])
            assert {"401", "422", "429"} <= codes, (path, method)
            assert method == "get" or {"403", "413"} <= codes
            assert "{" not in path or "404" in codes
            assert route["description"]
            wrong = route["responses"]["422"]["content"]["application/json"]["schema"]
            assert wrong == {"$ref": "#/components/schemas/Problem"}
