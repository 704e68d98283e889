"""A job's runs: what is new becomes a version, what changed follows the job's word; nothing is half, lost or twice."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

import dataprep
from dataprep import runner, submission
from dataprep.claims import Claim
from dataprep.cli import app
from dataprep.errors import ClusterError, DataprepError, LostClaimError, OutputError, SourceError, SpecError, Terminated
from dataprep.outputs import unlock
from dataprep.prefixes import find_prefixes
from dataprep.service import ingesting
from dataprep.service.ingesting import dataset_of, ingest
from dataprep.service.jobs import load_job
from dataprep.service.oneshot import due_of
from dataprep.service.records import RunRecord, read_records
from dataprep.service.running import run_job
from dataprep.service.schedule import Due
from dataprep.storage import output_error
from dataprep.versions import Pending, Versions, versioned
from dataprep.watcher import Silent


class Place:
    """An inbox, a job of it, and its dataset."""

    def __init__(self, root: Path, tokenizer: Path) -> None:
        self.root, self.tokenizer = root, tokenizer
        self.inbox, self.runs = root / "inbox", 0
        self.decoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self.inbox.mkdir()
        self.write()

    def write(self, **keys: object) -> None:
        given = {
            "corpus": "../inbox/**/*.jsonl",
            "tokenizer": str(self.tokenizer),
            "output": "../data",
            "settle_seconds": 0,
            "retries": {"attempts": 1},
            **keys,
        }
        (self.root / "jobs").mkdir(exist_ok=True)
        (self.root / "jobs" / "news.yaml").write_text(json.dumps(given))
        self.job = load_job(self.root / "jobs" / "news.yaml")

    @property
    def versions(self) -> Versions:
        return dataset_of(self.job)

    def land(self, name: str, *texts: str) -> Path:
        path = self.inbox / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.runs += 1
        os.utime(path, ns=(self.runs * 10**9, self.runs * 10**9))  # no two landings have the same mtime
        return path

    def run(self) -> RunRecord:
        return run_job(self.job)

    def texts(self, version: Path | None = None) -> list[str]:
        """The documents of the current version."""
        found = []
        for prefix in find_prefixes(version or self.versions.folder):
            dataset = dataprep.open_dataset(prefix)
            found += [self.decoder.decode([int(token) for token in row[:-1]]) for row in dataset]
        return found

    def stamps(self) -> dict[Path, tuple[int, int, int]]:
        """What tells whether files of parts were written again."""
        stats = {path: path.stat() for path in self.versions.parts.rglob("*") if path.is_file()}
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.fixture
def place(tmp_path: Path, make_tokenizer: Callable[..., Path]) -> Place:
    return Place(tmp_path, make_tokenizer())


def test_only_what_is_new_is_tokenized(place):
    assert place.run().state == "unchanged"
    place.land("b/1.jsonl", "one", "two")
    first = place.run()
    assert (first.state, first.version, first.files_added, first.num_documents) == ("published", 1, 1, 2)
    before = place.stamps()
    again = place.run()
    assert (again.state, again.version, again.files_added) == ("unchanged", None, 0)
    place.land("a/2.jsonl", "three")  # sorts before, and makes another folder the common one
    third = place.run()
    assert (third.state, third.version, third.files_added, third.num_documents) == ("published", 2, 1, 1)
    assert place.texts() == ["one", "two", "three"]
    assert place.texts(place.versions.version(1)) == ["one", "two"]
    assert before.items() <= place.stamps().items()
    version = place.versions.newest()
    assert (version.number, version.previous, version.run, version.corpus) == (2, 1, third.run, "inbox")
    assert [record.state for record in read_records(place.versions)] == ["unchanged", "published"] * 2
    for prefix in find_prefixes(place.versions.folder):
        assert dataprep.verify(prefix, level="source").ok


def test_a_touched_file_is_the_same_and_a_renamed_one_is_not(place):
    path = place.land("1.jsonl", "one")
    place.run()
    os.utime(path, ns=(5, 5))
    assert place.run().state == "unchanged"
    path.rename(place.inbox / "2.jsonl")
    with pytest.raises(SourceError, match=r"1 files are gone \(1\.jsonl\)"):
        place.run()


@pytest.mark.parametrize("how", ["longer", "same length", "gone", "tokenizer", "reader"])
def test_append_only_refuses_what_changed(place, how, make_tokenizer):
    place.land("1.jsonl", "one")
    place.land("2.jsonl", "two")
    place.run()
    if how == "gone":
        (place.inbox / "1.jsonl").unlink()
    elif how == "tokenizer":
        place.write(tokenizer=str(make_tokenizer(eos=None)), set=["policy.eod=none"])
    elif how == "reader":
        place.write(set=["reader.group_rows=2"])
    else:
        place.land("1.jsonl", "uno" if how == "same length" else "longer")
    with pytest.raises(SourceError, match="is append_only, and since its newest version"):
        place.run()
    assert place.versions.numbers() == [1]
    assert place.texts() == ["one", "two"]
    record = read_records(place.versions)[-1]
    assert (record.state, record.retry_at) == ("failed", None)
    assert "changes: mirror" in record.error


def test_mirror_makes_anew_what_is_needed_and_no_more(place):
    place.write(changes="mirror")
    place.land("1.jsonl", "one")
    place.land("2.jsonl", "two")
    place.run()
    place.land("3.jsonl", "three")
    place.run()
    kept = place.versions.newest().parts[1]
    place.land("2.jsonl", "dos")
    record = place.run()
    assert (record.version, record.files_changed, record.files_added, record.num_documents) == (3, 1, 0, 2)
    assert place.versions.newest().parts[0] == kept
    assert sorted(place.texts()) == ["dos", "one", "three"]
    assert place.versions.newest().changed == ("2.jsonl",)
    (place.inbox / "3.jsonl").unlink()
    record = place.run()
    assert (record.version, record.files_vanished, record.num_documents) == (4, 1, 0)
    assert sorted(place.texts()) == ["dos", "one"]
    place.land("3.jsonl", "drei!")  # as long as before: the part of old has the very same names and sizes
    place.run()
    assert sorted(place.texts()) == ["dos", "drei!", "one"]
    assert sorted(place.texts(place.versions.version(2))) == ["one", "three", "two"]


def test_mirror_follows_another_tokenizer(place, make_tokenizer):
    place.land("1.jsonl", "one")
    place.run()
    place.land("2.jsonl", "two")
    place.run()
    place.write(changes="mirror", set=["policy.eod=none"])
    assert place.run().version == 3
    assert len(place.versions.newest().parts) == 1
    (prefix,) = find_prefixes(place.versions.folder)
    assert [len(row) for row in dataprep.open_dataset(prefix)] == [4, 4]  # BOS and three bytes


@pytest.mark.parametrize("changes", ["append_only", "mirror"])
def test_a_source_that_is_gone_makes_no_empty_version(place, changes):
    place.write(changes=changes)
    place.land("1.jsonl", "one")
    place.run()
    (place.inbox / "1.jsonl").unlink()
    with pytest.raises(SourceError, match="is the source mounted"):
        place.run()
    shutil.rmtree(place.inbox)
    with pytest.raises(DataprepError):
        place.run()
    assert place.texts() == ["one"]


def test_a_file_that_is_written_waits(place, monkeypatch):
    place.write(settle_seconds=1)
    path = place.land("1.jsonl", "one")
    place.land("2.jsonl", "two")
    (place.inbox / "3.jsonl").touch()

    def wait(seconds: float) -> None:
        assert seconds == 1
        with path.open("a") as file:
            file.write('{"text": "more"}\n')
        (place.inbox / "4.jsonl").write_text('{"te')

    monkeypatch.setattr("dataprep.service.inbox.time.sleep", wait)
    record = place.run()
    assert (record.files_added, record.files_waiting) == (1, 3)
    assert place.texts() == ["two"]
    monkeypatch.setattr("dataprep.service.inbox.time.sleep", lambda seconds: None)
    (place.inbox / "4.jsonl").unlink()
    place.run()
    assert sorted(place.texts()) == ["more", "one", "two"]


def test_a_known_file_that_is_written_again_stays_as_it_was(place, monkeypatch):
    place.write(settle_seconds=1, changes="mirror")
    path = place.land("1.jsonl", "one")
    monkeypatch.setattr("dataprep.service.inbox.time.sleep", lambda seconds: None)
    place.run()
    place.land("1.jsonl", "another")
    place.land("2.jsonl", "two")
    monkeypatch.setattr("dataprep.service.inbox.time.sleep", lambda seconds: os.utime(path))
    record = place.run()
    assert (record.files_waiting, record.files_vanished, record.files_changed) == (1, 0, 0)
    assert place.texts() == ["one", "two"]


@pytest.mark.parametrize("corpus", ["../inbox", "../inbox/*.jsonl"])
def test_a_file_counts_once_its_marker_is_there(place, corpus):
    place.write(done_marker=".done", corpus=corpus)
    place.land("1.jsonl", "one")
    place.land("2.jsonl", "two")
    (place.inbox / "2.jsonl.done").touch()
    record = place.run()
    assert (record.files_added, record.files_waiting) == (1, 1)
    (place.inbox / "2.jsonl.done").unlink()  # known by now
    (place.inbox / "1.jsonl.done").touch()
    assert place.run().files_waiting == 0
    assert place.texts() == ["two", "one"]


def test_files_without_documents_wait_for_others(place):
    place.land("1.jsonl", "")
    assert place.run().state == "unchanged"
    assert not place.versions.pending.exists()
    place.land("2.jsonl", "two")
    assert place.run().files_added == 2
    assert place.texts() == ["two"]
    assert place.run().state == "unchanged"


def test_what_was_begun_is_finished_first(place, monkeypatch):
    """A run dies with its part done; more lands; the next one publishes that very part, and then the rest."""
    place.land("1.jsonl", "one")
    publish = Versions.publish

    def dies(*_: object) -> None:
        raise OutputError("the power went")

    monkeypatch.setattr(Versions, "publish", dies)
    with pytest.raises(OutputError):
        place.run()
    monkeypatch.setattr(Versions, "publish", publish)
    assert Pending.read(place.versions.pending).files[0][0] == "1.jsonl"
    before = place.stamps()
    assert before
    place.land("2.jsonl", "two")
    record = place.run()
    assert (record.version, record.files_added, record.num_documents) == (2, 2, 2)
    assert [place.texts(place.versions.version(n)) for n in (1, 2)] == [["one"], ["one", "two"]]
    assert before.items() <= place.stamps().items()
    assert not place.versions.pending.exists()


def test_what_was_begun_is_dropped_if_its_files_changed(place, monkeypatch):
    place.land("1.jsonl", "one")
    monkeypatch.setattr(ingesting, "_part_of", _dies)
    with pytest.raises(OutputError):
        place.run()
    monkeypatch.undo()
    place.land("1.jsonl", "more")
    place.run()
    assert place.texts() == ["more"]
    monkeypatch.setattr(runner.publish, "run", _dies)
    path = place.land("2.jsonl", "two")
    for _ in range(2):
        with pytest.raises(OutputError):
            place.run()
    assert len(list((place.root / "data" / "work").iterdir())) == 2
    path.unlink()
    assert place.run().state == "unchanged"
    assert len(list(place.versions.parts.iterdir())) == 1
    assert len(list((place.root / "data" / "work").iterdir())) == 1


def _dies(*_: object, **__: object) -> None:
    raise OutputError("the power went")


def test_who_lost_the_claim_publishes_nothing(place, monkeypatch):
    """Overtaken while its part is made: the other one publishes, and this one says who it was."""
    place.land("1.jsonl", "one")
    execute = runner.execute

    def slowly(*args: object, **options: object) -> object:
        monkeypatch.setattr(runner, "execute", execute)
        with Claim(place.versions.claim, wait=True, ttl_seconds=0) as claim:
            place.versions.take_over(claim)
            assert ingest(place.job, claim, Silent(), lambda request: None).version == 1
        return execute(*args, **options)

    monkeypatch.setattr(runner, "execute", slowly)
    with pytest.raises(LostClaimError):
        place.run()
    assert place.versions.numbers() == [1]
    assert place.texts() == ["one"]
    assert (read_records(place.versions)[-1].state, read_records(place.versions)[-1].retry_at) == ("failed", None)


def test_one_at_work_is_left_alone(place):
    place.land("1.jsonl", "one")
    with Claim(place.versions.claim):
        record = place.run()
    assert (record.state, record.run) == ("skipped", 0)
    assert f"process {os.getpid()} on" in record.holder
    assert [each.state for each in read_records(place.versions)] == ["skipped"]
    assert place.run().state == "published"


def test_a_run_that_was_killed_is_lost(place):
    place.land("1.jsonl", "one")
    place.run()
    path = place.versions.folder / "runs" / "000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": "running"}))
    (record,) = read_records(place.versions)
    assert (record.state, record.error) == ("lost", "it ended without a word")


def test_old_versions_go(place):
    place.write(changes="mirror", retention={"versions": 2})
    for text in ("one", "two", "six"):
        place.land("1.jsonl", text)
        place.run()
    assert place.versions.numbers() == [2, 3]
    assert len(list(place.versions.parts.iterdir())) == 2
    assert [place.texts(place.versions.version(n)) for n in (2, 3)] == [["two"], ["six"]]


def test_the_log_says_what_happened(place):
    place.land("1.jsonl", "one")
    place.run()
    text = (place.versions.folder / "runs" / "000001.log").read_text()
    assert f"{place.versions.version(1)} is there: 1 new files, 1 documents, 5 tokens" in text


def test_a_name_that_is_taken(place):
    """By a dataset, or the link to the newest one of a corpus and a tokenizer."""
    for make in (Path.mkdir, lambda path: path.symlink_to("elsewhere")):
        place.versions.folder.parent.mkdir(exist_ok=True)
        make(place.versions.folder)
        if not place.versions.folder.is_symlink():
            (place.versions.folder / "manifest.json").touch()
        with pytest.raises(SpecError, match="give the job another name"):
            place.run()
        assert not (place.versions.folder / "claim").exists()
        place.versions.folder.rename(place.root / make.__name__.strip("<>"))


def test_versions_are_listed_beside_datasets(place):
    place.land("1.jsonl", "one")
    place.run()
    place.land("2.jsonl", "two")
    place.run()
    (place.root / "data" / "empty").mkdir()
    output = place.root / "data"
    main = CliRunner().invoke(app, ["list", "datasets", "--output", str(output), "--json"], obj={})
    (entry,) = json.loads(main.stdout)
    assert (entry["prefix"], entry["version"]) == (str(place.versions.version(2)), 2)
    assert (entry["num_documents"], len(entry["prefixes"])) == (2, 2)
    shown = CliRunner().invoke(app, ["list", "datasets", "--output", str(output)], obj={}).stdout
    assert f"{place.versions.version(2)}  2 documents  10 tokens  " in shown
    assert [found.folder for found in versioned(output)] == [place.versions.folder]
    assert versioned(output / "nothing") == []


def test_unlock_takes_the_claim_of_a_dataset(place):
    place.land("1.jsonl", "one")
    with Claim(place.versions.claim):
        (taken,) = unlock(place.root / "data")
    assert taken["work"] == str(place.versions.folder)
    assert place.run().state == "published"


def test_one_skip_is_recorded_for_a_slot(place):
    place.land("1.jsonl", "one")
    slot = Due("2026-01-01T02:30:00+00:00", "schedule", 1)
    with Claim(place.versions.claim):
        states = [run_job(place.job, slot).state for _ in range(3)]
        states.append(run_job(place.job, Due("2026-01-02T02:30:00+00:00", "schedule", 1)).state)
    assert states == ["skipped"] * 4
    assert sorted(str(each.slot) for each in read_records(place.versions)) == [slot.slot, "2026-01-02T02:30:00+00:00"]


def test_a_yaml_that_is_written_anew_keeps_its_slots(place):
    """As git-sync and ConfigMaps do: a job is due at the first slot after it was seen for the first time."""
    place.write(schedule="30 2 * * *")
    noon = datetime(2026, 3, 3, 12, tzinfo=UTC)
    os.utime(place.job.path, (noon.timestamp(),) * 2)
    assert due_of(place.job, noon) is None
    os.utime(place.job.path, ((noon + timedelta(days=1)).timestamp(),) * 2)
    assert due_of(place.job, noon + timedelta(days=1)) == Due("2026-03-04T02:30:00+00:00", "schedule", 1)


def test_one_of_several_globs_may_match_nothing_yet(place):
    place.write(corpus=["../inbox/a/*.jsonl", "../inbox/b/*.jsonl"], changes="mirror")
    place.land("a/1.jsonl", "one")
    (place.inbox / "b").mkdir()
    assert place.run().files_added == 1
    place.land("b/1.jsonl", "two")
    assert place.run().files_added == 1
    (place.inbox / "a" / "1.jsonl").unlink()
    assert place.run().files_vanished == 1
    assert place.texts() == ["two"]


@pytest.mark.parametrize("corpus", ["../inbx", "../inbx/*.jsonl", "../inbox/1.jsonl"])
def test_a_corpus_that_is_not_there_is_said(place, corpus):
    place.write(corpus=corpus)
    with pytest.raises(SpecError, match=r"inbx|1\.jsonl"):
        place.run()


@pytest.mark.parametrize("lasts", [True, False])
def test_a_folder_that_cannot_be_read_is_not_empty(place, monkeypatch, lasts):
    """Globs say nothing of it; the documents of its files stay, whether it can be read again a moment later or not."""
    place.write(changes="mirror")
    place.land("a/1.jsonl", "one")
    place.land("b/2.jsonl", "two")
    place.run()
    real_glob, real_listdir, globs = glob.glob, os.listdir, [0]

    def forgets(*args: object, **options: object) -> list[str]:
        globs[0] += 1
        return [name for name in real_glob(*args, **options) if "2.jsonl" not in name or (globs[0] > 2 and not lasts)]

    def refuses(path: object = ".") -> list[str]:
        if lasts and path == place.inbox / "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_listdir(path)

    monkeypatch.setattr(glob, "glob", forgets)
    monkeypatch.setattr(os, "listdir", refuses)
    with pytest.raises(SourceError, match=r"/b, .*Input/output error" if lasts else r"b/2\.jsonl .* is there again"):
        place.run()
    monkeypatch.undo()
    assert place.run().state == "unchanged"
    assert place.texts() == ["one", "two"]


def test_a_file_that_cannot_be_looked_at_is_named(place, monkeypatch):
    place.land("1.jsonl", "one")
    stat = Path.stat

    def refuses(path: Path, **options: bool) -> os.stat_result:
        if path.name == "1.jsonl":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuses)
    with pytest.raises(SourceError, match=r"cannot look into .*1\.jsonl: Stale file handle"):
        place.run()


def test_mirror_leaves_out_what_has_no_documents_any_more(place):
    place.write(changes="mirror")
    place.land("1.jsonl", "one")
    place.run()
    place.land("2.jsonl", "two")
    place.run()
    place.land("2.jsonl", "")
    record = place.run()
    assert (record.version, record.files_changed, record.num_documents) == (3, 1, 0)
    assert place.texts() == ["one"]
    assert place.run().state == "unchanged"
    place.land("1.jsonl", "")
    with pytest.raises(SourceError, match="hold no documents any more"):
        place.run()
    assert place.texts() == ["one"]


def test_what_was_begun_without_documents_keeps_nothing_from_coming(place, monkeypatch):
    """A run dies with files that hold no documents; the next one goes on to what landed since."""
    place.land("1.jsonl", "")
    monkeypatch.setattr(runner, "execute", _dies)
    with pytest.raises(OutputError):
        place.run()
    monkeypatch.undo()
    place.land("2.jsonl", "two")
    assert place.run().files_added == 2
    assert place.texts() == ["two"]


def test_a_version_that_is_half_gone_is_not_in_the_way(place):
    """Somebody removes it by hand, and not all of it."""
    place.land("1.jsonl", "one")
    place.run()
    place.land("2.jsonl", "two")
    place.run()
    (place.versions.version(2) / "manifest.json").unlink()
    assert place.run().version == 3
    assert place.texts() == ["one", "two"]


def _told(place) -> list[tuple[str, int | None]]:
    """State and version of each event that the command of the job was told."""
    path = place.root / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(event["state"], event["version"]) for event in map(json.loads, lines)]


@pytest.fixture
def telling(place):
    """The place, with a job that tells everything."""
    command = place.root / "tell"
    command.write_text(f"#!/bin/sh\n{{ cat; echo; }} >>{place.root}/told\n")
    command.chmod(0o755)
    place.write(notify={"command": [str(command)], "on": ["published", "failed", "interrupted", "lost"]})
    return place


def test_a_full_disk_is_told(telling, monkeypatch, capfd):
    """No record can be written, nor the log; those who are to be told are told, and nobody sees a traceback."""
    telling.land("1.jsonl", "one")
    runs = telling.versions.folder / "runs"
    runs.mkdir(parents=True)
    (runs / "000001.log").symlink_to("/dev/full")

    def full(path: Path, *_: object, **__: object) -> None:
        raise output_error(path, "write", OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr("dataprep.service.records.write_json", full)
    with pytest.raises(OutputError, match="no space left"):
        telling.run()
    assert _told(telling) == [("failed", None)]
    assert "OSError: [Errno 28]" not in capfd.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated])
def test_a_run_that_was_ended_is_told(telling, monkeypatch, error):
    telling.land("1.jsonl", "one")

    def ends(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(runner, "execute", ends)
    with pytest.raises(error):
        telling.run()
    assert _told(telling) == [("interrupted", None)]
    assert read_records(telling.versions)[-1].state == "interrupted"


def test_a_run_that_was_lost_is_told_by_the_next_one(telling):
    telling.land("1.jsonl", "one")
    telling.run()
    path = telling.versions.folder / "runs" / "000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": "running"}))
    telling.run()
    telling.run()
    assert _told(telling) == [("published", 1), ("lost", 1)]


def test_a_version_that_was_published_is_known_though_retention_fails(telling):
    telling.land("1.jsonl", "one")
    telling.versions.leases.mkdir(parents=True)
    (telling.versions.leases / "x.json").write_text("{")
    with pytest.raises(OutputError, match=r"cannot read the lease .*x\.json: it is damaged; remove it"):
        telling.run()
    record = read_records(telling.versions)[-1]
    assert (record.state, record.version, record.num_documents) == ("failed", 1, 1)
    assert _told(telling) == [("failed", 1)]


def test_one_bad_file_is_named_and_can_be_left_out(place):
    place.land("a/1.jsonl", "one")
    place.run()
    (place.inbox / "a" / "bad.jsonl").write_text("garbage\n")
    place.land("a/2.jsonl", "two")
    with pytest.raises(SourceError, match=r"a/bad\.jsonl, line 1, .*To go on without one of the 2 files") as caught:
        place.run()
    place.write(set=[re.search(r"set: \['(.*)'\]$", str(caught.value))[1]])
    assert (place.run().files_added, place.texts()) == (1, ["one", "two"])


def test_a_holder_that_is_looked_at_is_named(place, monkeypatch, said):
    """On another machine, and silent: nobody is left to wonder why nothing happens."""
    place.land("1.jsonl", "one")
    monkeypatch.setattr("dataprep.claims.TTL_SECONDS", 0.2)
    with Claim(place.versions.claim):
        pass
    (place.versions.claim / "epoch-1.released").unlink()
    holder = json.loads((place.versions.claim / "epoch-1.json").read_text())
    (place.versions.claim / "epoch-1.json").write_text(json.dumps(holder | {"host": "elsewhere"}))
    assert place.run().state == "published"
    assert f"news is held by process {os.getpid()} on elsewhere" in said()


def _wreck(monkeypatch, step: str, number: int, answer: str) -> list[int]:
    """Let the `number`-th call of `os.<step>` fail, or, where the answer is lost, do what it is to do and fail."""
    real, calls = getattr(os, step), [0]

    def fails(*args: object, **options: object) -> object:
        if threading.current_thread().name == "claim":
            return real(*args, **options)
        calls[0] += 1
        if calls[0] != number:
            return real(*args, **options)
        if answer == "lost":
            real(*args, **options)
        kind = FileNotFoundError if answer == "lost" else OSError
        raise kind(errno.ENOENT if answer == "lost" else errno.EIO, "fails on purpose", str(args[0]))

    monkeypatch.setattr(os, step, fails)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "answer", "stride"),
    [("replace", "no", 5), ("replace", "lost", 7), ("rename", "no", 1), ("rename", "lost", 1), ("unlink", "no", 4)],
)
def test_whatever_call_fails_the_next_run_mends(place, monkeypatch, step, answer, stride):
    """Versions old or new, whole; then the new one alone, and nothing left beside it."""
    place.write(changes="mirror", retention={"versions": 1})
    place.land("1.jsonl", "one")
    place.land("2.jsonl", "two")
    place.run()
    place.land("2.jsonl", "TWO")
    place.land("3.jsonl", "three")
    before, number = place.root, 1
    while True:
        place.root = before.with_name(f"{before.name}-{number}")
        shutil.copytree(before, place.root, symlinks=True)
        place.job = load_job(place.root / "jobs" / "news.yaml")
        with monkeypatch.context() as patch:
            calls = _wreck(patch, step, number, answer)
            with contextlib.suppress(DataprepError):
                place.run()
        assert sorted(place.texts()) in (["one", "two"], ["TWO", "one", "three"]), number
        assert place.run().state in ("published", "unchanged")
        assert sorted(place.texts()) == ["TWO", "one", "three"], number
        (newest,) = place.versions.numbers()
        assert os.readlink(place.versions.link) == place.versions.version(newest).name
        left = {path.name for path in place.versions.folder.iterdir()}
        assert left <= {"claim", "current", "gone", "leases", "parts", "runs", place.versions.version(newest).name}, (
            number
        )
        assert len(list(place.versions.parts.iterdir())) == len(list((place.root / "data" / "work").iterdir())) == 1
        shutil.rmtree(place.root)
        if calls[0] < number:
            break
        number += stride
    assert number > 5


def test_files_without_documents_keep_no_job_of_a_cluster_from_the_others(place, monkeypatch):
    """Who submitted it sees no more than that the job failed."""
    handed = []

    def hand_over(part: object, arguments: list[str], name: str) -> None:
        handed.append((arguments[:3], name))
        try:
            ingesting.make_part(place.job, Silent())
        except DataprepError as error:
            raise ClusterError("the job ended: failed, exit code 1") from error

    monkeypatch.setattr(submission, "is_handed_over", lambda cluster: True)
    monkeypatch.setattr(submission, "hand_over", hand_over)
    place.land("1.jsonl", "")
    assert place.run().state == "unchanged"
    place.land("2.jsonl", "two")
    assert place.run().files_added == 2
    (place.inbox / "bad.jsonl").write_text("garbage\n")
    with pytest.raises(ClusterError, match="exit code 1"):
        place.run()
    assert [arguments for arguments, _ in handed] == [["jobs", "part", "news"]] * 3
    assert place.texts() == ["two"]


def test_a_path_that_was_is_given_to_no_other_contents(place):
    """Megatron would read them through the index caches of the old ones: they are known by paths."""
    place.write(changes="mirror", retention={"versions": 1})
    place.land("0.jsonl", "zero")
    place.run()
    path = place.land("1.jsonl", "one")
    place.run()
    was = place.versions.newest().parts[1].folder
    path.unlink()
    place.run()
    assert not place.versions.part(was).exists()
    place.land("1.jsonl", "uno")  # as long, and new by now
    place.run()
    assert place.texts() == ["zero", "uno"]
    made = place.versions.newest().parts[1].folder
    assert made != was
    path.unlink()
    place.run()
    place.land("1.jsonl", "uno")
    place.run()
    assert place.versions.newest().parts[1].folder == made, "the same, at the same path"


def test_such_a_part_goes_on_after_a_kill(place, monkeypatch):
    test_a_path_that_was_is_given_to_no_other_contents(place)
    path = place.inbox / "1.jsonl"
    path.unlink()
    place.run()
    place.land("1.jsonl", "eins")
    place.run()
    path.unlink()
    place.run()
    place.land("1.jsonl", "vier")
    monkeypatch.setattr(runner.publish, "run", _dies)
    with pytest.raises(OutputError):
        place.run()
    monkeypatch.undo()
    place.land("2.jsonl", "two")
    record = place.run()
    assert (record.files_added, record.num_documents) == (2, 2)
    assert [part.num_files for part in place.versions.newest().parts] == [1, 1, 1]
    assert sorted(place.texts()) == ["two", "vier", "zero"]


def test_why_a_run_failed_is_in_its_log_and_said_once(place, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "dataprep")
    shown = logging.StreamHandler(io.StringIO())  # as the command line has one, which prints the error itself
    monkeypatch.setattr(logging.getLogger("dataprep"), "handlers", [shown])
    place.land("1.jsonl", "one")
    place.run()
    (place.inbox / "1.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(SourceError, match="append_only"):
        place.run()
    assert (place.versions.folder / "runs" / "000002.log").read_text().count("append_only") == 1
    assert "v000001 is there" not in shown.stream.getvalue()  # nobody asked for more than warnings
    assert "append_only" not in shown.stream.getvalue()
