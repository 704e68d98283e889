"""Parts of a pair, decoded and led back to their source: one document, or one sample as Megatron trains on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import DataprepError, FormatError, SpecError
from dataprep.inspection.decoding import Decoder
from dataprep.inspection.lengths import document_ends
from dataprep.inspection.pairs import check_ids, definition_of, open_pair
from dataprep.inspection.provenance import source_of, trace
from dataprep.manifest import is_of, manifest_of, readable_manifest
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


def _decoder(pair: IndexedDataset, tokenizer: str | None, notes: list[str]) -> tuple[Decoder | None, Manifest | None]:
    """What decodes a pair, and its manifest; what is missing is noted, unless it was named.

    Raises:
        SpecError: no such tokenizer.
    """
    manifest, why = readable_manifest(pair.prefix)
    if tokenizer is not None:
        definition = definition_of(None, tokenizer)
    else:
        try:
            definition = definition_of(manifest, None)
        except DataprepError as error:
            definition, why = None, str(error)
    if definition is None:
        why = why or f"{pair.prefix} has no manifest that names its tokenizer"
        notes.append(f"only ids are shown: {why}; to decode them, give a tokenizer with --tokenizer")
        return None, manifest
    return Decoder(definition), manifest


def _note_unknown(decoder: Decoder | None, ids: list[int], notes: list[str]) -> None:
    unknown = decoder.num_unknown(ids) if decoder is not None else 0
    if unknown:
        notes.append(f"{unknown:,} of {len(ids):,} tokens are not in the tokenizer's vocabulary; is it another's?")


def document(prefix: str | Path, number: int, tokenizer: str | None = None) -> dict[str, Any]:
    """One document: its ids, its text, and where it came from, as plain JSON values.

    Args:
        prefix: path without ``.bin``.
        number: document number from 0.
        tokenizer: a shipped name, a folder or a file; None: the one the manifest names.

    Returns:
        ``text``: None where no tokenizer is known. ``sound``: whether the pair's index and size leave no doubt, as far
        as that shows at its end and at this document, that these are the document's tokens. ``notes``: what a person
        should know besides. ``source``: see `provenance.source_of`, if it is known.

    Raises:
        SpecError: no such document or tokenizer.
        FormatError: not a readable pair.
    """
    pair, notes = open_pair(prefix), list[str]()
    _check_number(pair, number)
    check_ids(pair)
    _check_size(pair, number)
    sound = _is_sound(pair, number)
    if not sound:
        notes.append(
            "the index is broken, or of another .bin: these may be tokens of other documents; run: dataprep verify "
            f"{pair.prefix}"
        )
    decoder, manifest = _decoder(pair, tokenizer, notes)
    ids = pair.document(number).tolist()
    _note_unknown(decoder, ids, notes)
    source = None
    if manifest is not None and is_of(manifest, pair.prefix):
        source = source_of(manifest, number)
    elif manifest is not None:
        notes.append(f"no source is known: the manifest is of other files; run: dataprep verify {pair.prefix}")
    return {
        "document": number,
        "num_tokens": len(ids),
        "ids": ids,
        "text": decoder.text(ids) if decoder is not None else None,
        "sound": sound,
        "notes": notes,
        **({"source": source} if source is not None else {}),
    }


def decode(prefix: str | Path, document: int, tokenizer: str | None = None) -> str:
    """The text of one document; see `document`.

    Raises:
        SpecError: no such document, or no tokenizer to decode with.
        FormatError: not a sound pair.
    """
    value = _document(prefix, document, tokenizer)
    if not value["sound"]:
        raise FormatError(f"document {document}: {value['notes'][0]}")
    if value["text"] is None:
        raise SpecError(value["notes"][0])
    return str(value["text"])


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
        its text, None where no tokenizer is known. All ids together are ``seq_length`` + 1: inputs all but the last,
        labels all but the first. ``notes``: what a person should know besides.

    Raises:
        SpecError: no such sample or tokenizer, or a training that Megatron would not begin.
        FormatError: not a readable pair.
    """
    if sampling.seq_length > MOST_TOKENS:
        raise SpecError(f"--seq-length {sampling.seq_length}: samples of up to {MOST_TOKENS} tokens are decoded")
    pair = open_pair(prefix)
    check_ids(pair)
    notes: list[str] = []
    decoder, _ = _decoder(pair, tokenizer, notes)
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
                "text": decoder.text(ids) if decoder is not None else None,
            }
        )
    _note_unknown(decoder, [number for piece in pieces for number in piece["ids"]], notes)
    return {**_drawn(number, order, sampling), "pieces": pieces, "notes": notes}


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
        FormatError: not a readable pair, or a damaged manifest, or one of other files.
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


def _is_sound(pair: IndexedDataset, number: int) -> bool:
    """Whether sequences fill the ``.bin``, and those of one document lie end to end: a look, not the whole index."""
    bounds, lengths, pointers = pair.document_indices, pair.sequence_lengths, pair.sequence_pointers
    if bounds[0] or bounds[-1] != len(pair):
        return False
    first, last = int(bounds[number]), int(bounds[number + 1])
    for start, stop in ((max(0, first - 1), min(last + 1, len(pair))), (max(0, len(pair) - 1), len(pair))):
        ends = pointers[start:stop] + lengths[start:stop].astype(np.int64) * pair.dtype.itemsize
        if not np.array_equal(ends[:-1], pointers[start + 1 : stop]):
            return False
    return bool((pointers[-1] + int(lengths[-1]) * pair.dtype.itemsize if len(pair) else 0) == pair.tokens.nbytes)


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
