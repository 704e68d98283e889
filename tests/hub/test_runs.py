"""Whole runs against the hub: killed, interrupted, limited, behind a proxy, with tens of thousands of files."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback_probe import until

import dataprep
from dataprep import fetching
from dataprep.errors import OutputError
from dataprep.planning import resolve
from dataprep.specs import Runtime


def shard(seed, rows, words=40):
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(4000)]
    texts = [f"{seed}.{i} " + " ".join(draw.choices(vocabulary, k=words)) for i in range(rows)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=500, compression="none", use_dictionary=False)
    return sink.getvalue()


@pytest.fixture
def fineweb(hub):
    """The default sample of fineweb in three files of about 1 MB."""
    files = {f"sample/10BT/{i:03d}_00000.parquet": shard(i, 4000) for i in range(3)}
    return hub.add("datasets", "HuggingFaceFW/fineweb", files)


def start(environment, folder, *arguments):
    command = [sys.executable, "-m", "dataprep", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def pair_of(prefix):
    return [hashlib.sha256(Path(prefix + suffix).read_bytes()).hexdigest() for suffix in (".bin", ".idx")]


RUN = ("run", "fineweb", "-t", "sample", "--set", "runtime.unit_bytes=300000")


def test_the_command_prints_the_prefix_and_what_was_fetched(hub, fineweb, dataprep_cli):
    done = dataprep_cli(*RUN)

    assert done.returncode == 0, done.stderr
    prefix = done.stdout.strip()
    assert len(dataprep.open_dataset(prefix)) == 12_000
    again = dataprep_cli(*RUN)
    assert again.stdout == done.stdout
    assert "nothing to do" in again.stderr


def test_plan_says_what_it_will_take_and_downloads_nothing(hub, fineweb, dataprep_cli, tmp_path):
    done = dataprep_cli("plan", "fineweb", "-t", "sample")

    assert done.returncode == 0, done.stderr
    size = sum(content.size for content in fineweb.commits[fineweb.branches["main"]].values())
    rows = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert f"3 files, {size:,} bytes" in rows["corpus"]
    assert fineweb.branches["main"] in rows["from"]
    assert "odc-by" in rows["from"]
    assert {"to fetch", "tokens", "disk", "time"} <= {name.strip() for name in rows}
    assert hub.served() < 100_000, "the end of one file, for its columns"
    assert not (tmp_path / "data").exists()
    value = json.loads(dataprep_cli("plan", "fineweb", "-t", "sample", "--json").stdout)
    assert value["estimate"]["text_bytes"] == pytest.approx(size, rel=0.1), "uncompressed, one column"


@pytest.mark.slow
@pytest.mark.parametrize("number", [3])
def test_kill_it_while_it_downloads_and_run_it_again(hub, fineweb, hub_environment, dataprep_cli, tmp_path, number):
    expected = pair_of(dataprep_cli(*RUN, "-o", "whole").stdout.strip())
    needed = sum(content.size for content in fineweb.commits[fineweb.branches["main"]].values())
    looked = hub.served() - needed
    hub.rate_bytes_per_second = 4_000_000
    for seed in range(number):
        draw, output, before, kills = random.Random(seed), tmp_path / f"out{seed}", hub.served(), 0
        keep = draw.choice(["true", "false"])
        for _ in range(3):
            process = start(hub_environment, tmp_path, *RUN, "-o", str(output), "--set", f"runtime.keep_raw={keep}")
            goal = hub.served() + draw.randrange(20_000, needed // 3)
            until(lambda goal=goal, process=process: hub.served() > goal or process.poll() is not None)
            kills += process.poll() is None
            process.kill()
            process.communicate()
            assert not [p for p in output.rglob("*") if p.name == "manifest.json"] or process.returncode == 0
        done = dataprep_cli(*RUN, "-o", str(output), "--set", f"runtime.keep_raw={keep}")
        assert done.returncode == 0, done.stderr
        assert pair_of(done.stdout.strip()) == expected, seed
        wasted = hub.served() - before - needed - 4 * looked
        assert wasted <= kills * 8 * 600_000, "no more than was on its way to each connection"
        assert not list(output.glob("raw/*/parts/*"))


@pytest.mark.slow
def test_two_runs_at_once_fetch_each_file_once(hub, fineweb, hub_environment, bpe, tmp_path):
    hub.rate_bytes_per_second = 3_000_000
    processes = [start(hub_environment, tmp_path, *RUN[:2], "-t", name) for name in ("sample", str(bpe.path))]
    done = [(*process.communicate(timeout=60), process.returncode) for process in processes]

    assert [code for *_, code in done] == [0, 0], done
    assert [len(dataprep.open_dataset(out.strip())) for out, *_ in done] == [12_000, 12_000]
    assert hub.served() == sum(content.size for content in fineweb.commits[fineweb.branches["main"]].values())


@pytest.mark.slow
def test_ctrl_c_while_it_downloads_is_one_line_and_130(hub, fineweb, hub_environment, tmp_path, dataprep_cli):
    hub.rate_bytes_per_second = 500_000
    process = start(hub_environment, tmp_path, *RUN)
    until(lambda: hub.served() > 100_000)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)

    assert process.returncode == 130
    assert "interrupted; run the same command again" in errors
    assert "Traceback" not in errors
    hub.rate_bytes_per_second = None
    assert dataprep_cli(*RUN).returncode == 0


def test_a_file_that_cannot_be_had_is_named_and_the_others_are_kept(hub, fineweb, dataprep_cli, tmp_path):
    hub.fault("status", "*/001_00000.parquet", side="resolve", status=404, times=-1)
    done = dataprep_cli("download", "fineweb")

    assert done.returncode == 1
    assert "001_00000.parquet" in done.stderr
    assert "Traceback" not in done.stderr
    here = sorted(path.name for path in (tmp_path / "data").rglob("*.parquet"))
    assert here == ["000_00000.parquet", "002_00000.parquet"]


def test_download_fetches_for_any_tokenizer_and_says_where(hub, fineweb, dataprep_cli):
    done = dataprep_cli("download", "fineweb")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert len(list((folder / "files" / "sample" / "10BT").iterdir())) == 3
    served = hub.served()
    assert dataprep_cli(*RUN).returncode == 0
    assert dataprep_cli("download", "fineweb").stdout == done.stdout
    assert hub.served() == served


def test_a_disk_too_small_is_said_before_anything_is_fetched(here, tmp_path, monkeypatch):
    import shutil

    here.add("datasets", "org/name", {"a.jsonl": b'{"text": "x"}\n' * 1000})
    usage = shutil.disk_usage(tmp_path)._replace(free=5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)  # a small disk cannot be mounted by every user
    with pytest.raises(OutputError, match=r"0.0 GB are to be fetched, 0.0 GB are free; make room, choose another"):
        fetching.download("hf:org/name", tmp_path, settings=["reader.text=text"])
    assert here.served() == 0


class Proxy(BaseHTTPRequestHandler):
    """Forwards what it is asked for, and remembers it."""

    seen: list[str]

    def do_GET(self):
        self.seen.append(self.path)
        target = urlsplit(self.path)
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=10)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "proxy-connection"}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection.request(self.command, f"{target.path}?{target.query}".rstrip("?"), body or None, headers)
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        connection.close()

    def do_POST(self):
        self.do_GET()

    def log_message(self, *arguments):
        """Quiet."""


def test_a_proxy_is_used_for_the_hub_and_its_store(hub, fineweb, dataprep_cli):
    Proxy.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        done = dataprep_cli("download", "fineweb", HTTP_PROXY=url, http_proxy=url, NO_PROXY="", no_proxy="")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert len(Proxy.seen) == len(hub.requests)
    assert any("/cdn/" in path for path in Proxy.seen)


def test_raw_files_not_kept_are_never_many_at_a_time(here, tmp_path, monkeypatch):
    """The disk holds what is fetched ahead, not the corpus."""
    files = {f"{i:03d}.parquet": shard(i, 200) for i in range(40)}
    here.add("datasets", "org/name", files)
    settings = ["runtime.keep_raw=false", "runtime.connections=2", "runtime.workers=1", "runtime.unit_bytes=1000"]
    most, done = [0], threading.Event()

    def watch():
        while not done.is_set():
            most[0] = max(most[0], sum(1 for _ in (tmp_path / "raw").glob("*/files/*.parquet")))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = dataprep.run("hf:org/name", "sample", tmp_path, settings=settings)
    finally:
        done.set()
        thread.join()
    assert len(dataprep.open_dataset(result.prefix)) == 8000
    assert 0 < most[0] <= 5
    assert not list((tmp_path / "raw").glob("*/files/*.parquet"))


def _put_all(raw):
    """What a download of everything that a raw folder's listing names would leave, without 20,000 requests."""
    value = json.loads(next(raw.glob("listing-*.json")).read_text())
    with (raw / "receipts.jsonl").open("w") as receipts:
        for file in value["files"]:
            path = raw / "files" / file["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(file["num_bytes"]))
            receipt = {key: file[key] for key in ("name", "num_bytes", "checksum")}
            receipts.write(json.dumps({**receipt, "sha256": "0" * 64, "mtime_ns": path.stat().st_mtime_ns}) + "\n")


@pytest.mark.slow
def test_20_000_files_list_plan_and_resume(here, tmp_path):
    """Little slower than the hub's own client lists them, and in 500 MB: the issue's limit, as are 20 seconds (3 here).

    Measured is VmHWM: ru_maxrss of a process starts at what its parent, here pytest, had when it was started.
    """
    line = b'{"text": "x"}\n'
    here.add(
        "datasets", "org/name", {f"data/{i // 1000:02d}/{i:05d}.jsonl": line + b" " * (i % 7) for i in range(20_000)}
    )
    script = """
import json, re, sys, time
from pathlib import Path
from dataprep.layout import RawFolder
from dataprep.planning import resolve
from dataprep.stages import tokenize
from dataprep.supply import Supply
from huggingface_hub import HfApi
start = time.monotonic()
assert sum(1 for _ in HfApi().list_repo_tree("org/name", recursive=True, repo_type="dataset")) > 20_000
bare = time.monotonic() - start
start = time.monotonic()
request = resolve("hf:org/name", "sample", sys.argv[1], settings=["reader.text=text"])
listed = time.monotonic()
request.layout.work.mkdir(parents=True, exist_ok=True)
supply = Supply(request, tokenize.Job(request.layout, request.digest, request.runtime), print, lambda: None)
missing = supply._downloads.missing(range(len(request.recipe.files)))
planned = time.monotonic()
print(json.dumps([listed - start, planned - listed, bare, len(missing), len(supply.plan.groups),
                  int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024]))
"""
    environment = {**os.environ, "HF_ENDPOINT": here.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    figures = []
    for left in (20_000, 0):  # the second one finds the plan, and all files fetched
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "out")], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        listing, planning, bare, missing, groups, megabytes = json.loads(done.stdout)
        figures.append((listing, planning, bare, megabytes))
        assert missing == left
        assert groups >= 40
        if left:
            _put_all(next((tmp_path / "out" / "raw").iterdir()))
    print(figures)
    assert min((listing + planning) / bare for listing, planning, bare, _ in figures) < 10
    assert max(megabytes for *_, megabytes in figures) < 500


@pytest.mark.slow
def test_download_and_tokenization_overlap(hub, dataprep_cli, tmp_path):
    """A line that gives no more than two files beyond those that are tokenized; who waits for all waits for ever.

    On one where fetching takes 18.6 s and tokenizing 3.2 s, both together take 19.3 s.
    """
    files = {f"data/{i:02d}.parquet": shard(i, 4000) for i in range(10)}
    size = max(map(len, files.values()))
    hub.add("datasets", "org/name", files)
    turn, ahead = hub.turn, []

    def held_back(left):
        while True:
            lines = "".join(path.read_text() for path in tmp_path.glob("out/work/*/events-*.jsonl"))
            tokenized = lines.count('"event": "unit"') * size
            if hub.served() < tokenized + 2 * size or hub.closing.wait(0.01):
                return turn(left)
            ahead.append(hub.served() - tokenized)

    hub.turn = held_back
    settings = ("runtime.connections=1", f"runtime.unit_bytes={size}")
    run = ("run", "hf:org/name", "-t", "sample", "-o", "out", *(word for each in settings for word in ("--set", each)))
    done = dataprep_cli(*run, HF_HUB_DOWNLOAD_TIMEOUT="100")
    assert done.returncode == 0, done.stderr
    assert ahead, "it was never held back"


def test_what_is_fetched_ahead_is_bounded_by_files_and_connections():
    from dataprep.layout import RawFolder
    from dataprep.specs import ReaderSpec, SourceFile
    from dataprep.stages.download import Downloads

    file = SourceFile(name="a", path="/x/a", url="hf://o/n@1/x", num_bytes=100, format="jsonl")
    runtime = Runtime(workers=2, connections=3, keep_raw=False)
    downloads = Downloads(RawFolder(Path("/nowhere")), [file] * 50, ReaderSpec(), runtime, lambda n: None)
    assert downloads.ahead_bytes == 700


def test_resolving_touches_nothing(here, tmp_path):
    here.add("datasets", "org/name", {"a.jsonl": b'{"text": "x"}\n'})
    resolve("hf:org/name", "sample", tmp_path / "out")
    assert not (tmp_path / "out").exists()
