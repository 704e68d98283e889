"""Which tokenizer a training uses, and where the trainer finds it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import SourceError, SpecError
from dataprep.manifest import readable_manifest
from dataprep.specs import TokenizerIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.train.job import Part
    from dataprep.train.presets import Shape


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as the trainer is told of it.

    Attributes:
        identity: what it is; None where that is not known here, or there is none, with mock data.
        type: Megatron's name of its type; ``NullTokenizer``: there is none.
        path: where the trainer finds it: a folder, a file, or a name on the hub; empty: nowhere.
        size: of the vocabulary, without padding.
        warnings: what should be known of it.
    """

    identity: TokenizerIdentity | None
    type: str
    path: str
    size: int
    warnings: tuple[str, ...] = ()


def find_vocabulary(parts: Sequence[Part], named: str | None, type_: str | None, shape: Shape) -> Vocabulary:
    """The tokenizer of a training: the one that is named, or the one that its data were made with.

    Args:
        parts: the data.
        named: ``--tokenizer``, or TOKENIZER_MODEL.
        type_: ``TOKENIZER_TYPE``.
        shape: of the model, whose published vocabulary is taken where nothing is known.

    Raises:
        SpecError: the data were made with several tokenizers, or there is none of that name.
    """
    made_with = _of_data(parts)
    if named is not None:
        return _named(named, type_, made_with, shape)
    if made_with is not None:
        path, size, warnings = _place(made_with)
        if type_ not in (None, made_with.type):
            warnings += (f"TOKENIZER_TYPE={type_} does nothing: the data were made with a {made_with.type}",)
        return Vocabulary(made_with, made_with.type, path, size, warnings)
    if parts:
        raise SpecError(
            f"{parts[0].prefix} has no manifest that says which tokenizer it was made with; name it: --tokenizer T"
        )
    return Vocabulary(None, "NullTokenizer", "", shape.vocab_size)


def _of_data(parts: Sequence[Part]) -> TokenizerIdentity | None:
    """The one tokenizer of all manifests; None if none says."""
    known: dict[str, TokenizerIdentity] = {}
    for part in parts:
        manifest, _ = readable_manifest(Path(part.prefix))
        if manifest is not None and manifest.tokenizer is not None:
            known[part.prefix] = manifest.tokenizer
    first = next(iter(known.values()), None)
    for prefix, other in known.items():
        if first is not None and other.identity != first.identity:
            raise SpecError(
                f"{next(iter(known))} was made with {first.name}, and {prefix} with {other.name}: one model cannot "
                "train on both, since the same id means two things"
            )
    return first


def _named(named: str, type_: str | None, made_with: TokenizerIdentity | None, shape: Shape) -> Vocabulary:
    from dataprep.catalog import find_tokenizer
    from dataprep.definitions import identify

    try:
        spec, path = find_tokenizer(named, {"type": type_} if type_ else {})
        identity = identify(spec, path)
    except SourceError as error:
        size = made_with.vocab_size if made_with else shape.vocab_size
        what = f"the vocabulary is taken to have {size} entries, and nothing of it was compared with the data's"
        return Vocabulary(
            None, type_ or "HuggingFaceTokenizer", named, size, (f"--tokenizer {named}: {error}; {what}",)
        )
    place, size, *rest = _place(identity)
    return Vocabulary(identity, identity.type, place, size, *rest)


def _place(identity: TokenizerIdentity) -> tuple[str, int, tuple[str, ...]]:
    """Where the trainer finds it, its size, and warnings."""
    path = Path(identity.path)
    warnings: tuple[str, ...] = ()
    if not path.exists() and identity.origin:
        name, _, revision = identity.origin.removeprefix("hf://").partition("@")
        text = f"{identity.path} is not here: the trainer is given {name}, of which it takes the newest, not {revision}"
        return name, identity.vocab_size, (text,)
    if identity.type == "HuggingFaceTokenizer" and path.is_file():
        path = path.parent
    if identity.type == "HuggingFaceTokenizer" and not (path / "tokenizer_config.json").is_file():
        text = "transformers' AutoTokenizer, and so Megatron, may not open a folder without it, or another EOD"
        warnings = (f"{path} has no tokenizer_config.json: {text}",)
    return os.path.abspath(path), identity.vocab_size, warnings
