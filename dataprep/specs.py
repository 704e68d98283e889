"""What a run is made of: frozen models, and the line between recipe and runtime.

    Corpus         a named body of documents: where it is and how it is read      pipelines/*.yaml
    TokenizerSpec  which tokenizer, as the user wrote it                          tokenizers/*.yaml
    TokenPolicy    BOS, EOD, special strings, empty documents, dtype
    Recipe         all that decides the output bytes, resolved; has the digest
    Runtime        workers, memory, engine, ...: all that must not change the bytes

Two YAML kinds, both flat data. They are validated strictly and as JSON, so that ``lang: no`` (False to
YAML) and ``2024_10`` (the integer 202410) are refused instead of believed: quote revisions, languages and
dates. Precedence in one line: model default < YAML < ``--set key=value``.

The digest is the sha256 of the canonical JSON of `Recipe.identity`. Not in it, and why: the paths and
the mtime of the source files and the name of the tokenizer (they say where things lie, not what they
are), descriptions, and all of `Runtime` (equal bytes for any of it is promise 1, and tested).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from dataprep.errors import SpecError

MIB = 1 << 20

TokenizerType = Literal["GPT2BPETokenizer", "Llama2Tokenizer", "HuggingFaceTokenizer"]
FileFormat = Literal["jsonl", "parquet", "arrow", "text"]
Compression = Literal["none", "gzip", "zstd", "xz", "bz2"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]


class Model(BaseModel):
    """Frozen, strict, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> dict[str, Any]:
        """The model as plain JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Validate plain JSON values.

        Args:
            value: what `json.loads` or `yaml.safe_load` gave.
            where: file or option the value came from, for the message.

        Raises:
            SpecError: names the key and what was expected, one line per problem.
        """
        try:
            return cls.model_validate_json(json.dumps(value))
        except (ValidationError, TypeError) as error:
            raise SpecError(f"{where}: {_problems(cls, error)}") from error


def _problems(model: type[BaseModel], error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return f"{error}; quote dates and revisions in YAML"
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        text = problem["msg"]
        if problem["type"] == "extra_forbidden":
            known = _fields_at(model, problem["loc"][:-1])
            text = f"unknown key{f'; known here: {known}' if known else ''}"
        elif problem["type"] == "string_type":
            text = f"expected text, found {problem['input']!r}; quote it in YAML"
        elif problem["type"] != "missing":
            text = f"{text}, found {problem['input']!r}"
        lines.append(f"{key}: {text}")
    return "; ".join(lines)


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return ""
        model = field.annotation
    return ", ".join(model.model_fields)


def load_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML file that holds a mapping.

    Raises:
        SpecError: unreadable, not YAML, or not a mapping.
    """
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path}: expected a mapping of keys to values, found {type(value).__name__}")
    return value


class FilesSource(Model):
    """Files on this machine or a mounted file system.

    Attributes:
        paths: paths and globs (``**`` crosses folders). ``{stdlib}`` stands for the standard library of the
            running Python, as `sysconfig.get_paths` names it. Relative ones start at the YAML's folder.
        exclude: globs of what to leave out, matched against the path below the common folder.
    """

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field(min_length=1)
    exclude: tuple[str, ...] = ()


class ReaderSpec(Model):
    """How a source file becomes documents. Part of the recipe: every key decides bytes.

    Attributes:
        format: ``auto`` looks at the content.
        text: the field (JSON lines) or column (Parquet, Arrow) that holds the text; top level only.
        separator: for plain text, what ends a document; None: a file is one document. It belongs to no document.
        max_document_bytes: a longer record is rejected: the whole line of JSON lines, the value of a column file,
            the piece of a text file. At most 1 GiB. What `group_rows` joins may be longer.
        group_rows: this many consecutive records of a file are one document, a newline between two: rows 0 to N - 1,
            N to 2 N - 1, ...; the last group of a file may be smaller. Rejected and empty records are left out of
            their group, a group of which nothing is left is no document.
    """

    format: Literal["auto", "jsonl", "parquet", "arrow", "text"] = "auto"
    text: str = "text"
    separator: Annotated[str, Field(min_length=1)] | None = None
    max_document_bytes: ByteSize = Field(default=ByteSize(256 * MIB), ge=1, le=1024 * MIB)
    group_rows: int = Field(default=1, ge=1)

    @property
    def identity(self) -> dict[str, Any]:
        # Left out where it changes nothing: it came later, and the digests of before hold.
        return self.model_dump(mode="json", exclude={"group_rows"} if self.group_rows == 1 else set())


class TokenPolicy(Model):
    """What is written around and instead of the tokens; recorded in every manifest.

    Attributes:
        bos: ``auto`` = what the tokenizer itself does.
        eod: the token that ends a document.
        special_text: what a literal special string inside a document becomes: ``encode`` = as the reference
            does, ``plain`` = ordinary text, ``reject`` = the document goes to the rejects.
        empty: a document without text: ``drop`` (counted) or ``keep`` (as Megatron's preprocess_data does: BOS and
            EOD where the tokenizer adds BOS, else a document boundary without a sequence).
        dtype: ``auto`` = Megatron's rule, vocabulary size < 65500 -> uint16, else int32.
    """

    bos: Literal["auto", "always", "never"] = "auto"
    eod: Literal["append", "none"] = "append"
    special_text: Literal["encode", "plain", "reject"] = "encode"
    empty: Literal["drop", "keep"] = "drop"
    dtype: Literal["auto", "uint16", "int32"] = "auto"


class Corpus(Model):
    """One YAML of ``pipelines/``: a named body of documents."""

    name: Name
    description: str = ""
    license: str = ""
    source: FilesSource
    reader: ReaderSpec = ReaderSpec()


class TokenizerSpec(Model):
    """One YAML of ``tokenizers/``, or what ``--tokenizer`` was resolved to.

    Attributes:
        type: Megatron's name.
        path: the file or folder that holds it; relative ones start at the YAML's folder. None: `repo` names it.
        repo: the hub repository it comes from.
        eod: the EOD token's text, where the tokenizer's own files do not say or say it wrong.
    """

    name: Name
    description: str = ""
    license: str = ""
    type: TokenizerType
    path: str | None = None
    repo: str | None = None
    eod: str | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.path is None and self.repo is None:
            raise ValueError("give path: or repo:")
        return self


class SourceFile(Model):
    """One file of the resolved listing.

    Attributes:
        name: path below the listing's root, ``/`` between parts: its identity and its place in the order.
        path: where it lies now.
        num_bytes: its size.
        mtime_ns: its modification time; a hint that it is unchanged, never part of the identity.
        format: what the content is.
        compression: the container around it.
        checksum: ``algorithm:hex`` where the source states it, or where a file of the same name and size was
            found to differ from the one an earlier dataset was made of.
    """

    name: str
    path: str
    num_bytes: int
    mtime_ns: int
    format: FileFormat
    compression: Compression = "none"
    checksum: str | None = None

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.num_bytes, self.checksum]


class TokenizerIdentity(Model):
    """A tokenizer, resolved: what it is, not what it is called.

    Attributes:
        files: file name -> sha256 of its content.
        path: the file or folder the encoder is opened from.
        vocab_size: one more than the largest id.
        bos_id, eod_id: None where the tokenizer has none.
        bos_text, eod_text: the same as text.
        adds_bos: whether the tokenizer itself puts a BOS first.
    """

    name: str
    type: TokenizerType
    path: str
    files: dict[str, str]
    vocab_size: int
    bos_id: int | None
    bos_text: str | None
    eod_id: int | None
    eod_text: str | None
    adds_bos: bool

    @property
    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"name", "path"})


class Recipe(Model):
    """All that decides the output bytes, resolved.

    Attributes:
        corpus: name of the corpus: part of the file names, so of the identity.
        limit: at most this many documents, or None.
    """

    corpus: str
    reader: ReaderSpec
    files: tuple[SourceFile, ...]
    tokenizer: TokenizerIdentity
    policy: TokenPolicy
    limit: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Plain JSON values; what the digest covers."""
        return {
            "format": 1,
            "corpus": self.corpus,
            "reader": self.reader.identity,
            "files": [[*file.identity, file.format, file.compression] for file in self.files],
            "tokenizer": self.tokenizer.identity,
            "policy": self.policy.to_json(),
            "limit": self.limit,
        }

    @property
    def digest(self) -> str:
        """sha256 of the identity, 64 hex digits."""
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def dtype(self) -> Literal["uint16", "int32"]:
        """The dtype of the ids on disk.

        Raises:
            SpecError: uint16 was asked for and the vocabulary does not fit.
        """
        size = self.tokenizer.vocab_size
        if self.policy.dtype == "uint16" and size > 65536:
            raise SpecError(f"policy.dtype=uint16 cannot hold a vocabulary of {size}; use int32 or auto")
        if self.policy.dtype == "auto":
            return (
                "uint16" if size < 65500 else "int32"
            )  # Megatron-LM d98e8a64, indexed_dataset.py, DType.optimal_dtype
        return self.policy.dtype

    @property
    def writes_bos(self) -> bool:
        return self.policy.bos == "always" or (self.policy.bos == "auto" and self.tokenizer.adds_bos)


class Runtime(Model):
    """All that must not change the bytes.

    Attributes:
        processes: give each worker a process of its own instead of a thread.
        workers: units worked on at the same time.
        memory: what the run aims to stay within: batches and the engine's cache are cut to it. A single document takes
            what it takes (about eight times its size), and so does a tokenizer for every process. None: 400 MiB for a
            process and 176 MiB for each of its workers. More is faster on large corpora: the cache lives longer.
        engine: ``auto`` = the fast one where it supports the tokenizer.
        unit_bytes: source per unit: what is redone after a crash, and the grain of parallelism. None: a sixteenth
            of a worker's share, between 4 and 64 MiB.
        batch_bytes: text handed to the engine at once. 8 MiB stays in cache; 32 MiB measured slower and twice the
            memory.
        audit_rate: one document in this many is encoded by the reference as well; 0: none.
        max_rejects: share of the records that may be rejected before the run is called failed.
    """

    processes: bool = False
    workers: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024)
    memory: ByteSize | None = Field(default=None, ge=256 * MIB)
    engine: Literal["auto", "gigatoken", "reference"] = "auto"
    unit_bytes: ByteSize | None = Field(default=None, ge=1)
    batch_bytes: ByteSize = Field(default=ByteSize(8 * MIB), ge=1024, le=256 * MIB)
    audit_rate: int = Field(default=2000, ge=0)
    max_rejects: float = Field(default=0.01, ge=0, le=1)

    @property
    def process_memory(self) -> int:
        """What one process of the run aims to stay within, in bytes."""
        workers, processes = (1, self.workers) if self.processes else (self.workers, 1)
        if self.memory is not None:
            return self.memory // processes
        return (400 + 176 * workers) * MIB

    def unit_size(self, total_bytes: int) -> int:
        """Source bytes per unit for a corpus of this size."""
        if self.unit_bytes is not None:
            return self.unit_bytes
        return min(max(total_bytes // (16 * self.workers), 4 * MIB), 64 * MIB)


def parse_settings(settings: list[str]) -> dict[str, dict[str, Any]]:
    """``["reader.text=content", ...]`` -> ``{"reader": {"text": "content"}, ...}``; values are YAML.

    Raises:
        SpecError: no ``=``, no namespace, or a value that is not YAML.
    """
    result: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        namespace, dot, name = key.partition(".")
        if not (equals and dot and name) or namespace not in NAMESPACES:
            raise SpecError(
                f"--set {setting}: expected NAMESPACE.KEY=VALUE with a namespace of {', '.join(NAMESPACES)}"
            )
        try:
            value = yaml.safe_load(text) if text.strip() else text
        except yaml.YAMLError as error:
            raise SpecError(f"--set {setting}: the value is not YAML; put it in quotes") from error
        if value is None and text.strip() not in ("null", "~"):
            raise SpecError(f"--set {setting}: YAML reads {text!r} as nothing; put it in quotes: '{key}=\"{text}\"'")
        result.setdefault(namespace, {})[name] = value
    return result


NAMESPACES = ("source", "reader", "tokenizer", "policy", "runtime")
"""What ``--set`` can reach: all but `runtime` are recipe."""
