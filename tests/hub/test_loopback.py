"""The loopback hub behaves: towards the real client, and byte by byte towards a plain one."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

DATA = random.Random(1).randbytes(3 << 20)
SMALL = b'{"eos_token": "<|endoftext|>"}'
README = b"---\nlicense: odc-by\nconfigs:\n- config_name: default\n  data_files: data/*\n---\n# Words\n"
SPACED = "data/crossdeduped /a b.jsonl"
FILES = {"README.md": README, "config.json": SMALL, "data/one.parquet": DATA, SPACED: b"spaced\n", "empty.bin": b""}
ONE = "/datasets/org/name/resolve/main/data/one.parquet"


@pytest.fixture
def repo(hub):
    return hub.add("datasets", "org/name", FILES)


@pytest.fixture
def api(hub, hub_client):
    return hub_client.HfApi(endpoint=hub.url)


class Answer:
    def __init__(self, response, body, error=None):
        self.status, self.headers, self.body, self.error = response.status, response.headers, body, error


def ask(url, method="GET", headers=None, body=None):
    """One request on a connection of its own; what came of the body, and what ended it."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(split.hostname, split.port, timeout=5)
    try:
        connection.request(method, f"{split.path}?{split.query}".rstrip("?"), body, headers or {})
        response = connection.getresponse()
        got = bytearray()
        try:
            while block := response.read1(1 << 20):
                got += block
        except OSError as error:
            return Answer(response, bytes(got), error)
        return Answer(response, bytes(got))
    finally:
        connection.close()


def follow(url, **headers):
    answer = ask(url, headers=headers)
    while answer.status in {302, 307}:
        url = urljoin(url, answer.headers["Location"])
        answer = ask(url, headers=headers)
    return answer


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- the real client


def test_client_downloads_a_small_and_a_large_file(hub, repo, hub_client):
    for path in FILES:
        got = hub_client.hf_hub_download("org/name", path, repo_type="dataset", endpoint=hub.url)
        assert Path(got).read_bytes() == FILES[path]
        assert Path(got).is_relative_to(Path(got).parents[len(Path(path).parts)] / "snapshots" / repo.branches["main"])

    large = Path(hub_client.hf_hub_download("org/name", "data/one.parquet", repo_type="dataset", endpoint=hub.url))
    assert large.resolve().name == hashlib.sha256(DATA).hexdigest()
    assert hub.served("data/one.parquet") == len(DATA)
    assert hub.served() == sum(map(len, FILES.values()))


def test_client_leaves_its_token_behind_on_the_way_to_the_cdn(hub, hub_client):
    hub.tokens.add("hf_good")
    hub.add("models", "org/closed", {"model.bin": DATA, "config.json": SMALL}, gated=True)

    for path, content in (("model.bin", DATA), ("config.json", SMALL)):
        got = hub_client.hf_hub_download("org/closed", path, endpoint=hub.url, token="hf_good")
        assert Path(got).read_bytes() == content

    assert {(r.cdn, r.authorization, r.host) for r in hub.requests} == {
        (False, "Bearer hf_good", f"127.0.0.1:{hub.port}"),
        (True, None, f"localhost:{hub.port}"),
    }


def test_client_takes_a_snapshot_and_asks_once_when_it_has_it(hub, repo, hub_client):
    folder = Path(hub_client.snapshot_download("org/name", repo_type="dataset", endpoint=hub.url))
    asked = len(hub.requests)
    hub_client.snapshot_download("org/name", repo_type="dataset", endpoint=hub.url)

    assert {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == FILES
    assert len(hub.requests) == asked + 1


def test_client_finds_everything_it_downloaded_to_be_right(hub, repo, api):
    api.snapshot_download("org/name", repo_type="dataset")
    verified = api.verify_repo_checksums("org/name", repo_type="dataset")

    assert verified.checked_count == len(FILES)
    assert not verified.mismatches


def test_client_lists_a_tree_over_several_pages(hub, api):
    files = {f"data/{i:03}.bin": b"%d" % i for i in range(25)}
    hub.add("datasets", "org/many", files)
    hub.page_size = 10

    found = list(api.list_repo_tree("org/many", repo_type="dataset", recursive=True))
    below = list(api.list_repo_tree("org/many", "data", repo_type="dataset", expand=True))
    top = list(api.list_repo_tree("org/many", repo_type="dataset"))

    assert [entry.path for entry in found] == ["data", *files]
    assert {e.path: e.lfs.sha256 for e in below} == {p: hashlib.sha256(c).hexdigest() for p, c in files.items()}
    assert all(entry.last_commit for entry in below)
    assert [entry.path for entry in top] == ["data"]
    assert len([r for r in hub.requests if "/tree/" in r.path]) == 3 + 3 + 1


def test_client_reads_what_is_said_of_a_repository(hub, repo, api):
    info = api.dataset_info("org/name", files_metadata=True)
    blobs = {sibling.rfilename: sibling for sibling in info.siblings}

    assert info.sha == repo.branches["main"] == api.dataset_info("org/name", revision=info.sha).sha
    assert (info.private, info.gated, info.card_data["license"]) == (False, False, "odc-by")
    assert info.card_data["configs"] == [{"config_name": "default", "data_files": "data/*"}]
    assert blobs["data/one.parquet"].lfs.sha256 == hashlib.sha256(DATA).hexdigest()
    assert blobs["config.json"].blob_id == hashlib.sha1(b"blob %d\0" % len(SMALL) + SMALL).hexdigest()
    assert blobs["config.json"].lfs is None
    assert repo.lfs == {"data/one.parquet", SPACED}
    hub.add("models", "org/model", {"config.json": SMALL})
    assert api.model_info("org/model").id == "org/model"
    assert api.file_exists("org/model", "config.json")
    assert not api.file_exists("org/model", "other.json")


def test_client_asks_for_single_paths(hub, repo, api):
    found = api.get_paths_info("org/name", [SPACED, "data", "missing"], repo_type="dataset")

    assert [entry.path for entry in found] == [SPACED, "data"]
    assert found[0].size == len(FILES[SPACED])


def test_client_sees_branches_and_reads_the_quoted_one(hub, repo, api):
    converted = repo.commit({"default/train/0000.parquet": DATA}, branch="refs/convert/parquet")
    refs = api.list_repo_refs("org/name", repo_type="dataset")
    path = api.hf_hub_download(
        "org/name", "default/train/0000.parquet", repo_type="dataset", revision="refs/convert/parquet"
    )

    assert [(b.name, b.ref, b.target_commit) for b in refs.branches] == [
        ("main", "refs/heads/main", repo.branches["main"])
    ]
    assert [(c.name, c.ref) for c in refs.converts] == [("parquet", "refs/convert/parquet")]
    assert converted in path
    assert Path(path).read_bytes() == DATA
    assert api.dataset_info("org/name", revision="refs/convert/parquet").sha == converted


def test_branch_moves_and_its_old_commit_stays(hub, repo, api):
    old = repo.branches["main"]
    new = repo.commit({**repo.files, "config.json": b"{}"})

    def read(revision):
        return Path(api.hf_hub_download("org/name", "config.json", repo_type="dataset", revision=revision)).read_bytes()

    assert old != new
    assert (read(old), read("main"), read(new)) == (SMALL, b"{}", b"{}")


def test_client_tells_apart_what_is_missing(hub, repo, api):
    from huggingface_hub import errors

    def get(name="org/name", path="README.md", revision=None):
        return api.hf_hub_download(name, path, repo_type="dataset", revision=revision)

    hub.add("datasets", "org/gated", FILES, gated=True)
    hub.add("datasets", "org/private", FILES, private=True)
    for token in (None, "hf_bad"):
        api.token = token
        with pytest.raises(errors.GatedRepoError):
            get("org/gated")
        assert api.dataset_info("org/gated").gated == "auto"
        for name in ("org/private", "org/unknown"):
            with pytest.raises(errors.RepositoryNotFoundError):
                get(name)
            with pytest.raises(errors.RepositoryNotFoundError):
                api.dataset_info(name)
    with pytest.raises(errors.RevisionNotFoundError):
        get(revision="v2")
    with pytest.raises(errors.RevisionNotFoundError):
        api.dataset_info("org/name", revision="0" * 40)
    with pytest.raises(errors.RemoteEntryNotFoundError) as missing:
        get(path="data/none.parquet")
    assert missing.value.response.headers["X-Repo-Commit"] == hub.repos["datasets", "org/name"].branches["main"]
    with pytest.raises(errors.EntryNotFoundError):
        list(api.list_repo_tree("org/name", "none", repo_type="dataset"))
    assert {r.status for r in hub.requests if r.path.startswith("/datasets/org/gated")} == {401, 403}


def test_right_token_opens_what_is_closed(hub, api):
    hub.tokens.add("hf_good")
    api.token = "hf_good"
    for name, how in (("org/gated", {"gated": True}), ("org/private", {"private": True})):
        repo = hub.add("datasets", name, FILES, **how)
        assert api.dataset_info(name).sha == repo.branches["main"]
        assert Path(api.hf_hub_download(name, "config.json", repo_type="dataset")).read_bytes() == SMALL
    assert api.whoami()["name"] == "tester"


def test_client_follows_the_relative_redirect_of_small_files(hub, repo, api):
    hub.resolve_cache = True

    assert Path(api.hf_hub_download("org/name", "config.json", repo_type="dataset")).read_bytes() == SMALL
    assert any(r.path.startswith("/api/resolve-cache/datasets/org/name/") for r in hub.requests)


def test_client_waits_and_tries_again_as_it_is_told(hub, repo, api, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    faults = [
        hub.fault("status", "/api/*", status=429, headers={"RateLimit": '"api";r=0;t=1'}),
        hub.fault("status", "*/one.parquet", method="HEAD", status=503),
        hub.fault("status", "*/one.parquet", side="cdn", status=429, headers={"Retry-After": "3"}),
        hub.fault("close", "*/one.parquet", side="cdn", at=1 << 20),
    ]
    api.snapshot_download("org/name", repo_type="dataset", max_workers=1)

    assert [fault.fired for fault in faults] == [1, 1, 1, 1]
    assert not hub.faults
    assert any(wait >= 3 for wait in waits)


def test_client_in_a_process_has_its_environment(hub, repo, hub_environment):
    code = (
        "from huggingface_hub import hf_hub_download as get; print(get('org/name', 'config.json', repo_type='dataset'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=hub_environment, check=True, capture_output=True, text=True
    )

    assert Path(found.stdout.strip()).is_relative_to(hub_environment["HF_HOME"])
    assert Path(found.stdout.strip()).read_bytes() == SMALL
    assert "HF_TOKEN" not in hub_environment


# --- headers and ranges


def test_large_file_is_redirected_to_another_origin(hub, repo):
    for here, there in (("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")):
        for method in ("HEAD", "GET"):
            answer = ask(f"http://{here}:{hub.port}{ONE}", method)
            assert answer.status == 302
            assert answer.headers["X-Repo-Commit"] == repo.branches["main"]
            assert answer.headers["X-Linked-Etag"] == f'"{hashlib.sha256(DATA).hexdigest()}"'
            assert answer.headers["X-Linked-Size"] == str(len(DATA))
            assert answer.headers["Location"].startswith(f"http://{there}:{hub.port}/cdn/")
    body = follow(hub.url + ONE)
    assert body.body == DATA
    assert len(body.headers["ETag"].strip('"')) == 32


def test_small_file_comes_at_once_under_its_git_name(hub, repo):
    answer = ask(f"{hub.url}/datasets/org/name/resolve/{repo.branches['main']}/config.json")

    assert (answer.status, answer.body) == (200, SMALL)
    assert answer.headers["ETag"] == f'"{hashlib.sha1(b"blob %d" % len(SMALL) + bytes(1) + SMALL).hexdigest()}"'
    assert answer.headers["X-Repo-Commit"] == repo.branches["main"]


@pytest.mark.parametrize("held", ["memory", "disk", "callable"])
@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [("5-9", 5, 10), ("1000000-", 1000000, len(DATA)), ("-7", len(DATA) - 7, len(DATA)), ("0-99999999", 0, len(DATA))],
)
def test_range_is_answered_from_memory_and_disk(hub, tmp_path, held, text, start, stop):
    (tmp_path / "file").write_bytes(DATA)
    source = {"memory": DATA, "disk": tmp_path / "file", "callable": lambda: DATA}[held]
    hub.add("datasets", "org/name", {"data/one.parquet": source})

    answer = follow(hub.url + ONE, Range=f"bytes={text}")

    assert (answer.status, answer.body) == (206, DATA[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"
    assert [r.range for r in hub.requests] == [f"bytes={text}"] * 2
    assert hub.served() == stop - start


def test_range_past_the_end_is_refused(hub, repo):
    answer = follow(hub.url + ONE, Range=f"bytes={len(DATA)}-")

    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(DATA)}"
    assert hub.served() == 0


def test_connection_is_kept_for_many_requests(hub, repo):
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=5)
    start = time.monotonic()
    for _ in range(50):
        connection.request("GET", "/datasets/org/name/resolve/main/config.json")
        assert connection.getresponse().read() == SMALL
    took = time.monotonic() - start
    connection.close()

    assert took < 1.5, "40 ms each would be Nagle's algorithm"


def test_plain_file_has_what_http_needs_to_resume(hub):
    url = hub.plain("/files/a b.jsonl", DATA, etag='"v1"', last_modified="Fri, 02 Jan 2026 03:04:05 GMT")
    head = ask(url, "HEAD")
    resumed = ask(url, headers={"Range": "bytes=9-", "If-Range": '"v1"'})
    hub.plain("/files/a b.jsonl", SMALL, etag='"v2"')
    changed = ask(url, headers={"Range": "bytes=9-", "If-Range": '"v1"'})

    assert (head.status, head.headers["ETag"], head.headers["Content-Length"]) == (200, '"v1"', str(len(DATA)))
    assert head.headers["Last-Modified"] == "Fri, 02 Jan 2026 03:04:05 GMT"
    assert (resumed.status, resumed.body) == (206, DATA[9:])
    assert (changed.status, changed.body) == (200, SMALL)
    assert hub.served("/files/a b.jsonl") == len(DATA) - 9 + len(SMALL)
    assert "ETag" not in ask(hub.plain("/none", b"x", etag=None)).headers


def test_signed_url_expires(hub, repo):
    first, second = (ask(hub.url + ONE).headers["Location"] for _ in range(2))
    assert first != second
    assert ask(first).body == ask(second).body == DATA
    hub.expire()
    for url in (first, second, first.partition("?")[0]):
        refused = ask(url)
        assert (refused.status, refused.headers["X-Error-Code"]) == (403, None)
    assert follow(hub.url + ONE).body == DATA

    hub.signed_seconds = 0.05
    short = ask(hub.url + ONE).headers["Location"]
    until(lambda: ask(short, "HEAD").status == 403)


def test_unquoted_branch_is_no_revision(hub, repo):
    repo.commit({"a.parquet": DATA}, branch="refs/convert/parquet")

    assert ask(f"{hub.url}/datasets/org/name/resolve/refs%2Fconvert%2Fparquet/a.parquet").status == 302
    assert ask(f"{hub.url}/datasets/org/name/resolve/refs/convert/parquet/a.parquet").status == 404


def test_paths_are_asked_for_in_json_too(hub, repo):
    body = json.dumps({"paths": ["config.json"], "expand": True})
    url = f"{hub.url}/api/datasets/org/name/paths-info/main"
    found = json.loads(ask(url, "POST", {"Content-Type": "application/json"}, body).body)

    assert [(entry["path"], entry["size"]) for entry in found] == [("config.json", len(SMALL))]


# --- faults


@pytest.mark.parametrize("held", ["memory", "disk"])
@pytest.mark.parametrize(("what", "error"), [("close", None), ("reset", ConnectionResetError), ("stall", None)])
def test_connection_ends_after_exactly_so_many_bytes(hub, tmp_path, held, what, error):
    (tmp_path / "file").write_bytes(DATA)
    hub.add("datasets", "org/name", {"data/one.parquet": DATA if held == "memory" else tmp_path / "file"})
    at = 1_234_567
    fault = hub.fault(what, "*/one.parquet", at=at, seconds=0.2)

    start = time.monotonic()
    cut = follow(hub.url + ONE)

    assert cut.body == DATA[:at]
    assert (fault.fired, hub.served()) == (1, at)
    assert cut.error is None if error is None else isinstance(cut.error, error)
    assert time.monotonic() - start >= (0.2 if what == "stall" else 0)
    assert follow(hub.url + ONE).body == DATA


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("url", [ONE, "/api/datasets/org/name"])
@pytest.mark.parametrize("what", ["close", "reset"])
def test_connection_ends_before_any_answer(hub, repo, method, url, what):
    fault = hub.fault(what, method="*")

    with pytest.raises(ConnectionError):
        ask(hub.url + url, method)
    assert fault.fired == 1
    assert ask(hub.url + url, method).status in {200, 302}
    assert [request.status for request in hub.requests][0] == 0


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 403, 404])
def test_status_comes_as_often_as_told_with_its_headers(hub, repo, status):
    fault = hub.fault("status", "*/config.json", status=status, times=2, headers={"Retry-After": "7"})
    url = f"{hub.url}/datasets/org/name/resolve/main/config.json"

    answers = [ask(url) for _ in range(3)]

    assert [answer.status for answer in answers] == [status, status, 200]
    assert [answer.headers["Retry-After"] for answer in answers] == ["7", "7", None]
    assert answers[0].headers["X-Error-Code"] is None
    assert (fault.fired, hub.faults) == (2, [])


def test_fault_concerns_only_what_it_matches(hub, repo):
    fault = hub.fault("status", "*/one.parquet", side="cdn")
    head = hub.fault("status", "*/one.parquet", method="HEAD", status=500)

    assert ask(f"{hub.url}/datasets/org/name/resolve/main/config.json").status == 200
    assert ask(hub.url + ONE).status == 302
    assert (fault.fired, head.fired) == (0, 0)
    assert ask(hub.url + ONE, "HEAD").status == 500
    assert follow(hub.url + ONE).status == 503
    assert follow(hub.url + ONE).status == 200


@pytest.mark.parametrize("held", ["memory", "disk"])
def test_sixteen_bytes_are_corrupted(hub, tmp_path, held):
    (tmp_path / "file").write_bytes(DATA)
    hub.add("datasets", "org/name", {"data/one.parquet": DATA if held == "memory" else tmp_path / "file"})
    fault = hub.fault("corrupt", "*/one.parquet", at=100)

    body = follow(hub.url + ONE).body

    assert [i for i, (a, b) in enumerate(zip(body, DATA, strict=True)) if a != b] == list(range(100, 116))
    assert fault.fired == 1
    assert hub.served() == len(DATA)


def test_short_body_agrees_with_its_headers(hub, repo):
    hub.fault("short", "*/one.parquet", at=1000, times=2)
    whole, part = follow(hub.url + ONE), follow(hub.url + ONE, Range="bytes=50-")

    assert (whole.status, whole.body, whole.headers["Content-Length"]) == (200, DATA[:1000], "1000")
    assert (part.status, part.body) == (206, DATA[50:1050])
    assert part.headers["Content-Range"] == f"bytes 50-1049/{len(DATA)}"


def test_ranges_are_ignored_wrong_or_lied_about(hub, repo):
    faults = [hub.fault(what, "*/one.parquet", shift=10) for what in ("ignore_range", "wrong_range", "lying_range")]
    assert follow(hub.url + ONE).body == DATA
    assert [fault.fired for fault in faults] == [0, 0, 0]

    ignored, wrong, lying = (follow(hub.url + ONE, Range="bytes=100-199") for _ in range(3))

    assert (ignored.status, ignored.body) == (200, DATA)
    assert (wrong.status, wrong.body, wrong.headers["Content-Range"]) == (
        206,
        DATA[90:190],
        f"bytes 90-189/{len(DATA)}",
    )
    assert (lying.status, lying.body) == (206, DATA[90:190])
    assert lying.headers["Content-Range"] == f"bytes 100-199/{len(DATA)}"
    assert [fault.fired for fault in faults] == [1, 1, 1]


def test_page_of_html_stands_for_a_file(hub, repo):
    hub.fault("html", "*/one.parquet")
    answer = ask(hub.url + ONE)

    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/html")
    assert b"<html>" in answer.body
    assert hub.served() == 0


def test_redirects_never_end(hub, repo):
    hub.fault("redirect_loop", "*/one.parquet")
    url = hub.url + ONE
    for _ in range(30):
        answer = ask(url)
        assert answer.status == 302
        url = urljoin(url, answer.headers["Location"])


def test_unknown_fault_is_refused(hub):
    with pytest.raises(ValueError, match="unknown fault 'clsoe'"):
        hub.fault("clsoe")


# --- speed, and the end


@pytest.mark.parametrize("readers", [1, 3])
def test_rate_holds_for_all_together(hub, repo, readers):
    rate = 4 << 20
    url = ask(hub.url + ONE).headers["Location"]
    hub.rate_bytes_per_second = rate

    start = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        assert all(answer.body == DATA for answer in pool.map(ask, [url] * readers))
    took = time.monotonic() - start

    assert took == pytest.approx(readers * len(DATA) / rate, rel=0.03)


def test_idle_time_is_no_credit(hub, repo):
    url = ask(hub.url + ONE).headers["Location"]
    hub.rate_bytes_per_second = 12 << 20
    for _ in range(3):
        start = time.monotonic()
        ask(url)
        assert time.monotonic() - start > 0.24


def test_log_shows_a_transfer_while_it_runs(hub, repo):
    url = ask(hub.url + ONE).headers["Location"]
    hub.rate_bytes_per_second = 2 << 20
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask, url)
        until(lambda: hub.served("data/one.parquet") > 100_000)
        assert hub.served() < len(DATA)
        hub.rate_bytes_per_second = None
        assert future.result().body == DATA
    assert hub.served() == len(DATA)


def test_clients_that_go_away_are_no_error(hub, repo):
    url = urlsplit(ask(hub.url + ONE).headers["Location"])
    for received in (0, 100):
        with socket.create_connection(("127.0.0.1", hub.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert len(client.recv(received)) == received
    assert ask(hub.url + ONE).status == 302
    assert hub.errors == []


def test_end_waits_for_nobody(hub, repo):
    type_of_hub = type(hub)
    before = threading.active_count()
    other = type_of_hub()
    other.add("datasets", "org/name", FILES)
    other.fault("stall", "*/one.parquet", side="cdn", at=10, seconds=600)
    idle = http.client.HTTPConnection("127.0.0.1", other.port)
    idle.request("GET", "/api/datasets/org/name")
    idle.getresponse().read()
    with ThreadPoolExecutor(1) as pool:
        stalled = pool.submit(follow, other.url + ONE)
        until(lambda: other.served() == 10)
        start = time.monotonic()
        other.close()
        assert time.monotonic() - start < 1
        assert stalled.result().body == DATA[:10]
    idle.close()
    assert threading.active_count() == before


def test_bodies_leave_at_memory_speed(hub, tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 256 << 20)
    hub.add("datasets", "org/name", {"data/one.parquet": path})
    url = urlsplit(ask(hub.url + ONE).headers["Location"])
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=30)
    connection.request("GET", f"{url.path}?{url.query}")
    response = connection.getresponse()
    buffer = memoryview(bytearray(1 << 20))
    start = time.monotonic()
    received = sum(iter(lambda: response.readinto(buffer), 0))
    took = time.monotonic() - start
    connection.close()

    assert received == 256 << 20
    assert took < 2.5, "100 MB/s would be too slow to measure a downloader with"
