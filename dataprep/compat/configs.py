"""What Megatron, through transformers, takes from the files beside a ``tokenizer.json``, and dataprep does not.

Read and run: transformers 4.57.6 and 5.23, and Megatron-LM d98e8a64, whose wrapper adds EOS and BOS again as
``sep_token`` and ``cls_token``: as plain strings, so without what their entries say of the text around them.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.definitions import HINTS, define
from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.compat.flags import Asked
    from dataprep.definitions import Definition
    from dataprep.specs import TokenizerIdentity

log = logging.getLogger(__name__)

Files = dict[str, dict[str, Any]]

PLAIN_TEXT = "policy.special_text=plain"

AGAIN = "load it with transformers, save it (save_pretrained), and give that folder"

AS_THEY_ARE = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that take a ``tokenizer.json`` as it is; the others build some of it anew."""

FLAGS = ("lstrip", "rstrip", "single_word", "normalized")

OTHER = {"eos_token": "sep_token", "bos_token": "cls_token"}
"""What a token is added again as, unless the tokenizer has one."""


def check(asked: Asked, identity: TokenizerIdentity) -> None:
    """Make sure that Megatron would make of the tokenizer's files what we make of them.

    transformers follows the files beside a ``tokenizer.json``, too: what it adds of them, Megatron has.

    Raises:
        SpecError: it would not.
    """
    if not asked.policy.startswith("megatron") or identity.type != "HuggingFaceTokenizer":
        return
    if identity.adds_eod and asked.include_specials and asked.policy != "megatron-fast":
        raise SpecError(
            f"{identity.path}: this tokenizer puts {identity.eod_text} behind every text itself, which Megatron writes "
            "beside that of --append-eod and dataprep does not; give --tokenizer-hf-no-include-special-tokens"
        )
    definition = define(identity.type, Path(identity.path), identity.merges)
    folder = definition.path if definition.path.is_dir() else definition.path.parent
    files = _files(folder)
    config = files.get("tokenizer_config.json", {})
    if config.get("split_special_tokens") and PLAIN_TEXT not in asked.settings:
        raise SpecError(
            f"{folder / 'tokenizer_config.json'}: split_special_tokens is set: with it Megatron encodes special tokens "
            f"in a text as the text they are; give --set {PLAIN_TEXT}, which does the same"
        )
    _check_space(definition, config, folder)
    _check_flags(definition, files, folder, readded=asked.policy != "megatron-0.14")
    _check_names(identity, definition, _named(files), folder)


def _files(folder: Path) -> Files:
    """The files beside a ``tokenizer.json`` that transformers follows, as far as they are there."""
    files: Files = {}
    for name in (*HINTS, "added_tokens.json"):
        try:
            value = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # not there; `define` has said what is wrong with those it needs
        if isinstance(value, dict):
            files[name] = value
        if isinstance(value, dict) and name == HINTS[0] and "added_tokens_decoder" in value:
            break  # it stands for the other files
    return files


def _check_space(definition: Definition, config: dict[str, Any], folder: Path) -> None:
    """``add_prefix_space``: a space in front of every text.

    transformers 4 follows it where ByteLevel is the whole pre_tokenizer, as if it said false where it is not there;
    transformers 5 in the classes that build their own pre_tokenizer. Null changes nothing. A class is named here, or
    the model's config.json stands for one; without either transformers 4 opens nothing, and 5 what is there.
    """
    if "tokenizer_class" not in config and not (folder / "config.json").is_file():
        return
    whole = (definition.config.get("pre_tokenizer") or {}).get("type") == "ByteLevel"
    built = config.get("tokenizer_class") not in AS_THEY_ARE
    stated = config.get("add_prefix_space", False if whole else None)
    found = any(_puts_space(part) for key in ("normalizer", "pre_tokenizer") for part in _parts(definition.config, key))
    if (whole or built) and stated is not None and bool(stated) != found:
        raise SpecError(
            f"{folder / 'tokenizer_config.json'}: add_prefix_space is {str(bool(stated)).lower()}"
            f"{'' if 'add_prefix_space' in config else ', since it is not there'}, and tokenizer.json "
            f"{'puts a' if found else 'puts no'} space in front of a text. dataprep follows the latter, and Megatron "
            "either, by the version of transformers; make both say the same"
        )


def _parts(config: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """A normalizer or pre-tokenizer, or those of a sequence one by one."""
    open_ = [config.get(key)]
    while open_:
        part = open_.pop()
        if isinstance(part, dict):
            if part.get("type") != "Sequence":
                yield part
            open_ += [*_listed(part.get("normalizers")), *_listed(part.get("pretokenizers"))]


def _puts_space(part: dict[str, Any]) -> bool:
    schemes = ("first", "always")
    return part.get("type") == "Prepend" or part.get("prepend_scheme") in schemes or bool(part.get("add_prefix_space"))


def _check_flags(definition: Definition, files: Files, folder: Path, readded: bool) -> None:
    """What added tokens say of the text around them.

    Args:
        readded: EOS and BOS are added again, without.
    """
    stated = {_content(token): token for token in _stated(files)}
    plain = {name for key, name in definition.names.items() if readded and not _has(files, OTHER.get(key, key))}
    doubtful = []
    for token in definition.config.get("added_tokens") or ():
        text = token["content"]
        there = {"special": True} if text in plain else stated.get(text, token)
        for name in FLAGS:
            ours, theirs = _flag(token, name), _flag(there, name)
            if ours == theirs:
                continue
            if name == "normalized":
                doubtful.append(text)
                continue
            raise SpecError(
                f"{folder / 'tokenizer.json'}: the added token {text} has {name} {str(ours).lower()}; Megatron, "
                f"{'which adds it again' if text in plain else 'by ' + ' and '.join(files)}, has "
                f"{str(theirs).lower()}. Write that into the tokenizer.json"
            )
    if doubtful and any(_parts(definition.config, "normalizer")):
        log.warning(
            "%s: %s: the files beside it, or Megatron itself, which adds EOS and BOS again, make another choice of "
            "normalized; transformers 4 does not follow that choice, and 5 does. It matters where a text holds one",
            folder / "tokenizer.json",
            ", ".join(doubtful[:5]),
        )


def _has(files: Files, key: str) -> bool:
    return any(bool(file.get(key)) for file in files.values())


def _stated(files: Files) -> list[dict[str, Any]]:
    """What the files say of tokens, whatever ``tokenizer.json`` says of them."""
    if "added_tokens_decoder" in (config := files.get(HINTS[0], {})):
        values = _listed(config["added_tokens_decoder"])
    else:
        named = _listed(files.get(HINTS[1], {}).get("additional_special_tokens"))
        values = [{**value, "special": True} for value in named if isinstance(value, dict)]
    return [value for value in values if isinstance(value, dict)]


def _flag(token: dict[str, Any], name: str) -> bool:
    """As the library takes it where it is not there: special tokens are looked for before the text is normalized."""
    return bool(token.get(name, name == "normalized" and not token.get("special")))


def _check_names(identity: TokenizerIdentity, definition: Definition, names: list[str], folder: Path) -> None:
    """Tokens that the files beside a ``tokenizer.json`` name, and how many ids there are with them."""
    vocab = definition.config["model"]["vocab"]
    entries = set(vocab) if isinstance(vocab, dict) else {str(entry[0]) for entry in vocab}
    ordinary = [name for name in names if name in entries and name not in definition.added]
    if ordinary:
        raise SpecError(
            f"{folder / 'tokenizer.json'}: {', '.join(ordinary[:5])} of its config are ordinary entries of its "
            f"vocabulary, of which Megatron makes tokens that every text is cut at; {AGAIN}"
        )
    entries |= set(definition.added)
    missing = [name for name in names if name not in entries]
    count = len(entries) + len(missing)
    if identity.vocab_size < 65500 <= count:
        raise SpecError(f"{identity.path}: with {', '.join(missing[:5])} of its config Megatron takes int32; {AGAIN}")
    if count < 65500 <= identity.vocab_size:
        log.warning(
            "%s: it has %d tokens, and ids up to %d. Megatron goes by the former and takes uint16, which cannot hold "
            "ids above 65535; dataprep writes the same ids as int32",
            identity.path,
            count,
            identity.vocab_size - 1,
        )
    if missing:
        log.warning(
            "%s: %s stand in its config and not in its tokenizer.json: where a text holds one, Megatron has an id for "
            "it and dataprep has not; if that matters, %s",
            identity.path,
            ", ".join(missing[:5]),
            AGAIN,
        )


def _named(files: Files) -> list[str]:
    """The tokens that the files name."""
    values: list[Any] = list(files.get("added_tokens.json", {}))
    for name in HINTS:
        file = files.get(name, {})
        values += [file[key] for key in file if key.endswith("_token")]
        for key in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
            values += _listed(file.get(key))
    return sorted({text for value in values if isinstance(text := _content(value), str) and text})


def _listed(value: Any) -> list[Any]:
    """The values of a list or an object; none of anything else."""
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _content(value: Any) -> Any:
    """The text of a token, which configs state bare or as an object."""
    return value.get("content") if isinstance(value, dict) else value
