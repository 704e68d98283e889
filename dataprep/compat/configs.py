"""What Megatron, through transformers, takes from the files beside a ``tokenizer.json``, and dataprep does not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.definitions import HINTS, define
from dataprep.errors import SpecError

if TYPE_CHECKING:
    from dataprep.compat.flags import Asked
    from dataprep.specs import TokenizerIdentity

log = logging.getLogger(__name__)


def check(asked: Asked, identity: TokenizerIdentity) -> None:
    """Make sure that Megatron would make of the tokenizer's files what we make of them.

    transformers follows the files beside a ``tokenizer.json``, too: what it adds of them, Megatron has.

    Raises:
        SpecError: it would not.
    """
    if not asked.policy.startswith("megatron") or identity.type != "HuggingFaceTokenizer":
        return
    again = "load it with transformers, save it (save_pretrained), and give that folder"
    if identity.adds_eod and asked.include_specials and asked.policy != "megatron-fast":
        raise SpecError(
            f"{identity.path}: this tokenizer puts {identity.eod_text} behind every text itself, which Megatron writes "
            "beside that of --append-eod and dataprep does not; give --tokenizer-hf-no-include-special-tokens"
        )
    missing = _named_beside(identity)
    if identity.vocab_size < 65500 <= identity.vocab_size + len(missing):
        raise SpecError(f"{identity.path}: with {', '.join(missing[:5])} of its config Megatron takes int32; {again}")
    if missing:
        log.warning(
            "%s: %s stand in its config and not in its tokenizer.json: where a text holds one, Megatron has an id for "
            "it and dataprep has not; if that matters, %s",
            identity.path,
            ", ".join(missing[:5]),
            again,
        )


def _named_beside(identity: TokenizerIdentity) -> list[str]:
    """Tokens that the files beside a ``tokenizer.json`` name, and it does not have."""
    definition = define(identity.type, Path(identity.path), identity.merges)
    folder = definition.path if definition.path.is_dir() else definition.path.parent
    names: set[str] = set()
    for name in (*HINTS, "added_tokens.json"):
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # not there; `define` has said what is wrong with those it needs
        if not isinstance(config, dict):
            continue
        values = [config[key] for key in config if key.endswith("_token")]
        values += config.get("additional_special_tokens") or []
        values += list((config.get("added_tokens_decoder") or {}).values())
        names |= set(config) if name == "added_tokens.json" else set()
        names |= {text for value in values if isinstance(text := _content(value), str) and text}
    return sorted(name for name in names if definition.token_id(name) is None)


def _content(value: Any) -> Any:
    """The text of a token, which configs state bare or as an object."""
    return value.get("content") if isinstance(value, dict) else value
