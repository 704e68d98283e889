"""What was asked for -> a job: presets, variables, settings and the data, put together.

Later ones win:  preset < --compat < variables of the environment < KEY=VALUE < options and --set
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import SpecError
from dataprep.specs import parse_settings
from dataprep.train.compat import differences, script_numbers
from dataprep.train.datasets import parse_data_path, read_parts
from dataprep.train.effects import READ, without_effect
from dataprep.train.job import Data, Job, Launch, Parallel, Training
from dataprep.train.presets import LEARNING_RATE, LEARNING_RATES, Shape, find_preset
from dataprep.train.profiles import find_profile
from dataprep.train.variables import is_variable, take
from dataprep.train.vocabulary import find_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dataprep.samples import SplitPart
    from dataprep.train.job import Part

NAMESPACES = ("model", "train", "launch", "parallel", "argument")
"""What ``--set`` reaches."""

BATCH = 128
"""Global batch where none is given, rounded up to what the ranks can share; that of AMD's README."""

MOCK_ITERS = 10
"""Steps on mock data where nothing is given: as in ROCm/Megatron-LM bb93ccbf, train_llama3.sh."""

SEQ_LENGTH = 8192
"""At most, where none is given; else what the model was trained with."""


@dataclass(frozen=True)
class Asked:
    """A command line.

    Attributes:
        words: prefixes and variables, as given.
        valid, test: prefixes of these splits, where they have some of their own.
        options: ``namespace -> name -> value`` of the options that are settings under a shorter name.
        launcher: who starts it; with ``local``, the accelerators of this machine are counted.
    """

    words: Sequence[str]
    model: str | None = None
    backend: str | None = None
    profile: str | None = None
    compat: str | None = None
    tokenizer: str | None = None
    valid: Sequence[str] = ()
    test: Sequence[str] = ()
    iterations: int | None = None
    tokens: float | None = None
    samples: int | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Sequence[str] = ()
    output: Path = Path("runs")
    launcher: str = "print"


@dataclass(frozen=True)
class Resolved:
    """A job, and what should be said of how it came to be."""

    job: Job
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def resolve(asked: Asked, environment: Mapping[str, str] | None = None) -> Resolved:
    """Make the job.

    Args:
        asked: what was asked for.
        environment: where variables are looked for; None: that of the process.

    Raises:
        SpecError: it contradicts itself, or names what does not exist.
        FormatError: a pair cannot be read.
    """
    taken = take([word for word in asked.words if is_variable(word)], environment)
    given = _merged(asked.options, parse_settings([_as_yaml(each) for each in asked.settings], NAMESPACES))
    settings = _merged(taken.settings, given)
    ask = settings.pop("ask", {})
    backend, profile = find_profile(asked.backend, asked.profile)
    model, shape, schedule, notes = _model(asked, ask, settings.pop("model", {}))
    chosen = [profile, asked.launcher, settings.get("launch", {}).get("container", "none")]
    for namespace, name, why in without_effect(given, chosen):
        raise SpecError(f"{namespace}.{name} would do nothing: {why}")
    idle = []
    for namespace, name, why in without_effect(_merged({"train": schedule}, taken.settings), chosen):
        settings.get(namespace, {}).pop(name, None)
        idle.append(f"{namespace}.{name} does nothing: {why}")
    data = _data(asked, ask)
    if ask.get("data_path") and any(not is_variable(word) for word in asked.words):
        idle.append("DATA_PATH does nothing: prefixes are given")
    vocabulary = find_vocabulary(
        data.all_parts, asked.tokenizer or ask.get("tokenizer"), ask.get("tokenizer_type"), shape
    )
    own = {"python": sys.executable} if backend == "torch" and asked.launcher == "local" else {}
    launch = Launch.from_json({**own, **_with_mounts(settings.get("launch", {}), ask)}, "--set launch")
    here = {"gpus_per_node": count_accelerators()} if asked.launcher == "local" else {}
    parallel = Parallel.from_json({**here, **settings.get("parallel", {})}, "--set parallel")
    planned = {**schedule, **_asked_schedule(ask, parallel), **settings.get("train", {})}
    if profile == "torchtitan-frontier":  # the fork accumulates no gradients
        micro = planned.get("micro_batch_size", 1)
        planned.setdefault("global_batch_size", micro * max(1, parallel.data_parallel_size))
    output = os.path.abspath(asked.output)
    train = _training(planned, shape, data, parallel, (asked.iterations, asked.tokens, asked.samples))
    train = _with_folders(train, planned, output, not data.is_mock and profile in READ["train.data_cache_path"])
    job = Job(
        name="job",
        backend=backend,
        profile=profile,
        model=model,
        shape=shape,
        vocab_size=vocabulary.size,
        tokenizer=vocabulary.identity,
        tokenizer_type=vocabulary.type,
        tokenizer_path=vocabulary.path,
        data=data,
        train=train,
        parallel=parallel,
        launch=launch,
        output=output,
        arguments=_arguments(settings.get("argument", {}), "load" in ask and backend in ("megatron", "rocm")),
    )
    job = _named(job, ask, planned)
    return Resolved(job, (*taken.notes, *notes), (*taken.warnings, *idle, *vocabulary.warnings))


def _arguments(given: dict[str, Any], loads: bool) -> dict[str, str | None]:
    """Flags of the trainer as they are; LOAD_CKPT_PATH brings those that AMD's scripts load weights alone with."""
    weights_alone = dict.fromkeys(("no-load-optim", "no-load-rng", "use-checkpoint-args")) if loads else {}
    return {**weights_alone, **{name: None if value == "" else str(value) for name, value in given.items()}}


def count_accelerators() -> int:
    """Accelerators of this machine, by what NVIDIA's and AMD's drivers say; 1, a processor, if there are none."""
    nvidia = len(glob.glob("/proc/driver/nvidia/gpus/*"))
    nodes = [
        Path(path).read_text(encoding="ascii") for path in glob.glob("/sys/class/kfd/kfd/topology/nodes/*/properties")
    ]
    amd = sum(re.search(r"^simd_count [1-9]", text, re.MULTILINE) is not None for text in nodes)
    return nvidia or amd or 1


def _as_yaml(setting: str) -> str:
    """`argument.KEY=` may be empty and is text; 3e-4 is a number, which YAML reads as text."""
    key, equals, text = setting.partition("=")
    if equals and key.startswith("argument."):
        return f"{key}={json.dumps(text)}"
    if key.startswith(("train.", "model.")) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", text):
        return f"{key}={float(text):.17e}"
    return setting


def _merged(*some: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for each in some:
        for namespace, values in each.items():
            result.setdefault(namespace, {}).update(values)
    return result


def _model(
    asked: Asked, ask: dict[str, Any], changes: dict[str, Any]
) -> tuple[str, Shape, dict[str, Any], tuple[str, ...]]:
    """Its name, its shape, what of the schedule goes with it, and what is to be said of ``--compat``."""
    name = asked.model or ask.get("model")
    if name is None:
        raise SpecError("give a --model, as llama3.1-8b or gpt3-125m; --set model.num_layers=N and so on change it")
    name, preset = find_preset(name, ask.get("size"))
    schedule: dict[str, Any] = {"lr": LEARNING_RATES.get(name, LEARNING_RATE)}
    shape, notes = preset, []
    if asked.compat is not None:
        fields, numbers = script_numbers(asked.compat, name, preset)
        schedule |= numbers
        shape = preset.model_copy(update=fields)
        notes = [f"COMPAT {asked.compat}: {name} is trained with {text}" for text in differences(preset, shape)]
        notes = notes or [f"COMPAT {asked.compat}: its schedule, on the shape of {name}, which that script has right"]
    if changes:
        hidden = changes.get("hidden_size")
        if isinstance(hidden, int) and shape.family == "gpt":
            changes.setdefault("ffn_hidden_size", 4 * hidden)
        if "num_attention_heads" in changes and shape.num_query_groups == shape.num_attention_heads:
            changes.setdefault("num_query_groups", changes["num_attention_heads"])
        shape = Shape.from_json({**shape.to_json(), **changes}, "--set model")
        name = f"{name}-changed" if shape != preset else name
    return name, shape, schedule, tuple(notes)


def _data(asked: Asked, ask: dict[str, Any]) -> Data:
    words = [word for word in asked.words if not is_variable(word)]
    if not words and ask.get("data_path") and not ask.get("mock"):
        words = parse_data_path(ask["data_path"])
    if words and ask.get("mock"):
        raise SpecError(f"MOCK_DATA=1 and {words[0]}: give one of them")
    own: dict[SplitPart, tuple[Part, ...]] = {}
    if asked.valid or asked.test:
        if not words:
            raise SpecError("--valid and --test go with prefixes to train on")
        own["train"] = read_parts(words)
        if asked.valid:
            own["valid"] = read_parts(asked.valid)
        if asked.test:
            own["test"] = read_parts(asked.test)
        return Data(own=own)
    return Data(parts=read_parts(words)) if words else Data()


def _asked_schedule(ask: dict[str, Any], parallel: Parallel) -> dict[str, Any]:
    """Of the variables, those that become a setting only together with others."""
    result: dict[str, Any] = {}
    if "batch_size_per_node" in ask:
        result["global_batch_size"] = ask["batch_size_per_node"] * parallel.nodes
    if "eval_iters" in ask:
        result["eval_iters"] = max(0, ask["eval_iters"])  # -1 is AMD's word for none; a blend fails with it
    if "load" in ask:
        result["load"] = ask["load"]
    if ask.get("wandb"):
        result["wandb_project"] = "dataprep"
    return result


def _with_mounts(launch: dict[str, Any], ask: dict[str, Any]) -> dict[str, Any]:
    mounts = [ask["mount"]] if "mount" in ask else []
    if "host_mount" in ask:
        mounts.append(f"{ask['host_mount']}:{ask.get('container_mount', ask['host_mount'])}")
    return {**launch, "mounts": [*launch.get("mounts", ()), *mounts]} if mounts else launch


def _training(
    given: dict[str, Any],
    shape: Shape,
    data: Data,
    parallel: Parallel,
    wanted: tuple[int | None, float | None, int | None],
) -> Training:
    """The schedule, whole: what is not given follows from the model and the data."""
    given = dict(given)
    own_length = min(SEQ_LENGTH, shape.max_position_embeddings)
    sequence = given.setdefault("seq_length", own_length)
    micro = given.setdefault("micro_batch_size", 1)
    for key in ("seq_length", "micro_batch_size", "global_batch_size", "train_iters"):
        if key in given and (type(given[key]) is not int or given[key] < 1):
            raise SpecError(f"train.{key}: expected a whole number above 0, found {given[key]!r}")
    if type(given["lr"]) not in (int, float):
        raise SpecError(f"train.lr: expected a number, found {given['lr']!r}")
    ranks = max(1, parallel.data_parallel_size) * micro
    batch = given.setdefault("global_batch_size", math.ceil(BATCH / ranks) * ranks)
    iterations = _iterations(wanted, batch, sequence) or given.get("train_iters")
    iterations = iterations or _one_epoch(given, data, batch * sequence)
    given["train_iters"] = iterations
    given.setdefault("min_lr", float(f"{given['lr'] / 10:.6g}"))
    given.setdefault("lr_warmup_iters", min(2000, iterations // 100))
    given.setdefault("lr_decay_iters", iterations)
    given.setdefault("sequence_parallel", parallel.tensor_model_parallel_size > 1 and not parallel.fsdp)
    if data.own:
        given.setdefault("eval_iters", 10 if "valid" in data.own or "test" in data.own else 0)
    return Training.from_json(given, "--set train")


def _iterations(wanted: tuple[int | None, float | None, int | None], batch: int, sequence: int) -> int | None:
    iterations, tokens, samples = wanted
    if sum(each is not None for each in wanted) > 1:
        raise SpecError("give one of --tokens, --samples and --iterations")
    if tokens is not None:
        if not math.isfinite(tokens):
            raise SpecError(f"--tokens {tokens}: expected a number")
        return max(1, math.ceil(tokens / (batch * sequence)))
    if samples is not None:
        return max(1, math.ceil(samples / batch))
    return iterations


def _one_epoch(given: dict[str, Any], data: Data, step: int) -> int:
    """Steps of one epoch of what is trained on."""
    from dataprep.samples import SPLIT, parse_split

    if data.is_mock:
        return MOCK_ITERS
    if data.own:
        tokens: float = sum(part.num_tokens for part in data.own["train"])
    else:
        tokens = sum(part.num_tokens for part in data.parts) * parse_split(str(given.get("split", SPLIT)))[0]
    return max(1, int(tokens // step))


def _with_folders(train: Training, given: dict[str, Any], output: str, has_cache: bool) -> Training:
    """Folders that are not given lie in the output; those that are become absolute, since trainers start elsewhere."""
    found: dict[str, Any] = {}
    for name in ("save", "load", "data_cache_path", "log_dir", "log_file"):
        value = getattr(train, name)
        if value is not None:
            found[name] = os.path.abspath(os.path.expanduser(value))
    if "data_cache_path" not in given and has_cache:
        found["data_cache_path"] = os.path.join(output, "index-cache")
    return train.model_copy(update=found)


def _named(job: Job, ask: dict[str, Any], given: dict[str, Any]) -> Job:
    """With its name, of what it trains on what, and its own folder; in it, what has no place yet."""
    content = json.dumps(job.model_dump(mode="json", exclude={"name", "output", "launch"}), sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    parts = job.data.all_parts
    corpus = os.path.basename(parts[0].prefix).removesuffix("_text_document") if parts else "mock"
    words = [ask.get("name") or job.model, *([] if ask.get("name") else [corpus])]
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[:40].strip("-") or "job"
    name = f"{name}-{digest}"
    folder = os.path.join(job.output, name)
    found: dict[str, Any] = {}
    if "save" not in given and not job.data.is_mock:
        found["save"] = os.path.join(folder, "checkpoints")
    if "log_dir" not in given:
        found["log_dir"] = os.path.join(folder, "logs")
    if "log_file" not in given:
        found["log_file"] = os.path.join(folder, "output.log")
    return job.model_copy(update={"name": name, "output": folder, "train": job.train.model_copy(update=found)})
