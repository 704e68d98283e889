"""Progress on stderr: a tqdm bar on a terminal, one plain line every few seconds elsewhere.

Both are a `watcher.Watcher`; calls come from the workers' threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from dataprep.watcher import Silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.runner import Result
    from dataprep.watcher import Progress, Watcher

BEAT_SECONDS = 1.0
"""How often it is seen to that something is shown."""

LINE_SECONDS = 5.0
"""How often a plain line is written where stderr is no terminal."""


class Meter:
    """Counts one stage at a time; `show` is what a subclass does with the counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin("", 0, 0, 0)

    def _begin(self, name: str, total_bytes: int, done_bytes: int, fetch_bytes: int) -> None:
        self.name, self.total, self.done, self.skipped = name, total_bytes, done_bytes, done_bytes
        self.fetched, self.to_fetch = 0, fetch_bytes
        self.documents = self.tokens = self.text_bytes = 0
        self.start = time.monotonic()

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        with self._lock:
            self.close()
            self._begin(name, total_bytes, done_bytes, fetch_bytes)
            self.open()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self.done += progress.source_bytes
            self.documents += progress.documents
            self.tokens += progress.tokens
            self.text_bytes += progress.text_bytes
            self.fetched += progress.fetched_bytes
            self.show(progress.source_bytes)

    def beat(self) -> None:
        """Time has passed, whether anything was counted or not."""
        with self._lock:
            if self.name:
                self.show(0)

    @property
    def counts(self) -> str:
        """Documents, tokens and MB/s of text so far, and what was fetched; empty where a stage has none."""
        passed = max(1e-3, time.monotonic() - self.start)
        parts = []
        if self.tokens:
            rate = self.text_bytes / 1e6 / passed
            parts.append(f"{self.documents:,} documents, {self.tokens:,} tokens, {rate:,.0f} MB/s")
        if self.fetched and self.fetched >= self.to_fetch > 0:
            parts.append(f"all {self.fetched / 1e9:,.2f} GB fetched")
        elif self.fetched:
            of = f" of {max(self.fetched, self.to_fetch) / 1e9:,.2f}" if self.to_fetch else ""
            parts.append(f"fetched {self.fetched / 1e9:,.2f}{of} GB at {self.fetched / 1e6 / passed:,.1f} MB/s")
        return ", ".join(parts)

    def open(self) -> None:
        """A stage begins."""

    def show(self, source_bytes: int) -> None:
        """A batch was counted."""

    def close(self) -> None:
        """The stage is over."""


class Bar(Meter):
    """A tqdm bar."""

    _bar: Any = None

    def open(self) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            desc=self.name,
            total=self.total,
            initial=self.done,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            mininterval=0.2,
            leave=False,
            dynamic_ncols=True,
        )

    def show(self, source_bytes: int) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(self.counts, refresh=False)
            self._bar.update(source_bytes)
            if not source_bytes:
                self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Lines(Meter):
    """A line every `LINE_SECONDS`, for logs."""

    _next = 0.0

    def open(self) -> None:
        self._next = self.start + LINE_SECONDS

    def show(self, source_bytes: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LINE_SECONDS
        passed = now - self.start
        share = min(1.0, self.done / max(1, self.total))
        counts = f", {self.counts}" if self.counts else ""
        print(
            f"{self.name}: {share:.0%}, {passed:.0f} s{self._left(passed)}{counts}",
            file=sys.stderr,
            flush=True,
        )

    def _left(self, passed: float) -> str:
        """About how long it will still take: what takes longer of working and fetching; '' while nobody knows."""
        rates = [(self.total - self.done, self.done - self.skipped), (self.to_fetch - self.fetched, self.fetched)]
        left = [to_do * passed / done for to_do, done in rates if done > 0]
        return f", about {max(0.0, *left):.0f} s left" if left else ""


@contextlib.contextmanager
def watch(quiet: bool) -> Iterator[Watcher]:
    """A watcher for the length of a block. It shows itself also while a step of the work takes long to count."""
    if quiet:
        yield Silent()
        return
    meter = Bar() if sys.stderr.isatty() else Lines()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            meter.beat()

    heart = threading.Thread(target=beat, name="progress", daemon=True)
    heart.start()
    try:
        yield meter
    finally:
        over.set()
        heart.join()
        meter.close()


def summary(result: Result) -> list[str]:
    """What a person wants to know after a run, in a few lines."""
    manifest, counts = result.manifest, result.manifest.counts
    tokenizer, recipe = manifest.recipe.tokenizer, manifest.recipe
    bos = f"{tokenizer.bos_text} " if recipe.writes_bos else ""
    eod = f" {tokenizer.eod_text}" if recipe.policy.eod == "append" else ""
    lines = [
        f"{counts.num_documents:,} documents, {counts.num_tokens:,} tokens ({recipe.dtype}) "
        f"from {counts.num_text_bytes / 1e6:,.1f} MB of text",
        f"each document: {bos}text{eod}",
    ]
    if counts.num_joined:
        lines.append(
            f"{counts.num_joined:,} records joined to earlier ones, reader.group_rows={recipe.reader.group_rows}"
        )
    if counts.num_empty:
        fate = "dropped" if recipe.policy.empty == "drop" or counts.num_joined else "kept"
        lines.append(f"{counts.num_empty:,} empty {'records' if counts.num_joined else 'documents'} {fate}")
    if counts.num_rejected:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.rejects.items())
        lines.append(f"{counts.num_rejected:,} records rejected ({reasons}), kept in {result.rejects}")
    if counts.specials:
        often = sorted(counts.specials.items(), key=lambda item: -item[1])[:5]
        texts = ", ".join(f"{text} {count:,}" for text, count in often)
        lines.append(
            f"warning: special strings stood in documents ({texts}); policy.special_text={recipe.policy.special_text}"
        )
    compared = manifest.engine.gate_documents + manifest.engine.audited_documents
    audit = f"; {compared:,} texts encoded by {manifest.engine.reference} as well: equal" if compared else ""
    lines.append(f"verified: every token read back{audit}")
    if result.fresh:
        rate = counts.num_text_bytes / 1e6 / max(manifest.wall_seconds, 1e-3)
        memory = manifest.peak_memory_bytes / 1e6
        lines.append(f"{manifest.wall_seconds:.1f} s, {rate:,.0f} MB/s, {memory:,.0f} MB of memory at most")
    return lines
