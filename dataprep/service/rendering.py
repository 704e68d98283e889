"""Entries for what starts programs by the clock: systemd, cron, Slurm's scrontab, Kubernetes.

Each of them runs ``dataprep jobs due --jobs DIR`` every ten minutes. That knows the schedule of every job in the
folder, so one entry serves all of them, new ones too, and on any number of machines: who comes second finds the claim
taken, or the slot recorded. No lock is needed, nor a time zone: ten minutes are the same everywhere.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dataprep.cluster import kubernetes, slurm
from dataprep.errors import SpecError
from dataprep.specs import Kubernetes, Slurm, find_cluster, parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["systemd", "cron", "slurm", "kubernetes"]

CRON = "*/10 * * * *"

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

USED = {
    "slurm": {"partition", "account", "qos", "constraint", "time", "memory", "nodes", "workers_per_node", "directives"},
    "kubernetes": {"image", "claim", "mount", "cpus", "memory", "namespace", "node_selector", "secret", "user"},
}
"""Settings ``cluster.*`` that mean something for an entry of each kind."""

SLURM_MINUTES = "1-00:00:00"
"""Time limit of an entry for Slurm; what a run has done by then is kept, and the next entry goes on with it."""


def render(kind: str, folder: Path, settings: Sequence[str] = ()) -> str:
    """The text of an entry, with what to do with it in comments.

    Args:
        kind: see `Kind`.
        folder: of the jobs. On Kubernetes that of the pod: relative ones start where the claim is mounted.
        settings: ``cluster.KEY=VALUE``, of Slurm and Kubernetes.

    Raises:
        SpecError: there is no such kind or setting, or a path cannot be written down.
    """
    if kind not in get_args(Kind):
        raise SpecError(f"render {kind}: expected one of {', '.join(get_args(Kind))}")
    given = parse_settings(list(settings), ("cluster",)).get("cluster", {})
    if unused := sorted(set(given) - USED.get(kind, set())):
        known = ", ".join(f"cluster.{each}" for each in sorted(USED.get(kind, ())))
        raise SpecError(f"cluster.{unused[0]}: an entry for {kind} has no use for it; it has for {known or 'none'}")
    if kind == "kubernetes":
        return _kubernetes(folder, given)
    command = [sys.executable, "-m", "dataprep", *_arguments(os.path.abspath(folder))]
    for word in (*command, os.path.abspath(folder)):
        if not word.isprintable():
            raise SpecError(f"{word!a} holds a character that no line of an entry can have; rename the folder")
    if kind == "slurm":
        return _slurm(command, given)
    return _systemd(command, os.path.abspath(folder)) if kind == "systemd" else _cron(command)


def _arguments(folder: str) -> list[str]:
    return ["--quiet", "jobs", "due", "--jobs", folder]


def _path() -> str:
    """What programs are found by, as here: sbatch may lie anywhere."""
    here = os.environ.get("PATH", "").split(os.pathsep)
    kept = [each for each in here if os.path.isabs(each) and each.isprintable() and not set(each) & set("'\"\\%$#")]
    return os.pathsep.join(kept) or SYSTEM_PATH


# --- cron and Slurm, which have lines of shell


def _shell(words: Sequence[str]) -> str:
    """A command as one line of shell without a percent sign, which ends the command in a crontab.

    A backslash before it would do where the character before is none; what printf says does everywhere, also where
    percent signs mean nothing, as in Slurm's.
    """
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    if "%" not in word:
        return shlex.quote(word)
    return """"$(printf '\\045')\"""".join(shlex.quote(part) if part else "" for part in word.split("%"))


def _cron(command: Sequence[str]) -> str:
    lines = [
        "# dataprep: runs the jobs that are due. Add these lines with `crontab -e`, on one machine or on several.",
        "SHELL=/bin/sh",
        f"PATH={_path()}",
        f"{CRON} {_shell(command)}",
    ]
    return "\n".join([*lines, ""])


def _slurm(command: Sequence[str], given: dict[str, Any]) -> str:
    spec = find_cluster({"kind": "slurm", "time": SLURM_MINUTES, **given})
    assert isinstance(spec, Slurm)
    asked = {
        "job-name": "dataprep-jobs",
        **slurm.resources(spec),
        "open-mode": "append",
        "output": "dataprep-jobs.log",
    }
    lines = [
        "# dataprep: runs the jobs that are due, in the job of this entry. Add these lines with `scrontab -e`.",
        "# What they say goes to dataprep-jobs.log in your home; every run has a log of its own beside its record.",
        *slurm.directives(asked, spec.directives, "#SCRON"),
        f"{CRON} {_shell(command)}",
    ]
    return "\n".join([*lines, ""])


# --- systemd


def _systemd(command: Sequence[str], folder: str) -> str:
    user = getpass.getuser()
    return f"""\
# dataprep: runs the jobs that are due. Two files; then: systemctl daemon-reload && systemctl enable --now {UNIT}.timer

# /etc/systemd/system/{UNIT}.service
[Unit]
Description=dataprep: jobs that are due
Wants=network-online.target
After=network-online.target remote-fs.target
RequiresMountsFor={_quoted(folder)}

[Service]
Type=oneshot
User={user}
Environment={_quoted("PATH=" + _path())}
ExecStart={" ".join(_quoted(word, is_command=True) for word in command)}
# A run takes what it takes. Told to stop, it stops in order, and the next one goes on.
TimeoutStartSec=infinity
TimeoutStopSec=2min
KillMode=mixed
Nice=5
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictSUIDSGID=yes
LockPersonality=yes

# /etc/systemd/system/{UNIT}.timer
[Unit]
Description=dataprep: looks every ten minutes for jobs that are due

[Timer]
OnCalendar=*:0/10
Persistent=true
RandomizedDelaySec=30s

[Install]
WantedBy=timers.target
"""


UNIT = "dataprep-jobs"


def _quoted(word: str, is_command: bool = False) -> str:
    """A word as systemd takes it: escapes as in C, ``%`` doubled, and of a command ``$``, too (systemd.syntax(7))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if is_command else escaped}"'


# --- Kubernetes


def _kubernetes(folder: Path, given: dict[str, Any]) -> str:
    spec = find_cluster({"kind": "kubernetes", **given})
    assert isinstance(spec, Kubernetes)
    where = f" -n {spec.namespace}" if spec.namespace else ""
    comments = [
        "dataprep: runs the jobs that are due, in a pod that has the folder of the jobs on its claim.",
        "Create or replace:  dataprep jobs render kubernetes ... | kubectl apply -f -",
        f"Run now:            kubectl{where} create job --from=cronjob/{UNIT} {UNIT}-now",
        f"Look:               kubectl{where} get cronjob,job,pod -l {kubernetes.INSTANCE}={UNIT}",
        "A pod sees all processors of its node, whatever it may use of them: give each job, in its `set:`,",
        f"runtime.workers=N, with N as cluster.cpus here ({spec.cpus}).",
    ]
    made = kubernetes.render_schedule(spec, _arguments(str(folder)), UNIT, CRON)
    return "".join(f"# {line}\n" for line in comments) + kubernetes.to_yaml([made])
