"""Fixtures and settings that every test shares.

Tests import nothing from each other and reach no network. What is too large to ship (real tokenizers, long
texts, outputs of other tools) is looked for in the folder that DATAPREP_TEST_ASSETS names; tests that need it
skip without it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first example pays for imports and the building of tables. print_blob: a failure on a machine
# that is gone can be replayed from its log.
settings.register_profile("default", deadline=None, print_blob=True, max_examples=100)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

HOSTILE_NAME = "it's a \"hostile\" n\u00e4me \u2603"


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of large test data, or a skip."""
    value = os.environ.get("DATAPREP_TEST_ASSETS")
    if not value:
        pytest.skip("DATAPREP_TEST_ASSETS names no folder of large test data")
    folder = Path(value)
    if not folder.is_dir():
        raise NotADirectoryError(f"DATAPREP_TEST_ASSETS: expected a folder, found {value!r}")
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty folder below one whose name holds a space, quotes and letters that are not ASCII."""
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    return folder


class NetworkBlockedError(RuntimeError):
    """A test reached for the network. No OSError, so that no code under test takes it for a bad connection."""


def _is_here(host: object) -> bool:
    if host is None or isinstance(host, int):
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name in {"", "localhost", "localhost.localdomain"}:
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python's sockets connect to, bind to and look up this machine only.

    Local sockets and loopback stay open: a Dask cluster lives on them. Libraries that bring sockets of their own
    (ZeroMQ, Rust clients) and child processes are not held; hub clients are told to stay offline.
    """
    if request.node.get_closest_marker("network"):
        return

    def guarded(name: str):
        original = getattr(socket.socket, name)

        def call(self: socket.socket, address, *rest):
            internet = self.family in {socket.AF_INET, socket.AF_INET6}
            # A datagram socket sends nothing when it connects; Dask asks for this machine's own address that way.
            silent = name != "bind" and self.type == socket.SOCK_DGRAM
            if internet and not silent and not _is_here(address[0] or "0.0.0.0"):
                raise NetworkBlockedError(f"{name} to {address!r}; mark the test `network` if it has to")
            return original(self, address, *rest)

        return call

    def getaddrinfo(host, *args, **kwargs):
        if not _is_here(host) and host != socket.gethostname():
            raise NetworkBlockedError(f"look-up of {host!r}; mark the test `network` if it has to")
        return look_up(host, *args, **kwargs)

    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, guarded(name), raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
