"""Files by their addresses: plain HTTP on loopback, and servers of S3 and Google Cloud Storage."""

from __future__ import annotations

import hashlib
import json
import socketserver
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard

import dataprep
from dataprep import fetching, web
from dataprep.errors import Cancelled, SourceError, SpecError
from dataprep.layout import RawFolder
from dataprep.specs import ReaderSpec, Runtime, SourceFile

LINES = "".join(json.dumps({"text": f"text {i}."}) + "\n" for i in range(200)).encode()
OTHER = "".join(json.dumps({"text": f"other {i}"}) + "\n" for i in range(100)).encode()


def documents(result):
    return len(dataprep.open_dataset(result.prefix))


def fetched(listing):
    return {file.name: Path(file.path).read_bytes() for file in listing.files}


def test_addresses_are_a_corpus(here, tmp_path):
    first = here.plain("/corpora/a.jsonl.zst", zstandard.compress(LINES))
    second = here.plain("/corpora/deep/b c.jsonl", OTHER)

    result = dataprep.run([first, second.replace(" ", "%20")], "sample", tmp_path)

    recipe = result.manifest.recipe
    assert documents(result) == 300
    assert [file.name for file in recipe.files] == ["a.jsonl.zst", "deep/b c.jsonl"]
    assert recipe.files[1].checksum == f"sha256:{hashlib.sha256(OTHER).hexdigest()}", "recorded on first use"
    assert recipe.origin == f"{here.url}/corpora/"
    assert dataprep.run([first, second.replace(" ", "%20")], "sample", tmp_path).fresh is False
    looks = 2 * (2 + len(zstandard.compress(LINES)))
    assert here.served() == len(OTHER) + len(zstandard.compress(LINES)) + looks, "its size, and the first one's columns"


def test_a_file_that_changed_at_its_address_is_a_new_dataset(here, tmp_path):
    url = here.plain("/a.jsonl", LINES)
    first = dataprep.run(url, "sample", tmp_path)
    here.plain("/a.jsonl", LINES.replace(b"text 7.", b"TEXT 7."))

    second = dataprep.run(url, "sample", tmp_path)

    assert second.fresh
    assert second.prefix != first.prefix
    assert dataprep.decode(second.prefix, 7) == "TEXT 7.<|endoftext|>"


def test_a_file_that_changes_between_listing_and_download_is_an_error(here, tmp_path, monkeypatch):
    url = here.plain("/a.jsonl", LINES)
    corpus, listing = fetching.resolve_corpus(url, tmp_path, {})
    here.plain("/a.jsonl", LINES.replace(b"text 7.", b"TEXT 7."))

    with pytest.raises(SourceError, match="changed since it was listed; run the same command again"):
        fetching.fetch(corpus, listing, fetching.Runtime(), fetching.Silent())
    assert not [path for path in tmp_path.rglob("files/*") if path.is_file()]


def test_a_stated_sha256_is_held(here, tmp_path):
    url = here.plain("/a.jsonl", LINES)
    good, bad = hashlib.sha256(LINES).hexdigest(), "0" * 64

    assert documents(dataprep.run(url, "sample", tmp_path, settings=[f"source.sha256={{a.jsonl: '{good}'}}"])) == 200
    with pytest.raises(SourceError, match=r"a.jsonl: the content that came is not what the source states \(sha256:000"):
        dataprep.run(url, "sample", tmp_path, settings=[f"source.sha256={{a.jsonl: '{bad}'}}"])
    with pytest.raises(SpecError, match=r"source.sha256 names b.jsonl; there are a.jsonl"):
        dataprep.run(url, "sample", tmp_path, settings=[f"source.sha256={{b.jsonl: '{good}'}}"])


def test_an_address_that_gives_nothing_is_an_error_that_names_it(here, tmp_path):
    with pytest.raises(SourceError, match=r"cannot fetch .*/none.jsonl: .*40[14].*check the address"):
        dataprep.run(f"{here.url}/none.jsonl", "sample", tmp_path)
    with pytest.raises(SpecError, match="HTTP has no listing"):
        dataprep.run(f"{here.url}/*.jsonl", "sample", tmp_path)
    with pytest.raises(SpecError, match="is a path, and others are addresses"):
        dataprep.run([f"{here.url}/a.jsonl", "b.jsonl"], "sample", tmp_path)
    here.plain("/x", LINES)
    with pytest.raises(SpecError, match=r"cannot tell by its name what .*/x is; set reader.format"):
        dataprep.run(f"{here.url}/x", "sample", tmp_path)
    assert documents(dataprep.run(f"{here.url}/x", "sample", tmp_path, settings=["reader.format=jsonl"])) == 200


def test_a_page_instead_of_the_data_is_no_corpus(here, tmp_path):
    """A portal that asks to log in answers 200 to everything, and even its size fits."""
    url = here.plain("/a.parquet", b"<html><body>Please log in</body></html>")
    with pytest.raises(SourceError, match=r"cannot tell what .*a.parquet is|expected parquet"):
        dataprep.run(url, "sample", tmp_path)


def test_addresses_of_several_places_and_loud_schemes(here, tmp_path):
    url = here.plain("/a.jsonl", LINES)
    with pytest.raises(SpecError, match="addresses of several places"):
        fetching.download([url, "file:///etc/hostname"], tmp_path)
    assert fetched(fetching.download(url.replace("http", "HTTP"), tmp_path)) == {"a.jsonl": LINES}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://[::bad/x.jsonl", "is no address: Invalid IPv6 URL"),
        ("http:///x.jsonl", "is no address: it names no host after http://"),
        ("https://", "is no address: it names no host"),
        ("http://a:99999/x.jsonl", "is no address: Port out of range"),
        ("http://ü..ü/x.jsonl", "is no address: Invalid IDNA hostname"),
        ("s3:///x.jsonl", "is no address: it names no bucket or host after s3://"),
        ("gs://", "is no address: it names no bucket"),
        ("s3://*/x.jsonl", "Cannot traverse all of S3"),
        ("ftp://127.0.0.1:9/x.jsonl", "cannot open ftp://127.0.0.1:9/x.jsonl: .*refused"),
    ],
)
def test_what_is_no_address_is_said_at_once(here, tmp_path, url, says):
    with pytest.raises((SpecError, SourceError), match=says):
        fetching.download(url, tmp_path)


# --- S3


@pytest.fixture
def anonymous(monkeypatch):
    """What FSSPEC_S3_ANON=true comes to, which is read when fsspec is imported."""
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"anon": True})


def test_globs_folders_and_objects_of_a_bucket(s3, here, tmp_path, anonymous):
    for name, data in (("in/a.jsonl", LINES), ("in/b.jsonl.zst", zstandard.compress(OTHER)), ("in/x/c.jsonl", OTHER)):
        s3(f"bucket/{name}", data)

    assert set(fetched(fetching.download("s3://bucket/in/*.jsonl", tmp_path))) == {"a.jsonl"}
    assert set(fetched(fetching.download("s3://bucket/in/a.jsonl", tmp_path))) == {"a.jsonl"}
    listing = fetching.download("s3://bucket/in/", tmp_path)
    assert fetched(listing) == {"a.jsonl": LINES, "b.jsonl.zst": zstandard.compress(OTHER), "x/c.jsonl": OTHER}
    assert documents(dataprep.run("s3://bucket/in/", "sample", tmp_path)) == 400
    with pytest.raises(SpecError, match="s3://bucket/none names no file"):
        fetching.download("s3://bucket/none", tmp_path)


def test_what_lies_beside_the_data_is_left_out_of_a_folder(s3, here, tmp_path, anonymous):
    for name in ("a.jsonl", "README.md", "x/.part.jsonl", "x/dataset_infos.json"):
        s3(f"bucket/.data/{name}", LINES)

    assert set(fetched(fetching.download("s3://bucket/.data/", tmp_path))) == {"a.jsonl"}
    settings = ["reader.format=text"]
    assert set(fetched(fetching.download("s3://bucket/.data/README.md", tmp_path, settings=settings))) == {"README.md"}


def test_an_object_larger_than_a_request_comes_whole(s3, here, tmp_path, anonymous, monkeypatch):
    from dataprep import objects

    monkeypatch.setattr(objects, "REQUEST_BYTES", 1000)
    s3("bucket/a.jsonl", LINES)

    assert fetched(fetching.download("s3://bucket/a.jsonl", tmp_path)) == {"a.jsonl": LINES}


def test_without_credentials_the_message_says_what_to_give(s3, here, tmp_path):
    s3("bucket/a.jsonl", LINES)
    with pytest.raises(SourceError, match=r"s3://bucket/a.jsonl: .*FSSPEC_S3_ANON=true for a public bucket"):
        fetching.download("s3://bucket/a.jsonl", tmp_path)


# --- Google Cloud Storage


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """A server on loopback, which STORAGE_EMULATOR_HOST names; `bucket("key", content)` puts an object in `bucket`."""
    import gcsfs
    from gcp_storage_emulator.server import create_server

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    url = f"http://127.0.0.1:{server._api._httpd.server_address[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)

    def put(key, content):
        query = f"uploadType=media&name={quote(key, safe='')}"
        request = urllib.request.Request(f"{url}/upload/storage/v1/b/bucket/o?{query}", data=content, method="POST")
        request.add_header("Content-Type", "application/octet-stream")
        urllib.request.urlopen(request).close()

    gcsfs.GCSFileSystem.clear_instance_cache()
    yield put
    gcsfs.GCSFileSystem.clear_instance_cache()
    server.stop()


def test_google_cloud_storage(bucket, here, tmp_path):
    for name, data in (("in/a.jsonl", LINES), ("in/x/b.jsonl", OTHER)):
        bucket(name, data)

    assert fetched(fetching.download("gs://bucket/in/*.jsonl", tmp_path)) == {"a.jsonl": LINES}
    assert documents(dataprep.run("gs://bucket/in/", "sample", tmp_path)) == 300
    with pytest.raises(SpecError, match="gs://bucket/none names no file"):
        fetching.download("gs://bucket/none", tmp_path)


@pytest.mark.parametrize("status", [401, 403])
def test_google_cloud_storage_refuses(here, tmp_path, monkeypatch, status):
    import gcsfs

    answer = {"error": {"code": status, "message": "Anonymous caller does not have storage.objects.get access"}}
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        gcsfs.GCSFileSystem.clear_instance_cache()
        try:
            with pytest.raises(SourceError, match=r"a.jsonl: Anonymous caller .*FSSPEC_GS_TOKEN=anon for a public"):
                fetching.download("gs://bucket/a.jsonl", tmp_path)
        finally:
            server.shutdown()
            gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.fixture
def silent(here, monkeypatch, tmp_path):
    """A server that takes connections and says nothing: events that it was asked, and that who asked gave up."""
    import gcsfs

    asked, given_up = threading.Event(), threading.Event()

    class Silent(socketserver.BaseRequestHandler):
        def handle(self):
            while self.request.recv(1 << 16):
                asked.set()
            given_up.set()

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.setattr(socketserver.ThreadingTCPServer, "daemon_threads", True)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:{}".format(*server.server_address[1:]))
        gcsfs.GCSFileSystem.clear_instance_cache()
        try:
            yield asked, given_up
        finally:
            server.shutdown()
            gcsfs.GCSFileSystem.clear_instance_cache()


def test_google_cloud_storage_that_says_nothing_is_not_waited_for(silent, monkeypatch):
    from huggingface_hub import constants

    from dataprep import objects

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    _, given_up = silent
    pause, errors = web.Pause(), []

    def read():
        try:
            list(objects.blocks("gs://bucket/a.jsonl", 0, 9, None, pause))
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert given_up.wait(30), "it waits for ever"
    pause.stop.set()  # or gcsfs would try again, five times
    thread.join(30)
    assert errors


def test_a_download_from_a_store_that_says_nothing_stops_at_once(silent, monkeypatch, tmp_path):
    """Whatever its package still means to try."""
    from huggingface_hub import constants

    from dataprep.stages.download import Downloads

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1000)
    asked, given_up = silent
    path = str(tmp_path / "files" / "a.jsonl")
    file = SourceFile(name="a.jsonl", path=path, num_bytes=9, url="gs://bucket/a.jsonl", format="jsonl", checksum=None)

    def leave():
        with Downloads(RawFolder(tmp_path), [file], ReaderSpec(), Runtime(), lambda n: None) as downloads:
            downloads.start([0])
            assert asked.wait(30)

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it hangs"
    assert given_up.wait(30), "the connection is closed as well"


def test_a_scheme_whose_package_is_missing_says_which(here, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)
    with pytest.raises(SpecError, match=r"gs://b/a.jsonl: .*pip install 'dataprep-llm\[gcs\]'"):
        fetching.download("gs://b/a.jsonl", tmp_path)
    with pytest.raises(SpecError, match=r"nope://b/a.jsonl"):
        fetching.download("nope://b/a.jsonl", tmp_path)
