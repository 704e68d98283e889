"""The variables of the public scripts."""

from __future__ import annotations

import pytest

from dataprep.errors import SpecError
from dataprep.train.job import Launch, Parallel, Training
from dataprep.train.presets import Shape
from dataprep.train.variables import DEAD, VARIABLES, is_variable, take


def test_every_variable_leads_to_a_setting_that_exists():
    models = {"train": Training, "parallel": Parallel, "launch": Launch, "model": Shape}
    for name, variable in VARIABLES.items():
        namespace, _, key = variable.key.partition(".")
        assert namespace == "ask" or key in models[namespace].model_fields, name
    assert not set(DEAD) & set(VARIABLES)


def test_the_line_of_amds_readme():
    words = ["TEE_OUTPUT=1", "MBS=2", "BS=128", "TP=1", "TE_FP8=1", "SEQ_LENGTH=8192", "MODEL_SIZE=8"]
    assert all(map(is_variable, words))
    taken = take(words, {})
    assert taken.settings == {
        "ask": {"size": "8"},
        "train": {"micro_batch_size": 2, "global_batch_size": 128, "precision": "fp8", "seq_length": 8192, "tee": True},
        "parallel": {"tensor_model_parallel_size": 1},
    }
    assert not taken.warnings
    assert not taken.notes
    same = take([], dict(word.split("=") for word in words))
    assert same.settings == taken.settings
    assert same.notes == ("from the environment: MODEL_SIZE=8 TP=1 MBS=2 BS=128 SEQ_LENGTH=8192 TE_FP8=1 TEE_OUTPUT=1",)


def test_the_command_line_wins_over_the_environment():
    assert take(["MBS=4"], {"MBS": "2", "BS": "8"}).settings["train"] == {
        "micro_batch_size": 4,
        "global_batch_size": 8,
    }


def test_switches_that_are_off():
    assert take(["TE_FP8=0", "FSDP=0", "RECOMPUTE=0"], {}).settings == {
        "train": {"precision": "bf16", "recompute": "none"},
        "parallel": {"fsdp": False},
    }


def test_dead_and_unknown_variables_warn():
    warnings = take(["NO_TORCH_COMPILE=1", "CONTI_PARAMS=1", "MBSS=2x"], {}).warnings
    assert [text.split()[0] for text in warnings] == ["NO_TORCH_COMPILE", "CONTI_PARAMS", "MBSS"]
    assert "MBS is: it does nothing" in warnings[2]


def test_what_is_common_in_an_environment_is_told_only_beside_the_scripts_own():
    assert not take([], {"DATA_DIR": "/data"}).warnings
    assert take([], {"DATA_DIR": "/data", "MBS": "2"}).warnings == (f"DATA_DIR does nothing: {DEAD['DATA_DIR']}",)


def test_secrets_are_not_shown():
    taken = take([], {"WANDB_API_KEY": "s3cret"})
    assert "s3cret" not in str(taken.notes)


@pytest.mark.parametrize(
    ("word", "text"),
    [("MBS=two", "MBS=two: expected a whole number"), ("TE_FP8=yes", "TE_FP8=yes: expected 0 or 1")],
)
def test_values_that_are_none(word, text):
    with pytest.raises(SpecError, match=text):
        take([word], {})


@pytest.mark.parametrize(
    ("word", "is_one"),
    [("MBS=2", True), ("A=0.3", False), ("data/x=0.3", False), ("MY_DATA=0.3", False), ("XYZ=abc", True), ("x", False)],
)
def test_what_is_a_variable_and_what_a_prefix_with_a_weight(word, is_one):
    assert is_variable(word) == is_one
