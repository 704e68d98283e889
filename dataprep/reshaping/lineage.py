"""Which documents of which pairs a new pair is made of, and what the manifests of those know about them.

Of inputs a (0 1 2 3 4, from x.jsonl) and b (0 1 2; the first is document 7 of c, the others are 0 and 1 of d) let
a[1:4] and b[0:2] be taken: the parts are a[1:4] with the run length of x.jsonl, c[7:8] and d[0:1].
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from dataprep.manifest import DatasetManifest, PairManifest, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from dataprep.manifest import Manifest, Span
    from dataprep.specs import Recipe


class Lineage:
    """Collects the parts of a new pair, in the order of its documents.

    Attributes:
        parts: so far.
        recipes: of all of them, each once; the parts say which by its number.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.recipes: list[Recipe] = []
        self._numbers: dict[str, int] = {}

    @classmethod
    def of(cls, prefix: Path, manifest: Manifest | None, ranges: Iterable[tuple[int, int]]) -> Self:
        """The parts of one pair alone, see `add`."""
        lineage = cls()
        lineage.add(prefix, manifest, ranges)
        return lineage

    def add(self, prefix: Path, manifest: Manifest | None, ranges: Iterable[tuple[int, int]]) -> None:
        """Documents [start, stop) of a pair, some times; of one that was made from others, as what it was made of."""
        if isinstance(manifest, PairManifest):
            self._add_parts(manifest, ranges)
            return
        recipe = self._number(manifest.recipe) if manifest is not None else None
        # What was dealt out to partitions is no run length any more: the input says where its documents are from.
        beside = manifest.preprocess if manifest is not None else None
        dealt = beside is not None and beside.partitions > 1
        spans = manifest.provenance if manifest is not None and not dealt else ()
        for start, stop in ranges:
            provenance = tuple(_between(spans, start, stop))
            self._append(
                Part(
                    prefix=str(prefix),
                    start=start,
                    num_documents=stop - start,
                    recipe=recipe,
                    provenance=provenance,
                    preprocess=beside,
                    before=manifest.before if manifest is not None else 0,
                )
            )

    def _add_parts(self, manifest: PairManifest, ranges: Iterable[tuple[int, int]]) -> None:
        firsts = list(accumulate((part.num_documents for part in manifest.parts), initial=0))
        numbers: dict[int | None, int | None] = {None: None}
        for start, stop in ranges:
            for i in range(bisect_right(firsts, start) - 1, len(manifest.parts)):
                part = manifest.parts[i]
                begin, end = max(start - firsts[i], 0), min(stop - firsts[i], part.num_documents)
                if end <= 0:
                    break
                if begin < end:
                    if part.recipe is not None and part.recipe not in numbers:
                        numbers[part.recipe] = self._number(manifest.recipes[part.recipe])
                    first, last = part.start + begin, part.start + end
                    changes = {
                        "start": first,
                        "num_documents": end - begin,
                        "recipe": numbers[part.recipe],
                        "provenance": tuple(_between(part.provenance, first, last)),
                    }
                    self._append(part.model_copy(update=changes))

    def add_drawn(self, prefix: Path, manifest: Manifest | None, count: int, total: int) -> None:
        """So many documents, drawn from all `total` of a pair, too many to be named one by one."""
        recipe = None
        if isinstance(manifest, DatasetManifest):
            recipe = self._number(manifest.recipe)
        elif manifest is not None and manifest.tokenizer is not None:  # of all its documents, so any recipe will do
            recipe = self._number(manifest.recipes[0])
        self.parts.append(Part(prefix=str(prefix), start=0, num_documents=count, recipe=recipe, drawn_from=total))

    def _number(self, recipe: Recipe) -> int:
        number = self._numbers.setdefault(recipe.digest, len(self.recipes))
        if number == len(self.recipes):
            self.recipes.append(recipe)
        return number

    def _append(self, part: Part) -> None:
        """Joined with the last one where it goes on where that ends, as when what was split is merged."""
        last = self.parts[-1] if self.parts else None
        if last is None or not _follows(part, last):
            self.parts.append(part)
            return
        seen = 1 if last.provenance[-1:] == part.provenance[:1] else 0
        self.parts[-1] = last.model_copy(
            update={
                "num_documents": last.num_documents + part.num_documents,
                "provenance": last.provenance + part.provenance[seen:],
            }
        )


class Holdings:
    """Collects which documents pairs hold, to find those that several of them hold, or one of them several times."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str], list[tuple[int, int, Path]]] = {}

    def add(self, prefix: Path, lineage: Lineage) -> None:
        """A pair, and what all of its documents are."""
        for part in lineage.parts:
            if part.drawn_from is None:  # else nobody knows which they are
                digest = lineage.recipes[part.recipe].digest if part.recipe is not None else ""
                # one recipe makes the same documents wherever it is run, and numbers them alike
                key = digest, "" if part.provenance else part.prefix
                start = part.before + part.start
                self._ranges.setdefault(key, []).append((start, start + part.num_documents, prefix))

    def repeats(self) -> tuple[int, list[Path]]:
        """How many documents are held once more than needed, and the pairs that hold them."""
        prefixes: dict[Path, None] = {}
        count = 0
        for ranges in self._ranges.values():
            end, holder = -1, None
            for start, stop, prefix in sorted(ranges, key=lambda each: each[:2]):
                if holder is not None and start < end and start < stop:
                    count += min(stop, end) - start
                    prefixes |= {holder: None, prefix: None}
                if stop > end:
                    end, holder = stop, prefix
        return count, list(prefixes)


def _follows(part: Part, last: Part) -> bool:
    names = ("prefix", "recipe", "drawn_from", "preprocess")
    same = all(getattr(part, name) == getattr(last, name) for name in names)
    return same and part.start == last.start + last.num_documents


def _between(spans: tuple[Span, ...], start: int, stop: int) -> Iterator[Span]:
    """The run lengths that hold any of documents [start, stop); of those that begin at one number the last holds it."""
    first = bisect_right(spans, start, key=lambda span: span.first_document) - 1
    for i in range(max(0, first), len(spans)):
        if spans[i].first_document >= stop:
            return
        if spans[i].num_documents:
            yield spans[i]
