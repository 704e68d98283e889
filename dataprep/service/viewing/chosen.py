"""One dataset that somebody asked for, or a page of a list; and that there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.service.viewing.answers import Pair
    from dataprep.service.viewing.summaries import Summary
    from dataprep.versions import VersionManifest

PAGE = 50
"""Entries of a page."""


class AbsentError(SpecError):
    """What was asked for is not there, and never was, or is not any more."""


@dataclass(frozen=True)
class Dataset:
    """One dataset, or one version of a versioned one.

    Attributes:
        id: as the module says, with the version.
        output: the folder that it lies in, and `output_id` the id of that.
        folder: its own.
        summary: of a dataset that has no versions.
        version: its manifest, of a version.
        pairs: in the order of their documents.
        manifests: of each pair the manifest that speaks of it.
    """

    id: str
    output_id: str
    output: Path
    folder: Path
    summary: Summary | None
    version: VersionManifest | None
    pairs: tuple[Pair, ...]
    manifests: tuple[Path, ...]

    @property
    def num_documents(self) -> int:
        return sum(pair.entry.num_documents for pair in self.pairs)

    def pair_of(self, document: int) -> tuple[int, int]:
        """The pair that holds a document, and the number of the document there.

        Raises:
            AbsentError: there is no such document.
        """
        for number, pair in enumerate(self.pairs):
            if 0 <= document - pair.first_document < pair.entry.num_documents:
                return number, document - pair.first_document
        there = f"documents 0 to {self.num_documents - 1}" if self.num_documents else "no documents"
        raise AbsentError(f"There is no such document: {self.folder.name} holds {there}.")


def page_of(number: int, count: int, size: int = PAGE) -> tuple[int, int]:
    """The first entry of a page, and how many pages there are, at least one.

    Raises:
        AbsentError: there is no such page.
    """
    pages = max(1, -(-count // size))
    if not 1 <= number <= pages:
        raise AbsentError(f"There is no such page: there are pages 1 to {pages}.")
    return (number - 1) * size, pages
