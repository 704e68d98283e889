"""A look inside: counts, length quantiles, decoded documents.

Reads files only; safe beside a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.decoding import Decoder
from dataprep.definitions import define, load
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import CHUNK, IndexedDataset
from dataprep.layout import find_prefix
from dataprep.manifest import DatasetManifest, Lengths, manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from dataprep.manifest import Span
    from dataprep.specs import Recipe

QUANTILES = {"p01": 0.01, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}


def length_summary(chunks: Iterable[npt.NDArray[Any]]) -> Lengths:
    """Document lengths in tokens: exact quantiles by the nearest-rank rule, in memory bounded by the distinct lengths.

    Args:
        chunks: the lengths, some at a time; at least one length in all.
    """
    values, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for lengths in chunks:
        more, times = np.unique(lengths, return_counts=True)
        values, inverse = np.unique(np.concatenate([values, more]), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([counts, times])).astype(np.int64)
    assert len(values)
    ends = np.cumsum(counts)
    total = int(ends[-1])
    ranks = {name: max(1, int(np.ceil(share * total))) for name, share in QUANTILES.items()}
    return Lengths(
        min=int(values[0]),
        max=int(values[-1]),
        mean=float((values * counts).sum() / total),
        quantiles={name: int(values[np.searchsorted(ends, rank)]) for name, rank in ranks.items()},
    )


def document_lengths(pair: IndexedDataset) -> Iterator[npt.NDArray[np.int64]]:
    """The lengths of all documents in tokens, `CHUNK` at a time.

    Raises:
        FormatError: there are none.
    """
    if not pair.num_documents:
        raise FormatError(f"{pair.prefix} holds no documents")
    for start in range(0, pair.num_documents, CHUNK):
        yield pair.document_lengths(start, min(start + CHUNK, pair.num_documents))


def inspect(prefix: str | Path) -> dict[str, Any]:
    """Counts and lengths of a pair, and what its manifest says about it, as plain JSON values.

    Raises:
        FormatError: not a readable pair.
    """
    pair = open_pair(prefix)
    manifest = manifest_of(pair.prefix)
    result: dict[str, Any] = {
        "prefix": str(pair.prefix),
        "dtype": pair.dtype.name,
        "num_sequences": len(pair),
        "num_documents": pair.num_documents,
        "num_tokens": pair.num_tokens,
        "num_bytes": pair.tokens.nbytes,
        "lengths": length_summary(document_lengths(pair)).to_json(),
    }
    if isinstance(manifest, DatasetManifest):
        tokenizer = manifest.tokenizer
        result |= {
            "corpus": manifest.recipe.corpus,
            "origin": manifest.recipe.origin,
            "license": manifest.recipe.license,
            "tokenizer": {key: value for key, value in tokenizer.to_json().items() if key != "files"},
            "policy": manifest.recipe.policy.to_json(),
            "counts": manifest.counts.to_json(),
            "created": manifest.created,
        }
    return result


def open_pair(prefix: str | Path) -> IndexedDataset:
    """Open a pair by its prefix, or by the name of one of its files.

    Raises:
        SpecError: nothing of that name.
        FormatError: not a readable pair.
    """
    return IndexedDataset(find_prefix(prefix))


def document(prefix: str | Path, number: int, tokenizer: str | None = None) -> dict[str, Any]:
    """One document: its ids, its text, and where it came from, as plain JSON values.

    Args:
        prefix: path without ``.bin``.
        number: document number from 0.
        tokenizer: a folder or file; None: the one the manifest names.

    Raises:
        SpecError: no such document, or no tokenizer to decode with.
    """
    pair = open_pair(prefix)
    if not 0 <= number < pair.num_documents:
        raise SpecError(f"document {number}: {pair.prefix} holds documents 0 to {pair.num_documents - 1}")
    manifest = manifest_of(pair.prefix)
    if tokenizer is not None:
        from dataprep.catalog import find_tokenizer

        spec, place = find_tokenizer(tokenizer, {})
        definition = define(spec.type, place)
    elif manifest is not None and manifest.tokenizer is not None:
        definition = load(manifest.tokenizer)
    else:
        raise SpecError(f"{pair.prefix} has no manifest that names its tokenizer; give one with --tokenizer")
    ids = pair.document(number).tolist()
    result: dict[str, Any] = {
        "document": number,
        "num_tokens": len(ids),
        "ids": ids,
        "text": Decoder(definition).text(ids),
    }
    origin = manifest.locate(number) if manifest is not None else None
    if origin is not None:
        result["source"] = _source(*origin)
    return result


def _source(recipe: Recipe, span: Span, number: int) -> dict[str, Any]:
    """Where a document came from: its file, and the records it may be, exact where every record became one."""
    group = recipe.reader.group_rows
    first, last = span.first_row, span.first_row + span.num_records - 1
    if span.num_documents == -(-span.num_records // group):  # every group became a document
        first += number * group
        last = min(last, first + group - 1)
    return {"file": recipe.files[span.file].path, "first_row": first, "last_row": last}


def decode(prefix: str | Path, document: int, tokenizer: str | None = None) -> str:
    """The text of one document; see `document`."""
    return str(_document(prefix, document, tokenizer)["text"])


_document = document
