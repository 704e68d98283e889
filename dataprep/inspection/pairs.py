"""A look inside one pair: counts, lengths, frequent tokens, BOS and EOD, repeated documents.

Reads files only; safe beside a run. Plain JSON values; `views` shows them to people. One document, or one sample, is in
`excerpts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dataprep.definitions import define, load
from dataprep.errors import DataprepError, FormatError, SpecError
from dataprep.indexed import IndexedDataset, idx_path
from dataprep.inspection import census
from dataprep.inspection.decoding import Decoder
from dataprep.inspection.lengths import LengthCounts, document_ends
from dataprep.manifest import DatasetManifest, is_of, manifest_of
from dataprep.prefixes import find_prefix
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.definitions import Definition
    from dataprep.inspection.census import Census
    from dataprep.manifest import Lengths, Manifest
    from dataprep.watcher import Watcher

Level = Literal["index", "tokens"]
LEVELS: tuple[Level, ...] = get_args(Level)

MOST_FREQUENT = 20
"""Tokens that are listed."""

MOST_REPEATED = 5
"""Repeated documents that are listed."""

BEGINNING = 24
"""Tokens of a repeated document that are shown."""


def length_summary(chunks: Iterable[npt.NDArray[Any]]) -> Lengths:
    """Document lengths in tokens: exact quantiles by the nearest-rank rule, in memory bounded by the distinct lengths.

    Args:
        chunks: the lengths, some at a time; at least one length in all.
    """
    return LengthCounts.of(chunks).summary()


def document_lengths(pair: IndexedDataset) -> Iterator[Offsets]:
    """The lengths of all documents in tokens, int64, some at a time.

    Raises:
        FormatError: there are none, or the index is broken.
    """
    last = 0
    for ends in document_ends(pair):
        yield np.diff(ends, prepend=last)
        last = int(ends[-1])


def open_pair(prefix: str | Path) -> IndexedDataset:
    """Open a pair by its prefix, or by the name of one of its files.

    Raises:
        SpecError: nothing of that name.
        FormatError: not a readable pair.
    """
    path = find_prefix(prefix)
    try:
        return IndexedDataset(path)
    except FormatError as error:
        raise FormatError(f"{error}; run: dataprep verify {path}") from error


def check_ids(pair: IndexedDataset) -> None:
    """See that the tokens are integers.

    Raises:
        FormatError: they are not.
    """
    if pair.dtype.kind not in "iu":
        raise FormatError(f"{pair.prefix}: {pair.dtype.name} is no token id; run: dataprep verify {pair.prefix}")


@dataclass(frozen=True)
class Findings:
    """What was found inside a pair.

    Attributes:
        pair: the pair.
        manifest: its own, where there is one that can be read.
        definition: of the tokenizer, where it is known and here.
        lengths: of all documents.
        census: of all tokens; None at level ``index``.
        notes: what a person should know besides.
    """

    pair: IndexedDataset
    manifest: Manifest | None
    definition: Definition | None
    lengths: LengthCounts
    census: Census | None
    notes: tuple[str, ...]

    def to_json(self, seq_length: int | None = None) -> dict[str, Any]:
        """Plain JSON values.

        Args:
            seq_length: say as well what a training at this sequence length makes of the documents.
        """
        pair = self.pair
        result: dict[str, Any] = {
            "prefix": str(pair.prefix),
            "dtype": pair.dtype.name,
            "num_sequences": len(pair),
            "num_documents": pair.num_documents,
            "num_tokens": pair.num_tokens,
            "num_bytes": pair.tokens.nbytes,
            "lengths": self.lengths.summary().to_json(),
            "histogram": self.lengths.bins(),
            "notes": list(self.notes),
            **_made_of(self.manifest),
        }
        if seq_length is not None:
            result["cuts"] = self.lengths.cuts(seq_length)
        if self.census is not None:
            result |= self._counted(self.census)
        return result

    @cached_property
    def _decoder(self) -> Decoder | None:
        return Decoder(self.definition) if self.definition is not None else None

    def _text(self, number: int) -> str | None:
        return self._decoder.piece(number) if self._decoder is not None else None

    def _counted(self, found: Census) -> dict[str, Any]:
        """What the census says; shares are of all tokens, or of the documents that hold any."""
        order = np.argsort(-found.counts, kind="stable")[:MOST_FREQUENT]
        size = self.definition.vocab_size if self.definition is not None else len(found.counts)
        eod, bos = self._edge(found.ends, "eod_id"), self._edge(found.begins, "bos_id")
        return {
            "num_distinct": found.num_distinct,
            "num_unknown": found.num_outside + int(found.counts[size:].sum()),
            "most_frequent": [
                {"id": number, "text": self._text(number), **self._times(int(found.counts[number]))}
                for number in order.tolist()
                if found.counts[number]
            ],
            "bos": self._mark(found, found.begins, bos, eod),
            "eod": self._mark(found, found.ends, eod, bos),
            "specials": self._specials(found, {bos, eod}),
            "repeats": self._repeats(found),
        }

    def _times(self, count: int) -> dict[str, Any]:
        return {"count": count, "share": count / self.pair.num_tokens}

    def _edge(self, table: npt.NDArray[np.int64], name: Literal["bos_id", "eod_id"]) -> int | None:
        """The id that begins or ends documents: the tokenizer's, or else the one that does so for more than half."""
        if self.manifest is not None and self.manifest.tokenizer is not None:
            known: int | None = getattr(self.manifest.tokenizer, name)
            return known
        most = int(table.argmax()) if len(table) else 0
        return most if 2 * _at(table, most) > int(table.sum()) else None

    def _mark(
        self, found: Census, table: npt.NDArray[np.int64], number: int | None, other: int | None
    ) -> dict[str, Any] | None:
        """How many documents begin with the BOS, or end with the EOD, and how often it stands inside one."""
        if number is None:
            return None
        edges = _at(table, number)
        if number == other:  # at the other end of a document it is not inside either
            edges = _at(found.begins, number) + _at(found.ends, number) - _at(found.lone, number)
        return {
            "id": number,
            "text": self._text(number),
            "num_documents": _at(table, number),
            "share": _at(table, number) / int(table.sum()) if table.any() else 0.0,
            "num_lone": _at(found.lone, number),
            "num_inside": _at(found.counts, number) - edges,
        }

    def _specials(self, found: Census, edges: set[int | None]) -> list[dict[str, Any]]:
        specials = self.definition.specials if self.definition is not None else {}
        counts = {text: _at(found.counts, number) for text, number in specials.items() if number not in edges}
        often = sorted(counts, key=lambda text: -counts[text])
        return [{"id": specials[text], "text": text, **self._times(counts[text])} for text in often if counts[text]]

    def _repeats(self, found: Census) -> dict[str, Any]:
        repeats, pair = found.repeats, self.pair
        return {
            "num_compared": repeats.num_compared,
            "num_documents": repeats.num_documents,
            "share_documents": repeats.num_documents / max(1, repeats.num_compared),
            "num_tokens": repeats.num_tokens,
            "share_tokens": repeats.num_tokens / pair.num_tokens,
            "most": [
                {
                    "document": number,
                    "num_copies": copies,
                    "num_tokens": length,
                    "beginning": self._beginning(number, length),
                }
                for number, copies, length in zip(
                    repeats.first[:MOST_REPEATED].tolist(),
                    repeats.copies[:MOST_REPEATED].tolist(),
                    repeats.lengths[:MOST_REPEATED].tolist(),
                    strict=True,
                )
            ],
        }

    def _beginning(self, number: int, length: int) -> str | None:
        """The first tokens of a document as text."""
        pair = self.pair
        start = int(pair.sequence_pointers[pair.document_indices[number]]) // pair.dtype.itemsize
        ids = pair.tokens[start : start + min(length, BEGINNING)].tolist()
        return self._decoder.text(ids) if self._decoder is not None else None


def examine(
    prefix: str | Path, level: Level = "tokens", tokenizer: str | None = None, watcher: Watcher | None = None
) -> Findings:
    """Look inside a pair, whoever wrote it.

    Args:
        prefix: path without ``.bin``.
        level: ``index``: lengths only, by the ``.idx``; ``tokens``: all tokens as well, in one pass over the ``.bin``.
        tokenizer: to decode with: a shipped name, a folder, a file; None: the one the manifest names.
        watcher: is told how it gets on.

    Raises:
        SpecError: nothing of that name, an unknown level or tokenizer.
        FormatError: not a pair, or a broken one: what can be wrong is for `verify` to say.
    """
    if level not in LEVELS:
        raise SpecError(f"unknown level {level!r}; expected one of {', '.join(LEVELS)}")
    pair = open_pair(prefix)
    check_ids(pair)
    if not pair.num_tokens:
        raise FormatError(f"{pair.prefix} holds no tokens; run: dataprep verify {pair.prefix}")
    notes = []
    manifest, definition = None, None
    try:
        manifest = manifest_of(pair.prefix)
        definition = definition_of(manifest, tokenizer)
    except DataprepError as error:
        if tokenizer is not None:
            raise
        notes.append(str(error))
    lengths = LengthCounts.of(_watched(pair, watcher or Silent()))
    if pair.num_documents < len(pair):
        notes.append(
            f"sentence-level: {len(pair):,} sequences in {pair.num_documents:,} documents; GPT training ignores "
            "documents, and shuffles and packs the sequences one by one"
        )
    if manifest is not None and not is_of(manifest, pair.prefix):
        notes.append(f"the manifest is of other files; run: dataprep verify {pair.prefix}")
    found = census.take(pair, watcher) if level == "tokens" else None
    if found is not None and found.repeats.num_compared < pair.num_documents:
        notes.append(f"repeated documents were looked for among the first {found.repeats.num_compared:,}")
    return Findings(pair, manifest, definition, lengths, found, tuple(notes))


def inspect(
    prefix: str | Path,
    seq_length: int | None = None,
    level: Level = "tokens",
    tokenizer: str | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Counts, lengths, frequent tokens, BOS, EOD and repeated documents, as plain JSON values; see `examine`."""
    return examine(prefix, level, tokenizer, watcher).to_json(seq_length)


def _watched(pair: IndexedDataset, watcher: Watcher) -> Iterator[Offsets]:
    """The lengths of all documents, and how the reading of the index gets on."""
    size = idx_path(pair.prefix).stat().st_size
    watcher.stage("index", size)
    for lengths in document_lengths(pair):
        yield lengths
        watcher(Progress(source_bytes=size * len(lengths) // pair.num_documents))


def _at(table: npt.NDArray[np.int64], number: int) -> int:
    return int(table[number]) if number < len(table) else 0


def _made_of(manifest: Manifest | None) -> dict[str, Any]:
    """What the manifest says about the pair."""
    if manifest is None:
        return {}
    tokenizer, policy = manifest.tokenizer, manifest.policy
    result: dict[str, Any] = {"created": manifest.created}
    if tokenizer is not None:
        result["tokenizer"] = {key: value for key, value in tokenizer.to_json().items() if key != "files"}
    if policy is not None:
        result["policy"] = policy.to_json()
    if isinstance(manifest, DatasetManifest):
        recipe = manifest.recipe
        made_of = {"corpus": recipe.corpus, "origin": recipe.origin, "license": recipe.license}
        return result | made_of | {"counts": manifest.counts.to_json()}
    return result | {"command": manifest.command, "inputs": list(dict.fromkeys(part.prefix for part in manifest.parts))}


def definition_of(manifest: Manifest | None, tokenizer: str | None) -> Definition | None:
    """The tokenizer that was asked for, or that the manifest names."""
    if tokenizer is not None:
        from dataprep.catalog import find_tokenizer

        spec, place = find_tokenizer(tokenizer, {})
        return define(spec.type, place, spec.merges)
    return load(manifest.tokenizer) if manifest is not None and manifest.tokenizer is not None else None
