"""The command cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dataprep.commands.app import JsonOption, app, print_json, print_lines

if TYPE_CHECKING:
    from dataprep.samples import SplitPart


@app.command()
def cache(
    context: typer.Context,
    seq_length: Annotated[int, typer.Option("--seq-length", help="Megatron's.")],
    samples: Annotated[
        str,
        typer.Option(
            "--samples",
            metavar="TRAIN[,VALID,TEST]",
            help="How many the training asks for, iterations times global batch size; none: one epoch. Parts that are "
            "not named are left to Megatron.",
        ),
    ],
    prefixes: Annotated[
        list[str] | None,
        typer.Argument(metavar="PREFIX[=WEIGHT]...", help="Spelled as the training's --data-path spells them."),
    ] = None,
    data_args_path: Annotated[
        str | None, typer.Option("--data-args-path", help="Megatron's: a file of weights and prefixes, instead.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Megatron's.")] = 1234,
    split: Annotated[
        str | None, typer.Option("--split", help="Megatron's, spelled the same. Default: 969, 30, 1, as Megatron's.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="train, valid or test: the prefixes are this part's, as with --train-data-path."),
    ] = None,
    cache_path: Annotated[
        str | None,
        typer.Option("--cache", help="Megatron's --data-cache-path. Default: beside each prefix, as Megatron's."),
    ] = None,
    identifiers: Annotated[
        str | None,
        typer.Option("--tokenizer-identifiers", metavar="JSON|FILE", help="Of the training's tokenizer, exactly."),
    ] = None,
    tokenizer_type: Annotated[
        str | None, typer.Option("--tokenizer-type", help="Megatron's. Default: the type that the manifests name.")
    ] = None,
    tokenizer_model: Annotated[
        str | None, typer.Option("--tokenizer-model", help="Megatron's, spelled as the training spells it.")
    ] = None,
    vocab_file: Annotated[str | None, typer.Option("--vocab-file", help="The same.")] = None,
    merge_file: Annotated[str | None, typer.Option("--merge-file", help="The same.")] = None,
    profile: Annotated[
        str, typer.Option("--profile", help="Whose tokenizers: core-0.11 to core-0.19, or legacy: --legacy-tokenizer.")
    ] = "core-0.16",
    as_json: JsonOption = False,
) -> None:
    """Build Megatron's index caches before a training, byte for byte as it would, without a GPU.

    A cache is found by the text of the data path, of the split and of the tokenizer's path: give them as the training
    does, relative if it does, and start where it starts. What is there and right is kept. Without --cache, Megatron
    caches no blend, only its prefixes.

    Exit codes: 0 all are there; 1 a pair is broken, or the folder refuses; 2 a bad request, on which Megatron would
    fail or hang.

    Example: dataprep cache data/web=0.7 data/code=0.3 --seq-length 4096 --split 99,1,0 --samples 1280000,12800
    --cache /shared/cache --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B
    """
    from dataclasses import asdict

    from dataprep import progress, tables
    from dataprep.caching import CacheSpec
    from dataprep.caching import cache as build
    from dataprep.caching.blends import parse_prefixes, read_data_args
    from dataprep.caching.identifiers import choose_identifiers
    from dataprep.errors import SpecError
    from dataprep.samples import SPLIT

    if only and split:
        raise SpecError("--only names the part that the prefixes are of; leave out --split, which parts them")
    if bool(prefixes) == (data_args_path is not None):
        raise SpecError("name the prefixes, or a --data-args-path, and not both")
    paths, weights = parse_prefixes(prefixes or ()) if data_args_path is None else read_data_args(data_args_path)
    training = CacheSpec(
        prefixes=paths,
        weights=weights,
        seq_length=seq_length,
        num_samples=_samples(samples, only),
        tokenizer=choose_identifiers(
            identifiers, profile, tokenizer_type, (tokenizer_model, vocab_file, merge_file), paths
        ),
        seed=seed,
        split=None if only else split or SPLIT,
        data_cache_path=cache_path,
    )
    with progress.watch(context.obj["quiet"]) as watcher:
        values = [asdict(result) for result in build(training, watcher)]
    if as_json:
        print_json(values)
    else:
        print_lines(tables.caches(values))


def _samples(text: str, only: str | None) -> dict[SplitPart, int | None]:
    """How many samples each named part is asked for."""
    from dataprep.errors import SpecError
    from dataprep.samples import PARTS

    parts = PARTS if only is None else tuple(part for part in PARTS if part == only)
    counts = text.split(",")
    if not parts:
        raise SpecError(f"--only {only}: expected one of {', '.join(PARTS)}")
    if not 1 <= len(counts) <= len(parts) or not all(c.strip() == "none" or c.strip().isdecimal() for c in counts):
        raise SpecError(
            f"--samples {text!r}: expected what the training asks for of {', '.join(parts)}: whole numbers, or none "
            "for one epoch"
        )
    return {part: None if count.strip() == "none" else int(count) for part, count in zip(parts, counts, strict=False)}
