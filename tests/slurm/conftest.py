"""A real Slurm on this machine, for the length of a module: munged, slurmctld and one slurmd for each node.

No systemd, no cgroups, loopback only. With network namespaces (root) the nodes are hosts of their own.
"""

from __future__ import annotations

import contextlib
import json
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
SlurmctldHost={host}(127.0.0.1)
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
KillWait=3
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=n[1-{number}] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Daemons and the commands of their users."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
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
        host, first = socket.gethostname().partition(".")[0], _free_ports(self.number + 1)
        nodes = "\n".join(
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={first + i} CPUs=2 RealMemory=4000"
            for i in range(1, self.number + 1)
        )
        values = {"host": host, "folder": self.folder, "port": first, "nodes": nodes, "number": self.number}
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        (self.folder / "slurm.conf").write_text(CONFIG.format(**values, user=user))
        options = {"key-file": "key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options["seed-file"] = "seed"
        self.call("munged", "--force", *(f"--{key}={munge / name}" for key, name in options.items()))
        self.call("slurmctld", "-c")
        for i in range(1, self.number + 1):
            self.call("slurmd", "-N", f"n{i}")
        wait_for(lambda: self.call("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.number))

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

    def call(self, *command: str) -> str:
        """One command, to its end; returns what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def dataprep(self, *arguments: Any, code: int = 0) -> str:
        """The command line in this cluster; returns its stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "dataprep", *map(str, arguments)],
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


def wait_for(condition: Callable[[], object], tell: Callable[[], object] = lambda: "", seconds: float = 60) -> None:
    """Return once a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


def _free_ports(number: int) -> int:
    """The first of so many ports in a row that nobody listens at, away from Slurm's own."""
    for first in range(21000 + os.getpid() % 5000, 32000, 50):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + number):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[Slurm]:
    """Slurm with two nodes of two processors."""
    missing = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge")
    os.environ["PATH"] = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    found = Slurm(tmp_path_factory.mktemp("slurm"), 2)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def units_done() -> Callable[[Path], int]:
    """How many units of the run in an output folder are done."""

    def count(output: Path) -> int:
        command = [sys.executable, "-m", "dataprep", "status", str(output), "--json"]
        if not (output / "work").is_dir():
            return 0
        runs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return sum(run.get("units_done", 0) for run in runs)

    return count
