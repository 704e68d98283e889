"""A real Slurm on this machine, and hosts made of namespaces; also both together.

Slurm: munged, slurmctld and one slurmd for each node; no systemd, no cgroups. On loopback, or each node on a host.
Hosts: network and UTS namespaces on a bridge without a way out, and one folder for all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DAEMONS = ("munged", "slurmctld", "slurmd")

CONFIG = """\
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.socket
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/run/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
MinJobAge=300
KillWait=10
{more}
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=n[1-{number}] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Daemons and the commands of their users.

    Args:
        folder: for all that they write.
        number: of nodes.
        hosts: that they run on, slurmctld on the first and each node on one of the others; None: all on loopback.
    """

    def __init__(self, folder: Path, number: int, hosts: Hosts | None = None) -> None:
        self.folder, self.number, self.hosts = folder, number, hosts
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        for name in [name for name in self.environment if name.startswith("SLURM_") and name != "SLURM_CONF"]:
            del self.environment[name]

    def start(self) -> None:
        for name in ("state", "log", "run", "munge"):
            (self.folder / name).mkdir(parents=True)
        munge = self.folder / "munge"
        munge.chmod(0o700)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        (self.folder / "slurm.conf").write_text(self._config())
        # Where /sys/fs/cgroup is not mounted, as in a namespace of ip's, slurmd 22.05 ends at once without this.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        options = {"key-file": "key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options["seed-file"] = "seed"
        self.call("munged", "--force", *(f"--{key}={munge / name}" for key, name in options.items()))
        self.call("slurmctld", "-c")
        for i in range(1, self.number + 1):
            self.call("slurmd", "-N", f"n{i}", host=i)
        wait_for(lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.number))

    def _config(self) -> str:
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        values = {"folder": self.folder, "user": user, "number": self.number}
        if self.hosts is None:
            host, port = socket.gethostname().partition(".")[0], _free_ports(self.number + 1)
            values |= {"host": host, "address": "127.0.0.1", "port": port}
            values["more"] = "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"
            nodes = [
                f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + i} CPUs=2 RealMemory=4000"
                for i in range(1, self.number + 1)
            ]
        else:
            values |= {"host": self.hosts.names[0], "address": self.hosts.address(0), "port": 6817, "more": ""}
            nodes = [
                f"NodeName=n{i} NodeHostname={self.hosts.names[i]} NodeAddr={self.hosts.address(i)} CPUs=2"
                for i in range(1, self.number + 1)
            ]
        return CONFIG.format(**values, nodes="\n".join(nodes))

    def stop(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.call("scancel", "--full", "--signal=KILL", "--user", str(os.getuid()))
        pids = [
            *self.folder.glob("run/slurmd-*.pid"),
            self.folder / "run/slurmctld.pid",
            self.folder / "munge/munged.pid",
        ]
        for path in pids:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        wait_for(lambda: not any(path.exists() for path in pids))
        mine = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for process in Path("/proc").glob("[0-9]*"):  # steps try for minutes to tell a controller that is gone
            with contextlib.suppress(OSError):
                is_step = (process / "comm").read_text().strip() == "slurmstepd"
                if is_step and mine in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    def call(self, *command: str, host: int = 0) -> str:
        """One command, to its end; returns what it prints."""
        if self.hosts is not None:
            command = (*self.hosts.prefix(host), *command)
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def dataprep(self, *arguments: Any, code: int = 0) -> str:
        """The command line in this cluster; returns its stdout."""
        inside = () if self.hosts is None else self.hosts.prefix(0)
        done = subprocess.run(
            [*inside, sys.executable, "-m", "dataprep", *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "show", "job", "--oneliner", number)))

    def wait_until(self, number: str, *states: str) -> None:
        wait_for(lambda: self.job(number)["JobState"] in states, lambda: f"{self.job(number)} {self.logs()}")

    def go_on(self, number: str) -> None:
        """Begin a job that was queued again soon, and not after the two minutes that Slurm lets pass.

        In the very second that it ended, slurmd takes it for the one that was killed.
        """
        wait_for(lambda: self.job(number)["JobState"] == "PENDING", lambda: self.job(number), 100)
        self.call("scontrol", "update", f"JobId={number}", "StartTime=now+2")

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("log/*.log"))


def wait_for(condition: Callable[[], object], tell: Callable[[], object] = lambda: "", seconds: float = 120) -> None:
    """Return once a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


def _free_ports(number: int) -> int:
    """The first of so many ports in a row that nobody listens at, away from Slurm's own."""
    for first in range(21000 + os.getpid() % 100 * 50, 32000, 50):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + number):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


class Process:
    """A program on a host, with all that it starts."""

    def __init__(self, host: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.host, self.process, self.log = host, process, log

    def signal(self, number: int) -> None:
        """Send it, to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self, seconds: float = 120) -> int:
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

    def __init__(self, folder: Path, network: Any) -> None:
        self.folder, self.network = folder, network
        self.names, self.address, self.cut = network.names, network.address, network.cut
        self.processes: list[Process] = []

    def prefix(self, host: int) -> tuple[str, ...]:
        """What a command has to begin with to run on a host, and to see its name."""
        inside = ("unshare", "--uts", "sh", "-c", f'hostname {self.names[host]}; exec "$@"', "sh")
        return (*self.network.prefix(host), *inside)

    def start(self, host: int, *command: Any, **environment: str) -> Process:
        """Start a program on a host."""
        log = self.folder / f"{len(self.processes):03d}-host{host}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*self.prefix(host), *map(str, command)],
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
def hosts(make_network, tmp_path_factory) -> Iterator[Hosts]:
    """Three of them; what their programs say is in files below."""
    network = make_network(f"dph{os.getpid()}", "10.78.0", 3)
    found = Hosts(tmp_path_factory.mktemp("hosts"), network)
    try:
        network.up()
        yield found
    finally:
        found.kill_all()
        network.down()


@pytest.fixture
def shared(tmp_path, mounted) -> Path:
    """A small file system that all hosts see, and that can be filled up."""
    return mounted(tmp_path / "shared", "size=64m")


def _look_for(names: tuple[str, ...]) -> None:
    """Skip where Slurm is not installed."""
    missing = [name for name in names if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge")
    os.environ["PATH"] = f"{os.environ['PATH']}:/usr/sbin:/sbin"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[Slurm]:
    """Slurm with two nodes of two processors."""
    _look_for(DAEMONS)
    found = Slurm(tmp_path_factory.mktemp("slurm"), 2)
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def slurm_hosts(hosts, tmp_path_factory) -> Iterator[Slurm]:
    """Slurm whose two nodes are hosts."""
    _look_for(DAEMONS)
    found = Slurm(tmp_path_factory.mktemp("slurm"), 2, hosts)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def units_done() -> Callable[[Path], int]:
    """How many units of the run in an output folder are done; read as fast as they are, not by the command `status`."""

    def count(output: Path) -> int:
        text = "".join(path.read_text() for path in output.glob("work/*/events-*.jsonl"))
        return len(set(re.findall(r'"event": "unit".*"unit": "([^"]+)"', text)))

    return count
