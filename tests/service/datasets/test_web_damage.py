"""What anybody may have put in the place of a file that the server reads: it says so, and neither waits nor swells."""

import json
import os
import shutil

import pytest

from dataprep.service.records import RunRecord, write_record
from dataprep.service.state import output_id
from dataprep.versions import Versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

NAMES = ("manifest.json", "recipe.json", "plan.jsonl", "progress.json", "paused", "since")
ENDS = (".yaml", ".beat", ".log", ".idx")
"""Files that are replaced, with the records, leases, holders, events and rejects of `_is_read`."""


def _is_read(path):
    folders = ("runs", "leases", "claim", "rejects")
    return path.name in NAMES or path.suffix in ENDS or path.parent.name in folders or path.name.startswith("events-")


def _holes(path):
    with path.open("wb") as file:
        file.truncate(10 << 30)


KINDS = {
    "pipe": os.mkfifo,
    "holes": _holes,
    "brackets": lambda path: path.write_text("[" * 200_000),
    "link": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": lambda path: path.mkdir(),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "number": lambda path: path.write_text(f'{{"a": {"9" * 100_000}}}'),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pages_answer_whatever_lies_in_the_place_of_their_files(kind, shelf, make_client, tmp_path):
    folder = tmp_path / "shelf"
    shutil.copytree(shelf.output.parent, folder, symlinks=True)
    output, versions = folder / "out", Versions(folder / "out" / "nightly")
    record = RunRecord(job="nightly", run=1, trigger="hand", started="2026-01-01T00:00:00+00:00", host="node", pid=1)
    write_record(versions, record)
    (versions.folder / "leases").mkdir()
    (versions.folder / "leases" / "a.json").write_text("{}")
    (versions.folder / "since").write_text("2026-01-01T00:00:00+00:00")
    (folder / "good.yaml").write_text("corpus: inbox/*.jsonl\ntokenizer: sample\noutput: out\n")
    shutil.copytree(versions.folder, output / "good", symlinks=True)
    (versions.folder / "paused").write_text(json.dumps({"since": "", "who": ""}))
    replaced = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and _is_read(path)]
    replaced.remove(folder / "good.yaml")
    assert {path.parent.name for path in replaced} > {"runs", "leases", "claim", "rejects", shelf.plain, "shelf"}
    for path in replaced:
        path.unlink()
        KINDS[kind](path)

    site, name = make_client(outputs=(output,), jobs=folder), output_id(output)
    works = [f"/runs/{name}/{work.name}" for work in (output / "work").iterdir()]
    works += [f"{work}/rejects" for work in works] + [f"/runs/{name}/nightly/1"]
    ids = [f"{name}~{each}" for each in (shelf.plain, shelf.many, "nightly", "nightly~v000001")]
    data = [f"/datasets/{each}{what}" for each in ids for what in ("", "/files", "/documents/0", "/rejects")]
    shown = ["/", "/runs", "/jobs", "/jobs/nightly", "/jobs/good", "/metrics", "/datasets", *works, *data]
    asked = [*shown, *(f"/api/v1{path}" for path in shown[3:] if path != "/metrics")]

    answers = {path: site.get(path).status_code for path in asked}

    assert set(answers.values()) <= {200, 404, 409, 422}, answers
    assert all(answers[path] == 200 for path in ("/", "/runs", "/jobs", "/metrics", "/datasets")), answers
