"""What a dataset is, made of what, proved how."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Literal

from pydantic import Field

from dataprep.manifest.units import SCHEMA, Counts, PairFiles
from dataprep.probe import Probe
from dataprep.specs import Model, Recipe, TokenizerIdentity, TokenPolicy


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

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """Which of documents [start, stop) it holds, as such a range; an empty one, or none, where it holds none."""
        return max(start, self.first_document), min(stop, self.first_document + self.num_documents)


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


class Preprocess(Model):
    """What `preprocess` does beside a recipe.

    Attributes:
        partitions: the documents were dealt out to so many, one by one, and those put behind each other.
        lang: of nltk's model that cut them into sentences; None: they are whole, or came cut.
        keep_newlines: whether the white space behind a sentence belongs to it.
    """

    partitions: int = 1
    lang: str | None = None
    keep_newlines: bool = False

    def before(self, document: int, num_documents: int) -> int:
        """The number a document had before it was dealt out."""
        for turn in range(self.partitions):
            size = -(-(num_documents - turn) // self.partitions)
            if document < size:
                return turn + document * self.partitions
            document -= size
        return document


class DatasetManifest(Model):
    """The proof that a dataset exists, and all there is to know about it.

    Attributes:
        recipe: whole; its `files` carry the checksums of what was read.
        provenance: run lengths, in the order of the documents.
        verification: the report of the verify stage, as JSON; of several prefixes, ``reports``, one for each.
        peak_memory_bytes: largest resident size of any process of the run.
        preprocess: what `preprocess` did beside the recipe, where it did: dealt the documents out to partitions, cut
            them into sentences.
        probe: what the file system could do that it was made on.
        before: documents in prefixes that were left out, see `only`; 0 in the file.
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
    preprocess: Preprocess | None = None
    probe: Probe | None = None
    before: int = Field(default=0, exclude=True)

    @property
    def tokenizer(self) -> TokenizerIdentity:
        return self.recipe.tokenizer

    @property
    def policy(self) -> TokenPolicy:
        return self.recipe.policy

    def only(self, name: str) -> DatasetManifest:
        """What it says of one of its prefixes: documents are numbered as there; `counts` and `lengths` are of all.

        A run length that other prefixes share begins before document 0, or ends behind the last one.
        """
        number = next(i for i, entry in enumerate(self.prefixes) if entry.name == name)
        if len(self.prefixes) == 1:
            return self
        entry = self.prefixes[number]
        before = sum(each.num_documents for each in self.prefixes[:number])
        stop = before + entry.num_documents
        spans = tuple(
            span.model_copy(update={"first_document": span.first_document - before})
            for span in self.provenance
            if span.first_document < stop and span.first_document + span.num_documents > before
        )
        return self.model_copy(update={"prefixes": (entry,), "provenance": spans, "before": before})

    def locate(self, document: int) -> tuple[Recipe, Span, int] | None:
        """The recipe, run length and number in it of a document."""
        if self.preprocess is not None:
            document = self.preprocess.before(document, self.counts.num_documents)
        span = find_span(self.provenance, document)
        return (self.recipe, span, document - span.first_document) if span is not None else None


def find_span(provenance: tuple[Span, ...], document: int) -> Span | None:
    """The run length that holds a document."""
    i = bisect_right(provenance, document, key=lambda span: span.first_document) - 1
    while i >= 0 and not provenance[i].num_documents:  # of rows none of which became a document
        i -= 1
    found = i >= 0 and document - provenance[i].first_document < provenance[i].num_documents
    return provenance[i] if found else None
