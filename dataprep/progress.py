"""Progress on stderr: a tqdm bar on a terminal, one plain line every few seconds elsewhere.

Both are a `watcher.Watcher`; calls come from the workers' threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from dataprep.meters import Meter, counts, line, short_time
from dataprep.watcher import Silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.meters import Figures
    from dataprep.runner import Result
    from dataprep.watcher import Progress, Watcher

BEAT_SECONDS = 1.0
"""How often it is seen to that something is shown."""

BAR_SECONDS = 0.2
"""How often a bar is drawn at the most."""

LINE_SECONDS = 5.0
"""How often a plain line is written where stderr is no terminal."""


class Shown:
    """Counts a stage and shows it; `show` is what a subclass does.

    Args:
        every: seconds from one `show` to the next at the least.
    """

    def __init__(self, every: float) -> None:
        self._lock = threading.Lock()
        self._every, self._next = every, 0.0
        self.meter = Meter()

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        with self._lock:
            self.close()
            self.meter.begin(name, total_bytes, done_bytes, fetch_bytes)
            self._next = time.monotonic() + self._every
            self.open()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self.meter.add(progress)
            self._look()

    def beat(self) -> None:
        """Time has passed, whether anything was counted or not."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        if self.meter.name and now >= self._next:
            self._next = now + self._every
            self.show(self.meter.figures())

    def open(self) -> None:
        """A stage begins."""

    def show(self, figures: Figures) -> None:
        """It is time to."""

    def close(self) -> None:
        """The stage is over."""


class Bar(Shown):
    """A tqdm bar. Its own speed and time left are not shown: they leap when workers report unit by unit."""

    _bar: Any = None

    def open(self) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            desc=self.meter.name,
            total=self.meter.total or None,
            initial=self.meter.done,
            bar_format="{l_bar}{bar}| {unit}" if self.meter.total else "{desc}: {unit}",
            unit="",  # tqdm's {postfix} brings a comma
            file=sys.stderr,
            leave=False,
            dynamic_ncols=True,
        )

    def show(self, figures: Figures) -> None:
        if self._bar is not None:
            self._bar.n = figures.stage_bytes_done
            if figures.stage_bytes:  # more than all would be shown without a bar
                self._bar.n = min(self._bar.n, figures.stage_bytes)
            self._bar.unit = _behind(figures)
            self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _behind(figures: Figures) -> str:
    """What stands behind a bar: short, because a terminal is 80 columns wide."""
    left = figures.seconds_left
    time_ = short_time(figures.seconds) if left is None else f"{short_time(left)} left"
    return ", ".join(filter(None, (time_, counts(figures, short=True))))


class Lines(Shown):
    """A plain line now and then, for logs."""

    def show(self, figures: Figures) -> None:
        print(f"{figures.stage}: {line(figures)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def watch(quiet: bool) -> Iterator[Watcher]:
    """A watcher for the length of a block. It shows itself also while a step of the work takes long to count."""
    if quiet:
        yield Silent()
        return
    shown = Bar(BAR_SECONDS) if sys.stderr.isatty() else Lines(LINE_SECONDS)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            shown.beat()

    heart = threading.Thread(target=beat, name="progress", daemon=True)
    heart.start()
    try:
        yield shown
    finally:
        over.set()
        heart.join()
        shown.close()


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
