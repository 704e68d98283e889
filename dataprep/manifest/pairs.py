"""The same of one pair that was made from other pairs."""

from __future__ import annotations

import json
from typing import Any, Literal

from dataprep.manifest.datasets import Lengths, Prefix, Preprocess, Span, find_span
from dataprep.manifest.units import SCHEMA
from dataprep.specs import Model, Recipe, TokenizerIdentity, TokenPolicy


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
        preprocess: what `preprocess` had done to them beside the recipe.
        before: documents of the input's dataset that lie in prefixes before the input.
    """

    prefix: str
    start: int
    num_documents: int
    recipe: int | None = None
    provenance: tuple[Span, ...] = ()
    drawn_from: int | None = None
    preprocess: Preprocess | None = None
    before: int = 0


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
                span = find_span(part.provenance, part.start + document)
                if part.recipe is None or span is None:
                    return None
                return self.recipes[part.recipe], span, part.start + document - span.first_document
            document -= part.num_documents
        return None
