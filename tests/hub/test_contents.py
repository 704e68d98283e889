"""Corpora whose rows hold ids: texts fetched one by one from an S3 server, proven, counted, resumed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataprep
from dataprep import contents, fetching
from dataprep.errors import SourceError, SpecError

REPO = "HuggingFaceTB/smollm-corpus"
TEXTS = [f"def f{i}(x):\n    return x + {i}\n".encode() for i in range(45)]


def key(text):
    return hashlib.sha1(text).hexdigest()


def ids(texts):
    sink = io.BytesIO()
    pq.write_table(pa.table({"blob_id": [key(text) for text in texts], "score": [1.0] * len(texts)}), sink)
    return sink.getvalue()


@pytest.fixture
def corpus(here, s3, monkeypatch):
    """python-edu in two files of ids, and its texts in a bucket; pieces of 10 rows."""
    monkeypatch.setattr(contents, "PIECE_ROWS", 10)
    monkeypatch.setattr(contents.Fetching, "patience", contents.Patience(attempts=3, first_seconds=0.01))
    files = {f"python-edu/train-0000{i}-of-00002.parquet": ids(TEXTS[i * 25 : i * 25 + 25]) for i in range(2)}
    here.add("datasets", REPO, files)
    for text in TEXTS:
        s3(f"softwareheritage/content/{key(text)}", gzip.compress(text))
    return s3


def documents(result):
    pair = dataprep.open_dataset(result.prefix)
    return [dataprep.decode(result.prefix, i).removesuffix("<|endoftext|>") for i in range(len(pair))]


def test_texts_are_fetched_and_come_out_in_order(corpus, tmp_path):
    result = dataprep.run("python-edu", "sample", tmp_path)

    assert documents(result) == [text.decode() for text in TEXTS]
    assert [file.name.rpartition("/")[2] for file in result.manifest.recipe.files] == [
        f"{first:012d}.parquet" for first in (0, 10, 20, 0, 10)
    ]
    assert all(file.checksum for file in result.manifest.recipe.files)
    assert dataprep.run("python-edu", "sample", tmp_path).fresh is False
    assert dataprep.verify(result.prefix, "source").problems == []


def test_missing_damaged_and_foreign_texts_are_rejected_and_counted(corpus, here, tmp_path):
    corpus(f"softwareheritage/content/{key(TEXTS[7])}", b"no gzip")
    corpus(f"softwareheritage/content/{key(TEXTS[8])}", gzip.compress(b"another text"))
    lost = [f"lost {i}".encode() for i in range(3)]
    latin = "caf\u00e9 # \u00e4".encode("latin-1")
    corpus(f"softwareheritage/content/{key(latin)}", gzip.compress(latin))
    here.repos["datasets", REPO].commit({"python-edu/train-00000-of-00001.parquet": ids([*TEXTS, *lost, latin])})

    result = dataprep.run("python-edu", "sample", tmp_path, settings=["runtime.max_rejects=0.5"])

    assert result.manifest.counts.rejects == {"missing-content": 5, "invalid-utf8": 1}
    assert documents(result) == [text.decode() for text in TEXTS if text not in (TEXTS[7], TEXTS[8])]


@pytest.mark.slow
def test_what_is_there_is_not_fetched_again(corpus, tmp_path, monkeypatch):
    asked = []
    original = contents._fetch

    def stop(fetching_, keys):
        asked.extend(keys)
        if len(asked) > 25:
            raise SourceError("stopped")
        return original(fetching_, keys)

    with monkeypatch.context() as patched:
        patched.setattr(contents, "_fetch", stop)
        with pytest.raises(SourceError, match="stopped"):
            fetching.download("python-edu", tmp_path)
    there = {path for path in tmp_path.rglob("0*.parquet") if path.is_file() and "contents" in str(path)}
    assert there
    again = []

    def note(fetching_, keys):
        again.extend(keys)
        return original(fetching_, keys)

    monkeypatch.setattr(contents, "_fetch", note)
    result = dataprep.run("python-edu", "sample", tmp_path)

    assert len(documents(result)) == 45
    assert len(again) == 45 - sum(pq.read_metadata(path).num_rows for path in there)


def test_a_bucket_that_gives_nothing_is_an_error_not_a_corpus_of_rejects(here, s3, tmp_path):
    s3("softwareheritage/other", b"")
    here.add("datasets", REPO, {"python-edu/train-00000-of-00001.parquet": ids(TEXTS)})
    with pytest.raises(
        SourceError, match=r"gives none of 45 texts, among them s3://softwareheritage/content/[0-9a-f]+"
    ):
        dataprep.run("python-edu", "sample", tmp_path)


def test_plan_says_that_texts_have_to_be_fetched(corpus, here, tmp_path):
    plan = dataprep.plan("python-edu", "sample", tmp_path)

    assert plan["texts"] == "s3://softwareheritage/content/{blob_id}"
    assert plan["estimate"] is None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_record_of_texts_is_of_these_ids(corpus, here, tmp_path):
    """Other ids under the same name are other texts."""
    fetching.download("python-edu", tmp_path)
    done = sorted(path for path in tmp_path.rglob("*.parquet.json"))
    assert [len(json.loads(path.read_text())["pieces"]) for path in done] == [3, 2]
    value = json.loads(done[0].read_text())
    Path(done[0]).write_text(json.dumps({**value, "ids": "sha256:other"}))

    assert len(documents(dataprep.run("python-edu", "sample", tmp_path))) == 45


def test_a_piece_that_is_damaged_or_of_other_ids_is_made_anew(corpus, tmp_path):
    """What a dead run left is a name; what is in it counts."""
    fetching.download("python-edu", tmp_path)
    pieces = sorted(path for path in tmp_path.rglob("contents/**/0*.parquet") if path.is_file())
    before = [path.read_bytes() for path in pieces]
    for path in tmp_path.rglob("*.parquet.json"):
        path.unlink()
    pieces[0].write_bytes(before[1])
    pieces[2].write_bytes(before[2][:-100] + bytes(100))

    fetching.download("python-edu", tmp_path)

    assert [path.read_bytes() for path in pieces] == before


def test_a_piece_that_is_gone_is_fetched_again(corpus, tmp_path):
    first = dataprep.run("python-edu", "sample", tmp_path)
    Path(first.manifest.recipe.files[1].path).unlink()

    again = dataprep.run("python-edu", "sample", tmp_path, settings=["policy.eod=none"])
    assert documents(again) == documents(first)


def test_the_digest_is_of_the_texts_not_of_the_files_they_are_kept_in(corpus, tmp_path, monkeypatch):
    """Another release of Arrow, or of zstd, may write other bytes: here, another compression does."""
    write = pq.write_table
    digests = []
    for place, compression in (("one", "zstd"), ("two", "none")):
        monkeypatch.setattr(pq, "write_table", lambda *a, c=compression, **k: write(*a, **{**k, "compression": c}))
        result = dataprep.run("python-edu", "sample", tmp_path / place)
        digests.append(result.manifest.recipe_digest)
        sizes = [file.num_bytes for file in result.manifest.recipe.files]
        assert {file.checksum.partition(":")[0] for file in result.manifest.recipe.files} == {"texts"}
        assert dataprep.verify(result.prefix, "source").problems == []
    assert digests[0] == digests[1]
    assert sizes != [
        file.num_bytes for file in dataprep.run("python-edu", "sample", tmp_path / "one").manifest.recipe.files
    ]


def test_texts_that_are_kept_cannot_be_asked_to_go(corpus, tmp_path):
    with pytest.raises(SpecError, match=r"runtime.keep_raw=false has no effect: the texts of python-edu are kept"):
        dataprep.run("python-edu", "sample", tmp_path, settings=["runtime.keep_raw=false"])


def test_offline_runs_find_the_texts(corpus, tmp_path, monkeypatch):
    from huggingface_hub import constants

    first = dataprep.run("python-edu", "sample", tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = dataprep.run("python-edu", "sample", tmp_path, settings=["policy.eod=none"])
    assert again.manifest.counts.num_documents == first.manifest.counts.num_documents


def test_a_look_at_some_documents_is_refused_before_anything_is_fetched(corpus, here, tmp_path):
    with pytest.raises(SpecError, match=r"--limit: all texts of python-edu are fetched before .*dataprep download"):
        dataprep.run("python-edu", "sample", tmp_path, limit=3)
    assert here.served() == 0
