"""The commands that build a training's index caches ahead, which one rank would build alone while all others wait."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dataprep.caching.identifiers import PROFILES, TYPES
from dataprep.samples import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dataprep.samples import SplitPart
    from dataprep.train.job import Job, Part

FORKS = {"rocm-24.12": "core-0.9", "rocm-25": "core-0.12"}
"""Of a fork, the version of Megatron whose tokenizers it has, which the names of caches hold."""

MOST = 64
"""Prefixes that fit a command line for people."""


def cache_commands(job: Job, tokenizer: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The commands, each with what it is for; none where the names that Megatron gives to caches are not known.

    Args:
        job: of a backend that uses Megatron's GPTDataset.
        tokenizer: the arguments that name the tokenizer.
    """
    profile, train = FORKS.get(job.profile, job.profile), job.train
    is_known = profile in PROFILES and job.tokenizer_type in TYPES
    if not is_known or train.data_cache_path is None or len(job.data.all_parts) > MOST:
        return
    same = ["--seq-length", str(train.seq_length), "--seed", str(train.seed), "--cache", train.data_cache_path]
    same += [*tokenizer, "--profile", profile]
    divided: list[tuple[SplitPart | None, tuple[Part, ...]]] = [(None, job.data.parts)] if job.data.parts else []
    divided += job.data.own.items()
    for part, parts in divided:
        named = [f"{each.prefix}={each.weight:.9g}" if len(parts) > 1 else each.prefix for each in parts]
        counts = [train.num_samples(each) for each in (PARTS if part is None else (part,))]
        asked = ",".join(str(count) for count in counts if count)
        how = ["--samples", asked, *(["--split", train.split] if part is None else ["--only", part])]
        yield "to build the index caches", shlex.join(["dataprep", "cache", *named, *how, *same])
