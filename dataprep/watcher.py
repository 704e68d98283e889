"""Who is told how a run gets on, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """What came to be since the last report: of a batch, of a unit, of the driver.

    Attributes:
        source_bytes: as they lie on disk.
        documents, tokens, text_bytes: written. Below zero where what was counted was taken back.
        fetched_bytes: of downloads.
        units: that are done.
        planned: units that turned out to be there to do; the files of later ones may not be here yet.
        workers: that came, less those that went; the threads of the driver's own process are none.
        retries: units given out again, because their worker was lost.
        earlier: an earlier run did all this: it counts, but not for the speed.
    """

    source_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    fetched_bytes: int = 0
    units: int = 0
    planned: int = 0
    workers: int = 0
    retries: int = 0
    earlier: bool = False

    def __add__(self, other: Progress) -> Progress:
        """Both together; `earlier` is the first one's."""
        return Progress(
            self.source_bytes + other.source_bytes,
            self.documents + other.documents,
            self.tokens + other.tokens,
            self.text_bytes + other.text_bytes,
            self.fetched_bytes + other.fetched_bytes,
            self.units + other.units,
            self.planned + other.planned,
            self.workers + other.workers,
            self.retries + other.retries,
            self.earlier,
        )


class Watcher(Protocol):
    """Who is told how a run gets on; calls come from several threads."""

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        """A stage begins: what there is to read, how much of it an earlier run did, and how much is to be fetched."""

    def __call__(self, progress: Progress) -> None:
        """More is done."""


class Silent:
    """A Watcher that says nothing."""

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        """Nothing."""

    def __call__(self, progress: Progress) -> None:
        """Nothing."""
