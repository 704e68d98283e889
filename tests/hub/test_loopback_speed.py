"""The loopback hub is fast where it may be, slow where it is told to be, and gone when it is closed."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from loopback_probe import DATA, FILES, ONE, ask, follow, until

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture
def repo(hub):
    return hub.add("datasets", "org/name", FILES)


@pytest.mark.parametrize("readers", [1, 3])
def test_rate_holds_for_all_together(hub, repo, readers):
    rate = 4 << 20
    url = ask(hub.url + ONE).headers["Location"]
    hub.rate_bytes_per_second = rate

    start = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        assert all(answer.body == DATA for answer in pool.map(ask, [url] * readers))
    took = time.monotonic() - start

    due = readers * len(DATA) / rate
    # Never early; 2 % late, or more on a machine that is busy with something else.
    assert 0.98 * due < took < 1.5 * due + 1


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
        assert time.monotonic() - start < 100
        assert stalled.result().body == DATA[:10]
    idle.close()
    assert threading.active_count() == before


def test_bodies_leave_at_memory_speed(hub, tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 256 << 20)
    hub.add("datasets", "org/name", {"data/one.parquet": path})
    url = urlsplit(ask(hub.url + ONE).headers["Location"])
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=60)
    buffer = memoryview(bytearray(1 << 20))
    took, bare = [], []
    for _ in range(3):
        connection.request("GET", f"{url.path}?{url.query}")
        response = connection.getresponse()
        took.append(_seconds(lambda: response.readinto(buffer)))  # noqa: B023 - it is called here
        bare.append(_sent(path, buffer))
    connection.close()
    print(took, bare)
    assert min(took) < 4 * min(bare), "what is slower is no measure of a downloader"


def _seconds(receive):
    """How long all 256 MB take to arrive."""
    start = time.monotonic()
    assert sum(iter(receive, 0)) == 256 << 20
    return time.monotonic() - start


def _sent(path, buffer):
    """The same from a thread that sends them and does nothing else."""
    with (
        ThreadPoolExecutor(1) as pool,
        path.open("rb") as file,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        sender, _ = server.accept()

        def send():
            with sender:
                while data := file.read(1 << 20):
                    sender.sendall(data)

        pool.submit(send)
        return _seconds(lambda: client.recv_into(buffer))
