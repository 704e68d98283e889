"""`dataprep.monitor` and `dataprep.metrics`: what a run says of itself in files."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
from pathlib import Path

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dataprep
from dataprep import metrics, monitor, planning, runner
from dataprep.errors import DataprepError, OutputError
from dataprep.meters import RunState, Tally
from dataprep.stages.merge import Merger
from dataprep.watcher import Progress, Silent

SETTINGS = ("runtime.workers=2", "runtime.unit_bytes=2000")


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"text": f"text number {i}"}) + "\n" for i in range(500)))
    return path


def _state(output: Path) -> dict:
    (path,) = output.glob("work/*/progress.json")
    return json.loads(path.read_text())


def _request(corpus: Path, output: Path, *settings: str) -> planning.Request:
    return planning.resolve(str(corpus), "sample", output, settings=[*SETTINGS, *settings])


def _monitor(corpus: Path, output: Path, *settings: str) -> monitor.Monitor:
    request = _request(corpus, output, *settings)
    request.layout.work.mkdir(parents=True)
    return monitor.Monitor(request, Silent())


def test_a_published_run(corpus, tmp_path):
    result = dataprep.run(str(corpus), "sample", tmp_path / "out", settings=SETTINGS)
    state, counts = _state(tmp_path / "out"), result.manifest.counts

    jsonschema.Draft202012Validator(RunState.model_json_schema()).validate(state)
    assert set(state) == set(RunState.model_fields)
    assert (state["state"], state["stage"], state["schema_version"]) == ("published", "verify", 1)
    assert (state["num_documents"], state["num_tokens"]) == (500, counts.num_tokens)
    assert state["num_text_bytes"] == counts.num_text_bytes
    assert state["source_bytes_done"] == state["source_bytes"] == corpus.stat().st_size
    assert state["units_done"] == state["units"] > 5
    assert (state["workers"], state["retries"], state["pid"]) == (2, 0, os.getpid())
    assert not any(state["earlier"].values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", state["updated"])
    assert "monitor" not in {thread.name for thread in threading.enumerate()}


def test_a_run_that_goes_on_says_what_was_there(corpus, tmp_path, monkeypatch):
    def die(self: Merger) -> None:
        raise OutputError("power failure")

    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Merger, "finish", die)
        with pytest.raises(OutputError):
            dataprep.run(str(corpus), "sample", output, settings=SETTINGS)
    first = _state(output)
    assert (first["state"], first["num_documents"], first["units_done"]) == ("failed", 500, first["units"])
    result = dataprep.run(str(corpus), "sample", output, settings=SETTINGS)
    state = _state(output)
    assert state["earlier"] == {
        "units_done": first["units"],
        "source_bytes": corpus.stat().st_size,
        "num_documents": 500,
        "num_tokens": result.manifest.counts.num_tokens,
        "num_text_bytes": result.manifest.counts.num_text_bytes,
    }
    assert (state["num_documents"], state["units_done"], state["units"]) == (500, first["units"], first["units"])


@pytest.mark.slow
def test_workers_that_are_processes(corpus, tmp_path, monkeypatch):
    seen = []
    told = monitor.Monitor.__call__

    def note(self, progress):
        told(self, progress)
        seen.append(self.state())

    monkeypatch.setattr(monitor.Monitor, "__call__", note)
    dataprep.run(str(corpus), "sample", tmp_path / "out", settings=[*SETTINGS, "runtime.processes=true"])
    last = max(seen, key=lambda state: state.sequence)
    assert max(state.workers for state in seen) == 2
    assert (last.num_documents, last.units_done) == (500, last.units)


@pytest.mark.filterwarnings("ignore:Port 8787 is already in use")
def test_where_the_pages_of_dask_are_is_noted_if_they_were_asked_for(corpus, tmp_path):
    dataprep.run(str(corpus), "sample", tmp_path / "out", settings=[*SETTINGS, "cluster.dashboard=true"])
    (events,) = tmp_path.glob("out/work/*/events-1.jsonl")
    (note,) = [line for line in map(json.loads, events.read_text().splitlines()) if line["event"] == "dashboard"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/status", note["address"])


def test_a_limit(corpus, tmp_path):
    dataprep.run(str(corpus), "sample", tmp_path / "out", limit=60, settings=SETTINGS)
    state = _state(tmp_path / "out")
    assert (state["state"], state["num_documents"]) == ("published", 60)


def test_everything_is_passed_on(corpus, tmp_path):
    class Noting:
        def __init__(self):
            self.seen = []

        def stage(self, *values):
            self.seen.append(values)

        def __call__(self, progress):
            self.seen.append(progress)

    request, noting = _request(corpus, tmp_path / "out"), Noting()
    request.layout.work.mkdir(parents=True)
    with monitor.Monitor(request, noting) as watcher:
        watcher.stage("tokenize", 10, 2, 3)
        watcher(Progress(4))
    assert noting.seen == [("tokenize", 10, 2, 3), Progress(4)]


def test_ctrl_c_is_told(corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt), _monitor(corpus, tmp_path / "out"):
        raise KeyboardInterrupt
    assert _state(tmp_path / "out")["state"] == "interrupted"


def test_it_is_written_while_nothing_is_counted(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "WRITE_SECONDS", 0.001)
    with _monitor(corpus, tmp_path / "out"):
        while _state(tmp_path / "out")["sequence"] < 5:
            pass


def test_no_reader_sees_a_torn_file(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "WRITE_SECONDS", 0.0005)
    (tmp_path / "m").mkdir()
    seen: list[int] = []
    with _monitor(corpus, tmp_path / "out", f"runtime.metrics={tmp_path / 'm'}") as watcher:
        watcher.stage("tokenize", 10)
        while len(set(seen)) < 100:
            watcher(Progress(1, 1, 1, 1))
            seen.append(_state(tmp_path / "out")["sequence"])
            assert (tmp_path / "m" / "dataprep-c-sample.prom").read_text().endswith("} 1\n")
    assert seen == sorted(seen)
    assert not list(tmp_path.rglob("*.tmp-*"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_what_cannot_be_written_is_said_once_and_stops_nothing(
    corpus, tmp_path, monkeypatch, caplog, inline_cluster, error
):
    original = os.replace

    def replace(source, target):
        if Path(target).name in ("progress.json", "dataprep-c-sample.prom"):
            raise OSError(error, os.strerror(error))
        original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with caplog.at_level(logging.WARNING):
        result = dataprep.run(
            str(corpus), "sample", tmp_path / "out", settings=[*SETTINGS, f"runtime.metrics={tmp_path}"]
        )
    assert result.fresh
    said = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert [Path(text.partition(" cannot")[0]).name for text in said] == ["progress.json", "dataprep-c-sample.prom"]
    assert all(os.strerror(error) in text for text in said)
    assert not list(tmp_path.rglob("*.tmp-*"))


def test_metrics(corpus, tmp_path):
    folder = tmp_path / "metrics"
    folder.mkdir()
    before = os.umask(0o077)
    try:
        result = dataprep.run(
            str(corpus), "sample", tmp_path / "out", settings=[*SETTINGS, f"runtime.metrics={folder}"]
        )
    finally:
        os.umask(before)
    (path,) = folder.iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == ("dataprep-c-sample.prom", 0o644)
    found = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    labels = {"corpus": "c", "tokenizer": "sample", "recipe": result.manifest.recipe_digest[:16]}
    values = {
        (sample.name, *(set(sample.labels.values()) - set(labels.values()))): sample.value
        for family in found.values()
        for sample in family.samples
    }
    assert all(labels.items() <= sample.labels.items() for family in found.values() for sample in family.samples)
    assert values["dataprep_documents_total",] == values["dataprep_dataset_documents",] == 500
    assert values["dataprep_tokens_total",] == result.manifest.counts.num_tokens
    assert values["dataprep_units_done",] == values["dataprep_units_planned",] == values["dataprep_units_total",] > 5
    states = {name: values["dataprep_run_state", name] for name in ("running", "published", "failed", "interrupted")}
    assert states == {"running": 0, "published": 1, "failed": 0, "interrupted": 0}
    assert values["dataprep_progress_timestamp_seconds",] >= values["dataprep_start_timestamp_seconds",] > 1e9
    assert [family.name for family in found.values() if family.type == "counter"] == [
        f"dataprep_{what}"
        for what in ("units", "documents", "tokens", "text_bytes", "source_bytes", "fetched_bytes", "retries")
    ]


def test_metrics_of_a_mixture_have_a_file_each(corpus, tmp_path):
    other = tmp_path / "d.jsonl"
    other.write_bytes(corpus.read_bytes())
    for path in (corpus, other):
        dataprep.run(str(path), "sample", tmp_path / "out", settings=[*SETTINGS, f"runtime.metrics={tmp_path}"])
    assert sorted(path.name for path in tmp_path.glob("*.prom")) == ["dataprep-c-sample.prom", "dataprep-d-sample.prom"]


def test_hostile_labels_are_escaped(corpus, tmp_path):
    name = 'a "b" \\ c\nd'
    state = _monitor(corpus, tmp_path / "out").state().model_copy(update={"corpus": name, "stage": name})
    text = metrics.text(state, Tally.of(Progress()))
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["corpus"] for sample in samples} == {name}
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{(\w+="([^"\\\n]|\\["\\n])*",?)+\} [0-9.e+-]+', line), line


def test_counters_never_fall(corpus, tmp_path):
    """What was taken back, as of a row group that turned out corrupt, would look as if the process began anew."""
    path = tmp_path / "dataprep-c-sample.prom"
    with _monitor(corpus, tmp_path / "out", f"runtime.metrics={tmp_path}") as watcher:
        watcher(Progress(documents=10))
        watcher.stage("tokenize", 10)
        assert 'recipe="' in path.read_text()
        first = re.search(r"documents_total\S+ (\d+)", path.read_text())[1]
        watcher(Progress(documents=-3))
        watcher.stage("verify", 10)
        assert re.search(r"documents_total\S+ (\d+)", path.read_text())[1] == first == "10"
        assert re.search(r"dataset_documents\S+ (\d+)", path.read_text())[1] == "7"


def test_reports_add_up_where_a_row_group_is_taken_back(tmp_path):
    """`num_documents` comes from the batches, and is what the manifest says before the manifest is asked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, total = tmp_path / "bad.parquet", Progress()
    pq.write_table(
        pa.table({"text": [f"{i} " * 200 for i in range(3000)]}),
        path,
        row_group_size=1500,
        compression=None,
        use_dictionary=False,
        data_page_size=10_000,
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)

    class Adding(Silent):
        def __call__(self, progress):
            nonlocal total
            total += progress

    request = planning.resolve(
        str(path), "sample", tmp_path / "out", 1, None, ["runtime.max_rejects=1", "runtime.batch_bytes=4096"]
    )
    counts = runner.execute(request, Adding()).manifest.counts
    assert counts.num_rejected > 0
    assert (total.documents, total.tokens, total.text_bytes) == (
        counts.num_documents,
        counts.num_tokens,
        counts.num_text_bytes,
    )


def test_a_failed_run_is_told(tmp_path):
    (tmp_path / "e.jsonl").write_text("no json\n" * 10)
    with pytest.raises(DataprepError):
        dataprep.run(str(tmp_path / "e.jsonl"), "sample", tmp_path / "out")
    assert _state(tmp_path / "out")["state"] == "failed"
