"""Who is told how a run gets on, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """What one batch added: source bytes as they lie on disk, documents, tokens, bytes of text, bytes fetched."""

    source_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    fetched_bytes: int = 0


class Watcher(Protocol):
    """Who is told how a run gets on; calls come from several threads."""

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        """A stage begins: what there is to read, how much of it an earlier run did, and how much is to be fetched."""

    def __call__(self, progress: Progress) -> None:
        """A batch is done."""


class Silent:
    """A Watcher that says nothing."""

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        """Nothing."""

    def __call__(self, progress: Progress) -> None:
        """Nothing."""
