"""A tokenizer named by its hub repository: fetched over real HTTP from loopback, hashed like any other."""

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parent.parent / "tokenizers" / "sample" / "tokenizer.json"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as its client needs to fetch a few files of a model repository."""

    files: dict[str, bytes]

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": name} for name in self.files]
            value = {"id": "org/name", "modelId": "org/name", "sha": COMMIT, "siblings": siblings, "private": False}
            tree = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.files.items()]
            return self.send(json.dumps(tree if "/tree/" in path else value).encode(), body, "application/json")
        name = path.rpartition("/")[2]
        if path.startswith("/org/name/resolve/") and name in self.files:
            return self.send(self.files[name], body, "application/octet-stream")
        self.send_error(404)
        return None

    def send(self, data, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *arguments):
        """Quiet."""


@pytest.fixture
def hub():
    """A hub on loopback that holds org/name: the sample tokenizer and the config that names its EOD."""
    config = json.dumps({"eos_token": "<|endoftext|>"}).encode()
    files = {"tokenizer.json": SAMPLE.read_bytes(), "tokenizer_config.json": config}
    handler = functools.partial(type("Handler", (Hub,), {"files": files}))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def plan(tokenizer, endpoint, folder):
    (folder / "in.jsonl").write_text('{"text": "x"}\n')
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-m", "dataprep", "plan", "in.jsonl", "-t", tokenizer, "--json"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_hub_tokenizer_is_fetched_and_identified_by_its_content(hub, tmp_path):
    done = plan("org/name", hub, tmp_path)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["recipe"]["tokenizer"]
    local = plan(str(SAMPLE), hub, tmp_path)
    assert found["files"] == {"tokenizer.json": found["files"]["tokenizer.json"]}
    assert (found["name"], found["eod_id"], found["vocab_size"]) == ("name", 0, 8192)
    assert "does not say which token ends a document" in local.stderr  # a lone file names no EOD


def test_an_unreachable_or_unknown_repository_is_one_message(hub, tmp_path):
    for tokenizer in ("org/name", "org/unknown"):
        done = plan(tokenizer, "http://127.0.0.1:9" if tokenizer == "org/name" else hub, tmp_path)

        assert done.returncode == 1
        assert f"cannot fetch the tokenizer {tokenizer}" in done.stderr
        assert "Traceback" not in done.stderr
