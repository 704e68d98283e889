"""Programs for Megatron-DeepSpeed: what is rendered, held to the flags of its parser, and what is refused.

`flags/megatron-deepspeed.json` is its parser (4efb479d, with DeepSpeed 0.19.8), read by importing it: name of a flag ->
how many values it takes (0, 1, "*", "+"), or which.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dataprep.errors import SpecError
from dataprep.train.backends.deepspeed import render
from dataprep.train.job import Data

FLAGS = json.loads((Path(__file__).parents[1] / "flags" / "megatron-deepspeed.json").read_text())
GOLDEN = Path(__file__).with_name("golden")


def parsed(arguments) -> dict[str, list[str]]:
    """Flag -> values; fails as the parser would."""
    found: dict[str, list[str]] = {}
    for word in arguments:
        if word.startswith("--"):
            assert word[2:] in FLAGS, word
            assert word[2:] not in found, f"{word} comes twice"
            values = found.setdefault(word[2:], [])
        else:
            values.append(word)
    for flag, values in found.items():
        takes = FLAGS[flag]
        if isinstance(takes, list):
            assert len(values) == 1, flag
            assert values[0] in takes, f"--{flag} {values[0]}"
        elif takes not in ("*", "+"):
            assert len(values) == takes, f"--{flag} {values}"
    return found


JOBS = {
    "gpt3-125m": {"tokenizer_type": "GPT2BPETokenizer", "train": {"precision": "fp16", "recompute": "full"}},
    "llama2-7b": {"tokenizer_type": "Llama2Tokenizer"},
    "llama3-8b": {"train": {"recompute": "selective"}, "parallel": {"tensor_model_parallel_size": 4, "nodes": 2}},
}


@pytest.mark.parametrize("model", JOBS)
def test_program_is_the_golden_one(model, make_job):
    program = render(make_job(model, **JOBS[model]))
    lines = [f"{program.start} {program.script}"]
    for word in program.arguments:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    text = "\n".join(
        [
            *lines,
            *(f"{name}={value}" for name, value in program.environment.items()),
            *(part for name, content in program.files.items() for part in (f"-- {name}", content.rstrip())),
            *(f"note: {note}" for note in program.notes),
            *(f"after: {what}\n  {command}" for what, command in program.after),
            "",
        ]
    )

    parsed(program.arguments)
    assert text == (GOLDEN / f"deepspeed-{model}.txt").read_text()


VARIANTS = {
    "zero-3": {"parallel": {"zero_stage": 3}},
    "pipeline": {"parallel": {"pipeline_model_parallel_size": 4}},
    "sequence": {"parallel": {"context_parallel_size": 4}, "train": {"sequence_parallel": True}},
    "fp32": {"train": {"precision": "fp32"}},
    "fp16": {"train": {"precision": "fp16"}},
    "sgd": {"train": {"optimizer": "sgd", "lr_decay_style": "inverse-square-root", "dataloader_type": "cyclic"}},
    "records": {"train": {"profile": True, "wandb_project": "w", "save_optim": False, "load": "/from/there"}},
    "cache": {"train": {"data_cache_path": "/shared/cache", "use_flash_attn": False, "eval_iters": 0}},
    "tensor": {"parallel": {"tensor_model_parallel_size": 2}, "train": {"sequence_parallel": True}},
}


LISTS = [(model, variant) for model in ("gpt3-1.3b", "llama2-13b", "llama3-70b") for variant in VARIANTS]
LISTS.remove(("llama3-70b", "sequence"))  # refused, for its grouped queries


@pytest.mark.parametrize(("model", "variant"), LISTS)
def test_every_list_is_one_that_the_parser_takes(model, variant, make_job):
    job = make_job(model, **VARIANTS[variant])

    program = render(job)

    found = parsed(program.arguments)
    config = json.loads(program.files["ds_config.json"])
    assert found["deepspeed_config"] == [f"{job.output}/ds_config.json"]
    assert found["zero-stage"] == [str(config["zero_optimization"]["stage"])]
    assert found["global-batch-size"] == [str(config["train_batch_size"])]
    assert found["micro-batch-size"] == [str(config["train_micro_batch_size_per_gpu"])]
    assert found["log-interval"] == [str(config["steps_per_print"])]
    assert float(found["clip-grad"][0]) == config["gradient_clipping"]
    for precision in ("bf16", "fp16"):
        assert (precision in found) == config.get(precision, {}).get("enabled", False)
    assert config["prescale_gradients"] is (job.parallel.zero_stage == 0)
    # DeepSpeed has no pipeline with ZeRO 2 and 3
    assert ("no-pipeline-parallel" in found) == (variant in ("zero-3", "sequence"))
    assert bool(program.after) == (variant not in ("zero-3", "sequence"))
    for _, command in program.after:
        flags = [word[2:] for word in shlex.split(command) if word.startswith("--")]
        assert len(flags) == len(set(flags))


def test_sizes_of_hugging_face_vocabularies_are_those_of_the_data(make_job):
    # Megatron-DeepSpeed counts 128,000 entries of Llama 3's tokenizer, without those that were added
    for size, padded in ((1, 128256), (2, 128256), (4, 128512), (8, 129024)):
        found = parsed(render(make_job("llama3-8b", parallel={"tensor_model_parallel_size": size})).arguments)
        multiple = int(found["make-vocab-size-divisible-by"][0]) * size

        assert multiple == padded
        assert -(-128000 // multiple) * multiple == padded


def test_data_of_several_prefixes_and_of_each_split(make_job, make_part):
    parts = (make_part("/d/a", 0.25), make_part("/d/b c", 0.75))
    blended = parsed(render(make_job(data=Data(parts=parts))).arguments)
    own = parsed(render(make_job(data=Data(own={"train": parts, "valid": (make_part("/d/v"),)}))).arguments)

    assert blended["data-path"] == ["0.25", "/d/a", "0.75", "/d/b c"]
    assert blended["split"] == ["969, 30, 1"]
    assert own["train-data-path"] == blended["data-path"]
    assert own["valid-data-path"] == ["/d/v"]
    assert not {"split", "data-path", "test-data-path"} & set(own)


def test_own_arguments_win(make_job):
    program = render(make_job(arguments={"lr": "1e-5", "log-params-norm": None}))
    found = parsed(program.arguments)

    assert found["lr"] == ["1e-5"]
    assert found["log-params-norm"] == []


def test_grouped_queries_are_said_to_fail_today(make_job):
    assert any("6acc370a" in note for note in render(make_job("llama3-8b")).notes)
    assert not any("6acc370a" in note for note in render(make_job("llama2-7b")).notes)


def test_prefixes_of_gpt2_files_named_apart(make_job):
    job = make_job(tokenizer_type="GPT2BPETokenizer", tokenizer_path="/t/gpt2-vocab.json")
    identity = job.tokenizer.model_copy(update={"merges": "/t/gpt2-merges.txt"})
    found = parsed(render(job.model_copy(update={"tokenizer": identity})).arguments)

    assert found["vocab-file"] == ["/t/gpt2-vocab.json"]
    assert found["merge-file"] == ["/t/gpt2-merges.txt"]


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("gpt3-125m", {"data": Data()}, "mock data"),
        ("gpt3-125m", {"parallel": {"fsdp": True}}, "zero_stage=3"),
        ("gpt3-125m", {"train": {"precision": "fp8"}}, "fp8"),
        ("llama3.1-8b", {}, "llama3-8b"),
        ("gpt3-125m", {"train": {"lr_decay_style": "WSD"}}, "WSD"),
        ("gpt3-125m", {"train": {"ckpt_format": "torch_dist"}}, "torch_dist"),
        ("gpt3-125m", {"train": {"sequences": True}}, r"train\.sequences"),
        ("gpt3-125m", {"tokenizer_type": "NullTokenizer"}, "--tokenizer"),
        ("gpt3-125m", {"parallel": {"pipeline_model_parallel_size": 2, "zero_stage": 2}}, "pipelines"),
        ("gpt3-125m", {"parallel": {"context_parallel_size": 2, "tensor_model_parallel_size": 2}}, "--tp 1"),
        ("gpt3-125m", {"parallel": {"context_parallel_size": 8}}, "heads"),
        ("gpt3-125m", {"parallel": {"context_parallel_size": 3}}, "evenly"),
        ("llama3-8b", {"parallel": {"context_parallel_size": 2}}, "grouped queries"),
    ],
)
def test_what_it_cannot_do_is_refused(model, changes, said, make_job):
    with pytest.raises(SpecError, match=said):
        render(make_job(model, **changes))
