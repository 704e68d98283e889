"""What would go wrong with a training, found out before anything is submitted. Each finding says what would happen.

data        every pair, as `verify` proves it; one tokenizer; splits that are asked for and hold something
arithmetic  tokens wanted against tokens there are, as epochs of each prefix
sizes       batches, ranks, heads, layers, positions: what must divide what
folders     caches and checkpoints: shared, writable, large enough, not stale
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dataprep.checks.report import Expected
from dataprep.errors import SpecError
from dataprep.manifest import readable_manifest
from dataprep.probe import file_system
from dataprep.samples import PARTS, parse_split, split_ranges
from dataprep.stages.verify import verify_all
from dataprep.storage import existing
from dataprep.train.builtin import require_torch
from dataprep.train.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataprep.checks.report import Report
    from dataprep.samples import SplitPart
    from dataprep.train.job import Job, Part

MANY_EPOCHS = 4
"""Epochs up to which repeated text is about as good as new one: arXiv:2305.16264 (Scaling Data-Constrained LMs)."""

STATE_BYTES = 14
"""Of a checkpoint for each parameter: weights in 16 bits; master weights and two moments of the optimizer in 32."""

LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "ramfs", "f2fs")
"""Types of file systems that one machine has for itself."""


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        severity: ``error``: the job is not submitted.
        check: a stable word for what was looked at.
        text: what was found, and what would happen.
    """

    severity: Literal["ok", "warning", "error"]
    check: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"severity": self.severity, "check": self.check, "text": self.text}


def check(job: Job, strict: bool = False, progress: Callable[[int], None] | None = None) -> list[Finding]:
    """All findings of a job.

    Args:
        job: what is to be trained.
        strict: read every token, and not only what manifests say of them.
        progress: called with the bytes just read.

    Raises:
        SpecError: the split is none, or a prefix is not there.
    """
    found = [*_sizes(job), *_versions(job)]
    if not job.data.is_mock:
        found += [*_pairs(job, strict, progress), *_tokenizer(job), *_amounts(job)]
        found += _parts(job) if _is_divided(job) else []
    return [*found, *_folders(job)]


def _pairs(job: Job, strict: bool, progress: Callable[[int], None] | None) -> Iterator[Finding]:
    """Every prefix, by `verify`."""
    cache = job.train.data_cache_path
    expect = Expected(
        tokenizer=job.tokenizer,
        vocab_size=job.vocab_size,
        split=job.train.split if job.data.parts and _is_divided(job) else "1,0,0",
        seq_length=job.train.seq_length,
        cache=cache if cache is not None and Path(cache).is_dir() else None,
    )
    prefixes = [part.prefix for part in job.data.all_parts]
    reports = verify_all(prefixes, "tokens" if strict else "index", expect, None, progress)
    for report in reports:
        yield from _reported(report)
        if not report.problems:
            how = f"{report.num_documents:,} documents, {report.num_tokens:,} tokens, {report.dtype}"
            yield Finding("ok", "pair", f"{report.prefix}: {how}")
        if not strict:
            yield from _ids(job, report)


def _is_divided(job: Job) -> bool:
    """Whether every split that is asked for has to hold something; torchtitan goes without, and says so."""
    return job.backend != "torchtitan"


def _reported(report: Report) -> Iterator[Finding]:
    for problem in report.problems:
        fix = f"; {problem.fix}" if problem.fix else ""
        yield Finding(problem.severity, problem.code, f"{problem}; {problem.symptom}{fix}")


def _ids(job: Job, report: Report) -> Iterator[Finding]:
    """Whether ids are known to be below the vocabulary's size, without reading them."""
    manifest, _ = readable_manifest(Path(report.prefix))
    if manifest is None:
        hope = f"{report.prefix} has no manifest: ids up to {job.vocab_size - 1} are hoped for"
        silent = "with a tensor-parallel size of 2 or more, Megatron trains on larger ones without a word"
        yield Finding("warning", "ids", f"{hope}; {silent}. --strict reads them")
        return
    made_with = manifest.tokenizer.vocab_size if manifest.tokenizer else None
    if made_with is not None and made_with > job.vocab_size:
        yield Finding(
            "error",
            "ids",
            f"{report.prefix} holds ids of a vocabulary of {made_with}, and the model has {job.vocab_size}: out of "
            "range on one rank, silent with a tensor-parallel size of 2 or more",
        )


def _tokenizer(job: Job) -> Iterator[Finding]:
    path = job.tokenizer_path
    if os.path.isabs(path) and not os.path.exists(path) and not _is_inside(job):
        text = f"{path} is not here, and the trainer reads it at its start; say where the tokenizer is: --tokenizer T"
        yield Finding("error", "tokenizer", text)
    if job.tokenizer is None:
        yield Finding("warning", "tokenizer", "the tokenizer is not known here: vocabulary and EOD were not compared")
        return
    padded, size = job.padded_vocab_size, job.vocab_size
    tensor = job.parallel.tensor_model_parallel_size
    multiple = 128 * tensor
    how = f"ceil({size} / (128 x {tensor})) x {multiple} = {padded}, {padded - size} of them never used"
    eod = "none" if job.tokenizer.eod_id is None else f"{job.tokenizer.eod_id} {job.tokenizer.eod_text!r}"
    yield Finding("ok", "vocabulary", f"{job.tokenizer.name}: {size} entries, EOD {eod}; rows of the embedding: {how}")
    if size != job.shape.vocab_size and abs(size - job.shape.vocab_size) > multiple:
        yield Finding(
            "warning",
            "vocabulary",
            f"{job.model} was published with {job.shape.vocab_size} entries: its checkpoints do not fit this one",
        )


def _parts(job: Job) -> Iterator[Finding]:
    """Every split that samples are asked of has to have some; Megatron hangs else."""
    train, data = job.train, job.data
    shares: dict[SplitPart, bool]
    if data.own:
        evaluated = {each.prefix for each in (*data.own.get("valid", ()), *data.own.get("test", ()))}
        for both in sorted(evaluated & {each.prefix for each in data.own.get("train", ())}):
            yield Finding("warning", "split", f"{both} is trained on and evaluated on: the loss says little")
        shares = {part: part in data.own for part in PARTS}
    else:
        parsed = parse_split(train.split)
        shares = {part: share > 0 for part, share in zip(PARTS, parsed, strict=True)}
    names = [part for part in PARTS if train.num_samples(part) and not shares[part]]
    if "train" in names:
        yield Finding("error", "split", f"train.split={train.split} leaves nothing to train on")
    for part in names:
        if part == "valid":
            asked = f"{train.num_samples(part)} samples of {part} are asked for by train.eval_iters={train.eval_iters}"
            fails = PROFILES[job.profile].needs_valid_split
            late = "the trainer fails as it starts" if fails else "the trainer never validates, without a word"
            fix = "--set train.eval_iters=0, or give it a share"
            yield Finding("error" if fails else "warning", "split", f"{asked}, and it has no share: {late}; {fix}")
    if PROFILES[job.profile].needs_valid_samples and not train.eval_iters and shares["valid"]:
        asserted = f"{PROFILES[job.profile].what} asserts that a split with a share has samples"
        yield Finding("error", "split", f"{asserted}: without evaluation, --set train.split=100,0,0")


def _amounts(job: Job) -> Iterator[Finding]:
    """Tokens wanted against tokens there are."""
    train = job.train
    step = f"{train.global_batch_size:,} x {train.seq_length:,}"
    total = f"{train.train_iters:,} steps x {step} = {train.num_tokens:,} tokens"
    yield Finding("ok", "tokens", f"asked for: {total}")
    for part in job.data.own.get("train", job.data.parts):
        held = _held(job, part)
        wanted = train.num_tokens * part.weight
        epochs = wanted / held if held else math.inf
        text = (
            f"{os.path.basename(part.prefix)}: {part.weight:.4f} of them = {wanted:,.0f}, of {held:,} there are: "
            f"{epochs:.2f} epochs"
        )
        many = epochs > MANY_EPOCHS
        note = f"; from about {MANY_EPOCHS} on, repeated text teaches little (arXiv:2305.16264)" if many else ""
        yield Finding("warning" if many else "ok", "epochs", text + note)


def _held(job: Job, part: Part) -> int:
    """Tokens of a prefix that are for training: exact where the split takes them all, else by its share."""
    if job.data.own or job.profile == "torchtitan-frontier":  # it has no splits
        return part.num_tokens
    first, stop = split_ranges(job.train.split, part.num_sequences).get("train", (0, 0))
    return part.num_tokens * (stop - first) // max(1, part.num_sequences)


def _sizes(job: Job) -> Iterator[Finding]:
    """What must divide what."""
    p, t, s = job.parallel, job.train, job.shape
    tensor, pipeline, context = (
        p.tensor_model_parallel_size,
        p.pipeline_model_parallel_size,
        p.context_parallel_size,
    )
    copies = p.data_parallel_size
    world = f"{p.nodes} nodes x {p.gpus_per_node} = {p.world_size} ranks"
    model = f"TP {tensor} x PP {pipeline} x CP {context} = {p.model_size}"
    if not copies or p.world_size % p.model_size:
        yield Finding(
            "error", "world", f"{world} are no multiple of {model}: the ranks start, and the trainer stops them"
        )
        return
    yield Finding("ok", "world", f"{world} = {model} x DP {copies}")
    ranks = t.micro_batch_size * copies
    accumulated = f"{t.global_batch_size} / ({t.micro_batch_size} x {copies})"
    if t.global_batch_size % ranks:
        fits = math.ceil(t.global_batch_size / ranks) * ranks
        yield Finding(
            "error", "batch", f"global batch {accumulated} is not whole: the trainer stops at its start; {fits} is"
        )
    else:
        yield Finding("ok", "batch", f"{accumulated} = {t.global_batch_size // ranks} micro batches a step and rank")
    is_cut = PROFILES[job.profile].cuts_groups and tensor % s.num_query_groups == 0
    rules = (
        (s.hidden_size, s.num_attention_heads, "hidden size", "heads"),
        (s.num_attention_heads, s.num_query_groups, "heads", "query groups"),
        (s.num_attention_heads, tensor, "heads", "TP"),
        (s.num_query_groups, 1 if is_cut else tensor, "query groups", "TP"),
        (s.ffn_hidden_size, tensor, "ffn size", "TP"),
        (s.num_layers, pipeline, "layers", "PP"),
        (t.seq_length, 2 * context if context > 1 else 1, "sequence length", "2 x CP"),
        (t.seq_length, tensor if t.sequence_parallel else 1, "sequence length", "TP, with sequence parallelism"),
    )
    for number, by, what, whom in rules:
        if number % by:
            yield Finding("error", "sizes", f"{what} {number} is no multiple of {whom} {by}: the model cannot be built")
    if s.family == "gpt" and t.seq_length > s.max_position_embeddings:
        yield Finding(
            "error",
            "sizes",
            f"sequences of {t.seq_length} tokens, and positions for {s.max_position_embeddings}: "
            f"--set model.max_position_embeddings={t.seq_length}",
        )


def _versions(job: Job) -> Iterator[Finding]:
    """What a version refuses by itself, late."""
    p, t = job.parallel, job.train
    if job.backend == "torch" and job.launch.python == sys.executable and job.launch.container == "none":
        try:
            require_torch()
        except SpecError as error:
            yield Finding("error", "torch", str(error))
    if p.fsdp and job.backend in ("megatron", "rocm"):
        wrong = [
            (p.pipeline_model_parallel_size > 1, f"pipeline size {p.pipeline_model_parallel_size}"),
            (t.precision == "fp16", "fp16"),
            (job.shape.tie_embeddings, "tied embeddings"),
            (t.ckpt_format == "torch", f"checkpoints of format {t.ckpt_format}"),
        ]
        for is_wrong, what in wrong:
            if is_wrong:
                yield Finding("error", "fsdp", f"--fsdp does not go with {what}: Megatron asserts at its start")
    if p.fsdp and p.tensor_model_parallel_size > 1 and job.backend == "rocm":
        text = f"--fsdp with tensor size {p.tensor_model_parallel_size}: AMD's scripts make that 1, and try no other"
        yield Finding("error", "fsdp", f"{text}; --tp 1")
    if t.ckpt_format == "torch_dcp" and not (p.fsdp and p.tensor_model_parallel_size == 1):
        yield Finding("error", "checkpoints", "torch_dcp is for --fsdp with --tp 1: Megatron asserts at its start")
    if t.use_distributed_optimizer and t.save is not None and t.ckpt_format == "torch" and p.data_parallel_size > 1:
        text = "checkpoints of format torch with a distributed optimizer can only be loaded by as many ranks"
        yield Finding("warning", "checkpoints", f"{text}; torch_dist by any number")


def _folders(job: Job) -> Iterator[Finding]:
    train = job.train
    read = [*(part.prefix for part in job.data.all_parts), *([train.load] if train.load is not None else [])]
    is_earlier = train.load is not None and train.load != train.save  # where it saves, it begins anew
    if train.load is not None and is_earlier and not _is_inside(job) and not os.path.isdir(train.load):
        yield Finding("error", "load", f"{train.load} is no folder: the trainer finds no checkpoint there, and ends")
    read += [job.tokenizer_path] if os.path.isabs(job.tokenizer_path) else []
    if job.tokenizer_path and not os.path.isabs(job.tokenizer_path):
        text = "every rank asks the hub for it, which answers many at once with errors (429); name a folder"
        yield Finding("warning", "tokenizer", f"{job.tokenizer_path} is a name on the hub: {text}")
    for text in dict.fromkeys(read) if job.parallel.nodes > 1 and not _is_inside(job) else ():
        kind = file_system(existing(Path(text)))
        if kind in LOCAL:
            own = f"{text} lies on {kind}, which this machine has for itself"
            yield Finding("warning", "shared", f"{own}: on the other nodes, the training ends when it opens it")
    if train.data_cache_path is not None:
        yield from _folder(job, "data_cache_path", train.data_cache_path, _cache_bytes(job))
    if train.save is not None:
        size = job.shape.num_parameters(job.padded_vocab_size) * (STATE_BYTES if train.save_optim else 2)
        yield from _folder(job, "save", train.save, size)


def _folder(job: Job, what: str, text: str, size: int) -> Iterator[Finding]:
    """Whether a folder, or what there is of it, is shared, writable and has room."""
    place = existing(Path(text))
    kind = file_system(place)
    if _is_inside(job):
        yield Finding("ok", what, f"{text} is a path of the container; not looked at from here")
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding("error", what, f"{text}: {place} cannot be written to: the training ends when it first tries")
        return
    if job.parallel.nodes > 1 and kind in LOCAL:
        alone = "only rank 0 builds index caches, and the other nodes would not find them"
        why = alone if what == "data_cache_path" else "each node would write its own part of a checkpoint"
        yield Finding("warning", what, f"{text} lies on {kind}, which this machine has for itself: {why}")
    free = shutil.disk_usage(place).free
    how = f"{text}: {_gb(size)} are needed, {_gb(free)} are free"
    if free < size:
        yield Finding("error", what, f"{how}: the training ends when it first writes there")
    else:
        yield Finding("ok", what, how)


def _is_inside(job: Job) -> bool:
    """Whether paths are those of a container."""
    return job.launch.claim is not None or (job.launch.container != "none" and bool(job.launch.mounts))


def _cache_bytes(job: Job) -> int:
    """Of Megatron's index caches: of whole epochs, 4 a sequence and 12 a sample; of a blend 10 more a sample."""
    train, data = job.train, job.data
    asked = sum(train.num_samples(part) for part in PARTS)
    found = 10 * asked if len(data.all_parts) > 1 else 0
    for part in data.all_parts:
        epochs = math.ceil(max(1, asked * train.seq_length * part.weight / max(1, part.num_tokens)))
        found += epochs * (4 * part.num_sequences + 12 * part.num_tokens // train.seq_length)
    return found


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
