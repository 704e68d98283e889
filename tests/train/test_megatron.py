"""Arguments for Megatron-LM, held to the flags of each version's parser.

`flags/core-*.json` are the parsers of NVIDIA/Megatron-LM at core_v0.8.0, core_v0.12.1, core_v0.14.0, core_v0.16.1,
core_v0.19.0 and d98e8a64, read by importing them: name of a flag -> how many values it takes (0, 1, "*", "+"), or
which. The jobs below have passed `parse_args` and `validate_args` of all of them. Of ROCm's forks there is no parser at
hand: they are held to NVIDIA's next to them, and to the flags that their own scripts use.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.errors import SpecError
from dataprep.train import preflight
from dataprep.train.backends import render
from dataprep.train.job import Data
from dataprep.train.profiles import PROFILES

HERE = Path(__file__).parent
NEXT = {"rocm-24.12": "core-0.8", "rocm-25": "core-0.12"}
AMD = {"ckpt-format": 1, "use-pytorch-profiler": 0, "use-rope-scaling": 0, "disable-te-fused-rope": 0}
MEGATRON = [name for name, profile in PROFILES.items() if profile.backend in ("megatron", "rocm")]

JOBS = {
    "gpt3-125m": {"settings": ["train.precision=fp16", "train.recompute=selective"]},
    "gpt3-175b": {
        "model": "gpt3-175b",
        "settings": ["train.recompute=full"],
        "options": {"parallel": {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 8, "nodes": 16}},
    },
    "llama2-7b": {"model": "llama2-7b", "options": {"parallel": {"tensor_model_parallel_size": 2}}},
    "llama3-8b": {"model": "llama3-8b", "settings": ["train.precision=fp8"]},
    "llama3.1-8b": {"model": "llama3.1-8b", "options": {"parallel": {"context_parallel_size": 2}}},
    "llama3.2-1b": {"model": "llama3.2-1b"},
    "fsdp": {"model": "llama3-8b", "options": {"parallel": {"fsdp": True}}},
    "tensorwise": {"model": "llama3-8b", "settings": ["train.precision=fp8", "train.fp8_recipe=tensorwise"]},
    "mock": {"words": ("MODEL_SIZE=8",), "model": "llama3"},
    "loaded": {
        "settings": [
            *("train.load=/x", "train.wandb_project=p", "train.save_optim=false", "train.use_flash_attn=false"),
            *("train.rope_fusion=false", "train.optimizer=sgd", "train.ckpt_format=torch_dist", "train.profile=true"),
        ]
    },
    "compat-rocm-24.12": {"model": "llama2-7b", "compat": "rocm-24.12"},
    "compat-aws": {"model": "gpt-7.5b", "compat": "aws", "options": {"parallel": {"pipeline_model_parallel_size": 2}}},
}
REFUSED = {
    ("llama3.1-8b", "core-0.8"): "use-rope-scaling",
    ("llama3.2-1b", "core-0.8"): "use-rope-scaling",
    ("llama3.2-1b", "rocm-24.12"): "rope-scaling-factor",
    ("fsdp", "core-0.8"): "use-torch-fsdp2",
    ("fsdp", "rocm-24.12"): "use-torch-fsdp2",
    ("tensorwise", "core-0.8"): "fp8-recipe",
    ("tensorwise", "rocm-24.12"): "fp8-recipe",
    ("loaded", "core-0.8"): "ckpt-format",
}


def known_flags(profile: str) -> dict:
    table = json.loads((HERE / "flags" / f"{NEXT.get(profile, profile)}.json").read_text())
    return table | (AMD if profile in NEXT else {})


def parsed(arguments, profile: str) -> dict[str, list[str]]:
    """Flag -> values; fails as the parser would."""
    flags, found = known_flags(profile), {}
    for word in arguments:
        if word.startswith("--"):
            assert word[2:] in flags, f"{profile} has no {word}"
            assert word[2:] not in found, f"{word} comes twice"
            values = found.setdefault(word[2:], [])
        else:
            values.append(word)
    for flag, values in found.items():
        takes = flags[flag]
        if isinstance(takes, list):
            assert len(values) == 1, flag
            assert values[0] in takes, f"--{flag} {values[0]}"
        elif takes not in ("*", "+"):
            assert len(values) == takes, f"--{flag} {values}"
    return found


def rendered(make_job, name: str, profile: str = "core-0.16", **changes):
    given = {**JOBS[name], **changes}
    return render(make_job(*given.pop("words", ()), backend=PROFILES[profile].backend, profile=profile, **given))


@pytest.mark.parametrize("profile", MEGATRON)
@pytest.mark.parametrize("name", JOBS)
def test_every_version_knows_every_argument_it_is_given(make_job, name, profile):
    if (name, profile) in REFUSED:
        with pytest.raises(SpecError, match=f"has no --{REFUSED[name, profile]}"):
            rendered(make_job, name, profile)
        return
    parsed(rendered(make_job, name, profile).arguments, profile)


@pytest.mark.parametrize("name", ["gpt3-125m", "llama3.1-8b", "mock"])
def test_program_is_the_golden_one(make_job, name, dataset, tmp_path):
    profile = "rocm-25" if name == "mock" else "core-0.16"
    program = rendered(make_job, name, profile)
    words = " ".join(program.arguments).replace(str(tmp_path), "/work").replace(os.path.dirname(dataset), "/data")
    words = re.sub(r"--tokenizer-model \S+", "--tokenizer-model /tokenizer", words)
    words = re.sub(r"(?<=[a-z]-)[0-9a-f]{8}(?=/)", "DIGEST", words)
    words = re.sub(
        r"--train-iters \d+", "--train-iters N", re.sub(r"--lr-decay-iters \d+", "--lr-decay-iters N", words)
    )
    text = "\n".join(
        [
            program.script,
            *(words.replace(" --", "\n--").splitlines()),
            *(f"{key}={value}" for key, value in sorted(program.environment.items())),
        ]
    )
    golden = HERE / "golden" / f"megatron-{name}.txt"
    if os.environ.get("DATAPREP_WRITE_GOLDEN"):
        golden.write_text(text + "\n")
    assert text + "\n" == golden.read_text()


def test_llama_31_is_trained_as_llama_31(make_job):
    flags = parsed(rendered(make_job, "llama3.1-8b").arguments, "core-0.16")
    assert flags["rotary-base"] == ["500000"]
    assert "use-rope-scaling" in flags
    assert "rope-scaling-factor" not in flags
    assert (flags["ffn-hidden-size"], flags["num-query-groups"]) == (["14336"], ["8"])
    assert (flags["hidden-dropout"], flags["attention-dropout"]) == (["0.0"], ["0.0"])
    assert {"disable-bias-linear", "untie-embeddings-and-output-weights", "swiglu"} <= set(flags)
    small = parsed(rendered(make_job, "llama3.2-1b").arguments, "core-0.16")
    assert small["rope-scaling-factor"] == ["32.0"]
    assert "untie-embeddings-and-output-weights" not in small


def test_fsdp_has_no_single_queue_and_no_distributed_optimizer(make_job):
    program = rendered(make_job, "fsdp", "rocm-25")
    flags = parsed(program.arguments, "rocm-25")
    assert flags["ckpt-format"] == ["torch_dist"]
    assert "use-distributed-optimizer" not in flags
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in program.environment


def test_a_blend(make_job, dataset, make_pair):
    job = make_job()
    part = job.data.parts[0]
    parts = tuple(part.model_copy(update={"prefix": f"/data/{n}", "weight": n / 10}) for n in (3, 7))
    job = job.model_copy(update={"data": Data(parts=parts)})
    assert parsed(render(job).arguments, "core-0.16")["data-path"] == [
        "0.3",
        "/data/3",
        "0.7",
        "/data/7",
    ]


def test_a_small_share_is_not_none(make_job):
    """Megatron asserts that every weight is above 0."""
    job = make_job()
    part = job.data.parts[0]
    parts = tuple(part.model_copy(update={"prefix": f"/data/{n}", "weight": n}) for n in (1e-12, 1 - 1e-12))
    words = parsed(render(job.model_copy(update={"data": Data(parts=parts)})).arguments, "core-0.16")["data-path"]
    assert (words[0], words[2]) == ("1e-12", "1")


def test_a_checkpoint_to_start_from_is_not_one_to_go_on_with(make_job):
    program = render(make_job(settings=["train.load=/earlier"]))
    assert "started again, it begins at /earlier again; to go on, --set train.load=" in program.notes[0]
    assert not any("begins at" in note for note in render(make_job()).notes)


def test_many_prefixes_go_into_a_file(make_job):
    job = make_job()
    part = job.data.parts[0]
    parts = tuple(part.model_copy(update={"prefix": f"/data/{n}", "weight": 1 / 20}) for n in range(20))
    many = job.model_copy(update={"data": Data(parts=parts)})
    program = render(many)
    assert parsed(program.arguments, "core-0.16")["data-args-path"] == [os.path.join(job.output, "data_args.txt")]
    assert program.files["data_args.txt"].split()[:4] == ["0.05", "/data/0", "0.05", "/data/1"]
    old = render(many.model_copy(update={"profile": "core-0.8"}))
    assert len(parsed(old.arguments, "core-0.8")["data-path"]) == 40
    long = tuple(part.model_copy(update={"prefix": f"/data/{n:090}", "weight": 1 / 2000}) for n in range(2000))
    with pytest.raises(SpecError, match=r"2000 prefixes are \d+ bytes of a command line, .* dataprep merge"):
        render(many.model_copy(update={"profile": "core-0.8", "data": Data(parts=long)}))
    spaced = (parts[0].model_copy(update={"prefix": "/a b"}), *parts[1:])
    with pytest.raises(SpecError, match="splits --data-args-path at spaces"):
        render(job.model_copy(update={"data": Data(parts=spaced)}))


def test_splits_with_prefixes_of_their_own(make_job, dataset):
    job = make_job(valid=[dataset])
    flags = parsed(render(job).arguments, "core-0.16")
    assert (flags["train-data-path"], flags["valid-data-path"]) == ([dataset], [dataset])
    assert "split" not in flags
    assert "data-path" not in flags
    part = job.data.own["train"][0]
    parts = tuple(part.model_copy(update={"prefix": f"/data/{n}", "weight": 1 / 20}) for n in range(20))
    program = render(job.model_copy(update={"data": Data(own={"train": parts, "valid": parts[:1]})}))
    assert parsed(program.arguments, "core-0.16")["per-split-data-args-path"]
    lists = json.loads(program.files["data.json"])
    assert (len(lists["train"]), lists["valid"], lists["test"]) == (40, ["/data/0"], None)


@pytest.mark.parametrize(
    ("profile", "settings", "text"),
    [
        ("core-0.12", ["train.precision=fp8", "train.fp8_recipe=blockwise"], "core_v0.12.1 has no blockwise"),
        ("rocm-25", ["train.precision=fp8", "train.fp8_recipe=mxfp8"], "has no mxfp8"),
        ("core-0.16", ["train.fp8_recipe=mxfp8"], "would do nothing with bf16: --set train.precision=fp8"),
    ],
)
def test_recipes_that_a_version_has_not_or_nothing_uses(make_job, profile, settings, text):
    with pytest.raises(SpecError, match=text):
        render(make_job(model="llama3-8b", profile=profile, settings=settings))


def test_the_file_of_sequences_is_held_to_the_dtype_megatron_guesses(make_job):
    job = make_job(settings=["train.sequences=true"])
    part = job.data.parts[0]
    program = render(job)
    assert json.loads(program.files["sequences.json"]) == {part.prefix: [part.num_sequences, part.num_documents + 1]}
    assert parsed(program.arguments, "core-0.16")["per-dataset-sequences-path"]
    wide = job.model_copy(update={"data": Data(parts=(part.model_copy(update={"dtype": "int32"}),))})
    with pytest.raises(SpecError, match="Megatron reads it as uint16, by the vocabulary of 8192"):
        render(wide)


@pytest.mark.parametrize(
    ("type_", "path", "flags"),
    [
        ("GPT2BPETokenizer", "/t", {"vocab-file": ["/t/vocab.json"], "merge-file": ["/t/merges.txt"]}),
        ("Llama2Tokenizer", "/t/tokenizer.model", {"tokenizer-model": ["/t/tokenizer.model"]}),
        ("HuggingFaceTokenizer", "meta-llama/Llama-3.1-8B", {"tokenizer-model": ["meta-llama/Llama-3.1-8B"]}),
        ("NullTokenizer", "", {"vocab-size": ["8191"]}),
    ],
)
def test_tokenizers(make_job, type_, path, flags):
    job = make_job().model_copy(update={"tokenizer_type": type_, "tokenizer_path": path, "tokenizer": None})
    found = parsed(render(job).arguments, "core-0.16")
    assert found["tokenizer-type"] == [type_]
    assert {key: found[key] for key in flags} == flags


def test_arguments_of_the_user_win(make_job):
    flags = parsed(
        render(make_job(settings=["argument.num-workers=8", "argument.log-params-norm="])).arguments, "core-0.16"
    )
    assert flags["num-workers"] == ["8"]
    assert flags["log-params-norm"] == []


def test_environment_of_amd_and_of_the_user(make_job, dataset):
    program = rendered(
        make_job,
        "mock",
        "rocm-25",
        words=("MODEL_SIZE=8", "GEMM_TUNING=1"),
        settings=['launch.environment={"NCCL_PROTO": "LL"}'],
    )
    environment = program.environment
    assert environment["TE_HIPBLASLT_TUNING_RUN_COUNT"] == "10"
    assert environment["NCCL_PROTO"] == "LL"
    assert program.vendor == "amd"


def test_what_ended_by_a_signal_goes_on_from_its_checkpoint(make_job):
    job = make_job()
    flags = parsed(render(job).arguments, "core-0.16")
    assert flags["load"] == flags["save"] == [job.train.save]
    assert "exit-signal-handler" in flags


@pytest.mark.parametrize("own", [False, True])
def test_the_commands_that_build_the_index_caches_do(make_job, dataset, own):
    job = make_job(iterations=3, valid=[dataset] if own else [], options={"train": {"seq_length": 64}})
    commands = [shlex.split(command) for _, command in render(job).before]
    assert len(commands) == 1 + own
    for command in commands:
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    asked = {}
    for path in Path(job.train.data_cache_path).glob("*-description.txt"):
        found = json.loads(path.read_text())
        asked[found["index_split"]] = found["num_samples"]
        assert (found["sequence_length"], found["split"]) == (64, None if own else job.train.split)
    parts = ("train", "valid") if own else ("train", "valid", "test")
    assert asked == {part: job.train.num_samples(part) for part in parts}
    assert not [finding for finding in preflight.check(job) if finding.check.startswith("cache")]


def test_no_command_is_given_where_the_names_of_caches_are_not_known(make_job):
    assert not render(make_job(profile="core-head")).before
    assert not render(make_job("MODEL_SIZE=8", model="llama3")).before
    assert "--profile core-0.12" in render(make_job(backend="rocm")).before[0][1]


def test_weights_are_loaded_alone_where_amds_variable_says_so(make_job, dataset, tmp_path):
    flags = parsed(render(make_job(dataset, f"LOAD_CKPT_PATH={tmp_path}", backend="rocm")).arguments, "rocm-25")
    assert flags["load"] == [str(tmp_path)]
    assert {"no-load-optim", "no-load-rng", "use-checkpoint-args", "exit-on-missing-checkpoint"} <= set(flags)
    flags = parsed(render(make_job(settings=[f"train.load={tmp_path}"])).arguments, "core-0.16")
    assert "no-load-optim" not in flags
