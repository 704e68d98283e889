"""Three hosts on this machine: network and UTS namespaces on a bridge without a way out, and one folder for all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Process:
    """A program on a host, with all that it starts."""

    def __init__(self, host: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.host, self.process, self.log = host, process, log

    def signal(self, number: int) -> None:
        """Send it, to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self, seconds: float = 60) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(seconds)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


class Hosts:
    """The hosts, by number, and the programs on them."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self.tag = f"dph{os.getpid()}"
        self.names = [f"{self.tag}-{i}" for i in range(number)]
        self.processes: list[Process] = []

    def up(self) -> None:
        switch = f"{self.tag}-sw"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("link", "add", "v0", "netns", name, "type", "veth", "peer", "name", f"p{i}", "netns", switch)
            _ip("-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "v0")
            _ip("-n", name, "link", "set", "v0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def down(self) -> None:
        self.kill_all()
        for name in (*self.names, f"{self.tag}-sw"):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def address(self, host: int) -> str:
        return f"10.78.0.{10 + host}"

    def cut(self, host: int, off: bool = True) -> None:
        """Pull the plug of a host's network, or put it back."""
        _ip("-n", f"{self.tag}-sw", "link", "set", f"p{host}", "down" if off else "up")

    def start(self, host: int, *command: Any, **environment: str) -> Process:
        """Start a program on a host."""
        log = self.folder / f"{len(self.processes):03d}-host{host}.log"
        inside = ["unshare", "--uts", "sh", "-c", f'hostname {self.tag}-{host}; exec "$@"', "sh"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *inside, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONWARNINGS": "", **environment},
                start_new_session=True,
            )
        found = Process(host, process, log)
        self.processes.append(found)
        return found

    def kill_all(self) -> None:
        for each in self.processes:
            each.signal(signal.SIGKILL)
            each.process.wait()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> Iterator[Hosts]:
    """Three of them; what their programs say is in files below."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    found = Hosts(tmp_path_factory.mktemp("hosts"), 3)
    found.up()
    yield found
    found.down()


@pytest.fixture
def shared(tmp_path, mounted) -> Path:
    """A small file system that all hosts see, and that can be filled up."""
    return mounted(tmp_path / "shared", "size=64m")
