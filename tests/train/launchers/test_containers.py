"""Containers: what is mounted, which options each gets; and a script that runs in a stand-in for docker."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dataprep.errors import SpecError
from dataprep.train.launchers import command, containers, slurm

STUBS = Path(__file__).parents[1] / "stubs"
TRAINER = {"script": "trainer.py", "folder": str(STUBS)}


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_ranks_in_a_container(stubs, workspace, make_training, kind, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("SECRET_OF_ANOTHER", "x")
    folder = workspace.parent / "it's a folder"
    (folder / "data" / "sample-gpt2-0a1b2c3d").mkdir(parents=True)
    launch = {"container": kind, "image": "registry.example/a b:1", "environment": {"OWN": "a $b"}}
    log = {"log_file": str(folder / "log")}
    job, program = make_training(str(folder), ("--words", "it's", "$x"), launch=launch, program=TRAINER, train=log)
    command.launch(job, program)

    record = json.loads((stubs / "rank-1.json").read_text())
    assert record["argv"] == list(program.arguments)
    assert record["environment"]["OWN"] == "a $b"
    assert record["environment"]["HF_TOKEN"] == "hf_secret"
    assert "SECRET_OF_ANOTHER" not in record["environment"]
    assert "hf_secret" not in Path(job.output, "train.sh").read_text()
    found = json.loads((stubs / "container.json").read_text())
    assert found["image"] == "registry.example/a b:1"
    folders = [f"{folder}/{name}" for name in ("checkpoints", "data/sample-gpt2-0a1b2c3d", "runs/one")]
    assert found["options"]["--mount"] == [f"type=bind,source={path},target={path}" for path in folders]
    gpus = {"docker": {"--gpus": ["all"]}, "podman": {"--device": ["nvidia.com/gpu=all"]}}[kind]
    devices = ["/dev/infiniband"] * os.path.exists("/dev/infiniband")
    assert found["options"].get("--gpus") == gpus.get("--gpus")
    assert found["options"].get("--device", []) == [*devices, *gpus.get("--device", [])]
    assert found["options"]["--ipc"] == ["host"]
    assert "rank 1 is at work" in (folder / "log").read_text()
    assert (stubs / "removed").read_text().split() == found["options"]["--name"], "one of the same job that was killed"


def test_accelerators_of_amd(stubs, tmp_path, make_training):
    (tmp_path / "data" / "sample-gpt2-0a1b2c3d").mkdir(parents=True)
    launch = {"container": "docker", "image": "rocm/megatron-lm:v25.4", "shared_memory": "64Gi"}
    job, program = make_training(str(tmp_path), launch=launch, program={**TRAINER, "vendor": "amd"})
    command.launch(job, program)

    options = json.loads((stubs / "container.json").read_text())["options"]
    assert options["--device"][-2:] == ["/dev/kfd", "/dev/dri"]
    assert options["--shm-size"] == ["64g"]
    assert "--ipc" not in options
    assert "--gpus" not in options
    assert all(group.isdigit() for group in options["--group-add"]), "by number: the image may not know their names"


def test_podman_of_a_user_keeps_the_users_groups(make_training):
    job, program = make_training("/fsx", launch={"container": "podman", "image": "x"}, program={"vendor": "amd"})
    text = command.render(job, program)
    assert "if [[ $EUID != 0 ]]; then more=(--group-add keep-groups); fi\n" in text
    assert "--security-opt=label=disable" in text


def _mounts(job) -> list[str]:
    return [f"{each.source}:{each.target}" for each in containers.mounts(job)]


def test_folders_of_the_training_are_mounted_unless_covered(make_training):
    train = {"save": "/scratch/checkpoints", "load": "/scratch/checkpoints/old", "data_cache_path": "/cache"}
    job, _ = make_training("/fsx/me", train=train, launch={"environment": {"HF_HOME": "/models/hf"}})
    own = ["/cache", "/fsx/me/data/sample-gpt2-0a1b2c3d", "/fsx/me/runs/one", "/models/hf", "/scratch/checkpoints"]
    assert _mounts(job) == [f"{path}:{path}" for path in own]

    job, _ = make_training("/fsx/me", train=train, launch={"mounts": ("/fsx", "/lustre/cache:/cache")})
    assert _mounts(job) == ["/fsx:/fsx", "/lustre/cache:/cache", "/scratch/checkpoints:/scratch/checkpoints"]


def test_the_output_has_one_path_on_both_sides(make_training):
    job, _ = make_training("/fsx", launch={"mounts": ("/lustre/me:/fsx",)})
    assert _mounts(job) == ["/lustre/me:/fsx", "/fsx/runs/one:/fsx/runs/one"]


def test_folders_that_only_the_container_has_are_not_made(make_training):
    launch = {"container": "docker", "image": "x", "mounts": ("/lustre/me:/inside",)}
    job, program = make_training("/fsx", launch=launch, train={"save": "/inside/save", "log_dir": "/fsx/tb"})
    assert "mkdir -p -- /fsx/runs/one /fsx/tb\n" in command.render(job, program)


@pytest.mark.parametrize("folder", ["/a:b", "/a,b", '/a"b'])
def test_paths_that_cannot_be_mounted(make_training, folder):
    job, _ = make_training(folder)
    with pytest.raises(SpecError, match="cannot be mounted into a container; rename it"):
        containers.mounts(job)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"train": {"save": "checkpoints"}}, "checkpoints"),
        ({"launch": {"mounts": ("data:/data",)}}, "data"),
        ({"launch": {"mounts": ("/data:data",)}}, "data"),
        ({"launch": {"mounts": ("",)}}, ""),
        ({"launch": {"mounts": (":/data",)}}, ""),
    ],
)
def test_relative_paths(make_training, changes, path):
    job, _ = make_training("/fsx", **changes)
    with pytest.raises(SpecError, match=f"^'{path}': relative"):
        containers.mounts(job)


@pytest.mark.parametrize("kind", ["docker", "pyxis"])
def test_no_image(make_training, kind):
    job, program = make_training("/fsx", launch={"container": kind})
    with pytest.raises(SpecError, match="needs an image"):
        slurm.render(job, program)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nvcr.io/nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
        ("localhost:5000/a/b", "localhost:5000#a/b"),
        ("nvcr.io#nvidia/pytorch", "nvcr.io#nvidia/pytorch"),
        ("rocm/megatron-lm:v25.4", "rocm/megatron-lm:v25.4"),
        ("/fsx/a.b/image.sqsh", "/fsx/a.b/image.sqsh"),
        ("./a/image.sqsh", "./a/image.sqsh"),
        ("ubuntu", "ubuntu"),
    ],
)
def test_images_as_enroot_has_them(make_training, image, expected):
    job, _ = make_training("/fsx", launch={"container": "pyxis", "image": image})
    assert containers.pyxis(job, ["A", "B", "A"])[0].replace("'", "") == f"--container-image={expected}"
    assert containers.pyxis(job, ["A", "B", "A"])[-1] == "--container-env=A,B"


def test_text_is_the_one_that_was_read_through(make_training, golden):
    launch = {"container": "podman", "image": "rocm/megatron-lm:v25.4", "mounts": ("/lustre/it's:/data",)}
    program = {"folder": "/workspace/Megatron-LM", "script": "pretrain_gpt.py", "vendor": "amd"}
    job, program = make_training("/fsx", launch=launch, program=program)
    golden("podman.sh", command.render(job, program))
