"""What Megatron writes of its tokenizer into the name of a cache, without its tokenizer.

The name holds the tokenizer's class, the path as the training spells it, and the options that its version gives to
the tokenizer, all as text. They follow from the training's flags where its version is one that was read:

    core-0.15 to core-0.19   megatron/core/tokenizers: build_tokenizer.py, text_tokenizer.py and default_tokenizer.py
                             of core_v0.15.3, core_v0.16.1, core_v0.17.1, core_v0.18.2 and core_v0.19.0
    legacy                   --legacy-tokenizer of core-0.15 and core-0.16, and all there is in core-0.11 to core-0.14:
                             megatron/training/tokenizer/tokenizer.py, megatron/core/datasets/megatron_tokenizer.py

with all other flags of the tokenizer at their defaults. The arrays of all these are the same; earlier ones ask each
prefix of a blend for another number of samples (core_v0.10.0: ceil(samples * weight * 1.005), rounded up once).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.errors import SpecError
from dataprep.manifest.loading import readable_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

PROFILES = (*(f"core-0.{minor}" for minor in range(19, 10, -1)), "legacy")
"""Versions whose tokenizers and caches are known; those below core-0.15 have the legacy ones only."""

TYPES = ("HuggingFaceTokenizer", "Llama2Tokenizer", "GPTSentencePieceTokenizer", "GPT2BPETokenizer")

_TEXT = "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText"

_TEXT_SINCE = {f"core-0.{minor}": minor for minor in range(15, 20)}

_SENTENCEPIECE = ("Llama2Tokenizer", "GPTSentencePieceTokenizer")

HOW_TO_PRINT = """\
the value of "tokenizer" in any *-GPTDataset-*-description.txt that the training wrote (--tokenizer-identifiers takes \
the whole file, too), or what this prints where the training runs, in the folder of pretrain_gpt.py, with its \
arguments behind it:
  python -c 'import json; from megatron.training.arguments import parse_args as p; \
from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer as b; \
print(json.dumps(b(p(ignore_unknown_args=True)).unique_identifiers))' ARGUMENTS...
  (megatron-core 0.17 and later: megatron.core.tokenizers.utils.build_tokenizer; --legacy-tokenizer, and 0.14 and \
earlier: megatron.training.tokenizer)"""


def read_identifiers(text: str) -> dict[str, Any]:
    """The identifiers as they are given: JSON, or a file of it, or a cache's description, which holds them.

    Raises:
        SpecError: none of these.
    """
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise SpecError(f"--tokenizer-identifiers {text}: neither a JSON object nor a readable file") from error
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--tokenizer-identifiers {text}: not JSON: {error}") from error
    if isinstance(value, dict) and "dataset_path" in value:
        value = value.get("tokenizer")
    if not isinstance(value, dict) or "class" not in value:
        raise SpecError(f"--tokenizer-identifiers {text}: expected an object with a class, and a tokenizer_path")
    return value


def derive_identifiers(profile: str, kind: str, model: str | None, files: tuple[str, str] | None) -> dict[str, Any]:
    """The identifiers of a training whose other flags of the tokenizer have their defaults.

    Args:
        profile: one of `PROFILES`.
        kind: of `TYPES`, Megatron's --tokenizer-type.
        model: --tokenizer-model as the training spells it.
        files: --vocab-file and --merge-file, the same; of a GPT2BPETokenizer.

    Raises:
        SpecError: a version or a type whose identifiers are not known, or a path that is missing; says how to get them.
    """
    if profile not in PROFILES or kind not in TYPES:
        known = ", ".join(PROFILES if profile not in PROFILES else TYPES)
        wrong = f"profile {profile}" if profile not in PROFILES else f"type {kind}"
        raise SpecError(f"the identifiers of {wrong} are not known here (known: {known}); give them: {HOW_TO_PRINT}")
    if kind == "GPT2BPETokenizer" and files is None:
        raise SpecError(f"{kind} is named by --vocab-file and --merge-file, as the training spells them")
    if kind != "GPT2BPETokenizer" and model is None:
        raise SpecError(f"{kind} is named by --tokenizer-model, as the training spells it")
    if profile in _TEXT_SINCE:
        return _text_tokenizer(_TEXT_SINCE[profile], kind, model, files)
    found: dict[str, Any] = {"class": f"_{kind}", "tokenizer_path": list(files or (model,))}
    if kind in _SENTENCEPIECE:
        found["vocab_extra_ids"] = "0"
    return found


def _text_tokenizer(minor: int, kind: str, model: str | None, files: tuple[str, str] | None) -> dict[str, Any]:
    """Of core-0.15 and later; the order of the fields is part of the name."""
    vocab, merges = files or ("None", "None")
    found: dict[str, Any] = {"class": _TEXT, "tokenizer_path": kind if kind == "GPT2BPETokenizer" else model}
    chat: dict[str, Any] = {"chat_template": "None"} if minor >= 18 else {}
    pair = {"vocab_file": vocab, "merges_file": merges}
    if kind in _SENTENCEPIECE:
        spaces = {"ignore_extra_whitespaces": "True"} if minor >= 18 else {}
        return found | chat | spaces | ({"legacy": "False", "special_tokens": "None"} if minor >= 16 else {})
    if minor == 15:
        return found | pair
    added = {"additional_special_tokens": "[]"}
    fast = str(minor >= 17)  # a switch that turned it on became one that turns it off
    switches = {"use_fast": fast, "trust_remote_code": "False", "include_special_tokens": fast}
    if kind == "GPT2BPETokenizer":
        return found | added | pair | switches
    return found | chat | pair | added | switches


def manifest_type(prefixes: Iterable[str]) -> str | None:
    """Megatron's type of the tokenizer that all manifests of these pairs name; None if they do not."""
    manifests = [readable_manifest(Path(prefix))[0] for prefix in prefixes]
    types = {None if m is None or m.tokenizer is None else str(m.tokenizer.type) for m in manifests}
    return types.pop() if len(types) == 1 else None


def choose_identifiers(
    given: str | None,
    profile: str,
    kind: str | None,
    paths: tuple[str | None, str | None, str | None],
    prefixes: tuple[str, ...],
) -> dict[str, Any]:
    """The identifiers that a command line gives, or from which they follow.

    Args:
        given: see `read_identifiers`.
        profile, kind: see `derive_identifiers`. Without a kind, that of the manifests.
        paths: --tokenizer-model, --vocab-file and --merge-file.
        prefixes: of the pairs.

    Raises:
        SpecError: there is too little to tell, or too much.
    """
    model, vocab, merges = paths
    if given is not None:
        if kind or any(paths):
            raise SpecError("--tokenizer-identifiers says all of the tokenizer; leave out its type and its paths")
        return read_identifiers(given)
    if not any(paths):
        raise SpecError(
            "the tokenizer's path is part of a cache's name: give --tokenizer-model (or --vocab-file and --merge-file) "
            f"as the training does, or --tokenizer-identifiers: {HOW_TO_PRINT}"
        )
    kind = kind or manifest_type(prefixes)
    if kind is None:
        raise SpecError("no manifest says which --tokenizer-type the prefixes are of; name the training's")
    return derive_identifiers(profile, kind, model, (vocab, merges) if vocab and merges else None)
