"""Settings that nothing reads."""

from __future__ import annotations

import pytest

from dataprep.errors import SpecError
from dataprep.train.backends import render
from dataprep.train.effects import READ
from dataprep.train.profiles import PROFILES

OTHERWISE = {
    "optimizer": "sgd",
    "lr": 0.01,
    "min_lr": 1e-7,
    "lr_decay_style": "linear",
    "lr_warmup_iters": 3,
    "lr_decay_iters": 5000,
    "weight_decay": 0.3,
    "clip_grad": 0.5,
    "adam_beta1": 0.8,
    "adam_beta2": 0.8,
    "adam_eps": 1e-6,
    "split": "90,5,5",
    "eval_interval": 17,
    "eval_iters": 3,
    "log_interval": 3,
    "save_interval": 77,
    "save": "/checkpoints",
    "save_optim": False,
    "load": "/earlier",
    "ckpt_format": "torch_dist",
    "data_cache_path": "/cache",
    "log_dir": "/logs",
    "precision": "fp32",
    "fp8_recipe": "tensorwise",
    "recompute": "full",
    "sequences": True,
    "dataloader_type": "cyclic",
    "num_workers": 7,
    "use_flash_attn": False,
    "rope_fusion": False,
    "use_distributed_optimizer": False,
    "mcore": False,
    "profile": True,
    "gemm_tuning": True,
    "wandb_project": "project",
    "torch_compile": True,
}


@pytest.fixture
def programs(make_job, tmp_path):
    """A function that renders for a profile with changes, past the check of the request."""

    def of(profile: str):
        settings = ["train.global_batch_size=8"] if profile == "torchtitan-frontier" else []
        job = make_job(model="llama3-8b", profile=profile, iterations=1000, settings=settings)

        def rendered(changes):
            kept = {"save": str(tmp_path / "save"), "precision": "fp8" if "fp8_recipe" in changes else "bf16"}
            return render(job.model_copy(update={"train": job.train.model_copy(update={**kept, **changes})}))

        return rendered

    return of


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "torchtitan-head"])  # its file has them all
def test_every_setting_is_read_or_refused_or_known_to_be_for_others(programs, profile):
    rendered = programs(profile)
    plain = rendered({})
    idle = set()
    for name, value in OTHERWISE.items():
        try:
            before = rendered({"fp8_recipe": "delayed"}) if name == "fp8_recipe" else plain
            if rendered({name: value}) == before:
                idle.add(name)
        except SpecError:
            pass
    not_for_it = {key.partition(".")[2] for key, readers in READ.items() if profile not in readers} & set(OTHERWISE)
    assert idle <= not_for_it
    assert not_for_it - idle <= {"fp8_recipe"}  # refused with fp8


def test_one_that_is_given_is_an_error_and_a_variable_a_warning(ask, dataset):
    with pytest.raises(SpecError, match=r"train\.torch_compile would do nothing: it is for builtin, torchtitan"):
        ask(settings=["train.torch_compile=true"])
    with pytest.raises(SpecError, match=r"parallel\.zero_stage would do nothing: it is for megatron-deepspeed, and"):
        ask(settings=["parallel.zero_stage=3"])
    with pytest.raises(SpecError, match=r"launch\.partition would do nothing: it is for slurm, and this is for"):
        ask(settings=["launch.partition=gpu"])
    with pytest.raises(SpecError, match=r"launch\.image would do nothing: it is for docker, kubernetes, podman, pyxis"):
        ask(settings=["launch.image=x"])
    assert ask(settings=["launch.image=x", "launch.container=docker"]).job.launch.image == "x"
    assert ask(settings=["launch.partition=gpu"], launcher="slurm").job.launch.partition == "gpu"
    assert ask(settings=["train.torch_compile=false"]).warnings == ask().warnings  # the default promises nothing
    found = ask(dataset, "MCORE=0", "INSTANCE_TYPE=p5")
    assert found.job.train.mcore
    assert "train.mcore does nothing: it is for core-0.8, rocm-24.12, rocm-25, and this is for" in found.warnings[0]
    assert found.warnings[1].startswith("launch.instance_type does nothing")


def test_the_built_in_trainer_needs_no_index_caches(make_job):
    assert make_job(backend="torch").train.data_cache_path is None
