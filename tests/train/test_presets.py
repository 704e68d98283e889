"""Shapes against what was published of them."""

from __future__ import annotations

import pytest

from dataprep.errors import SpecError
from dataprep.train.compat import COMPAT, differences, script_numbers
from dataprep.train.presets import ALIASES, PRESETS, Shape, find_preset

# The parameter counts of the safetensors on the hub's pages of meta-llama's repositories.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_llama_has_the_published_number_of_parameters(name):
    assert PRESETS[name].num_parameters() == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("gpt-")])
def test_gpt_has_the_parameters_of_the_formula_of_its_table(name):
    shape, v, s = PRESETS[name], 51200, 2048
    n, h = shape.num_layers, shape.hidden_size
    # arXiv:2104.04473, equation 2; without the last norm, which is 2 h
    formula = 12 * n * h * h * (1 + 13 / (12 * h) + (v + s) / (12 * n * h))
    assert shape.num_parameters(v) - 2 * h == pytest.approx(formula, rel=1e-12)
    billions = float(name.removeprefix("gpt-").removesuffix("b"))
    assert shape.num_parameters(v) / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("125m", 125), ("350m", 350), ("760m", 760), ("1.3b", 1300), ("2.7b", 2700), ("6.7b", 6700), ("175b", 175000)],
)
def test_gpt3_is_about_as_large_as_it_is_called(name, millions):
    assert PRESETS[f"gpt3-{name}"].num_parameters() / 1e6 == pytest.approx(millions, rel=0.025)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("llama3.1-8b", "llama3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("Llama-3.2-1B", "llama3.2-1b"),
        ("llama3-1b", "llama3.2-1b"),
        ("GPT3-125M", "gpt3-125m"),
        ("gpt-310b", "gpt-310.1b"),
    ],
)
def test_names(written, found):
    assert find_preset(written) == (found, PRESETS[found])


@pytest.mark.parametrize(("size", "found"), [("8", "llama3-8b"), ("8B", "llama3-8b"), ("70b", "llama3-70b")])
def test_a_size_apart_as_the_scripts_take_it(size, found):
    assert find_preset("llama3", size)[0] == found


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("llama3", None, "of which size? llama3 has 8b, 70b"),
        ("llama3-8b", "70", "two sizes"),
        ("llama3", "7", "of which size"),
        ("bert", None, "unknown model 'bert'; known are llama2-7b"),
        ("", None, "unknown model"),
    ],
)
def test_names_that_are_none(name, size, text):
    with pytest.raises(SpecError, match=text.replace("?", r"\?")):
        find_preset(name, size)


def test_aliases_lead_somewhere():
    assert set(ALIASES.values()) <= set(PRESETS)
    assert not set(ALIASES) & set(PRESETS)


def test_the_wrong_llama_2_of_rocm_24_12_is_reproduced_and_named():
    shape = PRESETS["llama2-7b"]
    fields, schedule = script_numbers("rocm-24.12", "llama2-7b", shape)
    changed = Shape(**{**dict(shape), **fields})
    assert changed.num_parameters() == 7_241_732_096  # that of Mistral 7B: the same layers, and 32000 tokens
    assert differences(shape, changed) == [
        "ffn_hidden_size 14336 (the model's: 11008)",
        "num_query_groups 8 (the model's: 32)",
        "max_position_embeddings 128000 (the model's: 4096)",
    ]
    assert (schedule["lr"], schedule["eval_iters"]) == (1e-4, 0)


@pytest.mark.parametrize(("name", "ffn"), [("llama2-7b", 10880), ("llama2-13b", 13632), ("llama2-70b", 21824)])
def test_the_ffn_that_aws_leaves_to_megatron(name, ffn):
    fields, schedule = script_numbers("aws", name, PRESETS[name])
    assert fields["ffn_hidden_size"] == ffn
    assert fields["add_bias_linear"]
    assert schedule["precision"] == "fp16"


def test_rocm_25_has_the_rope_of_llama_2_for_llama_3():
    fields, _ = script_numbers("rocm-25", "llama3.1-8b", PRESETS["llama3.1-8b"])
    assert (fields["rotary_base"], fields["rope_scaling"]) == (10000.0, None)


def test_a_script_has_only_its_own_models():
    with pytest.raises(SpecError, match="that script has no gpt3-175b"):
        script_numbers("deepspeed", "gpt3-175b", PRESETS["gpt3-175b"])
    with pytest.raises(SpecError, match=f"expected one of {', '.join(COMPAT)}"):
        script_numbers("rocm", "llama2-7b", PRESETS["llama2-7b"])
