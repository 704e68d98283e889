"""Progress on stderr: one tqdm bar on a terminal, one plain line every few seconds elsewhere.

Implements `runner.Watcher`. Calls come from the workers' threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from dataprep.runner import Silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.runner import Result, Watcher
    from dataprep.stages.tokenize import Progress

LINE_SECONDS = 5.0
"""How often a plain line is written where stderr is no terminal."""


class Bar:
    """Shows one stage at a time: share of the source read, documents, tokens, MB/s of text, time left."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._bar: tqdm[None] | None = None
        self._documents = self._tokens = self._text_bytes = 0
        self._start = time.monotonic()

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0) -> None:
        with self._lock:
            self._close()
            self._documents = self._tokens = self._text_bytes = 0
            self._start = time.monotonic()
            self._bar = self._tqdm(
                desc=name,
                total=total_bytes,
                initial=done_bytes,
                unit="B",
                unit_scale=True,
                file=sys.stderr,
                mininterval=0.2 if self._terminal else LINE_SECONDS,
                leave=False,
                delay=0 if self._terminal else LINE_SECONDS,
                dynamic_ncols=self._terminal,
                ascii=not self._terminal,
                bar_format=None if self._terminal else _LINE,
            )

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._bar is None:
                return
            self._documents += progress.documents
            self._tokens += progress.tokens
            self._text_bytes += progress.text_bytes
            if self._tokens:
                rate = self._text_bytes / 1e6 / max(1e-3, time.monotonic() - self._start)
                self._bar.set_postfix_str(f"{self._documents:,} documents, {self._tokens:,} tokens, {rate:.0f} MB/s", refresh=False)
            self._bar.update(progress.source_bytes)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        with self._lock:
            self._close()


_LINE = "{desc}: {percentage:3.0f} % of {total_fmt}B, {elapsed} gone, {remaining} left{postfix}\n"


@contextlib.contextmanager
def watch(quiet: bool) -> Iterator[Watcher]:
    """A watcher for the length of a block."""
    if quiet:
        yield Silent()
        return
    bar = Bar()
    try:
        yield bar
    finally:
        bar.close()


def summary(result: Result) -> list[str]:
    """What a person wants to know after a run, in a few lines."""
    manifest, counts = result.manifest, result.manifest.counts
    tokenizer, recipe = manifest.recipe.tokenizer, manifest.recipe
    lines = [
        f"{counts.num_documents:,} documents, {counts.num_tokens:,} tokens ({recipe.dtype}) from {counts.num_text_bytes / 1e6:,.1f} MB of text",
        f"each document: {tokenizer.bos_text + ' ' if recipe.writes_bos else ''}text"
        f"{' ' + str(tokenizer.eod_text) if recipe.policy.eod == 'append' else ''}",
    ]
    if counts.num_empty:
        lines.append(f"{counts.num_empty:,} empty documents {'dropped' if recipe.policy.empty == 'drop' else 'kept as boundaries'}")
    if counts.num_rejected:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.rejects.items())
        lines.append(f"{counts.num_rejected:,} records rejected ({reasons})")
    if counts.specials:
        texts = ", ".join(f"{text} {count:,}" for text, count in sorted(counts.specials.items(), key=lambda i: -i[1])[:5])
        lines.append(f"warning: special strings stood in documents ({texts}); policy.special_text={recipe.policy.special_text}")
    audited = f"{manifest.engine.gate_documents + counts.num_audited:,} documents encoded by {manifest.engine.reference} as well: equal"
    lines.append(f"verified: every token read back; {audited}" if counts.num_audited else "verified: every token read back")
    if result.fresh:
        rate = counts.num_text_bytes / 1e6 / max(manifest.wall_seconds, 1e-3)
        lines.append(f"{manifest.wall_seconds:.1f} s, {rate:,.0f} MB/s, {manifest.peak_memory_bytes / 1e6:,.0f} MB of memory at most")
    return lines
