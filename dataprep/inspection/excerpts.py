"""Parts of a pair, decoded and led back to their source: one document, or one sample as Megatron trains on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import FormatError, SpecError
from dataprep.inspection.decoding import Decoder
from dataprep.inspection.lengths import document_ends
from dataprep.inspection.pairs import check_ids, definition_of, open_pair
from dataprep.inspection.provenance import source_of, trace
from dataprep.manifest import manifest_of
from dataprep.samples import SampleOrder

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.indexed import IndexedDataset
    from dataprep.manifest import Manifest
    from dataprep.samples import Sampling
    from dataprep.watcher import Watcher

MOST_TOKENS = 1 << 24
"""Tokens that are decoded at once: a gigabyte of memory."""


def _decoder(pair: IndexedDataset, tokenizer: str | None) -> tuple[Decoder, Manifest | None]:
    """What decodes a pair, and its manifest; one that cannot be read does no harm where a tokenizer is named."""
    try:
        manifest = manifest_of(pair.prefix)
    except FormatError:
        if tokenizer is None:
            raise
        manifest = None
    definition = definition_of(manifest, tokenizer)
    if definition is None:
        raise SpecError(f"{pair.prefix} has no manifest that names its tokenizer; give one with --tokenizer")
    return Decoder(definition), manifest


def document(prefix: str | Path, number: int, tokenizer: str | None = None) -> dict[str, Any]:
    """One document: its ids, its text, and where it came from, as plain JSON values.

    Args:
        prefix: path without ``.bin``.
        number: document number from 0.
        tokenizer: a shipped name, a folder or a file; None: the one the manifest names.

    Raises:
        SpecError: no such document, or no tokenizer to decode with.
        FormatError: not a readable pair.
    """
    pair = open_pair(prefix)
    _check_number(pair, number)
    check_ids(pair)
    _check_size(pair, number)
    decoder, manifest = _decoder(pair, tokenizer)
    ids = pair.document(number).tolist()
    result: dict[str, Any] = {
        "document": number,
        "num_tokens": len(ids),
        "ids": ids,
        "text": decoder.text(ids),
    }
    source = source_of(manifest, number) if manifest is not None else None
    return result | ({"source": source} if source is not None else {})


def decode(prefix: str | Path, document: int, tokenizer: str | None = None) -> str:
    """The text of one document; see `document`."""
    return str(_document(prefix, document, tokenizer)["text"])


_document = document


def sample(
    prefix: str | Path, number: int, sampling: Sampling, tokenizer: str | None = None, watcher: Watcher | None = None
) -> dict[str, Any]:
    """The very sample that Megatron's GPTDataset would train on, as plain JSON values.

    Args:
        prefix: path without ``.bin``.
        number: of the sample, from 0, in the order of the training.
        sampling: what of the training decides its samples.
        tokenizer: see `document`.
        watcher: is told how it gets on.

    Returns:
        ``pieces``, in their order, each with its document and sequence, its first token in that sequence, its ids and
        its text. All ids together are ``seq_length`` + 1: inputs all but the last, labels all but the first.

    Raises:
        SpecError: no such sample, no tokenizer, or a training that Megatron would not begin.
        FormatError: not a readable pair.
    """
    if sampling.seq_length > MOST_TOKENS:
        raise SpecError(f"--seq-length {sampling.seq_length}: samples of up to {MOST_TOKENS} tokens are decoded")
    pair = open_pair(prefix)
    check_ids(pair)
    decoder, _ = _decoder(pair, tokenizer)
    order = _order(pair, sampling, watcher)
    found = order.pieces(number)
    documents = _documents(pair, found)
    pieces = []
    for (sequence, first, count), document_ in zip(found.tolist(), documents, strict=True):
        tokens = pair[sequence]
        ids = tokens[first : first + count].tolist()
        pieces.append(
            {
                "document": document_,
                "sequence": sequence,
                "first_token": first,
                "num_tokens": count,
                "num_sequence_tokens": len(tokens),
                "ids": ids,
                "text": decoder.text(ids),
            }
        )
    return {**_drawn(number, order, sampling), "pieces": pieces}


def where(
    prefix: str | Path,
    document: int | None = None,
    sample: int | None = None,
    sampling: Sampling | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Where a document, or each document of a sample, came from: source file and record, as plain JSON values.

    Args:
        prefix: path without ``.bin``.
        document: number of a document, from 0.
        sample: or of a sample, with `sampling`; see `sample`.
        sampling: what of the training decides its samples.
        watcher: is told how it gets on.

    Returns:
        ``documents``: for each what `provenance.trace` says of it.

    Raises:
        SpecError: no such document or sample, or no manifest.
        FormatError: not a readable pair, or a damaged manifest.
    """
    if (document is None) == (sample is None) or (sample is not None and sampling is None):
        raise SpecError("where: expected a document, or a sample and the sequence length of the training")
    pair = open_pair(prefix)
    manifest = manifest_of(pair.prefix)
    result: dict[str, Any] = {"prefix": str(pair.prefix)}
    if sample is not None and sampling is not None:
        order = _order(pair, sampling, watcher)
        numbers = list(dict.fromkeys(_documents(pair, order.pieces(sample))))
        result |= _drawn(sample, order, sampling)
    else:
        assert document is not None
        _check_number(pair, document)
        numbers = [document]
    return {**result, "documents": trace(pair.prefix, manifest, numbers)}


def _order(pair: IndexedDataset, sampling: Sampling, watcher: Watcher | None) -> SampleOrder:
    """The samples of a pair whose index is sound; of a broken one there may be any number."""
    for _ in document_ends(pair):
        pass
    return SampleOrder(pair.index, sampling, watcher)


def _documents(pair: IndexedDataset, pieces: npt.NDArray[np.int64]) -> list[int]:
    """The documents that pieces of a sample belong to."""
    found: list[int] = (np.searchsorted(pair.document_indices, pieces[:, 0], side="right") - 1).tolist()
    return found


def _drawn(number: int, order: SampleOrder, sampling: Sampling) -> dict[str, Any]:
    return {"sample": number, "of": len(order), "num_epochs": order.num_epochs, "sampling": asdict(sampling)}


def _check_number(pair: IndexedDataset, number: int) -> None:
    if not 0 <= number < pair.num_documents:
        raise SpecError(f"document {number}: {pair.prefix} holds documents 0 to {pair.num_documents - 1}")


def _check_size(pair: IndexedDataset, number: int) -> None:
    """See that a document can be taken as a list; of a broken pair it may be the whole file.

    Raises:
        SpecError: it is too long.
        FormatError: it is nowhere.
    """
    first, last = (int(bound) for bound in pair.document_indices[number : number + 2])
    if not 0 <= first <= last <= len(pair):
        raise FormatError(f"{pair.prefix}: the document boundaries are broken; run: dataprep verify {pair.prefix}")
    if max(last - first, int(pair.sequence_lengths[first:last].sum(dtype=np.int64))) > MOST_TOKENS:
        raise SpecError(
            f"document {number} of {pair.prefix} holds more than {MOST_TOKENS} tokens, and is not decoded; if that is "
            f"not what it should hold, run: dataprep verify {pair.prefix}"
        )
