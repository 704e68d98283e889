"""Parity: the engine's ids are the reference's, or the run stops.

    gate     before the first unit: a fixed set of nasty strings and the first documents of the corpus
    compare  during the run: the sampled documents of a batch (the audit)
    recheck  after it, `verify --level source`: documents of a pair, encoded again from the source files

A difference is an EncodeError that names the document, the place and both answers.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataprep import readers
from dataprep.batches import TextBatch, TokenBatch
from dataprep.definitions import load
from dataprep.encoders import open_engine, open_reference
from dataprep.errors import EncodeError, SourceError, SpecError
from dataprep.manifest import DatasetManifest, Slice
from dataprep.policy import choose, finish
from dataprep.sources import check_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dataprep.batches import Offsets
    from dataprep.definitions import Definition
    from dataprep.encoders import Encoder
    from dataprep.indexed import IndexedDataset
    from dataprep.manifest import Manifest, Span
    from dataprep.specs import Recipe, SourceFile, TokenizerIdentity

NASTY: tuple[str, ...] = (
    "",
    " ",
    "  ",
    "\n",
    " \n ",
    "\t\t x",
    "\r",
    "a\rb",
    "a\r\nb\r\n",
    "Hello  world",
    "Hello   world    again     and      again",
    "x" + " " * 100 + "y",
    "\n\n\n\n \n\n",
    "trailing   ",
    "   leading",
    "NUL\x00inside",
    "\x01\x02\x7f\x80\x9f",
    "\ufeffBOM",
    "soft\u00adhyphen zero\u200bwidth \u200d\u200c",
    "nbsp\u00a0thin\u2009ideographic\u3000space\u2028line\u2029par\u0085nel",
    "e\u0301 a\u0308\u0323 \u1e69 s\u0323\u0307 \u0301\u0301\u0301",
    "\u0915\u094d\u0937\u093f \u0e01\u0e33 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\ud55c\uad6d\uc5b4\u3001\u4e2d\u6587",
    "\ufb01 \u00bd \u2167 \u212b \uff21\uff22\uff23 \u0132",
    "\U000e0001\U000e007f \U0010ffff \ufffd \ufffe \ue000",
    "don't I'LL we'Ve y'all'd've 's 'S 't",
    "1 12 123 1234 12345678901234567890 3.14e-10 0x1F \u0664\u0665\u0666",
    "camelCaseHTTPServer snake_case __init__ ->::=> !!!??? ~~~~ ======== --------",
    "a" * 300,
    "ab" * 200,
    "\u00e9" * 150,
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|> c",
    "<s>start</s> and </s> <unk> <pad> [CLS] [SEP] <|begin_of_text|><|end_of_text|><|eot_id|><|im_start|>",
    "< |endoftext| > <|endoftext| <0x0A> \u2581 \u2581x x\u2581",
    "def f(x):\n\treturn {\n\t\t'a': [1, 2],\n\t}\n",
)
"""Strings that have told engines apart: whitespace runs, marks, joiners, special strings, long repeats."""

OWN_STRINGS = 1000
"""At most this many of a tokenizer's added tokens are tried as well: their rules (whole words only, the blanks around
them) are where an engine may differ, and no fixed list can hold them."""

MAX_BYTES = 1 << 20
"""Longer documents are not given to the reference to check: `tokenizers` takes 100 bytes of memory per byte of text."""

GATE_BYTES = 1 << 17
"""At most this much of the corpus goes through the gate: 30 ms of the reference."""


def strings(texts: Sequence[str]) -> TextBatch:
    """Python strings as a batch; for small sets only."""
    return TextBatch.of([text.encode() for text in texts])


def gate(engine: Encoder, reference: Encoder, first: TextBatch | None) -> int:
    """Compare engine and reference on the nasty strings, the tokenizer's own added tokens, and the first documents.

    Returns:
        How many documents were compared.

    Raises:
        EncodeError: they differ; the message names the document.
    """
    own = [f"a{text}b {text} {text}{text}" for text in getattr(reference, "added", ())[:OWN_STRINGS]]
    texts = [*NASTY, *own]
    nasty = strings(texts)
    expected = reference.encode(nasty)
    compare(engine.encode(nasty), expected, engine, reference, lambda i: f"the built-in string {texts[i][:40]!r}")
    alone = [engine.encode(strings([text])).ids for text in texts]  # few documents take another way through the engine
    found = TokenBatch.of(alone)
    compare(found, expected, engine, reference, lambda i: f"the built-in string {texts[i][:40]!r}, alone")
    if first is None or not len(first):
        return len(nasty)
    few = max(1, int(np.searchsorted(first.offsets - first.offsets[0], GATE_BYTES, side="right")) - 1)
    keep = np.zeros(len(first), np.bool_)
    keep[:few] = np.diff(first.offsets)[:few] <= GATE_BYTES
    sample = first.select(keep)
    rows, expected = sample.row_numbers(), reference.encode(sample)
    compare(engine.encode(sample), expected, engine, reference, lambda i: f"record {rows[i] + 1} of the corpus")
    return len(nasty) + len(sample)


def compare(
    found: TokenBatch, expected: TokenBatch, engine: Encoder, reference: Encoder, name: Callable[[int], str]
) -> None:
    """Hold the engine's answer to the reference's.

    Args:
        name: document number in the batch -> how to call it in the message.

    Raises:
        EncodeError: a document's ids differ.
    """
    if np.array_equal(found.offsets, expected.offsets) and np.array_equal(found.ids, expected.ids):
        return
    for i in range(len(expected)):
        mine = found.ids[found.offsets[i] : found.offsets[i + 1]]
        right = expected.ids[expected.offsets[i] : expected.offsets[i + 1]]
        if not np.array_equal(mine, right):
            common = min(len(mine), len(right))
            differs = np.flatnonzero(mine[:common] != right[:common])
            at = int(differs[0]) if len(differs) else common
            raise EncodeError(
                f"{name(i)}: at token {at} {engine.name} {engine.version} says {mine[at : at + 5].tolist()}, "
                f"the reference {reference.name} {reference.version} says {right[at : at + 5].tolist()}; nothing was "
                "published. Run again with --set runtime.engine=reference, and report the document"
            )


SPANS = 10
"""How many stretches of the source `recheck` reads, unless they are short: each is a unit's part of one file."""


class NotComparedError(SourceError):
    """A pair cannot be held to its source; that says nothing of the pair.

    Attributes:
        code: of the problem, see `checks.rules`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text}: nothing was compared")
        self.code = code


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive documents of a pair that lie together in the source.

    Attributes:
        first: the first of them, numbered within the run length `span`.
        document: the same one, numbered within the pair.
    """

    recipe: Recipe
    span: Span
    first: int
    num_documents: int
    document: int


def recheck(pair: IndexedDataset, manifest: Manifest, sample: int, offered: TokenizerIdentity | None = None) -> int:
    """Encode documents of a pair again, by the reference, from the source files.

    Args:
        pair: the pair.
        manifest: its manifest; provenance leads back to the source.
        sample: documents to compare, spread over some stretches of the source, the same ones every time.
        offered: stands in for the manifest's tokenizer where that is gone and this one's files are the same.

    Returns:
        How many were compared.

    Raises:
        NotComparedError: the manifest leads back to no source, or a file of it, or the tokenizer, is gone or changed.
        SourceError: a source file no longer holds the document.
        EncodeError: the ids differ; the message names the document.
    """
    chosen = _choose_stretches(_stretches(manifest), sample)
    if not chosen:
        raise NotComparedError("source-unknown", _why_unknown(manifest))
    for stretch, _ in chosen:
        _check_source(stretch.recipe.files[stretch.span.file])
    opened: dict[str, tuple[Definition, Encoder, Encoder]] = {}
    count = 0
    for stretch, number in chosen:
        recipe = stretch.recipe
        key = f"{recipe.tokenizer.identity} {recipe.policy.special_text}"
        if key not in opened:
            definition = _load(recipe.tokenizer, offered)
            reference = open_reference(definition, recipe.policy.special_text)
            # The engine is only asked which records became documents; it answers 20 times faster.
            engine = open_engine(definition, recipe.policy.special_text, "auto", reference)
            opened[key] = (definition, reference, engine)
        definition, reference, engine = opened[key]
        numbers = random.Random(stretch.document).sample(range(stretch.num_documents), number)
        wanted = np.array(sorted(numbers)) + stretch.first
        documents = _documents(recipe, definition, stretch.span, engine)
        count += _recheck_stretch(pair, stretch, wanted, documents, reference)
    return count


def _why_unknown(manifest: Manifest) -> str:
    if not isinstance(manifest, DatasetManifest) or manifest.preprocess is None:
        return "the manifest leads back to no source"
    made = manifest.preprocess
    options = ["--split-sentences"] if made.lang is not None else []
    options += ["--partitions"] if made.partitions > 1 else []
    return f"made by preprocess with {' and '.join(options) or 'texts cut into sentences'}, and not encoded again"


def _check_source(file: SourceFile) -> None:
    if not os.access(file.path, os.R_OK):
        again = "; `dataprep download` fetches it again" if file.url is not None else ""
        raise NotComparedError("source-gone", f"the source file {file.path} is gone, or cannot be read{again}")
    try:
        check_same(file)
    except SourceError as error:
        text = f"the source file {file.path} has changed since the dataset was made"
        raise NotComparedError("source-changed", text) from error


def _load(wanted: TokenizerIdentity, offered: TokenizerIdentity | None) -> Definition:
    """The manifest's tokenizer; where it is gone, the one that is offered, if its files are the same."""
    try:
        return load(wanted)
    except SpecError as error:
        if offered is None:
            raise NotComparedError("tokenizer-gone", f"the tokenizer of the manifest: {error}") from error
        if (offered.type, offered.files) != (wanted.type, wanted.files):
            text = (
                f"the tokenizer of the manifest: {error}; and {offered.path} is another: the sha256 of its files differ"
            )
            raise NotComparedError("tokenizer-gone", text) from error
    return load(offered)


def _stretches(manifest: Manifest) -> list[Stretch]:
    """All documents whose source is known."""
    if isinstance(manifest, DatasetManifest):
        if manifest.preprocess is not None:  # the recipe alone does not say what a document is
            return []
        num_documents = sum(entry.num_documents for entry in manifest.prefixes)
        spans = ((span, *span.within(0, num_documents)) for span in manifest.provenance)
        return [
            Stretch(manifest.recipe, span, first - span.first_document, stop - first, first)
            for span, first, stop in spans
            if first < stop
        ]
    found, document = [], 0
    for part in manifest.parts:
        for span in part.provenance if part.recipe is not None and part.preprocess is None else ():
            first, stop = span.within(part.start, part.start + part.num_documents)
            if first < stop:
                recipe, inside = manifest.recipes[part.recipe or 0], first - span.first_document
                found.append(Stretch(recipe, span, inside, stop - first, document + first - part.start))
        document += part.num_documents
    return found


def _choose_stretches(stretches: list[Stretch], sample: int) -> list[tuple[Stretch, int]]:
    """Stretches of the source in a fixed random order, each with how many of its documents to compare."""
    random.Random(0).shuffle(stretches)
    each = -(-sample // min(SPANS, len(stretches) or 1))
    chosen: list[tuple[Stretch, int]] = []
    for stretch in stretches:
        if sample <= 0:
            break
        number = min(each, stretch.num_documents, sample)
        chosen.append((stretch, number))
        sample -= number
    return chosen


def _recheck_stretch(
    pair: IndexedDataset, stretch: Stretch, wanted: Offsets, documents: Iterator[TextBatch], reference: Encoder
) -> int:
    """Compare the documents `wanted` of a span, numbered within it, sorted."""
    recipe, span = stretch.recipe, stretch.span
    offset = stretch.document - stretch.first
    first = count = 0
    for batch in documents:
        inside = wanted[(wanted >= first) & (wanted < first + len(batch))] - first
        if len(inside):
            keep = np.zeros(len(batch), np.bool_)
            keep[inside] = batch.lengths[inside] <= MAX_BYTES
            inside = np.flatnonzero(keep)
            again = finish(reference.encode(batch.select(keep)), recipe)
            rows = batch.row_numbers()[keep] + span.first_row
            for i, document in enumerate((inside + first + offset).tolist()):
                ids = again.ids[again.offsets[i] : again.offsets[i + 1]]
                if not np.array_equal(ids, pair.document(document)):
                    record = f"record {rows[i] + 1} of {recipe.files[span.file].path}"
                    raise EncodeError(f"document {document} is not what {reference.name} makes of {record}")
            count += len(inside)
        first += len(batch)
        if first > wanted[-1]:
            return count
    raise SourceError(f"{recipe.files[span.file].path} holds fewer documents than when the dataset was made")


def _documents(recipe: Recipe, definition: Definition, span: Span, engine: Encoder) -> Iterator[TextBatch]:
    """The batches of a span with the documents that were written, and no others."""
    file = recipe.files[span.file]
    part = Slice(file=span.file, start=span.start, stop=span.stop, num_bytes=0)
    if span.num_documents == span.num_records:
        yield from readers.read(file, part, recipe.reader, 1 << 20)
        return
    # A row group that turns out corrupt takes its documents back: which ones do is found out first. The batch that
    # says so, and what follows it, may hold a document that began before the row group.
    group, undone = 0, set()
    for batch in readers.read(file, part, recipe.reader, 1 << 20):
        group += batch.restart
        undone |= {group} if batch.undo else set()
    group = 0
    for batch in readers.read(file, part, recipe.reader, 1 << 20):
        group += batch.restart
        if batch.undo:
            undone.discard(group)
        if group not in undone:
            yield choose(batch, engine.encode(batch), recipe, definition)[0]
