"""The plain bash script of one node, and to run it here.

    export ...            tuning variables, which the environment overrides; those of `launch.environment` do not
    printf ... > FILE     the files that the arguments name
    cd; prologue
    torchrun | deepspeed  with the trainer's arguments; its output to `train.log_file` as well

A training over several machines without a scheduler is this script on each of them, with MASTER_ADDR and NODE_RANK in
the environment. DeepSpeed's own launcher needs it on the first machine only, and HOSTFILE; everywhere else its programs
are started by torchrun, whose variables DeepSpeed reads: its launcher of one node dies of SIGTERM before its ranks,
which have 30 seconds then, or none where a scheduler or a container ends with it.

Sources: torch 2.13, torch/distributed/run.py and elastic/agent/server/api.py (on SIGTERM, torchrun passes it on and
kills what lives after TORCH_ELASTIC_SHUTDOWN_TIMEOUT seconds; 30, and fixed, before that variable came); DeepSpeed
master of 2026, deepspeed/launcher/runner.py (--hostfile, DS_ENV_FILE; it handles SIGTERM with pdsh alone); Amazon's and
AMD's scripts as `variables` says.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.children import run_to_end
from dataprep.errors import SpecError, Terminated, TimeIsUp, TrainingError
from dataprep.locks import hold, lend, let_go
from dataprep.storage import AtomicFile, make_folder
from dataprep.train.launchers import containers, shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataprep.train.job import Job
    from dataprep.train.program import Program

SCRIPT = "train.sh"
"""What a script is called below `Job.output`."""

LOCK = "train-{}.lock"
"""What a local launch holds below `Job.output`, by the rank of its machine."""

SHUTDOWN_SECONDS = 300
"""What ranks that are told to end have for their checkpoint, where torchrun can be told so."""

_WAITING = b"told to end: the trainer is, too, and its end is waited for; once more ends it without a checkpoint\n"

_TIME_IS_UP = b"the job's time is about to end: the trainer is told to end, and its end is waited for\n"

SECRETS = ("HF_TOKEN", "WANDB_API_KEY")
"""Variables that are passed on by name; their values are in no text."""

EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1", "NCCL_SOCKET_IFNAME": "^lo"}
"""What libfabric and NCCL are told on Amazon's nodes.

Source: awsome-distributed-training 7217859f, megatron-lm/kubernetes, pytorchjob.yaml-template.
"""


@dataclass(frozen=True)
class Meeting:
    """How the torchruns of several nodes find each other; words as bash is to read them.

    Attributes:
        rank: of the node.
        address, port: of the first node.
        name: of the training, for those that meet by c10d.
        elastic: whether they meet by c10d, that is, may come again; the first node need not have rank 0 then.
    """

    rank: str
    address: str
    port: str
    name: str
    elastic: bool = False

    @property
    def words(self) -> list[str]:
        """Options of torchrun."""
        if self.elastic:
            return [
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint={self.address}:{self.port}",
                f"--rdzv-id={self.name}",
            ]
        return [f"--node-rank={self.rank}", f"--master-addr={self.address}", f"--master-port={self.port}"]


def environment(job: Job, program: Program) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of the trainer: those that the environment may override, and those that it may not.

    Raises:
        SpecError: a secret is among those of `launch.environment`.
    """
    fixed = job.launch.environment
    for name in SECRETS:
        if name in fixed:
            raise SpecError(f"launch.environment.{name}: a secret; export it instead, it is passed on by its name")
    defaults = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS)}
    if job.launch.efa_per_node:
        defaults |= EFA
    if job.launch.interface is not None:
        defaults |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), job.launch.interface)
    values = defaults | program.environment
    return {name: value for name, value in values.items() if name not in fixed}, fixed


def node(job: Job, program: Program, meeting: Meeting | None) -> list[str]:
    """Lines that start the trainer on a node; the last one is the command.

    Args:
        job, program: what is started.
        meeting: None: of one node, or as DeepSpeed's own launcher does it.

    Raises:
        SpecError: `launch.python` is relative.
    """
    lines = list(job.launch.prologue)
    if program.folder:
        lines.append(f"cd -- {shlex.quote(program.folder)}")
    if os.path.dirname(job.launch.python) and not os.path.isabs(job.launch.python):
        raise SpecError(
            f"launch.python={job.launch.python}: relative, and trainers start elsewhere; give the whole path"
        )
    is_deepspeed = _starter(job, program) == "deepspeed" and meeting is None
    words = _deepspeed(job, program) if is_deepspeed else _torchrun(job, program, meeting)
    return [*lines, shell.command(words, [shlex.quote(word) for word in (program.script, *program.arguments)])]


def _starter(job: Job, program: Program) -> str:
    """Who starts a training here."""
    return program.start if job.parallel.nodes > 1 else "torchrun"


def _torchrun(job: Job, program: Program, meeting: Meeting | None) -> list[str]:
    python = job.launch.python
    words = [shlex.quote(python), "-m", "torch.distributed.run"] if python else ["torchrun"]
    words += [f"--nproc-per-node={job.parallel.gpus_per_node}"]
    words += ["--standalone"] if meeting is None else [f"--nnodes={job.parallel.nodes}", *meeting.words]
    words += [f"--max-restarts={job.launch.max_restarts}"] if job.launch.max_restarts else []
    return words + (["-m"] if program.is_module else [])


def _deepspeed(job: Job, program: Program) -> list[str]:
    python, nodes = job.launch.python, job.parallel.nodes
    words = [shlex.quote(python), "-m", "deepspeed.launcher.runner"] if python else ["deepspeed"]
    words += ['--hostfile="$HOSTFILE"', f"--num_nodes={nodes}"]
    words += [f"--num_gpus={job.parallel.gpus_per_node}", f'--master_port="${{MASTER_PORT:-{job.launch.master_port}}}"']
    return words + (["--module"] if program.is_module else [])


def _by_hand(job: Job, program: Program) -> tuple[dict[str, str], list[str], Meeting | None]:
    """Of machines on each of which somebody starts the script: variables, what demands them, and how they meet."""
    launch, nodes = job.launch, job.parallel.nodes
    if program.start == "deepspeed":
        missing, names = '! -f "$HOSTFILE"', "HOSTFILE"
        what = "the path of a file with a line `NAME slots=N` for each machine, and start this on the first one alone"
        defaults, meeting = {"HOSTFILE": "/job/hostfile", "MASTER_PORT": str(launch.master_port)}, None
    else:
        missing, names = '-z "$MASTER_ADDR" || -z "$NODE_RANK"', "MASTER_ADDR and NODE_RANK"
        what = "the name of the first machine, and 0, 1, ... on one after the other"
        given = {"MASTER_ADDR": launch.master_addr, "NODE_RANK": launch.node_rank, "MASTER_PORT": launch.master_port}
        defaults = {name: str(value) for name, value in given.items() if value is not None}
        words = ('"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"', shlex.quote(job.name))
        meeting = Meeting(*words, elastic=launch.max_restarts > 0)
    say = shlex.quote(f"{nodes} machines: set {names}: {what}")
    return defaults, [f"if [[ {missing} ]]; then", f"  echo {say} >&2", "  exit 2", "fi"], meeting


def prepare(job: Job, files: Mapping[str, str]) -> list[str]:
    """Lines that make the folders that the training writes to, and write the files that its arguments name."""
    train = job.train
    asked = {path for path in (train.save, train.data_cache_path, train.log_dir) if path}
    # Below a mount that is asked for, a path is one of the container's.
    elsewhere = [] if job.launch.container == "none" else [each.target for each in job.launch.mounted]
    folders = {path for path in asked if not any(containers.is_below(path, target) for target in elsewhere)}
    return [*shell.make_folders({job.output, *folders}), *shell.write_files(job.output, files)]


def render(job: Job, program: Program) -> str:
    """The script.

    Raises:
        SpecError: a name or a path that cannot be passed on.
    """
    defaults, fixed = environment(job, program)
    files = dict(program.files)
    meets: dict[str, str] = {}
    demands: list[str] = []
    meeting = None
    if job.parallel.nodes > 1:
        meets, demands, meeting = _by_hand(job, program)
        if program.start == "deepspeed":
            # Its launcher passes few variables on to other machines; those of this file it does.
            files["deepspeed.env"] = "".join(f"{name}={value}\n" for name, value in (defaults | fixed).items())
            meets["DS_ENV_FILE"] = os.path.join(job.output, "deepspeed.env")
    lines = [*shell.exports(defaults | meets, fixed), *demands, *prepare(job, files)]
    names = [*defaults, *fixed, *SECRETS, *meets, *(("MASTER_ADDR", "NODE_RANK") if meeting else ())]
    *before, last = containers.wrap(job, program, node(job, program, meeting), names)
    return shell.script([*lines, *before, *_logged(last, job.train.log_file, job.train.tee)])


def _logged(last: str, log: str | None, tee: bool) -> list[str]:
    """The command in place of this shell, or beside a tee. Nobody but the trainer ends by a signal then."""
    if log is None:
        return [f"exec {last}"]
    log = os.path.abspath(log)  # the script goes to the trainer's folder
    folder = shell.make_folders([os.path.dirname(log)])
    if not tee:
        return [*folder, f"exec {last} >> {shlex.quote(log)} 2>&1"]
    return [
        *folder,
        "trap : HUP INT TERM",
        f"{last} 2>&1 | {{ trap '' HUP INT TERM; exec tee -a -- {shlex.quote(log)}; }}",
    ]


def launch(job: Job, program: Program) -> int:
    """Run the script here, to its end; what it prints is seen as it is printed. Returns 0.

    To be interrupted or told to end, once, tells the trainer to end (SIGTERM), which saves a checkpoint where it can;
    once more passes the signal on as it is. Either way its end is waited for. The notice of Slurm that the time is up
    (SIGUSR1) tells it, too, for the first time only. If this process is killed, the trainer lives on, and nobody can
    start another one meanwhile.

    Raises:
        SpecError: see `render`.
        BusyError: the same training runs here already; the message names its process.
        OutputError: `Job.output` refuses the script.
        TrainingError: the trainer failed.
        KeyboardInterrupt, Terminated: this process was told to end, and the trainer has.
    """
    path = Path(job.output, SCRIPT)
    text = render(job, program)
    make_folder(path.parent)
    # Two at once would write each other's checkpoints. Machines that are started by hand share the folder.
    with hold(path.with_name(LOCK.format(job.launch.node_rank or 0))) as lock:
        with AtomicFile(path) as file:
            file.write(text.encode())
        code = _run(path, lock)
    if code:
        raise TrainingError(_failure(job, program, code, path))
    return 0


def _run(path: Path, lock: int) -> int:
    """Run a script to its end; returns its exit code, or minus the signal that ended it.

    Args:
        path: of the script.
        lock: descriptor of the lock. The trainer has it as well: if this process is killed, the lock is still held.

    Raises:
        KeyboardInterrupt, Terminated: see `launch`.
    """

    def answer(number: int, earlier: int, starting: bool) -> int | None:
        if not earlier:
            with contextlib.suppress(OSError):  # the terminal may be what has gone
                os.write(2, _TIME_IS_UP if number == signal.SIGUSR1 else _WAITING)
            return signal.SIGTERM
        return None if number == signal.SIGUSR1 else number

    # torchrun would die of Slurm's notice, which a step gets as a whole. Who listens for it in spite of this hears it.
    before = ["-c", "trap '' USR1; exec bash \"$0\""] if "SLURM_JOB_ID" in os.environ else []
    # A session of its own: or the Ctrl-C of a terminal would reach the ranks too, which then die without saving.
    options = {"stdin": subprocess.DEVNULL, "start_new_session": True, "pass_fds": (lock,)}
    code, told = run_to_end(["bash", *before, str(path)], answer, lambda pid: lend(lock, pid), **options)
    let_go(lock)
    if told:
        handler = signal.getsignal(told[0])
        if callable(handler):  # who called knows the signal, too, and raises
            handler(told[0], None)
        raise TimeIsUp if told[0] == signal.SIGUSR1 else Terminated
    return code


def _failure(job: Job, program: Program, code: int, script: Path) -> str:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    if code == 127 and job.launch.container == "none":
        what = job.launch.python or _starter(job, program)
        how += f": is {what} on the search path? launch.prologue can activate an environment"
    where = "its last lines above" if job.train.log_file is None else job.train.log_file
    return f"the training failed with {how}; see {where}; what was started is {script}"
