"""Megatron's `tools/preprocess_data.py`: its flags, as NVIDIA, ROCm and Megatron-DeepSpeed spell them.

Flags that cannot change the bytes are taken and ignored, with a note. Those that could, and that we do not follow,
are refused; unknown ones as well, with what is near them.

Source: Megatron-LM core_r0.8.0 to d98e8a64 (tools/preprocess_data.py, megatron/training/config/training_config.py),
ROCm/Megatron-LM rocm_dev, Megatron-DeepSpeed f4157bea.
"""

from __future__ import annotations

import argparse
import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dataprep.compat.policies import CONVENTIONS
from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.specs import TokenizerType

TYPES: dict[str, TokenizerType] = {
    "HuggingFaceTokenizer": "HuggingFaceTokenizer",
    "HFTokenizer": "HuggingFaceTokenizer",  # Megatron-DeepSpeed
    "DeepSeekV2Tokenizer": "HuggingFaceTokenizer",  # ROCm
    "DeepSeekV3Tokenizer": "HuggingFaceTokenizer",
    "GPT2BPETokenizer": "GPT2BPETokenizer",
    "Llama2Tokenizer": "Llama2Tokenizer",
    "GPTSentencePieceTokenizer": "Llama2Tokenizer",
    "SentencePieceTokenizer": "Llama2Tokenizer",
}
"""Megatron's names -> ours. `GPTSentencePieceTokenizer` is the one that never adds a BOS."""

IGNORED: dict[str, tuple[str | int | None, str]] = {
    "--log-interval": (None, "progress is shown by the second"),
    "--find-optimal-num-workers": (0, "one for each processor; nothing is to be found"),
    "--workers-to-check": ("+", "one for each processor; nothing is to be found"),
    "--max-documents": (None, "it belongs to --find-optimal-num-workers"),
    "--vocab-size": (None, "the tokenizer's files say it"),
    "--padded-vocab-size": (None, "a matter of the model, not of the tokens"),
    "--pad-vocab-size": (0, "a matter of the model, not of the tokens"),
    "--no-pad-vocab-size": (0, "a matter of the model, not of the tokens"),
    "--make-vocab-size-divisible-by": (None, "a matter of the model, not of the tokens"),
    "--vocab-extra-ids": (None, "a matter of the model, not of the tokens"),
    "--tensor-model-parallel-size": (None, "a matter of the model, not of the tokens"),
    "--seq-length": (None, "documents are never cut"),
    "--chat-template": (None, "texts are no conversations"),
    "--trust-remote-code": (0, "no code of a repository is ever run"),
    "--use-gigatoken": (0, "it is the engine anyway, held to the reference"),
    "--tokenizer-sentencepiece-ignore-extra-whitespaces": (0, "as the model does"),
    "--tiktoken-pattern": (None, "it belongs to TikTokenizer"),
    "--tiktoken-num-special-tokens": (None, "it belongs to TikTokenizer"),
    "--null-tokenizer-eod-id": (None, "it belongs to NullTokenizer"),
    "--null-tokenizer-pad-id": (None, "it belongs to NullTokenizer"),
}
"""Flag -> how many values follow it (None: one, 0: none), and why it changes nothing."""

REFUSED: dict[str, tuple[str | int | None, str]] = {
    "--tokenizer-hf-no-use-fast": (
        0,
        "ids are those of the tokenizer.json, as the fast tokenizer gives them; leave it out",
    ),
    "--tokenizer-special-tokens": ("+", "save a tokenizer that has them, and give its folder with --tokenizer-model"),
    "--tiktoken-special-tokens": ("+", "save a tokenizer that has them, and give its folder with --tokenizer-model"),
    "--special-tokens": ("+", "save a tokenizer that has them, and give its folder with --tokenizer-model"),
    "--tokenizer-metadata": (None, "the tokenizer's own files say what it is; leave it out"),
    "--tokenizer-sentencepiece-legacy": (0, "it is for special tokens beside the model's; leave it out"),
    "--no-tokenizer-sentencepiece-ignore-extra-whitespaces": (0, "it changes the texts; leave it out"),
    "--patch-tokenizer-type": (None, "it belongs to another script; give --tokenizer-type and --tokenizer-model"),
    "--load": (None, "it belongs to another script; give --tokenizer-type and --tokenizer-model"),
    "--extra-vocab-size": (None, "it belongs to another script; leave it out"),
}
"""Flag -> how many values follow it, and what to do instead."""

_FOLDER = "give the folder of its tokenizer.json as a HuggingFaceTokenizer"
REFUSED_TYPES = {
    "BertWordPieceLowerCase": _FOLDER,
    "BertWordPieceCase": _FOLDER,
    "Llama3Tokenizer": _FOLDER,
    "MistralTokenizer": _FOLDER,
    "TikTokenizer": _FOLDER,
    "SFTTokenizer": "it is for conversations, not for texts",
    "MultimodalTokenizer": "it is for images, not for texts",
    "NullMultimodalTokenizer": "it is for images, not for texts",
    "NullTokenizer": "its texts are numbers; there is nothing to tokenize",
}
"""Megatron's other types -> what to do instead."""

OWN_SETTINGS = {
    "reader.text": "--json-keys",
    "reader.format": "--input, which is JSON lines",
    "tokenizer.type": "--tokenizer-type",
    "tokenizer.merges": "--merge-file",
    "policy.eod": "--append-eod",
    "runtime.workers": "--workers",
    "output.max_prefix_bytes": "`dataprep run`, which makes several pairs",
    "output.merge": "`dataprep run`, which makes several pairs",
}
"""What ``--set`` could say as well as a flag does, or another command."""


@dataclass(frozen=True)
class Asked:
    """What a command line asks for.

    Attributes:
        inputs: paths and globs.
        keys: fields of the JSON lines; each becomes a pair.
        prefix: of the output, without key and level.
        named_type: Megatron's name of the tokenizer's type.
        model: file, folder or repository of the tokenizer; None with `vocab_file` and `merge_file`.
        include_specials: False: no BOS from a HuggingFaceTokenizer.
        lang: language of the sentences; None: they are not cut.
        keep_newlines: between sentences.
        partitions: how many files Megatron would deal the lines out to, one by one, before it puts those together
            again; 1 where the order of the lines stays.
        policy: name in `CONVENTIONS`.
        settings: our own, as for ``--set``.
        notes: what was ignored, and why.
    """

    inputs: tuple[str, ...]
    keys: tuple[str, ...]
    prefix: str
    named_type: str
    model: str | None
    vocab_file: str | None
    merge_file: str | None
    include_specials: bool
    append_eod: bool
    lang: str | None
    keep_newlines: bool
    workers: int | None
    partitions: int
    policy: str
    settings: tuple[str, ...]
    as_json: bool
    notes: tuple[str, ...]

    @property
    def type(self) -> TokenizerType:
        return TYPES[self.named_type]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SpecError(f"preprocess: {message}; `dataprep preprocess --help` lists what there is")


def parser() -> argparse.ArgumentParser:
    """The parser; its help is the command's."""
    found = _Parser(
        prog="dataprep preprocess",
        description="The flags of Megatron's tools/preprocess_data.py, and its bytes: "
        "{prefix}_{key}_{document|sentence}.bin and .idx. Interrupted, the same command goes on where it was.",
        epilog="Example: dataprep preprocess --input corpus.jsonl --output-prefix my-gpt2 --tokenizer-type "
        "GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --append-eod --workers 8",
    )
    group = found.add_argument_group("input")
    group.add_argument("--input", nargs="+", required=True, metavar="PATH", help="JSON lines, plain or compressed")
    group.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="each becomes a pair")
    group.add_argument("--split-sentences", action="store_true", help="a sequence for each sentence (needs nltk)")
    group.add_argument("--keep-newlines", action="store_true", help="keep those between sentences")
    group.add_argument("--lang", default="english", help="language of nltk's punkt model")
    group = found.add_argument_group("tokenizer")
    group.add_argument("--tokenizer-type", required=True, metavar="TYPE", help=", ".join(TYPES))
    group.add_argument("--tokenizer-model", metavar="PLACE", help="a file, a folder, or org/name on the hub")
    group.add_argument("--vocab-file", metavar="FILE", help="of a GPT2BPETokenizer")
    group.add_argument("--merge-file", metavar="FILE", help="of a GPT2BPETokenizer")
    group.add_argument("--tokenizer-hf-no-include-special-tokens", action="store_true", help="no BOS")
    group.add_argument("--legacy-tokenizer", action="store_true", help="the same as --policy megatron-0.14")
    group = found.add_argument_group("output")
    group.add_argument("--output-prefix", required=True, metavar="PREFIX", help="path without _{key}_{level}")
    group.add_argument("--append-eod", action="store_true", help="end every document with an EOD")
    group.add_argument("--policy", choices=list(CONVENTIONS), help="whose conventions; default: megatron")
    group.add_argument("--dataset-impl", default="mmap", choices=["mmap"], help="the format; there is one")
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, as for run")
    group.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    group = found.add_argument_group("work")
    group.add_argument("--workers", type=_positive, help="at most as many as there are processors; the default")
    group.add_argument("--partitions", type=_positive, default=1, help="deal the lines out as Megatron does")
    group.add_argument("--keep-sequential-samples", action="store_true", help="... and keep their order")
    for flags in (IGNORED, REFUSED):
        for flag, (count, _) in flags.items():
            kind: dict[str, Any] = {"action": "store_true"} if count == 0 else {"nargs": count}
            found.add_argument(flag, help=argparse.SUPPRESS, **kind)
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number, at least 1, found {text!r}")
    return int(text)


def parse(arguments: Sequence[str]) -> Asked:
    """Read a command line.

    Raises:
        SpecError: a flag is unknown, refused, missing or without its value.
    """
    reader = parser()
    found, unknown = reader.parse_known_args(arguments)
    for argument in unknown:
        known = [option for action in reader._actions for option in action.option_strings]
        near = difflib.get_close_matches(argument.partition("=")[0], known, 3, 0.6)
        reader.error(f"unknown: {argument}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    values = vars(found)
    for flag, (_, instead) in REFUSED.items():
        if values[_name(flag)]:
            reader.error(f"{flag} is not followed: {instead}")
    notes = [f"{flag} is ignored: {why}" for flag, (_, why) in IGNORED.items() if values[_name(flag)]]
    _check_type(reader, found.tokenizer_type)
    _check_given(reader, found)
    if found.legacy_tokenizer and found.policy not in (None, "megatron-0.14"):
        reader.error(f"--legacy-tokenizer is megatron-0.14, and --policy says {found.policy}; give one of them")
    policy = "megatron-0.14" if found.legacy_tokenizer else found.policy or "megatron"
    _check_tokenizer(reader, found, policy)
    if found.keep_newlines and not found.split_sentences:
        notes.append("--keep-newlines is ignored: sentences are not split")
    return Asked(
        inputs=tuple(found.input),
        keys=tuple(dict.fromkeys(found.json_keys)),
        prefix=found.output_prefix,
        named_type=found.tokenizer_type,
        model=found.tokenizer_model,
        vocab_file=found.vocab_file,
        merge_file=found.merge_file,
        include_specials=not found.tokenizer_hf_no_include_special_tokens,
        append_eod=found.append_eod,
        lang=found.lang if found.split_sentences else None,
        keep_newlines=found.keep_newlines,
        workers=found.workers,
        partitions=1 if found.keep_sequential_samples else found.partitions,
        policy=policy,
        settings=tuple(found.set),
        as_json=found.json,
        notes=tuple(notes),
    )


def _check_type(reader: argparse.ArgumentParser, name: str) -> None:
    if name in REFUSED_TYPES:
        reader.error(f"--tokenizer-type {name} is not followed: {REFUSED_TYPES[name]}")
    if name not in TYPES:
        near = difflib.get_close_matches(name, TYPES, 2, 0.6)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        reader.error(f"--tokenizer-type {name}: expected one of {', '.join(TYPES)}{hint}")


def _check_given(reader: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Make sure that no value is empty, and nothing is said twice."""
    for flag in ("--input", "--output-prefix", "--tokenizer-model", "--vocab-file", "--merge-file"):
        value = getattr(found, _name(flag))
        if "" in (value if isinstance(value, list) else [value]):
            reader.error(f"{flag} is empty: perhaps a variable that is not set")
    for setting in found.set:
        if (key := setting.partition("=")[0]) in OWN_SETTINGS:
            reader.error(f"--set {key}: use {OWN_SETTINGS[key]}")


def _check_tokenizer(reader: argparse.ArgumentParser, found: argparse.Namespace, policy: str) -> None:
    """Make sure that the tokenizer is named, once, and known to the version asked for."""
    if TYPES[found.tokenizer_type] == "GPT2BPETokenizer" and not found.tokenizer_model:
        if not (found.vocab_file and found.merge_file):
            reader.error("a GPT2BPETokenizer needs --vocab-file and --merge-file")
    elif found.vocab_file or found.merge_file:
        reader.error("--vocab-file and --merge-file are of a GPT2BPETokenizer, and exclude --tokenizer-model")
    elif not found.tokenizer_model:
        reader.error(f"a {found.tokenizer_type} needs --tokenizer-model")
    for flag in ("--vocab-file", "--merge-file"):
        path = getattr(found, _name(flag))
        if path is not None and not os.path.exists(path):
            reader.error(f"{flag}: no such file: {os.path.abspath(path)}")
    if found.tokenizer_type == "SentencePieceTokenizer" and policy == "megatron-0.14":
        reader.error("a SentencePieceTokenizer of those versions adds tokens of its own; use GPTSentencePieceTokenizer")


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
