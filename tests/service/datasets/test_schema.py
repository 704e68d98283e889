"""The API does what its OpenAPI document says, whatever is asked: schemathesis against a real server.

Run with ``pytest -m serve``; needs ``pip install schemathesis``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from dataprep.service.records import RunRecord, write_record
from dataprep.service.web import sessions
from dataprep.versions import Versions

pytestmark = pytest.mark.serve

TOKEN = "correct-horse-battery-staple"
AUTHORIZATION = f"Bearer {TOKEN}"


@pytest.fixture
def site(shelf, serving, tmp_path, monkeypatch):
    """The address of a server with datasets, versions, rejects, runs and jobs; one of them is broken."""
    folder = tmp_path / "shelf"
    shutil.copytree(shelf.output.parent, folder, symlinks=True)
    (folder / "broken.yaml").write_text("corpus: [\n")
    (folder / "failing.yaml").write_text("corpus: none/*.jsonl\ntokenizer: sample\noutput: out\n")
    versions = Versions(folder / "out" / "failing")
    said = {"started": "2026-01-01T00:00:00+00:00", "host": "node", "pid": 1}
    write_record(versions, RunRecord(job="failing", run=1, trigger="hand", state="failed", error="<b>\n", **said))
    (versions.folder / "runs" / "000001.log").write_text("<script>\x1b[31m\n")
    monkeypatch.setattr(sessions, "TRIES", 10**9)

    def start(**settings):
        _, address = serving(launch=lambda name: None, outputs=(folder / "out",), jobs=folder, **settings)
        return f"http://127.0.0.1:{address[1]}"

    return start


def document(address):
    """The OpenAPI document of a server."""
    asked = urllib.request.Request(f"{address}/api/v1/openapi.json", headers={"Authorization": AUTHORIZATION})
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def fuzz(address, *options):
    """What schemathesis says; it is not told of the events, which never end."""
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
    more = ["--exclude-path", "/api/v1/events", "--seed", "1", "--request-timeout", "10", "--no-color"]
    command += [f"{address}/api/v1/openapi.json", "--checks", "all", *more, *options]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"token": TOKEN}, ["-n", "10", "-H", f"Authorization: {AUTHORIZATION}"]),
        ({"read_only": True}, ["--phases", "coverage", "--exclude-checks", "unsupported_method"]),  # 403, and not 405
    ],
    ids=["token", "open"],
)
def test_whatever_is_asked_is_answered_as_the_document_says(settings, options, site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = fuzz(site(**settings), *options)

    assert done.returncode == 0, done.stdout
    tested = re.search(r"Tested: +(\d+)", done.stdout)
    assert int(tested[1]) >= 17, done.stdout


def test_what_is_there_is_answered_as_the_document_says(site):
    """What random addresses do not find."""
    import schemathesis

    address = site(token=TOKEN)
    headers = {"Authorization": AUTHORIZATION}
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json", headers=headers)

    def get(path, **parameters):
        case = schema[f"/api/v1{path}"]["GET"].Case(path_parameters=parameters, headers=headers)
        answer = case.call_and_validate(headers=headers)
        assert answer.status_code == 200
        return answer.json()

    runs = get("/runs")["runs"]
    assert {line["state"] for line in runs} == {"published", "failed"}
    for line in runs:
        if line["number"] is not None:
            get("/runs/{output}/{job}/{number}", **{key: line[key] for key in ("output", "job", "number")})
        else:
            get("/runs/{output}/{run}", output=line["output"], run=line["run"])
            get("/runs/{output}/{run}/rejects", output=line["output"], run=line["run"])
    names = [row["id"] for row in get("/datasets")["datasets"]]
    listed = [row["id"] for name in names if name.endswith("~nightly") for row in get_versions(get, name)]
    assert len(names) == 3
    for name in names + listed:
        for what in ("", "/lengths", "/files", "/rejects"):
            get(f"/datasets/{{dataset}}{what}", dataset=name)
        get("/datasets/{dataset}/documents/{number}", dataset=name, number=0)
    assert [get("/jobs/{name}", name=job["name"])["job"]["name"] for job in get("/jobs")] == [
        "broken",
        "failing",
        "nightly",
    ]
    for path in ("/health", "/outputs"):
        get(path)


def get_versions(get, name):
    return get("/datasets/{dataset}/versions", dataset=name)["versions"]


def test_the_document_says_that_a_token_is_needed(site):
    paths = document(site())
    assert "securitySchemes" not in paths["components"]
    locked = document(site(token=TOKEN))
    operations = [operation for path in locked["paths"].values() for operation in path.values()]
    assert all(operation["security"] == [{"HTTPBearer": []}] for operation in operations)
