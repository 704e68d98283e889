"""Units, and the manifests that prove units and datasets complete.

    Slice            a part of one source file:   (file, start, stop)
    Unit             consecutive slices -> one shard
    UnitManifest     what became of them; written after the shard, its presence says "done"
    DatasetManifest  what the dataset is, made of what, proved how; written last, its presence says "exists"
    PairManifest     the same of one pair that was made from other pairs

Manifests are JSON with sorted keys. Positions of a slice are bytes for files that are read as a stream (all
of the file for compressed ones) and for Arrow streams, row groups for Parquet, record batches for Arrow files.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from dataprep.errors import FormatError, SpecError
from dataprep.layout import pair_manifest
from dataprep.specs import Model, Recipe, TokenizerIdentity, TokenPolicy

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1

M = TypeVar("M", bound=Model)


class Slice(Model):
    """A part of one source file.

    Attributes:
        file: index into the recipe's files.
        start, stop: positions, see the module.
        num_bytes: bytes on disk to read for it; sums up to the work to do.
    """

    file: int
    start: int
    stop: int
    num_bytes: int


class Unit(Model):
    """One piece of work; `key` names its files and changes with its content.

    Attributes:
        group: the group of files it was cut from, see `units`.
        index: its place in the group.
        limit: at most this many documents, counted over its slices; None: all.
    """

    group: int
    index: int
    slices: tuple[Slice, ...]
    limit: int | None = None

    @property
    def key(self) -> str:
        content = json.dumps([[s.file, s.start, s.stop] for s in self.slices] + [self.limit])
        return f"{self.group:06d}-{self.index:05d}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.slices)


class Counts(Model):
    """What became of the records that were read. Adds up; all but `rejects` and `specials` are plain sums.

    Attributes:
        num_records: records read: documents + empty ones dropped + rejected ones + joined ones.
        num_documents: documents written.
        num_sequences: entries of the index: documents that hold at least one token.
        num_tokens: tokens written, BOS and EOD among them.
        num_text_bytes: UTF-8 bytes of the documents written.
        num_empty: records without text, dropped or kept; all those of a document of which no token is left.
        num_joined: records that went into a document begun by an earlier one, by `reader.group_rows`.
        num_audited: documents that the reference encoded as well.
        rejects: reason -> records.
        specials: special token's text -> how often it stood in a document.
    """

    num_records: int = 0
    num_documents: int = 0
    num_sequences: int = 0
    num_tokens: int = 0
    num_text_bytes: int = 0
    num_empty: int = 0
    num_joined: int = 0
    num_audited: int = 0
    rejects: dict[str, int] = Field(default_factory=dict)
    specials: dict[str, int] = Field(default_factory=dict)

    @property
    def num_rejected(self) -> int:
        return sum(self.rejects.values())

    def __add__(self, other: Counts) -> Counts:
        values: dict[str, Any] = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, dict):
                values[name] = {key: mine.get(key, 0) + theirs.get(key, 0) for key in sorted(mine | theirs)}
            else:
                values[name] = mine + theirs
        return Counts.model_construct(**values)


class SliceRows(Model):
    """Provenance of one slice: which records it held and how many documents they became.

    Attributes:
        num_lines: newlines in it, 0 for column files; what a reject's line in a later slice counts from.
    """

    file: int
    start: int
    stop: int
    num_records: int
    num_documents: int
    num_lines: int


class PairFiles(Model):
    """One indexed pair on disk: sizes in bytes, checksums as ``xxh3_128:<hex>``."""

    bin_bytes: int
    bin_checksum: str
    idx_bytes: int
    idx_checksum: str


class UnitManifest(Model):
    """The proof that a unit is done."""

    schema_version: int = SCHEMA
    unit: str
    recipe_digest: str
    dtype: Literal["uint16", "int32"]
    counts: Counts
    slices: tuple[SliceRows, ...]
    files: PairFiles
    engine: str
    wall_seconds: float
    cpu_seconds: float


class Span(Model):
    """A provenance run length.

    Records [first_row, first_row + num_records) of a file became `num_documents` consecutive documents of the
    dataset. `start` and `stop` are the slice's positions, to find it again.
    """

    file: int
    start: int
    stop: int
    first_row: int
    num_records: int
    first_document: int
    num_documents: int


class Lengths(Model):
    """Document lengths in tokens; quantiles are exact, by the nearest-rank rule."""

    min: int
    max: int
    mean: float
    quantiles: dict[str, int]


class Prefix(Model):
    """One published indexed pair; `name` is relative to the manifest's folder, without ``.bin``."""

    name: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    dtype: Literal["uint16", "int32"]
    files: PairFiles


class EngineRecord(Model):
    """Who encoded, who checked, and how much was compared."""

    name: str
    version: str
    reference: str
    reference_version: str
    gate_documents: int
    audit_rate: int
    audited_documents: int


class DatasetManifest(Model):
    """The proof that a dataset exists, and all there is to know about it.

    Attributes:
        recipe: whole; its `files` carry the checksums of what was read.
        provenance: run lengths, in the order of the documents.
        verification: the report of the verify stage, as JSON.
        peak_memory_bytes: largest resident size of any process of the run.
    """

    schema_version: int = SCHEMA
    dataprep_version: str
    recipe_digest: str
    recipe: Recipe
    prefixes: tuple[Prefix, ...]
    counts: Counts
    lengths: Lengths
    provenance: tuple[Span, ...]
    engine: EngineRecord
    verification: dict[str, Any]
    created: str
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int

    @property
    def tokenizer(self) -> TokenizerIdentity:
        return self.recipe.tokenizer

    @property
    def policy(self) -> TokenPolicy:
        return self.recipe.policy

    def locate(self, document: int) -> tuple[Recipe, Span, int] | None:
        """The recipe, run length and number in it of a document."""
        span = _span(self.provenance, document)
        return (self.recipe, span, document - span.first_document) if span is not None else None


class Part(Model):
    """Consecutive documents that a pair took from one other pair, its input.

    Attributes:
        prefix: of the input, as it was named then.
        start: the first of them, in the input.
        num_documents: how many.
        recipe: index into the manifest's `recipes`, if the input had a manifest.
        provenance: the run lengths of the input that hold them; their documents are the input's.
        drawn_from: where they are no run, but were drawn at random from so many documents of the input, in its order:
            too many to be parts of their own. `start` counts what was drawn then, and nothing says where from.
    """

    prefix: str
    start: int
    num_documents: int
    recipe: int | None = None
    provenance: tuple[Span, ...] = ()
    drawn_from: int | None = None


class PairManifest(Model):
    """The proof of one pair that was made from others: merged, split, repaired. Lies beside it, see `layout`.

    Attributes:
        command: what made it, and `options`: with what.
        recipes: of all inputs that had one, each once.
        parts: in the order of the documents.
        prefixes: the one pair.
        verification: the report of `verify` on it, as JSON.
    """

    schema_version: int = SCHEMA
    kind: Literal["pair"] = "pair"
    dataprep_version: str
    command: str
    options: dict[str, Any]
    recipes: tuple[Recipe, ...]
    parts: tuple[Part, ...]
    prefixes: tuple[Prefix, ...]
    lengths: Lengths
    verification: dict[str, Any]
    created: str

    @property
    def tokenizer(self) -> TokenizerIdentity | None:
        """Of all documents; None where an input had no manifest."""
        return self._common.tokenizer if self._common else None

    @property
    def policy(self) -> TokenPolicy | None:
        """Of all documents; None where an input had no manifest."""
        return self._common.policy if self._common else None

    @property
    def _common(self) -> Recipe | None:
        """A recipe whose tokenizer and policy are those of every part."""
        known = bool(self.recipes) and all(part.recipe is not None for part in self.parts)
        same = len({json.dumps(recipe.conventions, sort_keys=True) for recipe in self.recipes}) == 1
        return self.recipes[0] if known and same else None

    def locate(self, document: int) -> tuple[Recipe, Span, int] | None:
        """The recipe, run length and number in it of a document, where its input knew them."""
        for part in self.parts:
            if document < part.num_documents:
                span = _span(part.provenance, part.start + document)
                if part.recipe is None or span is None:
                    return None
                return self.recipes[part.recipe], span, part.start + document - span.first_document
            document -= part.num_documents
        return None


Manifest = DatasetManifest | PairManifest


def _span(provenance: tuple[Span, ...], document: int) -> Span | None:
    """The run length that holds a document."""
    i = bisect_right(provenance, document, key=lambda span: span.first_document) - 1
    while i >= 0 and not provenance[i].num_documents:  # of rows none of which became a document
        i -= 1
    found = i >= 0 and document - provenance[i].first_document < provenance[i].num_documents
    return provenance[i] if found else None


def eod_of(manifest: Manifest | None) -> int | None:
    """The id that ends every document, if the manifest says that one does."""
    if manifest is None or manifest.tokenizer is None or manifest.policy is None:
        return None
    return manifest.tokenizer.eod_id if manifest.policy.eod == "append" else None


def manifest_of(prefix: Path) -> Manifest | None:
    """The manifest of a pair: its own, or the ``manifest.json`` of its folder that names it; None without one.

    Raises:
        FormatError: there is one, and it cannot be read.
    """
    own, common = pair_manifest(prefix), prefix.parent / "manifest.json"
    path = own if own.exists() else common
    if not path.exists():
        return None
    value = _read(path)
    manifest: Manifest
    if value.get("kind") == "pair":
        manifest = _model(PairManifest, value, path)
    else:
        manifest = _model(DatasetManifest, value, path)
    return manifest if prefix.name in {entry.name for entry in manifest.prefixes} else None


def load_manifest(path: Path) -> DatasetManifest:
    """Read a dataset's ``manifest.json``.

    Raises:
        FormatError: missing, not JSON, or written by a version this one does not know.
    """
    return _model(DatasetManifest, _read(path), path)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read the manifest {path}: {error}") from error
    found = value.get("schema_version") if isinstance(value, dict) else type(value).__name__
    if found != SCHEMA:
        raise FormatError(f"{path}: expected schema_version {SCHEMA}, found {found!r}; update dataprep")
    assert isinstance(value, dict)
    return value


def _model(model: type[M], value: dict[str, Any], path: Path) -> M:
    try:
        return model.from_json(value, str(path))
    except SpecError as error:
        raise FormatError(f"not a manifest of dataprep: {error}") from error
