"""What a version is: its parts, and what they come to."""

from __future__ import annotations

from typing import Literal

from dataprep.manifest import SCHEMA, Prefix
from dataprep.specs import Model


class VersionPart(Model):
    """A dataset that a version consists of.

    Attributes:
        folder: of the dataset, relative to the version's.
        recipe_digest: of its recipe.
        manifest_checksum: of its ``manifest.json``, ``xxh3_128:<hex>``; that one states the checksums of all else.
        num_files: source files that it was made of.
        num_documents, num_sequences, num_tokens, num_text_bytes: in it.
        prefixes: its pairs.
    """

    folder: str
    recipe_digest: str
    manifest_checksum: str
    num_files: int
    num_documents: int
    num_sequences: int
    num_tokens: int
    num_text_bytes: int
    prefixes: tuple[Prefix, ...]


class VersionManifest(Model):
    """``manifest.json`` of a version. Its source files are those in the manifests of its parts.

    Attributes:
        dataset: name of the versioned dataset.
        number: of the version, from 1.
        previous: the version it was made from; None: the first.
        run: which run made it: the epoch of its claim.
        corpus, tokenizer: names of them.
        parts: in the order in which they were made.
        changed, vanished: names of source files of the previous version that had other contents, or were gone.
        created: UTC, by the clock of the run.
    """

    schema_version: int = SCHEMA
    kind: Literal["version"] = "version"
    dataprep_version: str
    dataset: str
    number: int
    previous: int | None
    run: int
    corpus: str
    tokenizer: str
    parts: tuple[VersionPart, ...]
    changed: tuple[str, ...]
    vanished: tuple[str, ...]
    created: str

    @property
    def num_files(self) -> int:
        return sum(part.num_files for part in self.parts)

    @property
    def num_documents(self) -> int:
        return sum(part.num_documents for part in self.parts)

    @property
    def num_sequences(self) -> int:
        return sum(part.num_sequences for part in self.parts)

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts)

    @property
    def num_text_bytes(self) -> int:
        return sum(part.num_text_bytes for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """Of all files of all pairs."""
        return sum(p.files.bin_bytes + p.files.idx_bytes for part in self.parts for p in part.prefixes)
