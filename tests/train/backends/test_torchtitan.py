"""Programs for torchtitan, and for its fork for Frontier."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dataprep.errors import SpecError
from dataprep.train.backends.frontier import SHAPES, row_probabilities
from dataprep.train.backends.torchtitan import render
from dataprep.train.job import Data, Job
from dataprep.train.presets import PRESETS

GOLDEN = Path(__file__).with_name("golden")

HEAD = {"backend": "torchtitan", "profile": "torchtitan-head"}
FORK = {
    "backend": "torchtitan",
    "profile": "torchtitan-frontier",
    "train": {"global_batch_size": 16, "lr_decay_style": "linear", "min_lr": 0.0},
}

ZYDA = {
    "dclm_crossdeduped": (2590.5, 3348.9, 0.47, 0.538),
    "fwe3": (1279.1, 1319.2, 0.47, 0.429),
    "dolma-cc_crossdeduped-filtered": (445.6, 238.4, 0.034, 0.016),
    "zyda_crossdeduped-filtered": (247.7, 163.6, 0.024, 0.014),
    "python-edu": (7.68, 4.0, 0.001, 0.0005),
    "open-web-math": (6.3, 14.7, 0.001, 0.0021),
}
"""What frontier-torchtitan d140c6b mixes: million documents, billion tokens (Zyda-2's card and the others'), its row
probability, and the share of tokens that this comes to."""


# --- head


def test_command_and_job_of_head(make_job):
    job = make_job("llama3.1-8b", **HEAD, launch={"trainer": "/shared/torchtitan", "interface": "eth0"})
    program = render(job)

    assert (program.start, program.script, program.is_module) == ("torchrun", "torchtitan.train", True)
    assert program.arguments == ("--module", "dataprep.train.titan", "--config", "trained")
    assert program.environment == {
        "DATAPREP_JOB": f"{job.output}/job.json",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    assert program.folder == "/shared/torchtitan"
    assert Job.from_json(json.loads(program.files["job.json"]), "job.json") == job


def test_more_of_torchtitans_own_options_follow(make_job):
    given = {"parallelism.data_parallel_replicate_degree": "4", "training.enable_cpu_offload": None}
    program = render(make_job("llama3-8b", **HEAD, arguments=given))

    assert program.arguments[4:] == (
        "--parallelism.data_parallel_replicate_degree",
        "4",
        "--training.enable_cpu_offload",
    )


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("llama3-8b", {"data": Data()}, "mock data"),
        ("gpt3-125m", {}, "learned positions"),
        ("llama3-8b", {"shape": {"add_bias_linear": True}}, "biases"),
        ("llama3-8b", {"shape": {"hidden_dropout": 0.1}}, "dropout"),
        ("llama3-8b", {"train": {"precision": "fp8"}}, "fp8"),
        ("llama3-8b", {"train": {"optimizer": "sgd"}}, "AdamW"),
        ("llama3-8b", {"train": {"lr_decay_style": "WSD"}}, "WSD"),
        ("llama3-8b", {"train": {"lr_decay_iters": 20}}, "lr_decay_iters"),
        ("llama3-8b", {"train": {"save_optim": False}}, "save_optim"),
        ("llama3-8b", {"train": {"ckpt_format": "torch"}}, "DCP"),
        ("llama3-8b", {"train": {"sequences": True}}, r"train\.sequences"),
        ("llama3-8b", {"parallel": {"nodes": 5}}, "30 documents to valid on, and 40 ranks"),
    ],
)
def test_what_head_cannot_do_is_refused(model, changes, said, make_job):
    with pytest.raises(SpecError, match=said):
        render(make_job(model, **HEAD, **changes))


def test_a_split_without_documents_to_validate_on_is_said(make_job):
    program = render(make_job("llama3-8b", **HEAD, train={"split": "100"}))

    assert any("nothing is validated on" in note for note in program.notes)


# --- the fork


def test_program_of_the_fork_is_the_golden_one(make_job, make_part):
    parts = (
        make_part("/shared/data/web_text_document", 0.9, tokens=2_000_000, documents=1000),
        make_part("/shared/data/code_text_document", 0.1, tokens=500_000, documents=1000),
    )
    program = render(make_job("llama3-8b", **FORK, data=Data(parts=parts), parallel={"gpus_per_node": 8}))
    text = "\n".join(
        [
            " ".join([program.start, program.script, *program.arguments]),
            *(f"{name}={value}" for name, value in program.environment.items()),
            *(part for name, content in program.files.items() for part in (f"-- {name}", content.rstrip())),
            *(f"note: {note}" for note in program.notes),
            *(f"after: {what}\n  {command}" for what, command in program.after),
            "",
        ]
    )

    assert text == (GOLDEN / "frontier-llama3-8b.txt").read_text()
    assert program.vendor == "amd"


def test_toml_of_one_prefix(make_job):
    job = make_job(
        "llama3-70b",
        **{**FORK, "train": {**FORK["train"], "recompute": "full", "precision": "fp32"}},
        tokenizer_path='/shared/"t"/tokenizer.model',
        parallel={"tensor_model_parallel_size": 4, "nodes": 4},
    )
    program = render(job)
    value = tomllib.loads(program.files["train.toml"])

    assert program.script == "train.py"
    assert list(program.files) == ["train.toml"]
    assert value["model"] == {
        "name": "llama3",
        "flavor": "70B",
        "norm_type": "fused_rmsnorm",
        "tokenizer_path": '/shared/"t"/tokenizer.model',
    }
    assert value["training"]["dataset_path"] == f"{job.output}/text"
    assert value["training"]["batch_size"] == 2
    assert value["training"]["tensor_parallel_degree"] == 4
    assert value["training"]["data_parallel_shard_degree"] == 8
    assert value["training"]["mixed_precision_param"] == "float32"
    assert value["activation_checkpoint"]["mode"] == "full"
    assert f"dataprep export /shared/data/corpus_text_document --output {job.output}/text --files 8" in program.notes[0]


def test_shapes_are_those_of_llama_3():
    for model, flavor in (("llama3-8b", "8B"), ("llama3-70b", "70B"), ("llama3.1-405b", "405B")):
        shape = PRESETS[model]
        sizes = shape.num_layers, shape.hidden_size, shape.ffn_hidden_size
        assert SHAPES[(*sizes, shape.num_attention_heads, shape.num_query_groups)] == flavor


def test_rows_are_drawn_so_that_tokens_have_their_shares(make_part):
    parts = [
        make_part(name, share, int(tokens * 1e3), int(rows * 1e3)) for name, (rows, tokens, _, share) in ZYDA.items()
    ]

    found = row_probabilities(parts)

    assert sum(found) == pytest.approx(1)
    for probability, (_, _, published, _) in zip(found, ZYDA.values(), strict=True):
        assert probability == pytest.approx(published, rel=0.1)  # some shares are given to one digit


def test_rows_to_tokens_and_back(make_part):
    """The other way is `blending.token_shares`, held to the same table."""
    rows = [0.47, 0.47, 0.034, 0.024, 0.001, 0.001]
    raw = [weight * tokens / documents for weight, (documents, tokens, *_) in zip(rows, ZYDA.values(), strict=True)]
    parts = [
        make_part(name, share / sum(raw), int(tokens * 1e6), int(documents * 1e6))
        for share, (name, (documents, tokens, *_)) in zip(raw, ZYDA.items(), strict=True)
    ]

    assert row_probabilities(parts) == pytest.approx([each / sum(rows) for each in rows], rel=1e-6)
    for part, (*_, share) in zip(parts, ZYDA.values(), strict=True):
        assert part.weight == pytest.approx(share, abs=0.0005)


def test_the_mixture_is_put_into_the_fork_and_its_own_start_runs(make_job, make_part, tmp_path):
    """With stand-ins that have the fork's names: what it calls, and with what."""
    parts = (make_part("/d/a", 0.75, 300, 100), make_part("/e/a", 0.25, 100, 100))
    fork = tmp_path / "fork"
    (fork / "torchtitan" / "datasets").mkdir(parents=True)
    (fork / "datasets.py").write_text(
        "def load_dataset(kind, data_files, split, streaming): return (kind, data_files, split, streaming)\n"
        "def interleave_datasets(parts, **options): return (parts, options)\n"
    )
    (fork / "torchtitan" / "datasets" / "hf_datasets.py").write_text(
        "from datasets import load_dataset\ndef build(path): return load_dataset(path, split='train')\n"
    )
    (fork / "train.py").write_text(
        "import json, sys\nfrom torchtitan.datasets.hf_datasets import build\n"
        "print(json.dumps([__name__, sys.argv[1:], build('/text')]))\n"
    )
    job = make_job("llama3-8b", **FORK, data=Data(parts=parts), output=str(tmp_path / "job"))
    program = render(job)
    (tmp_path / "job").mkdir()
    for name, content in program.files.items():
        (tmp_path / "job" / name).write_text(content)

    command = [sys.executable, program.script, *program.arguments]
    environment = {**os.environ, "PYTHONPATH": str(fork)}
    done = subprocess.run(command, cwd=fork, env=environment, check=True, capture_output=True, text=True)

    name, arguments, (sources, options) = json.loads(done.stdout)
    assert name == "__main__"
    assert arguments == ["--job.config_file", f"{job.output}/train.toml"]
    assert sources == [["json", f"/text/{each}/*.jsonl", "train", True] for each in ("0-a", "1-a")]
    assert options == {"probabilities": [0.5, 0.5], "seed": 1234, "stopping_strategy": "all_exhausted"}
    assert re.findall(r"--output (\S+) --files 8", program.notes[0]) == [
        f"{job.output}/text/{n}" for n in ("0-a", "1-a")
    ]


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("llama3-8b", {"data": Data()}, "mock data"),
        ("llama2-7b", {}, "flavors"),
        ("llama3.1-8b", {}, "llama3-8b"),
        ("llama3-8b", {"shape": {"tie_embeddings": True}}, "tied"),
        ("llama3-8b", {"shape": {"rotary_base": 10000.0}}, "flavors"),
        ("llama3-8b", {"train": {"precision": "fp16"}}, "fp16"),
        ("llama3-8b", {"train": {"optimizer": "sgd"}}, "AdamW"),
        ("llama3-8b", {"train": {"global_batch_size": 32}}, "--global-batch 16"),
        ("llama3-8b", {"parallel": {"context_parallel_size": 2}}, "--cp 1"),
    ],
)
def test_what_the_fork_cannot_do_is_refused(model, changes, said, make_job):
    changes = {**FORK, **changes, "train": {**FORK["train"], **changes.get("train", {})}}
    with pytest.raises(SpecError, match=said):
        render(make_job(model, **changes))


def test_own_prefixes_of_splits_are_refused_by_the_fork(make_job, make_part):
    with pytest.raises(SpecError, match="one split"):
        render(make_job("llama3-8b", **FORK, data=Data(own={"train": (make_part("/d/a"),)})))
