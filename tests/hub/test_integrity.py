"""What a review of downloads found, and must not find again: wrong bytes, mixed contents, lost reasons, leaks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import dataprep
from dataprep import fetching, parts, runner, web
from dataprep.connections import Connections
from dataprep.errors import Cancelled, DataprepError, SourceError, SpecError, public
from dataprep.layout import RawFolder
from dataprep.parts import Part, Wanted
from dataprep.planning import resolve
from dataprep.sources.repos import matching
from dataprep.storage import explain
from dataprep.transfer import Fetcher
from dataprep.web import Patience, Pause

TEXT = ["reader.text=text"]


def lines(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def texts(result):
    """Every fiftieth text of a dataset."""
    numbers = range(0, len(dataprep.open_dataset(result.prefix)), 50)
    return [dataprep.decode(result.prefix, i).removesuffix("<|endoftext|>") for i in numbers]


@contextlib.contextmanager
def serving(get):
    """A server that answers GET and POST by `get(handler)`; gives its address."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            get(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answer(handler, body, status=200, **headers):
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def one_page(data, when, asked, etag):
    """A file, but for the first request that `when(range)` is true of: the page of a portal, of no stated length."""
    told = []

    def get(handler):
        wanted = handler.headers.get("Range")
        asked.append(wanted)
        if when(wanted) and not told:
            told.append(wanted)
            page = b"<html>Please log in to this network</html>"
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(page), page))
            return
        headers = {"ETag": etag} if etag else {}
        if wanted is None:
            answer(handler, data, **headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first), int(last) + 1 if last else len(data)
        answer(handler, data[start:stop], 206, Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **headers)

    return get


@pytest.mark.parametrize("etag", [None, '"v1"'])
def test_a_page_of_no_stated_length_is_not_the_beginning_of_a_file(here, tmp_path, etag):
    data, asked = lines(*[f"text {i}" for i in range(20_000)]), []
    with serving(one_page(data, lambda wanted: wanted is None, asked, etag)) as url:
        listing = fetching.download(f"{url}/a.jsonl", tmp_path, settings=TEXT)

    assert Path(listing.files[0].path).read_bytes() == data


def test_a_page_does_not_cost_what_came_before(here, tmp_path):
    data, asked, counted = os.urandom(500_000), [], []
    folder = RawFolder(tmp_path / "raw")
    with serving(one_page(data, lambda wanted: wanted == "bytes=499000-", asked, None)) as url:
        want = Wanted("a.bin", f"{url}/a.bin", len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
        folder.parts.mkdir(parents=True)
        (folder.parts / f"{folder.part(want.name, want.identity)}{parts._owner()}").write_bytes(data[:499_000])
        with Connections(1) as connections:
            Fetcher(folder, connections, Pause(), counted.append, Patience(first_seconds=0.01)).fetch(want)

    assert asked == ["bytes=499000-", "bytes=499000-"]
    assert (folder.files / "a.bin").read_bytes() == data


def test_two_machines_that_take_each_other_for_dead_do_not_share_a_file(tmp_path, monkeypatch):
    data = os.urandom(1_000_000)
    want = Wanted("a.bin", "hf://datasets/o/n@x/a.bin", len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
    folder = RawFolder(tmp_path / "raw")
    folder.parts.mkdir(parents=True)
    folder.files.mkdir()

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(parts.fcntl, "flock", no_locks)
    monkeypatch.setattr(parts, "_boot", lambda: "machineA")
    first = parts.claim(folder, want, Pause())
    first.write(data[:400_000])
    os.utime(first.path, (time.time() - 61,) * 2)
    monkeypatch.setattr(parts, "_boot", lambda: "machineB")
    second = parts.claim(folder, want, Pause())
    assert second.position == 400_000, "what the first one had is not fetched again"
    second.write(data[400_000:])
    first.write(b"\0" * 100)

    assert second.is_whole()
    assert second.publish(folder.files / "a.bin")
    first.restart()
    assert not first.publish(folder.files / "a.bin")
    assert (folder.files / "a.bin").read_bytes() == data


def test_what_is_read_of_a_left_part_can_be_interrupted(here, tmp_path):
    folder, want = RawFolder(tmp_path / "raw"), Wanted("a.bin", "hf://datasets/o/n@x/a.bin", 1 << 34, "sha256:00")
    folder.parts.mkdir(parents=True)
    folder.files.mkdir()
    left = folder.parts / f"{folder.part(want.name, want.identity)}{parts._owner()}"
    with left.open("wb") as file:
        file.truncate(1 << 33)
    looks = []

    class Stopped(Pause):
        def check(self):
            looks.append(left)
            if len(looks) == 3:
                self.stop.set()
            super().check()

    with pytest.raises(Cancelled):
        parts.claim(folder, want, Stopped())
    assert len(looks) == 3, "not the whole of it"
    assert [path.stat().st_size for path in folder.parts.iterdir()] == [1 << 33]


def test_a_resumed_run_does_not_mix_contents(here, tmp_path, monkeypatch):
    """Of files that nothing proves: the first ones were done of the old content, then it changed."""
    old = {k: [f"old {k} {i} " + "of some words " * 20 for i in range(200)] for k in range(8)}
    new = {k: [text.replace("old", "new") for text in found] for k, found in old.items()}
    urls = [here.plain(f"/d/{k}.jsonl", lines(*found), etag=None) for k, found in old.items()]
    settings = [*TEXT, "runtime.unit_bytes=50000", "runtime.workers=1"]
    collect, count = runner._collect, []

    def dies(*arguments):
        if len(count) == 4:
            raise SourceError("the run dies here")
        count.append(arguments)
        return collect(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "_collect", dies)
        with pytest.raises(SourceError, match="dies here"):
            dataprep.run(urls, "sample", tmp_path, settings=settings)
    for k, found in new.items():
        here.plain(f"/d/{k}.jsonl", lines(*found), etag=None)
    shutil.rmtree(next((tmp_path / "raw").iterdir()))

    result = dataprep.run(urls, "sample", tmp_path, settings=settings)

    assert texts(result) == [text for found in new.values() for text in found][::50]
    assert [file.checksum for file in result.manifest.recipe.files] == [
        f"sha256:{hashlib.sha256(lines(*found)).hexdigest()}" for found in new.values()
    ]


def test_a_file_that_came_damaged_once_is_fetched_again(here, tmp_path):
    """One whose source proves nothing: it is held to the sha256 of the first time."""
    url = here.plain("/a.jsonl", lines("hello" * 100), etag=None)
    (file,) = fetching.download(url, tmp_path, settings=TEXT).files
    Path(file.path).unlink()
    here.fault("corrupt", "*a.jsonl", side="plain", at=100)
    fetching.download(url, tmp_path, settings=TEXT)
    assert Path(file.path).read_bytes() == lines("hello" * 100)

    Path(file.path).unlink()
    here.plain("/a.jsonl", lines("other" * 100), etag=None)
    with pytest.raises(SourceError, match=r"not what it was when it was first fetched.*take another --output"):
        fetching.download(url, tmp_path, settings=TEXT)


def test_the_reason_of_a_failure_is_not_lost(here, tmp_path, monkeypatch):
    """The file that is waited for is not the one that failed."""
    here.add("datasets", "org/name", {f"{i:03d}.jsonl": lines(f"{i}" * 500) for i in range(20)})
    here.fault("stall", "*000.jsonl", side="cdn", at=100, seconds=0.5, times=-1)
    write = Part.write

    def full(self, data):
        if "005" in self._wanted.name:
            with explain(self.path, "write"):
                raise OSError(errno.ENOSPC, "no space")
        return write(self, data)

    monkeypatch.setattr(Part, "write", full)
    with pytest.raises(DataprepError, match="no space left"):
        dataprep.run("hf:org/name", "sample", tmp_path, settings=[*TEXT, "runtime.unit_bytes=100"])


def test_a_server_that_asks_for_no_wait_gets_one(here, tmp_path):
    url = here.plain("/a.bin", b"x" * 1000)
    fault = here.fault("status", "*a.bin", side="plain", status=429, headers={"Retry-After": "0"}, times=3)
    start = time.monotonic()
    with Connections(1) as connections:
        patience = Patience(attempts=8, first_seconds=0.1)
        Fetcher(RawFolder(tmp_path / "raw"), connections, Pause(), lambda n: None, patience).fetch(
            Wanted("a.bin", url, 1000, None)
        )
    assert fault.fired == 3
    assert time.monotonic() - start > 0.1


def test_a_wait_that_one_request_is_told_does_not_stop_bodies_under_way(here, tmp_path):
    url = here.plain("/a.bin", b"x" * 2_000_000)
    here.rate_bytes_per_second = 4_000_000
    pause, told = Pause(), []

    def tell(arrived):
        if not told:
            told.append(arrived)
            pause.ask(200)

    start = time.monotonic()
    with Connections(1) as connections:
        Fetcher(RawFolder(tmp_path / "raw"), connections, pause, tell).fetch(Wanted("a.bin", url, 2_000_000, None))
    assert time.monotonic() - start < 100
    assert 0 < told[0] < 2_000_000


@pytest.mark.parametrize("what", ["*/revision/*", "*/paths-info/*", "*/tree/*"])
def test_a_hub_that_stalls_is_given_up(here, tmp_path, monkeypatch, what):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr(web, "BRIEF", Patience(attempts=2, first_seconds=0.01))
    here.add("datasets", "org/name", {"a.jsonl": lines("x")})
    fault = here.fault("stall", what, side="api", method="*", seconds=200, times=-1)
    start = time.monotonic()
    with pytest.raises(SourceError, match=r"cannot fetch hf://datasets/org/name@.*2 times in a row"):
        resolve("hf:org/name", "sample", tmp_path)
    assert time.monotonic() - start < 100
    assert fault.fired


@pytest.mark.parametrize(
    ("body", "headers", "says"),
    [
        (b'{"error": "quota"}', {}, "no listing of files"),
        (b'[{"type": "file"}]', {}, "no listing of files"),
        (rb'[{"type": "file", "path": "\ud800.jsonl", "size": 1, "oid": "0"}]', {}, "no listing of files"),
        (b"\x1f\x8bgarbage", {"Content_Encoding": "gzip"}, "DecodingError|incorrect"),
        (b"<html>", {}, "no JSON"),
        (b'[{"type": "directory"}]', {"Link": '<http://elsewhere/?cursor=1>; rel="next"'}, "no end"),
    ],
)
def test_a_listing_that_is_none_is_said(here, tmp_path, monkeypatch, body, headers, says):
    from huggingface_hub import constants

    monkeypatch.setattr(web, "BRIEF", Patience(attempts=2, first_seconds=0.001))
    (tmp_path / "c.yaml").write_text(
        f"name: c\nsource: {{kind: hub, repo: o/n, revision: '{'a' * 40}', paths: ['**/*.jsonl']}}\n"
    )
    with serving(lambda handler: answer(handler, body, **headers)) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        with pytest.raises(SourceError, match=says):
            resolve(str(tmp_path / "c.yaml"), "sample", tmp_path)


@pytest.fixture
def logged():
    """What dataprep logs, line by line."""
    handler, found = logging.Handler(), []
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("dataprep")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("token", ["hf_\x0bsecret", "\x1b[200~hf_secret", "hf_secret\x01"])
def test_a_token_that_cannot_be_sent_is_not_told(here, tmp_path, monkeypatch, logged, token):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(SourceError) as error:
        resolve("hf:org/name", "sample", tmp_path)
    assert "HF_TOKEN" in str(error.value)
    assert "secret" not in f"{error.value}{error.value.__cause__}{logged}"


def test_what_addresses_hide_is_told_and_written_nowhere(here, tmp_path, logged):
    urls = [here.plain(f"/a/{k}.jsonl", lines(*["x"] * 100)) + "?X-Amz-Signature=SECRET/of/it" for k in range(2)]
    dataprep.run(urls, "sample", tmp_path, limit=3, settings=["runtime.unit_bytes=100"])
    here.fault("status", "*1.jsonl", side="plain", status=404, times=-1)
    with pytest.raises(SourceError) as error:
        fetching.download(urls, tmp_path / "other")
    with pytest.raises(SpecError, match="no password in an address") as refused:
        fetching.download(urls[0].replace("http://", "http://me:SECRET@"), tmp_path)

    assert "SECRET" not in f"{error.value}{refused.value}{logged}"
    assert not [path for path in tmp_path.rglob("*") if "SECRET" in path.name]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cannot fetch https://a:b@host/x?sig=1&b=2: 404", "cannot fetch https://host/x: 404"),
        ("see hf://datasets/o/n@main/x and s3://b/?.txt", "see hf://datasets/o/n@main/x and s3://b/?.txt"),
        ("what is missing? nothing", "what is missing? nothing"),
    ],
)
def test_what_is_public_of_a_text(text, told):
    assert public(text) == told


def test_room_is_not_asked_for_files_that_are_here(here, tmp_path, monkeypatch):
    here.add("datasets", "org/name", {f"{k}.jsonl": lines("x" * 50_000) for k in range(4)})
    listing = fetching.download("hf:org/name", tmp_path, settings=TEXT)
    for file in listing.files:
        os.utime(file.path, (1, 1))  # as a copy would
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    before = here.served()

    fetching.download("hf:org/name", tmp_path, settings=TEXT)

    assert here.served() == before


def test_a_run_that_keeps_nothing_leaves_what_others_use(here, tmp_path):
    from dataprep.stages.download import Downloads

    here.add("datasets", "org/name", {f"{k}.jsonl": lines("x" * 5000) for k in range(4)})
    asked = resolve("hf:org/name", "sample", tmp_path, settings=[*TEXT, "runtime.keep_raw=false"])
    folder, files, reader = RawFolder(Path(asked.listing.raw)), asked.recipe.files, asked.recipe.reader
    with Downloads(folder, files, reader, asked.runtime, lambda n: None) as one:
        one.start(range(4))
        one.wait(range(4))
        with Downloads(folder, files, reader, asked.runtime, lambda n: None):
            one.drop([0, 1])
            assert all(Path(file.path).exists() for file in files)
        one.drop([2])
        assert [Path(file.path).exists() for file in files] == [False, False, False, True]


def test_a_card_that_names_thousands_of_files_is_read_at_once(here, monkeypatch):
    from dataprep import hub

    def seconds(number):
        names = [f"data/part-{i:05d}.parquet" for i in range(number)]
        monkeypatch.setattr(hub, "tree", lambda repo, root: [hub.RepoFile(name, 5, "x") for name in names])
        start = time.thread_time()
        assert len(matching(hub.Repo("o/n", "dataset", "x"), names)) == number
        return time.thread_time() - start

    times = [(seconds(500), seconds(5000)) for _ in range(3)]
    few, many = map(min, zip(*times, strict=True))
    assert many < 30 * few, "10 where each name takes the same, 100 where each is compared with all"


def test_a_name_that_no_file_can_have_is_refused(here, tmp_path):
    url = here.plain("/" + "a" * 260 + ".jsonl", lines("x"))
    with pytest.raises(SourceError, match="cannot be stored safely"):
        fetching.download(url, tmp_path)


def test_texts_behind_ids_are_in_s3(here, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "name: c\nsource: {kind: hub, repo: o/n, paths: ['*.parquet'], contents: {url: 'https://host/{id}'}}\n"
    )
    with pytest.raises(SpecError, match=re.escape("source.hub.contents.url") + "|contents.url"):
        resolve(str(tmp_path / "c.yaml"), "sample", tmp_path)
