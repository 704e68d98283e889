"""Who holds something: a process, told from all others on all machines, and whether it is sure that it has ended.

That can be sure only of a process of this machine, seen from the namespace that its number is of.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.storage import read_whole

mine: set[str] = set()
"""Tokens of the claims that this process holds or is about to: others of its own are of threads that gave up."""


JOBS = (("SLURM_CLUSTER_NAME", "SLURM_JOB_ID"), ("DASK_SCHEDULER_ADDRESS", "JOB_COMPLETION_INDEX"))
"""Variables that name the job a process is in: of Slurm, which counts how often it began again; and a pod of an Indexed
Job of Kubernetes, which has one pod for each index at a time."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who made a claim; what is needed to find out on its own machine whether it lives, and for a message.

    Attributes:
        host: name of the machine.
        pid: of the process, in its namespace.
        started: when it started, in clock ticks since the machine did; tells it from a later process of its number.
        boot: of the machine, another one each time.
        namespace: that the number is of; containers of one machine have their own.
        since: when the claim was made, by the holder's clock: for people.
        token: random, so that a holder knows its own claim.
        job: that the process is in, see `JOBS`; "" outside of one.
        restarts: how often Slurm had queued the job again by then.
    """

    host: str
    pid: int
    started: int
    boot: str
    namespace: str
    since: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    job: str = ""
    restarts: int = 0

    @classmethod
    def me(cls) -> Holder:
        """This process."""
        boot = namespace = ""
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self") == str(os.getpid()):  # and not the /proc of another namespace
                namespace = os.readlink("/proc/self/ns/pid")
        names = next((names for names in JOBS if names[-1] in os.environ), ())
        job = "/".join(os.environ.get(name, "") for name in names)
        restarts = os.environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            socket.gethostname(),
            os.getpid(),
            _started(os.getpid()) or 0,
            boot,
            namespace,
            job=job,
            restarts=int(restarts) if restarts.isdecimal() else 0,
        )

    @classmethod
    def read(cls, path: Path) -> Holder | None:
        """The holder that a file names, or None: it is hollow, cut off, or nothing that we wrote."""
        try:
            return cls.of(json.loads(read_whole(path)))
        except (OSError, ValueError, RecursionError):
            return None

    @classmethod
    def of(cls, value: Any) -> Holder | None:
        """The holder that `dataclasses.asdict` made this of, or None: it is nothing of the kind."""
        try:
            made = cls(**value)
        except TypeError:
            return None
        texts = (made.host, made.boot, made.namespace, made.since, made.token, made.job)
        numbers = (made.pid, made.started, made.restarts)
        right = all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers)
        return made if right and 0 < made.pid < 1 << 31 else None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    @property
    def is_near(self) -> bool:
        """Whether it is, or was, a process of this machine that we could see."""
        me = Holder.me()
        place = (me.host, me.boot, me.namespace)
        return all(place) and place == (self.host, self.boot, self.namespace)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended for sure: it is not there, or its job began again.

        (A job is begun again without knowing that of a node that cannot be reached. Who lives on there is fenced like
        anybody who was overtaken.)
        """
        me = Holder.me()
        is_pod = JOBS[1][1] in os.environ and not self.is_near
        if self.job and self.job == me.job and (is_pod or self.restarts < me.restarts):
            return True
        if not self.is_near:
            return False
        if self.pid == os.getpid():
            return self.token not in mine
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # another user's
        started = _started(self.pid)
        return started is not None and started != self.started


def _started(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks; -1 if all of its threads are dead, None: unknown."""
    try:
        threads = [_stat(path) for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        if threads and all(fields[0] in ("Z", "X") for fields in threads):  # nobody has asked how it ended
            return -1
        return int(_stat(Path(f"/proc/{pid}/stat"))[19])
    except (OSError, IndexError, ValueError):
        return None


def _stat(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
