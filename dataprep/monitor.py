"""What a run says of itself in files: ``progress.json`` in its work folder, and metrics where somebody asked for them.

    Progress, from threads ---> Monitor ---> the watcher that was given
                                   |
                   every 5 s, at each stage, in the end
                                   v
                  progress.json, <runtime.metrics>/*.prom     each whole, by a rename

Written by the driver alone, and only for eyes: no run reads it, and none fails because it cannot be written.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from dataprep import metrics
from dataprep.errors import OutputError
from dataprep.meters import Meter, RunState, Tally
from dataprep.storage import AtomicFile, append_line
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from dataprep.cluster import Cluster
    from dataprep.manifest import Counts
    from dataprep.planning import Request
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)

WRITE_SECONDS = 5.0
"""How often the files are written while nothing but counts change."""


class Monitor:
    """A watcher for one run that holds its output; passes everything on. Use as a context manager.

    Args:
        request: the run.
        watcher: who is told as well.
    """

    def __init__(self, request: Request, watcher: Watcher) -> None:
        self._request, self._watcher = request, watcher
        self._lock, self._writing, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._meter = Meter()
        self._all, self._earlier, self._source_done = Progress(), Progress(), 0
        self._state: Literal["running", "published", "failed", "interrupted"] = "running"
        self._counts: Counts | None = None
        self._started, self._sequence = time.time(), 0
        self._to_fetch, self._most = 0, Tally.of(Progress())
        self._failed: set[Path] = set()
        self._metrics: Path | None = None
        if request.runtime.metrics is not None:
            name = f"dataprep-{request.recipe.corpus}-{request.recipe.tokenizer.name}.prom"
            self._metrics = Path(os.path.abspath(request.runtime.metrics)) / name

    def __enter__(self) -> Self:
        self._write()
        self._heart = threading.Thread(target=self._beat, name="monitor", daemon=True)
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._state = "failed" if issubclass(kind, Exception) else "interrupted"
        self._over.set()
        self._heart.join()
        self._write()

    def published(self, counts: Counts) -> None:
        """The dataset is there, and these are its counts."""
        self._state, self._counts = "published", counts

    def stage(self, name: str, total_bytes: int, done_bytes: int = 0, fetch_bytes: int = 0) -> None:
        with self._lock:
            self._meter.begin(name, total_bytes, done_bytes, fetch_bytes)
            self._to_fetch = max(self._to_fetch, fetch_bytes)
            if name == "tokenize":
                self._source_done, self._earlier = done_bytes, Progress(source_bytes=done_bytes)
        self._write()
        self._watcher.stage(name, total_bytes, done_bytes, fetch_bytes)

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self._meter.add(progress)
            self._all += progress
            if progress.earlier:
                self._earlier += progress
            if self._meter.name == "tokenize":
                self._source_done += progress.source_bytes
        if progress.planned and progress.earlier:  # all that was done before, and not a unit's pieces
            self._write()
        self._watcher(progress)

    def _beat(self) -> None:
        while not self._over.wait(WRITE_SECONDS):
            self._write()

    def state(self) -> RunState:
        """How the run stands."""
        with self._lock:
            figures, counted, earlier = self._meter.figures(), self._all, self._earlier
            self._sequence += 1
        recipe, runtime = self._request.recipe, self._request.runtime
        documents, tokens, text_bytes = counted.documents, counted.tokens, counted.text_bytes
        if self._counts is not None:  # of a limit, what an earlier run did is known in the end
            documents, tokens = self._counts.num_documents, self._counts.num_tokens
            text_bytes = self._counts.num_text_bytes
        return RunState.model_validate(
            figures.model_dump()
            | {
                "state": self._state,
                "corpus": recipe.corpus,
                "tokenizer": recipe.tokenizer.name,
                "recipe_digest": self._request.digest,
                "units": counted.planned,
                "units_done": counted.units,
                "num_documents": documents,
                "num_tokens": tokens,
                "num_text_bytes": text_bytes,
                "source_bytes": recipe.num_bytes,
                "source_bytes_done": self._source_done,
                "fetch_bytes": self._to_fetch,
                "fetched_bytes": counted.fetched_bytes,
                "workers": figures.workers if runtime.processes else runtime.workers,
                "retries": counted.retries,
                "earlier": Tally.of(earlier),
                "started": _utc(self._started),
                "updated": _utc(time.time()),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "sequence": self._sequence,
            }
        )

    def _write(self) -> None:
        with self._writing:
            state = self.state()
            value = json.dumps(state.to_json(), sort_keys=True, indent=2, ensure_ascii=False)
            self._try(self._request.layout.progress, f"{value}\n")
            if self._metrics is not None:
                self._most = _counters(state, self._most)
                self._try(self._metrics, metrics.text(state, self._most), 0o644)  # the exporter is another user

    def _try(self, path: Path, text: str, mode: int | None = None) -> None:
        try:
            with AtomicFile(path, durable=False) as file:
                if mode is not None:
                    os.fchmod(file.fd, mode)
                file.write(text.encode())
        except (OutputError, OSError) as error:
            if path not in self._failed:
                self._failed.add(path)
                why = error.__cause__ or error
                log.warning("%s cannot be written: %s; the run goes on without", path, getattr(why, "strerror", why))


def _counters(state: RunState, before: Tally) -> Tally:
    """What this driver did, for metrics that must never fall, not even where a little was taken back."""
    now = state.model_dump() | {"source_bytes": state.source_bytes_done}
    earlier = state.earlier.model_dump()
    return Tally(**{name: max(least, now[name] - earlier[name]) for name, least in before.model_dump().items()})


def tell_pages(cluster: Cluster, request: Request) -> None:
    """Note in the events of a run where Dask's pages are, if they were asked for."""
    if request.cluster.dashboard:
        event = {"time": _utc(time.time()), "event": "dashboard", "address": cluster.dashboard}
        append_line(request.layout.events, event)


def tell_workers(cluster: Cluster, told: Progress, watcher: Watcher) -> Progress:
    """Tell a watcher how many workers of other processes came or went, and how many units were given out again.

    Args:
        cluster: that has them.
        told: what this returned the last time.
        watcher: who is told.
    """
    now = Progress(workers=cluster.num_workers, retries=cluster.num_retries)
    watcher(Progress(workers=now.workers - told.workers, retries=now.retries - told.retries))
    return now


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
