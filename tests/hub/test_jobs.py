"""Jobs whose corpora come from afar: a data set on the hub that moves, addresses, buckets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import dataprep
from dataprep.errors import SourceError
from dataprep.prefixes import find_prefixes
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import load_job
from dataprep.service.records import RunRecord
from dataprep.service.running import run_job


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


class Place:
    """A job, and its dataset."""

    def __init__(self, root: Path, tokenizer: Path) -> None:
        self.root, self.tokenizer = root, tokenizer
        self.decoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))

    def write(self, **keys: object) -> None:
        given = {"tokenizer": str(self.tokenizer), "output": "../data", "retries": {"attempts": 1}, **keys}
        path = self.root / "jobs" / "news.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(given))
        self.job = load_job(path)

    def run(self) -> RunRecord:
        return run_job(self.job)

    def texts(self) -> list[str]:
        """The documents of the current version."""
        rows = (row for prefix in find_prefixes(dataset_of(self.job).folder) for row in dataprep.open_dataset(prefix))
        return [self.decoder.decode([int(token) for token in row[:-1]]) for row in rows]


@pytest.fixture
def place(tmp_path: Path, make_tokenizer: Callable[..., Path]) -> Place:
    return Place(tmp_path, make_tokenizer())


def test_a_data_set_that_moves(here, place):
    """Of a new commit, only the files that it brought are fetched and tokenized; a mended README is nothing new."""
    repo = here.add("datasets", "org/news", {"data/1.jsonl": lines("one")})
    place.write(corpus="hf:org/news")
    assert place.run().files_added == 1
    repo.commit({**repo.files, "README.md": b"hello"})
    assert place.run().state == "unchanged"
    repo.commit({**repo.files, "data/2.jsonl": lines("two"), "more/3.jsonl": lines("three")})
    record = place.run()
    assert (record.version, record.files_added, record.num_documents) == (2, 2, 2)
    assert place.texts() == ["one", "two", "three"]
    repo.commit({**repo.files, "data/1.jsonl": lines("uno")})
    with pytest.raises(SourceError, match=r"1 files have other contents \(data/1\.jsonl\)"):
        place.run()
    place.write(corpus="hf:org/news", changes="mirror")
    assert place.run().files_changed == 1
    assert sorted(place.texts()) == ["three", "two", "uno"]
    for path in ("data/1.jsonl", "data/2.jsonl"):
        repo.commit({name: data for name, data in repo.files.items() if name != path})
    assert place.run().files_vanished == 2
    assert place.texts() == ["three"]


@pytest.mark.parametrize("keep_raw", [True, False])
def test_addresses_of_which_one_changes(here, place, keep_raw):
    """A part that is made anew fetches again what is not there any more."""
    urls = [here.plain(f"/{name}.jsonl", lines(name)) for name in ("one", "two")]
    keys = {"changes": "mirror", "set": [f"runtime.keep_raw={json.dumps(keep_raw)}"]}
    place.write(corpus=urls, **keys)
    assert place.run().num_documents == 2
    assert place.run().state == "unchanged"
    here.plain("/two.jsonl", lines("TWO"))  # as long as before
    record = place.run()
    assert (record.version, record.files_changed, record.num_documents) == (2, 1, 2)
    assert place.texts() == ["one", "TWO"]
    place.write(corpus=[*urls, here.plain("/deep/3.jsonl", lines("three"))], **keys)
    assert place.run().files_added == 1
    assert place.texts() == ["one", "TWO", "three"]


def test_an_address_that_is_gone_stops_the_run(here, place):
    urls = [here.plain(f"/{name}.jsonl", lines(name)) for name in ("one", "two")]
    place.write(corpus=urls, changes="mirror")
    place.run()
    del here.plain_files["/two.jsonl"]
    with pytest.raises(SourceError, match=r"cannot fetch .*/two\.jsonl: 40"):
        place.run()
    assert place.texts() == ["one", "two"]


def test_addresses_without_etags_and_with_queries(here, place):
    """What a server does not state is not seen to change; a query, which may be a signature, tells no files apart."""
    url = here.plain("/one.jsonl", lines("one"), etag=None)
    place.write(corpus=[f"{url}?token=1"])
    place.run()
    place.write(corpus=[f"{url}?token=2"])
    here.plain("/one.jsonl", lines("ONE"), etag=None)
    assert place.run().state == "unchanged"
    text = "".join(path.read_text() for path in (place.root / "data").rglob("*.json*"))
    assert "token=" not in text


@pytest.mark.slow
def test_a_bucket_in_which_objects_land(s3, place, monkeypatch):
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"anon": True})  # as FSSPEC_S3_ANON=true does, which is read once
    s3("bucket/inbox/1.jsonl", lines("one"))
    place.write(corpus=["s3://bucket/inbox/*.jsonl"], set=["runtime.keep_raw=false"])
    assert place.run().files_added == 1
    s3("bucket/inbox/2.jsonl", lines("two"))
    assert place.run().files_added == 1
    assert place.run().state == "unchanged"
    assert place.texts() == ["one", "two"]
