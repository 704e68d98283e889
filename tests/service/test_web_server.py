"""A real server on loopback: slow and huge requests, many connections, its end, and the command that starts it."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dataprep.errors import OutputError
from dataprep.service.places import around
from dataprep.service.web import events, security, server
from dataprep.service.web.settings import Settings

TOKEN = "correct-horse-battery-staple"


def ask(address, data, *, pieces=()):
    """What the server answers to bytes, until it closes the connection."""
    with socket.create_connection(address, timeout=60) as sock:
        sock.sendall(data)
        for piece in pieces:
            time.sleep(0.02)
            try:
                sock.sendall(piece)
            except OSError:
                break  # it does not listen any more
        answer = b""
        try:
            while data := sock.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


def get(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""]).encode()


def test_it_answers(serving):
    _, address = serving()
    answer = ask(address, get("/healthz"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok\n")
    assert b"uvicorn" not in answer


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(serving, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    _, address = serving()
    start = time.monotonic()

    assert ask(address, b"GET / HTTP/1.1\r\n", pieces=[b"x"] * 30) == b""
    assert ask(address, b"") == b""
    assert ask(address, get("/healthz").replace(b"close", b"keep-alive")).endswith(b"ok\n")  # and then nothing more
    assert time.monotonic() - start < 50
    monkeypatch.setattr(server, "HEAD_SECONDS", 60)
    late = ask(address, get("/healthz")[:-2], pieces=[b"\r\n"])
    assert late.endswith(b"ok\n")


def test_a_body_that_does_not_come_is_not_waited_for(serving, monkeypatch):
    monkeypatch.setattr(security, "BODY_SECONDS", 0.1)
    _, address = serving(token=TOKEN)
    head = f"POST /login HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10\r\n\r\n".encode()

    assert ask(address, head, pieces=[b"x"]).startswith(b"HTTP/1.1 408 ")


def test_who_takes_nothing_of_an_answer_is_not_waited_for(serving, monkeypatch):
    monkeypatch.setattr(server, "SEND_SECONDS", 0.1)
    served, address = serving()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address)
        sock.sendall(get("/static/style.css").replace(b"close", b"keep-alive") * 5000)  # 100 MB of answers
        assert sock.recv(1) == b"H"
        deadline = time.monotonic() + 60
        while served.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert ask(address, get("/healthz")).endswith(b"ok\n")


def test_while_slow_ones_wait_others_are_answered(serving):
    _, address = serving()
    slow = [socket.create_connection(address) for _ in range(100)]
    for sock in slow:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: loc")

    assert ask(address, get("/healthz")).endswith(b"ok\n")
    for sock in slow:
        sock.close()


def test_who_only_waits_makes_room_for_who_asks(serving, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 5)
    _, address = serving()
    idle = [socket.create_connection(address) for _ in range(20)]

    assert ask(address, get("/healthz")).endswith(b"ok\n")
    ended = [sock for sock in idle if _has_ended(sock)]
    assert ended == idle[: len(ended)]
    assert len(ended) >= 15
    for sock in idle:
        sock.close()


def _has_ended(sock):
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_where_all_are_answered_others_are_turned_away(serving, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 3)
    _, address = serving()
    with socket.create_connection(address) as one, socket.create_connection(address) as other:
        for sock in (one, other):
            sock.sendall(get("/api/v1/events"))
            assert sock.recv(15) == b"HTTP/1.1 200 OK"

        assert ask(address, get("/healthz")).startswith(b"HTTP/1.1 503 ")


@pytest.mark.slow
def test_a_crowd_does_not_use_up_all_files(published):
    """asyncio that cannot accept says so, with a stack, thousands of times a second."""
    command = [sys.executable, "-m", "dataprep", "-q", "serve", "--output", str(published), "--port", "0"]

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit) as process:
        port = int(process.stdout.readline().decode().strip().strip("/").rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(500)]
        assert b"Runs" in ask(("127.0.0.1", port), get("/runs"))
        for sock in idle:
            sock.close()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[1] == b""


def test_a_request_of_two_lengths_takes_no_other_one_along(serving):
    _, address = serving()
    other = get("/runs")
    head = f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: {5 + len(other)}\r\n"
    answer = ask(address, f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode() + other)

    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_nobody_is_believed_to_be_a_proxy(serving, monkeypatch):
    monkeypatch.setattr("dataprep.service.web.sessions.TRIES", 3)
    _, address = serving(token=TOKEN)
    wrong = [get("/api/v1/runs", f"X-Forwarded-For: 10.0.0.{n}", "Authorization: Bearer x") for n in range(4)]

    assert [int(ask(address, each)[9:12]) for each in wrong] == [401, 401, 401, 429]


def test_where_a_proxy_is_named_its_clients_are_told_apart(serving, monkeypatch):
    monkeypatch.setattr("dataprep.service.web.sessions.TRIES", 3)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    _, address = serving(token=TOKEN)
    wrong = [get("/api/v1/runs", f"X-Forwarded-For: 10.0.0.{n}", "Authorization: Bearer x") for n in range(4)]

    assert [int(ask(address, each)[9:12]) for each in wrong] == [401] * 4


def test_no_address_is_made_of_the_host_header(serving):
    _, address = serving(token=TOKEN)
    for path in ("/runs/", "/static", "/jobs/", "//evil.example/"):
        request = get(path, f"Authorization: Bearer {TOKEN}").replace(b"localhost", b"evil.example")
        answer = ask(address, request)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"location" not in answer.partition(b"\r\n\r\n")[0].lower()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET /\r\nset-cookie:a HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request_is_answered_400(request_, serving):
    _, address = serving()
    answer = ask(address, request_)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Traceback" not in answer


@pytest.mark.parametrize(("size", "status"), [(30_000, 200), (33_000, 431), (60_000, 431)])
def test_a_head_is_limited(size, status, serving):
    _, address = serving()
    assert ask(address, get("/healthz", "X: " + "a" * size)).startswith(f"HTTP/1.1 {status} ".encode())
    assert ask(address, get("/healthz?" + "a" * size)).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_head_without_an_end_is_cut_off(serving):
    _, address = serving()
    assert ask(address, b"GET / HTTP/1.1\r\nX: ", pieces=[b"a" * 40_000] * 10).startswith(b"HTTP/1.1 400 ")


def test_line_ends_in_an_address_end_up_in_no_header(serving):
    _, address = serving(token=TOKEN)
    answer = ask(address, get("/runs%0d%0aSet-Cookie:%20a=b?x=%0d%0aX: y".replace(" ", "")))
    head = answer.partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 303 ")
    assert b"\nset-cookie" not in head.lower()


def test_events_come_as_something_changes_and_end_with_the_server(serving, published, monkeypatch):
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.05)
    served, address = serving(outputs=(published,))
    state = served.config.app.state.state
    monkeypatch.setattr("dataprep.service.state.FRESH_SECONDS", 0.0)

    with urllib.request.urlopen(f"http://localhost:{address[1]}/api/v1/events", timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        first = [stream.readline().decode() for _ in range(4)]
        assert first[0] == "event: state\n"
        assert json.loads(first[2].removeprefix("data: "))["num_runs"] == len(state.seen().lines)
        assert stream.readline() == b": nothing new\n"

        (published / "work" / "unreadable").mkdir()
        (published / "work" / "unreadable" / "recipe.json").write_text("{")
        told = next(line for line in stream if line.startswith(b"data: "))
        assert json.loads(told.removeprefix(b"data: "))["num_runs"] == len(state.seen().lines)
        served.config.app.state.events.close()
        assert not any(line.startswith(b"data") for line in stream)
    for path in (published / "work" / "unreadable").iterdir():
        path.unlink()
    (published / "work" / "unreadable").rmdir()


def test_too_many_listeners_are_told_to_ask_instead(make_client, monkeypatch):
    monkeypatch.setattr(events, "MOST", 0)
    answer = make_client().get("/api/v1/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "/api/v1/runs" in answer.json()["detail"]


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OutputError, match="choose another --port"):
        server.bind(Settings((tmp_path,), port=taken.getsockname()[1]))


def test_a_name_that_nobody_knows(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OutputError, match="cannot listen on nowhere: Name or service not known; choose another --host"):
        server.bind(Settings((tmp_path,), host="nowhere", token=TOKEN, port=0))


def serve(*arguments, **environment):
    command = [sys.executable, "-m", "dataprep", "serve", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


@pytest.mark.slow
def test_the_command_says_where_it_is_and_ends_well(tmp_path, published):
    with serve("--output", published, "--port", 0, DATAPREP_TOKEN=TOKEN) as process:
        address = process.stdout.readline().strip()
        request = urllib.request.Request(f"{address}api/v1/runs", headers={"authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["runs"][0]["state"] == "published"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "Ctrl-C stops it\n")


@pytest.mark.slow
def test_the_command_refuses_to_be_reached_without_a_token(tmp_path):
    with serve("--host", "0.0.0.0", DATAPREP_TOKEN="") as process:
        out, said = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "--token-file" in said


def test_jobs_may_name_what_lies_beside_their_folder(tmp_path):
    """As `jobs add` with relative paths does; and not what lies elsewhere."""
    assert around(tmp_path / "jobs") == (tmp_path,)
    assert around(Path("/jobs")) == ()
    (tmp_path / "site" / "jobs").mkdir(parents=True)
    keys = "corpus: ../inbox/*.jsonl\ntokenizer: sample\noutput: ../data\n"
    (tmp_path / "site" / "jobs" / "near.yaml").write_text(keys)
    (tmp_path / "site" / "jobs" / "far.yaml").write_text(keys.replace("../inbox", "../../inbox"))
    command = [sys.executable, "-m", "dataprep", "serve", "--jobs", str(tmp_path / "site" / "jobs"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        address = process.stdout.readline().strip()
        found = {}
        for name in ("near", "far"):
            with urllib.request.urlopen(f"{address}api/v1/jobs/{name}") as answer:
                found[name] = json.load(answer)["job"]["problem"]
        process.terminate()
    assert found["near"] == ""
    assert "outside of where jobs may reach; if it may: --allow" in found["far"]
