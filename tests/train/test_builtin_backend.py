"""The built-in trainer's settings, as a job gives them."""

from __future__ import annotations

import json

import pytest

from dataprep.errors import SpecError
from dataprep.train.backends import render
from dataprep.train.builtin.settings import Settings

SMALL = ["model.num_layers=2", "model.hidden_size=64", "model.num_attention_heads=4"]


def test_settings_of_a_job(make_job, dataset):
    job = make_job(
        backend="torch",
        settings=[*SMALL, "train.recompute=full"],
        options={"parallel": {"fsdp": True}, "train": {"seq_length": 128}},
        iterations=7,
    )
    program = render(job)
    assert (program.start, program.script, program.is_module) == ("torchrun", "dataprep.train.builtin", True)
    assert program.arguments == (f"{job.output}/settings.json",)
    settings = Settings.from_json(json.loads(program.files["settings.json"]), "settings.json")
    assert settings.data == ((dataset, 1.0),)
    assert settings.shape == job.shape.model_copy(update={"vocab_size": 8192})
    assert (settings.seq_length, settings.train_iters, settings.parallel) == (128, 7, "fsdp2")
    assert settings.activation_checkpointing
    assert settings.lr == job.train.lr


def test_a_llama(make_job):
    shape = json.loads(render(make_job(backend="torch", model="llama3.2-1b")).files["settings.json"])["shape"]
    assert (shape["rope_scaling"]["factor"], shape["num_query_groups"], shape["tie_embeddings"]) == (32.0, 8, True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"options": {"parallel": {"tensor_model_parallel_size": 2}}}, "tensor, pipeline or context parallelism"),
        ({"settings": ["train.precision=fp8"]}, "does not do fp8"),
        ({"settings": ["train.optimizer=sgd"]}, "optimizer=sgd"),
        ({"settings": ["argument.x=1"]}, "has no further flags"),
        ({"settings": ["model.hidden_dropout=0.1"]}, "there is no dropout here"),
        ({"words": ("MBS=1",)}, "mock data"),
        ({"options": {"train": {"seq_length": 4096}}}, "seq_length 4096 is more than max_position_embeddings 2048"),
    ],
)
def test_what_it_does_not_do(make_job, changes, text):
    words = changes.pop("words", ())
    with pytest.raises(SpecError, match=text):
        render(make_job(*words, backend="torch", **changes))
