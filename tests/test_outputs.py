"""Published datasets and the state of runs, from files alone."""

import json

import pytest

import dataprep
from dataprep.outputs import datasets, status, unlock


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("first", "second")))
    return folder, dataprep.run(str(folder / "in.jsonl"), "sample", folder / "out")


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
