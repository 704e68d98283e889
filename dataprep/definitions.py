"""What a tokenizer is: its files, its special tokens, its BOS and EOD, found without opening an engine.

    Definition  the files of one tokenizer, read once, and the ``tokenizer.json`` they amount to
    identify    TokenizerSpec + place -> TokenizerIdentity: sha256 of the files, vocabulary size, BOS, EOD

Nothing is guessed: a token that the tokenizer's own files do not name has to be named by the user.
Encoding is in `encoders`.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from dataprep.errors import SpecError
from dataprep.specs import TokenizerIdentity, TokenizerSpec, TokenizerType
from dataprep.storage import read_whole

SpecialText = Literal["encode", "plain", "reject"]

FILES: dict[TokenizerType, tuple[str, ...]] = {
    "HuggingFaceTokenizer": ("tokenizer.json",),
    "Llama2Tokenizer": ("tokenizer.model",),
    "GPT2BPETokenizer": ("vocab.json", "merges.txt"),
}
"""The files that hold a tokenizer of each type, in the order a folder is searched for them."""

HINTS = ("tokenizer_config.json", "special_tokens_map.json")
"""Files beside a ``tokenizer.json`` that name its BOS and EOS. Read for the names only: not part of the identity."""


@dataclass(frozen=True)
class Definition:
    """The content of one tokenizer's files, and what it amounts to.

    Truncation and padding in a ``tokenizer.json`` are never obeyed: they would cut documents in silence.

    Attributes:
        type: Megatron's name.
        path: the file or folder it was read from.
        contents: file name -> bytes.
        names: what the files beside it call ``bos_token`` and ``eos_token``, and ``add_bos_token``: true, or false.
    """

    type: TokenizerType
    path: Path
    contents: dict[str, bytes]
    names: dict[str, str]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The ``tokenizer.json`` as plain values.

        Raises:
            SpecError: not a tokenizer, or one the engine's format cannot express.
        """
        try:
            return self._config()
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(f"{self.path} is not a {self.type}: {error}") from error

    def _config(self) -> dict[str, Any]:
        import orjson

        if self.type == "HuggingFaceTokenizer":
            return _checked(orjson.loads(self.contents["tokenizer.json"]))
        if self.type == "GPT2BPETokenizer":
            return _checked(
                _gpt2_config(orjson.loads(self.contents["vocab.json"]), self.contents["merges.txt"].decode())
            )
        # Literal <s> and </s> stay text, as in SentencePiece: no added tokens. gigatoken's conversion sorts merges by
        # (score, len(left), len(right)), which makes runs of spaces (score -1e9) come last; transformers 5 does not.
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

        config = orjson.loads(sentencepiece_to_tokenizer_json(self.contents["tokenizer.model"]))
        if not all(token["special"] for token in config["added_tokens"]):
            raise ValueError("gigatoken does not know user-defined symbols")
        return {**config, "added_tokens": []}

    @cached_property
    def sentencepiece(self) -> Any:
        """The SentencePiece processor of a ``tokenizer.model``.

        Raises:
            SpecError: the file is none.
        """
        import sentencepiece

        try:
            model = sentencepiece.SentencePieceProcessor(model_proto=self.contents["tokenizer.model"])
            if self.contents["tokenizer.model"] and model.get_piece_size():  # an empty file loads as a model of nothing
                return model
        except RuntimeError:
            pass
        raise SpecError(f"{self.path} is not a SentencePiece model")

    @cached_property
    def specials(self) -> dict[str, int]:
        """Special token's text -> id: what must not appear inside a document by accident."""
        if self.type == "Llama2Tokenizer":
            model = self.sentencepiece
            return {
                model.id_to_piece(i): i
                for i in range(model.get_piece_size())
                if model.is_control(i) or model.is_unknown(i)
            }
        return {t["content"]: t["id"] for t in self.config.get("added_tokens") or () if t.get("special")}

    @property
    def added(self) -> dict[str, int]:
        """Added token's text -> id, special or not; a SentencePiece model has none."""
        return {token["content"]: token["id"] for token in self.config.get("added_tokens") or ()}

    def encodes_specials(self, special_text: SpecialText) -> bool:
        """Whether a literal special string inside a document becomes its special id."""
        return special_text != "plain" and self.type != "Llama2Tokenizer"

    def text(self, special_text: SpecialText) -> str:
        """The ``tokenizer.json`` to open, under this policy for special strings."""
        import orjson

        original = self.contents.get("tokenizer.json")
        if original is not None and special_text != "plain" and not self._cuts:
            return original.decode()  # 0.3 s of a large vocabulary saved
        config = {**self.config, "truncation": None, "padding": None}
        if special_text == "plain":
            config["added_tokens"] = [token for token in config.get("added_tokens") or () if not token.get("special")]
        return orjson.dumps(config).decode()

    @property
    def _cuts(self) -> bool:
        return bool(self.config.get("truncation") or self.config.get("padding"))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        if self.type == "Llama2Tokenizer":
            return int(self.sentencepiece.get_piece_size())
        vocab = self.config["model"].get("vocab")
        largest = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab or ()) - 1
        return 1 + max([largest, *self.added.values()])

    def token_id(self, text: str) -> int | None:
        """The id of a token given by its text."""
        if self.type == "Llama2Tokenizer":
            found = int(self.sentencepiece.piece_to_id(text))
            return found if self.sentencepiece.id_to_piece(found) == text else None
        if text in self.specials:
            return self.specials[text]
        if text in self.added:
            return self.added[text]
        vocab = self.config["model"].get("vocab")
        return vocab.get(text) if isinstance(vocab, dict) else None


def _checked(config: Any) -> dict[str, Any]:
    """The same ``tokenizer.json``, if what is read of it here has the right shape; the library checks the rest."""
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise ValueError("expected an object with the key 'model'")
    vocab = config["model"].get("vocab")
    if isinstance(vocab, dict):
        if not all(type(number) is int for number in vocab.values()):
            raise ValueError("expected a vocabulary of whole numbers")
    elif not isinstance(vocab, list):
        raise ValueError("expected model.vocab to be an object or a list")
    if not vocab:
        raise ValueError("its vocabulary is empty")
    added = config.get("added_tokens")
    if added is not None and not isinstance(added, list):
        raise ValueError("expected added_tokens to be a list")
    for token in added or ():
        if not (isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int):
            raise ValueError(f"expected an added token with content and id, found {str(token)[:80]}")
    return config


def _gpt2_config(vocab: Any, merges: str) -> dict[str, Any]:
    """The ``tokenizer.json`` of a byte-level BPE in GPT-2's two files, as transformers' GPT2Tokenizer builds it."""
    if not isinstance(vocab, dict):
        raise ValueError("expected vocab.json to be an object")
    lines = merges.split("\n")
    if lines and lines[0].startswith("#version"):
        lines = lines[1:]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = "<|endoftext|>"
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocab[end], "content": end, **flags}] if end in vocab else [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [line for line in (line.rstrip("\r") for line in lines) if line],
        },
    }


def define(type_: TokenizerType, path: Path, merges: str | None = None) -> Definition:
    """Read the files of a tokenizer; again only once one of them has changed.

    Args:
        type_: Megatron's name.
        path: the folder that holds them, or one of them.
        merges: the second file of a GPT2BPETokenizer, where `path` is the first and neither has its usual name.

    Raises:
        SpecError: a file is missing or unreadable.
    """
    folder = path if path.is_dir() else path.parent
    names = FILES[type_]
    files = [path] if len(names) == 1 and not path.is_dir() else [folder / name for name in names]
    files = [path, Path(merges)] if merges is not None else files
    hints = [folder / hint for hint in HINTS if type_ == "HuggingFaceTokenizer" and (folder / hint).is_file()]
    try:
        stamps = tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in map(Path.stat, [*files, *hints]))
        return _define(type_, path, tuple(files), tuple(hints), stamps)
    except OSError as error:
        raise SpecError(f"cannot read the {type_} at {path}: {error}; it needs {' and '.join(names)}") from error


@lru_cache(maxsize=2)
def _define(
    type_: TokenizerType,
    path: Path,
    files: tuple[Path, ...],
    hints: tuple[Path, ...],
    stamps: tuple[tuple[int, ...], ...],
) -> Definition:
    contents = {name: read_whole(file) for name, file in zip(FILES[type_], files, strict=True)}
    named: dict[str, str] = {}
    for hint in hints:
        try:
            named = _named_tokens(json.loads(read_whole(hint))) | named
        except ValueError as error:
            raise SpecError(f"{hint} is not JSON that names tokens: {error}; mend it, or move it away") from error
    return Definition(type_, path, contents, named)


def _named_tokens(config: Any) -> dict[str, str]:
    if not isinstance(config, dict):
        raise ValueError("expected an object")
    result = {}
    for key in ("bos_token", "eos_token"):
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            result[key] = text
    if isinstance(config.get("add_bos_token"), bool):
        result["add_bos_token"] = str(config["add_bos_token"]).lower()
    return result


def identify(spec: TokenizerSpec, path: Path) -> TokenizerIdentity:
    """Resolve a tokenizer: hash its files, find its size, its BOS and its EOD.

    Args:
        spec: what the user asked for.
        path: where its files are.

    Raises:
        SpecError: not a tokenizer of this type, or the EOD it names does not exist.
    """
    definition = define(spec.type, path, spec.merges)
    bos_text, eod_text = definition.names.get("bos_token"), spec.eod or definition.names.get("eos_token")
    adds_bos = adds_eod = False
    if spec.type == "Llama2Tokenizer":
        # Meta's own code and Megatron-core up to 0.14 add BOS; core 0.15 and later do not.
        model, adds_bos = definition.sentencepiece, True
        bos_text = model.id_to_piece(model.bos_id()) if model.bos_id() >= 0 else None
        eod_text = spec.eod or (model.id_to_piece(model.eos_id()) if model.eos_id() >= 0 else None)
        adds_bos = bos_text is not None
    elif spec.type == "GPT2BPETokenizer":
        bos_text = "<|endoftext|>" if "<|endoftext|>" in definition.specials else None
        eod_text = spec.eod or bos_text
    else:
        processor = definition.config.get("post_processor")
        try:
            before, after = _added_around(processor)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"{path} is not a {spec.type}: its post_processor is damaged: {error!r}") from error
        if len(before) > 1 or len(after) > 1 or any(text != eod_text for text in after):
            raise SpecError(
                f"{path}: this tokenizer puts {before + after} around a text; dataprep writes at most a BOS and an EOD"
            )
        adds_eod = bool(after)
        if before:
            adds_bos, bos_text = True, before[0]
    ids = {text: definition.token_id(text) for text in (bos_text, eod_text) if text is not None}
    if not adds_bos and bos_text is not None and ids[bos_text] is None:
        bos_text = None  # a name that is left over from another tokenizer
    for text in (bos_text, eod_text):
        if text is not None and ids[text] is None:
            raise SpecError(f"{path}: the token {text!r} does not exist; {_choices(definition)}")
    return TokenizerIdentity(
        name=spec.name,
        type=spec.type,
        path=os.path.abspath(path),
        merges=os.path.abspath(spec.merges) if spec.merges is not None else None,
        origin=f"hf://{spec.repo}@{spec.revision}" if spec.path is None else "",
        files={name: hashlib.sha256(content).hexdigest() for name, content in sorted(definition.contents.items())},
        vocab_size=definition.vocab_size,
        bos_id=ids.get(bos_text) if bos_text is not None else None,
        bos_text=bos_text,
        eod_id=ids.get(eod_text) if eod_text is not None else None,
        eod_text=eod_text,
        adds_bos=adds_bos,
        adds_eod=adds_eod,
    )


def _added_around(processor: dict[str, Any] | None) -> tuple[list[str], list[str]]:
    """What a post-processor puts before and after a single text."""
    if not processor:
        return [], []
    if processor["type"] == "Sequence":
        parts = [_added_around(part) for part in processor["processors"]]
        return [t for before, _ in parts for t in before], [t for _, after in parts for t in after]
    if processor["type"] == "TemplateProcessing":
        pieces = [("SpecialToken" in piece, next(iter(piece.values()))["id"]) for piece in processor["single"]]
        middle = [special for special, _ in pieces].index(False)
        return [t for _, t in pieces[:middle]], [t for special, t in pieces[middle:] if special]
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][0]], [processor["sep"][0]]
    return [], []


def _choices(definition: Definition) -> str:
    names = list(definition.specials)
    shown = ", ".join(repr(name) for name in names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"name one with --set tokenizer.eod=TOKEN; its special tokens are: {shown or 'none'}"


def bos_disagreement(identity: TokenizerIdentity) -> str | None:
    """What to say where ``tokenizer.json`` and the flag beside it do not agree on BOS; None: they do."""
    flag = define(identity.type, Path(identity.path), identity.merges).names.get("add_bos_token")
    if flag is None or (flag == "true") == identity.adds_bos:
        return None
    return (
        f"the tokenizer {identity.name} adds {'a' if identity.adds_bos else 'no'} BOS by its tokenizer.json, but its "
        f"tokenizer_config.json says add_bos_token={flag}; policy.bos=auto follows the "
        f"former, policy.bos={'always' if flag == 'true' else 'never'} the latter"
    )


def missing_eod(identity: TokenizerIdentity) -> SpecError:
    """The error for a tokenizer that does not say which token ends a document."""
    definition = define(identity.type, Path(identity.path), identity.merges)
    return SpecError(
        f"the tokenizer {identity.name} does not say which token ends a document; {_choices(definition)}, "
        "or write none with --set policy.eod=none"
    )


def load(identity: TokenizerIdentity) -> Definition:
    """Read the files of a resolved tokenizer again.

    Raises:
        SpecError: they are not the same any more.
    """
    try:
        definition = define(identity.type, Path(identity.path), identity.merges)
    except SpecError as error:
        if not identity.origin:
            raise
        repo = identity.origin.removeprefix("hf://")
        raise SpecError(f"{error}; `dataprep plan sample --tokenizer {repo}` brings it back") from error
    for name, content in definition.contents.items():
        if hashlib.sha256(content).hexdigest() != identity.files[name]:
            raise SpecError(f"{identity.path}: {name} is not the file that the recipe names: its sha256 differs")
    return definition
