"""Units of work, and the manifests that prove them done."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field

from dataprep.batches import Cursor
from dataprep.specs import Model

SCHEMA = 1


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

    @cached_property
    def key(self) -> str:
        content = json.dumps([[s.file, s.start, s.stop] for s in self.slices] + [self.limit])
        return f"{self.group:06d}-{self.index:05d}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.slices)

    def limited(self, limit: int) -> Self:
        """The same unit, of at most so many documents; not by `model_copy`, which would copy the key."""
        return type(self)(group=self.group, index=self.index, slices=self.slices, limit=limit)


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
        for name, mine in self.__dict__.items():
            theirs = getattr(other, name)
            if not isinstance(mine, dict):
                values[name] = mine + theirs
            elif theirs:
                values[name] = {key: mine.get(key, 0) + theirs.get(key, 0) for key in sorted(mine | theirs)}
            else:
                values[name] = mine
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
    """The proof that a shard is whole: the one of its unit, or a piece.

    The shard of a long unit comes in pieces, so that who goes on with it after a death need not begin anew. The last
    one has the unit's name, and says that the unit is done.

    Attributes:
        unit: name of the shard's files: the unit's key, for a piece that others follow with its number behind it.
        rejects_checksum: of the rejects beside the shard, as in `PairFiles`; None: not known.
        pieces: how many come before this one.
        begin: where in its slice it begins; None: at the start of its unit.
        end: where the next one begins; None: there is none.
    """

    schema_version: int = SCHEMA
    unit: str
    recipe_digest: str
    dtype: Literal["uint16", "int32"]
    counts: Counts
    slices: tuple[SliceRows, ...]
    files: PairFiles
    rejects_checksum: str | None = None
    pieces: int = 0
    begin: Cursor | None = None
    end: Cursor | None = None
    engine: str
    wall_seconds: float
    cpu_seconds: float
