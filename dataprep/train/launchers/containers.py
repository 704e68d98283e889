"""The same script in a container: docker, podman, or Slurm's pyxis.

               started by          accelerators            /dev/infiniband, variables
    docker     docker run          NVIDIA: --gpus all      where it is; by name
    podman     podman run          NVIDIA: CDI             the same
    pyxis      options of srun     enroot's own hooks      enroot's own hooks; by name
    AMD, in docker and podman: /dev/kfd, /dev/dri, and the groups that own them on the node; of a podman that is not
    root's, all groups of the user

A container is one of its own for each training and ends with it; none of anybody else's is touched. What Slurm killed
with its job, docker's daemon keeps running: the next start of the same job removes it first.

Sources: NVIDIA's containers ask for --ipc=host and the two limits when they are started without; the options for AMD
are those of ROCm/Megatron-LM f253af69, examples/llama/train_llama_slurm.sh, without --privileged; podman-run(1),
--group-add; NVIDIA/pyxis 1075199, README.md and pyxis_slurmstepd.c.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from dataprep.errors import SpecError
from dataprep.train.job import Mount
from dataprep.train.launchers import shell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dataprep.train.job import Job
    from dataprep.train.program import Program

_GROUPS = """\
for group in video render; do
  gid=$(getent group "$group" | cut -d : -f 3) || gid=
  if [[ -n $gid ]]; then more+=(--group-add "$gid"); fi
done"""

# Within a user's own namespace, those numbers are others.
_KEPT = "if [[ $EUID != 0 ]]; then more=(--group-add keep-groups); fi"


def wrap(job: Job, program: Program, lines: Sequence[str], names: Iterable[str]) -> list[str]:
    """Lines that run lines in a container that docker or podman starts; else the lines. The last one is a command.

    Args:
        job, program: what is started.
        lines: for the inside; the last one is a command.
        names: of variables that are passed on.

    Raises:
        SpecError: no image, or a path that containers cannot be told of.
    """
    kind = job.launch.container
    if kind in ("none", "pyxis"):
        return list(lines)
    inside = shell.script([*lines[:-1], f"exec {lines[-1]}"])
    name = f'"{job.name}-${{SLURM_JOB_ID:-$$}}"'
    words = [
        *(kind, "run", "--rm", f"--name={name}", "--network=host", '"${more[@]}"'),
        *_devices(kind, program.vendor, job.launch.shared_memory),
        *("--ulimit=memlock=-1", "--ulimit=stack=67108864"),
        *(f"--mount={shlex.quote(f'type=bind,source={each.source},target={each.target}')}" for each in mounts(job)),
        *(f"--env={name}" for name in dict.fromkeys(names)),
        "--entrypoint=bash",
    ]
    return [
        *shell.variable("trainer", inside),
        "more=()",
        *_groups(kind, program.vendor),
        "if [[ -e /dev/infiniband ]]; then more+=(--device=/dev/infiniband); fi",
        f"{kind} rm --force {name} > /dev/null 2>&1 || true",
        shell.command(words, [shlex.quote(_image(job)), "-c", '"$trainer"']),
    ]


def pyxis(job: Job, names: Iterable[str]) -> list[str]:
    """Options of srun.

    The home folder stays outside, since packages that lie in its ``.local`` would take the place of the image's.

    Raises:
        SpecError: see `wrap`.
    """
    bound = ",".join(f"{each.source}:{each.target}" for each in mounts(job))
    # As enroot has it: nvcr.io#nvidia/pytorch:25.06-py3. A name without a registry, or a file, is left as it is.
    image = re.sub(r"^([^/#.]+[.:][^/#]*)/", r"\1#", _image(job))
    return [
        f"--container-image={shlex.quote(image)}",
        *([f"--container-mounts={shlex.quote(bound)}"] if bound else []),
        "--no-container-mount-home",
        f"--container-env={','.join(dict.fromkeys(names))}",
    ]


def mounts(job: Job) -> tuple[Mount, ...]:
    """What the inside sees: what is asked for, and the folders that the training reads and writes.

    Raises:
        SpecError: a path is relative, or holds what separates paths in the options of docker and pyxis.
    """
    found: list[Mount] = list(job.launch.mounted)
    for path in sorted(_folders(job)):
        # The output is written to on both sides, so it has to have one path.
        covering = [each for each in found if path != job.output or each.source == each.target]
        if not any(is_below(path, each.target) for each in covering):
            found.append(Mount(source=path, target=path))
    for each in found:
        for path in (each.source, each.target):
            if not os.path.isabs(path):
                raise SpecError(f"{path!r}: relative, and containers start in another folder; give the whole path")
            if re.search(r"[:,\"\n]", path):
                raise SpecError(f"{path!r}: a path with : , or quotes cannot be mounted into a container; rename it")
    return tuple(found)


def _folders(job: Job) -> set[str]:
    """That the training reads and writes; those within others come after them when sorted."""
    train = job.train
    paths = {os.path.dirname(part.prefix) or "." for part in job.data.all_parts} | {job.output}
    paths |= {path for path in (train.save, train.load, train.data_cache_path, train.log_dir) if path}
    paths |= {path for path in (job.tokenizer_path, job.launch.environment.get("HF_HOME", "")) if os.path.isabs(path)}
    return {path if path == job.output else os.path.normpath(path) for path in paths}


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder's or lies in it, by the names alone."""
    path, folder = os.path.normpath(path), os.path.normpath(folder)
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _image(job: Job) -> str:
    if not job.launch.image:
        raise SpecError(f"launch.container={job.launch.container} needs an image: --set launch.image=NAME")
    return job.launch.image


def _groups(kind: str, vendor: str) -> list[str]:
    """Lines that add the groups of AMD's devices to ``more``."""
    if vendor != "amd":
        return []
    return [*_GROUPS.split("\n"), *([_KEPT] if kind == "podman" else [])]


def _devices(kind: str, vendor: str, shared_memory: str) -> list[str]:
    # SELinux would keep what is mounted from podman's containers.
    label = ["--security-opt=label=disable"] if kind == "podman" else []
    if vendor == "amd":
        # Kubernetes' Gi is docker's g; with the shared memory of the host, podman refuses a size.
        size = f"--shm-size={shlex.quote(re.sub(r'i$', '', shared_memory).lower())}"
        seccomp = ["--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE"]
        return ["--device=/dev/kfd", "--device=/dev/dri", *seccomp, *label, size]
    return ["--device=nvidia.com/gpu=all" if kind == "podman" else "--gpus=all", *label, "--ipc=host"]
