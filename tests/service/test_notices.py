"""Notices: webhooks on a real server that fails in every way, and commands that do."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dataprep.service import notices
from dataprep.service.job import Notify
from dataprep.service.notices import tell
from dataprep.web import Patience

HASTY = Patience(attempts=3, first_seconds=0.001)
EVENT = {"job": "books", "state": "failed", "error": "näh\n<b>"}


class Server(ThreadingHTTPServer):
    """Answers one request after the other as `plan` says; the last answer goes on."""

    daemon_threads = True

    def __init__(self, *plan):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan, self.requests, self.stop = list(plan), [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, *_):
        """A client that went away is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        server.requests.append((self.path, dict(self.headers), body))
        answer = server.plan[0] if len(server.plan) == 1 else server.plan.pop(0)
        if callable(answer):
            answer(self)
            return
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(*plan):
        servers.append(Server(*plan))
        return servers[-1]

    yield start
    for server in servers:
        server.stop.set()
        server.shutdown()
        server.server_close()


def hook(server, path="/T00/secret?token=s3cr3t"):
    return Notify(webhook=server.url + path)


def test_a_webhook_gets_the_event_as_json(serve):
    server = serve(204)

    assert tell(hook(server), EVENT, HASTY) == []

    ((path, headers, body),) = server.requests
    assert (path, headers["Content-Type"], headers["User-Agent"]) == (
        "/T00/secret?token=s3cr3t",
        "application/json",
        "dataprep",
    )
    assert json.loads(body) == EVENT
    assert "authorization" not in {key.lower() for key in headers}


def test_only_what_is_asked_for_is_told(serve):
    server = serve(200)
    notify = Notify(webhook=server.url, on=("published",))

    assert tell(notify, EVENT, HASTY) == []
    assert server.requests == []
    assert tell(notify, {**EVENT, "state": "published"}, HASTY) == []
    assert len(server.requests) == 1
    assert tell(Notify(), EVENT, HASTY) == []


@pytest.mark.parametrize("status", [500, 503, 429])
def test_what_may_pass_is_tried_again(serve, status):
    server = serve(status, status, 200)

    assert tell(hook(server), EVENT, HASTY) == []
    assert len(server.requests) == 3


def test_what_does_not_pass_is_a_problem_without_the_secret(serve):
    server = serve(503)

    assert tell(hook(server), EVENT, HASTY) == [
        "the webhook at 127.0.0.1 was not told: it answers 503 Service Unavailable; tried 3 times"
    ]
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_what_is_wrong_for_good_is_not_tried_again(serve, status):
    server = serve(status)

    (problem,) = tell(hook(server), EVENT, HASTY)

    assert problem.startswith(f"the webhook at 127.0.0.1 was not told: it answers {status} ")
    assert "s3cr3t" not in problem
    assert "T00" not in problem
    assert len(server.requests) == 1


def test_a_server_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    (problem,) = tell(Notify(webhook=f"http://127.0.0.1:{port}/s3cr3t"), EVENT, HASTY)

    assert problem == "the webhook at 127.0.0.1 was not told: ConnectError; tried 3 times"


def cut(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


def hang(handler):
    handler.server.stop.wait(30)


def dribble(handler):
    """One byte of a header now and then, so that no single wait is long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
    while not handler.server.stop.wait(0.05):
        handler.wfile.write(b"y")
        handler.wfile.flush()


def test_a_connection_that_breaks_is_tried_again(serve):
    server = serve(cut, 200)

    assert tell(hook(server), EVENT, HASTY) == []
    assert len(server.requests) == 2


@pytest.mark.parametrize("silence", [hang, dribble])
def test_a_server_that_never_answers_is_left(serve, silence, monkeypatch):
    monkeypatch.setattr(notices, "ANSWER_SECONDS", 0.15)
    server = serve(silence)
    begun = time.monotonic()

    (problem,) = tell(hook(server), EVENT, HASTY)

    assert time.monotonic() - begun < 25
    assert "T00" not in problem
    assert problem.endswith("; tried 3 times")


def test_a_large_answer_is_not_read(serve):
    def pour(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")

    server = serve(pour)

    assert tell(hook(server), EVENT, HASTY) == []


def test_redirects_stay_on_the_server(serve):
    server = serve((307, {"location": "/moved"}), 200)

    assert tell(hook(server), EVENT, HASTY) == []
    assert [(path, json.loads(body)) for path, _, body in server.requests] == [
        ("/T00/secret?token=s3cr3t", EVENT),
        ("/moved", EVENT),
    ]


def test_redirects_to_others_are_not_followed(serve):
    other = serve(200)
    port = serve((302, {"location": f"{other.url}/x"}))
    host = serve((308, {"location": "http://169.254.169.254/latest"}))
    scheme = serve((301, {"location": "file:///etc/passwd"}))

    for server in (port, host, scheme):
        (problem,) = tell(hook(server), EVENT, HASTY)
        assert "it sends to another server" in problem
    assert other.requests == []


def test_redirects_in_a_circle_end(serve):
    server = serve((307, {"location": "/again"}))

    (problem,) = tell(hook(server), EVENT, HASTY)

    assert "307" in problem
    assert len(server.requests) == notices.REDIRECTS + 1


@pytest.mark.parametrize("url", ["http://a\u0301" + "b" * 300, "http://127.0.0.1:9/\x01"])
def test_addresses_that_are_none(url):
    (problem,) = tell(Notify.model_construct(webhook=url, command=(), on=("failed",)), EVENT, HASTY)

    assert "the webhook at" in problem


# --- commands


def python(code):
    return Notify(command=(sys.executable, "-c", code), on=("failed",))


def test_a_command_gets_the_event_on_stdin(tmp_path):
    out = tmp_path / "it's"
    notify = Notify(
        command=(sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", str(out))
    )

    assert tell(notify, EVENT) == []
    assert json.loads(out.read_text()) == EVENT


def test_there_is_no_shell(tmp_path):
    assert tell(Notify(command=(sys.executable, "-c", "pass", f"; touch {tmp_path}/x", "$(false)")), EVENT) == []
    assert os.listdir(tmp_path) == []


def test_a_command_that_reads_nothing_is_told_all_the_same():
    assert tell(python("pass"), {**EVENT, "error": "x" * 1_000_000}) == []


def test_a_command_that_fails_says_why():
    (problem,) = tell(python("print('no\\n  such'); raise SystemExit(3)"), EVENT)

    assert problem == f"the command {sys.executable} was not told: it ended with exit code 3: no such"


def test_the_end_of_what_it_says_is_kept():
    code = "import sys\nfor i in range(20_000): print('x' * 99)\nprint('the end')\nsys.exit(1)"

    (problem,) = tell(python(code), EVENT)

    assert problem.endswith("the end")
    assert len(problem) < notices.OUTPUT_BYTES + 200


def test_a_command_that_is_killed():
    (problem,) = tell(python("import os; os.kill(os.getpid(), 9)"), EVENT)

    assert problem.endswith("it ended with signal 9")


def test_a_command_that_hangs_is_stopped_with_all_it_began(monkeypatch, tmp_path):
    monkeypatch.setattr(notices, "COMMAND_SECONDS", 1.5)
    notify = Notify(command=("sh", "-c", "sleep 60 & echo $!; wait"), on=("failed",))

    (problem,) = tell(notify, EVENT)

    begin, _, child = problem.rpartition(": ")
    assert begin.endswith("it took more than 1.5 s and was stopped")
    deadline = time.monotonic() + 30
    while lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("command", ["/none/such", "/", "nul\0byte"])
def test_a_command_that_cannot_be_started(command):
    notify = Notify.model_construct(webhook=None, command=(command,), on=("failed",))

    (problem,) = tell(notify, EVENT)

    assert "was not told: it cannot be started: " in problem


def test_what_addresses_hide_is_not_repeated():
    (problem,) = tell(python("print('https://me:pw@host/x?token=1'); raise SystemExit(1)"), EVENT)

    assert problem.endswith("https://host/x")


def test_one_that_fails_does_not_keep_the_other_from_being_told(serve, tmp_path):
    out = tmp_path / "out"
    notify = Notify(webhook=serve(404).url, command=("sh", "-c", 'cat > "$1"', "sh", str(out)), on=("failed",))

    (problem,) = tell(notify, EVENT, HASTY)

    assert "the webhook" in problem
    assert json.loads(out.read_text()) == EVENT
