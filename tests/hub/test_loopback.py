"""The loopback hub behaves: towards the real client, and byte by byte towards a plain one."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from loopback_probe import DATA, FILES, ONE, SMALL, SPACED, ask, follow, until


@pytest.fixture
def repo(hub):
    return hub.add("datasets", "org/name", FILES)


@pytest.fixture
def api(hub, hub_client):
    return hub_client.HfApi(endpoint=hub.url)


# --- the real client


def test_client_downloads_a_small_and_a_large_file(hub, repo, hub_client):
    for path in FILES:
        got = hub_client.hf_hub_download("org/name", path, repo_type="dataset", endpoint=hub.url)
        assert Path(got).read_bytes() == FILES[path]
        assert f"/snapshots/{repo.branches['main']}/" in got

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
        hub.fault("status", "/api/*/tree/*", status=429, headers={"RateLimit": '"api";r=0;t=1'}),
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
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=60)
    took = []
    for _ in range(50):
        start = time.monotonic()
        connection.request("GET", "/datasets/org/name/resolve/main/config.json")
        assert connection.getresponse().read() == SMALL
        took.append(time.monotonic() - start)
    connection.close()

    assert median(took) < 0.03, "40 ms each would be Nagle's algorithm, and 1 is usual"


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
