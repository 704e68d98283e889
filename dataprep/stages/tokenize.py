"""Unit -> shard: read, encode, apply the policy, write; then the manifest that says "done".

    TextBatch -> engine -> uint32 ids -> audit -> empty and special documents out -> BOS, EOD, narrow -> shard

One unit is worked by one thread. The shard's bytes are a function of recipe
and unit alone, so that the same unit, done twice at once after a worker was lost, is merely waste.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep import parity, readers
from dataprep.definitions import load
from dataprep.encoders import open_engine, open_reference
from dataprep.errors import OutputError
from dataprep.layout import Layout
from dataprep.manifest import Counts, SliceRows, UnitManifest
from dataprep.policy import choose, finish
from dataprep.shards import Attempt, ShardWriter, load_pieces
from dataprep.sources import check_unchanged
from dataprep.specs import Recipe, Runtime
from dataprep.storage import write_json
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.batches import Cursor, Reject, TextBatch, TokenBatch
    from dataprep.definitions import Definition
    from dataprep.encoders import Encoder
    from dataprep.manifest import Slice, Unit

    Report = Callable[[Progress], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What a worker needs beside the unit; small, because it travels with every task.

    Attributes:
        layout: where shards go and where ``recipe.json`` lies.
        digest: of the recipe.
        runtime: engine, batch size, audit rate, memory.
    """

    layout: Layout
    digest: str
    runtime: Runtime

    @property
    def recipe(self) -> Recipe:
        """All that decides the bytes.

        Raises:
            OutputError: this machine does not see the run's folder.
        """
        path = self.layout.recipe
        try:
            return _recipe(path, self.digest, path.stat().st_mtime_ns)
        except OSError as error:
            raise OutputError(
                f"{socket.gethostname()} does not see {path} ({error.strerror}): the output has to lie on a file "
                "system that all workers share, mounted at the same path"
            ) from error

    @property
    def batch_bytes(self) -> int:
        """Text per batch: what was asked for, or less so that the run stays within its memory."""
        workers = 1 if self.runtime.processes else self.runtime.workers
        share = (self.runtime.process_memory - LIBRARIES_BYTES) / workers
        return min(self.runtime.batch_bytes, max(64 << 10, int(share / BATCH_FACTOR)))


LIBRARIES_BYTES = 160 << 20
"""Resident size of a process that has imported everything and opened nothing."""

BATCH_FACTOR = 20
"""Memory of a worker per byte of batch: block, Arrow column, ids, output, and what malloc keeps of each."""


@lru_cache(maxsize=4)
def _recipe(path: Path, digest: str, mtime_ns: int) -> Recipe:
    recipe = Recipe.from_json(json.loads(path.read_text(encoding="utf-8")), str(path))
    assert recipe.digest == digest
    return recipe


def run(job: Job, unit: Unit, report: Report) -> None:
    """Make the shard of one unit, unless its manifest is there already; in pieces, if it is long.

    Args:
        job: the run it belongs to.
        unit: what to read.
        report: called after every batch; may raise to stop.

    Raises:
        SourceError: a file is corrupt, or changed.
        EncodeError: engine and reference disagree, or an id does not fit.
        OutputError: the file system refuses.
        ClusterError: the unit killed its worker too often.
    """
    if job.layout.unit_manifest(unit.key).exists():
        return
    recipe = job.recipe
    with Attempt(job.layout, unit, recipe) as attempt, contextlib.closing(_Work(job, unit)) as work:
        if work.begin is not None:
            report(work.earlier)
        for part in unit.slices:
            file = recipe.files[part.file]
            check_unchanged(file)
            for batch in readers.read(file, part, recipe.reader, job.batch_bytes, work.begin):
                report(work.add(batch))
                if work.full:
                    break
                if batch.cursor is not None and work.may_end:
                    check_unchanged(file)
                    work.end_piece(part, batch.cursor)
                    attempt.progressed()
            check_unchanged(file)
            work.end_slice(part)
            if work.full:
                break
        work.commit()


@dataclass(frozen=True)
class Bench:
    """What a process keeps between units: a tokenizer, its reference and its engine, for all threads."""

    definition: Definition
    reference: Encoder
    engine: Encoder


_benches: dict[tuple[str, str, int], Bench] = {}
_opening = threading.Lock()

MAX_BENCHES = 4
"""Recipes that one process may work at the same time without opening their tokenizers again and again."""


def _bench(job: Job, recipe: Recipe) -> Bench:
    """The process's bench for a recipe, made on first use; the one not used for longest is let go."""
    key = (job.digest, job.runtime.engine, job.runtime.process_memory)
    with _opening:
        if key in _benches:
            _benches[key] = _benches.pop(key)
        else:
            if len(_benches) >= MAX_BENCHES:
                del _benches[next(iter(_benches))]
            definition, special_text = load(recipe.tokenizer), recipe.policy.special_text
            reference = open_reference(definition, special_text)
            threads = 1 if job.runtime.processes else job.runtime.workers
            memory = job.runtime.process_memory
            engine = open_engine(definition, special_text, job.runtime.engine, reference, memory, threads)
            _benches[key] = Bench(definition, reference, engine)
        return _benches[key]


def may_use(job: Job, made_by: str) -> bool:
    """Whether a run may go on with a shard that this engine made, by what its manifest says.

    It may if it would use the same one, or the reference made it. When the audit has stopped a run, it is done again
    with the reference, and nothing that the wrong engine made goes into it.
    """
    bench = _bench(job, job.recipe)
    return made_by in (_label(bench.engine), _label(bench.reference))


def _label(encoder: Encoder) -> str:
    return f"{encoder.name} {encoder.version}"


@dataclass(frozen=True)
class Gate:
    """Who encodes, who defines the answer, and how many documents were compared before the first unit."""

    engine: Encoder
    reference: Encoder
    num_documents: int


def gate(job: Job, unit: Unit | None) -> Gate:
    """Hold the engine to the reference on nasty strings and the first documents of a unit; see `parity.gate`.

    Raises:
        EncodeError: they differ.
        SourceError: the unit cannot be read.
    """
    recipe = job.recipe
    bench = _bench(job, recipe)
    engine, reference = bench.engine, bench.reference
    if engine.name == reference.name:
        return Gate(engine, reference, 0)
    batches = (
        batch
        for part in (unit.slices if unit is not None else ())
        for batch in readers.read(recipe.files[part.file], part, recipe.reader, parity.GATE_BYTES)
        if len(batch)
    )
    return Gate(engine, reference, parity.gate(engine, reference, next(batches, None)))


class _Work:
    """One unit while it is worked: the shard that is written, and what was read and counted for it so far.

    Attributes:
        begin: where to begin in the slice: behind the pieces that are there; None: at its start.
        earlier: what those pieces hold, but for their source bytes: those are passed over, and told of then.
        may_end: whether pieces may end before the unit does: of one slice, without a limit.
    """

    def __init__(self, job: Job, unit: Unit) -> None:
        self._job, self._unit, self._bench = job, unit, _bench(job, job.recipe)
        self.recipe, self.runtime = job.recipe, job.runtime
        self.may_end = len(unit.slices) == 1 and unit.limit is None
        pieces = load_pieces(job.layout, unit.key, job.digest, partial(may_use, job)) if self.may_end else []
        if pieces:
            log.info("%s: going on behind %d pieces", self.recipe.files[unit.slices[0].file].path, len(pieces))
        before = sum((piece.counts for piece in pieces), Counts())
        self._num_pieces, self._num_before = len(pieces), before.num_documents
        self.earlier = Progress(0, before.num_documents, before.num_tokens, before.num_text_bytes, earlier=True)
        self._open(pieces[-1].end if pieces else None)

    def _open(self, begin: Cursor | None) -> None:
        self.begin = begin
        self._start, self._cpu = time.monotonic(), time.thread_time()
        self.counts, self._slices, self._before, self._num_lines = Counts(), list[SliceRows](), Counts(), 0
        self._shard = ShardWriter(self._job.layout, self._unit.key, self.recipe)
        self._mark = self._save()

    def close(self) -> None:
        """Remove what was not committed."""
        self._shard.close()

    @property
    def full(self) -> bool:
        return self._unit.limit is not None and self.counts.num_documents >= self._unit.limit

    def _save(self) -> tuple[Any, Counts]:
        return self._shard.mark(), self.counts

    def end_slice(self, part: Slice) -> None:
        """Note what became of a slice, or of a piece of it."""
        self._slices.append(
            SliceRows(
                file=part.file,
                start=part.start,
                stop=part.stop,
                num_records=self.counts.num_records - self._before.num_records,
                num_documents=self.counts.num_documents - self._before.num_documents,
                num_lines=self._num_lines,
            )
        )
        self._before, self._num_lines = self.counts, 0

    def end_piece(self, part: Slice, end: Cursor) -> None:
        """Commit what was added so far, and begin anew behind it."""
        self.end_slice(part)
        self.commit(end)
        self._num_pieces += 1
        self._num_before += self.counts.num_documents
        self._open(end)

    def commit(self, end: Cursor | None = None) -> None:
        """Give the shard its name, that of a piece or that of the unit, then its manifest."""
        layout, key = self._job.layout, self._unit.key
        name = key if end is None else layout.piece(key, self._num_pieces)
        manifest = UnitManifest(
            unit=name,
            recipe_digest=self._job.digest,
            dtype=self.recipe.dtype,
            counts=self.counts,
            slices=tuple(self._slices),
            files=self._shard.commit(name),
            rejects_checksum=self._shard.rejects.checksum,
            pieces=self._num_pieces,
            begin=self.begin,
            end=end,
            engine=_label(self._bench.engine),
            wall_seconds=time.monotonic() - self._start,
            cpu_seconds=time.thread_time() - self._cpu,
        )
        write_json(layout.unit_manifest(name), manifest.to_json(), durable=False)

    def add(self, batch: TextBatch) -> Progress:
        """Encode one batch and write its documents."""
        before = self.counts
        if batch.restart:
            self._mark = self._save()
        if batch.undo:
            mark, self.counts = self._mark
            self._shard.undo(mark)
        tokens = self._bench.engine.encode(batch)
        audited = self._audit(batch, tokens)
        limit = self._unit.limit
        left = None if limit is None else limit - self.counts.num_documents
        batch, tokens, dropped = choose(batch, tokens, self.recipe, self._bench.definition, left)
        finished = finish(tokens, self.recipe)
        self._shard.pair.append(finished)
        self._keep(batch.rejects)
        reasons: dict[str, int] = {}
        for reject in batch.rejects:
            reasons[reject.reason] = reasons.get(reject.reason, 0) + reject.count
        added = Counts(
            num_records=batch.num_rows,
            num_documents=len(finished),
            num_sequences=len(finished)
            if self.recipe.writes_empty_sequences
            else int(np.count_nonzero(finished.lengths)),
            num_tokens=len(finished.ids),
            num_text_bytes=batch.num_text_bytes,
            num_empty=dropped.num_empty + batch.num_empty,
            num_joined=batch.num_joined(),
            num_audited=audited,
            rejects=reasons,
            specials=dropped.specials,
        )
        self.counts = self.counts + added
        self._num_lines += batch.num_lines
        return Progress(
            batch.num_source_bytes,
            self.counts.num_documents - before.num_documents,  # below zero where a row group was taken back
            self.counts.num_tokens - before.num_tokens,
            self.counts.num_text_bytes - before.num_text_bytes,
            earlier=self.begin is not None and not self.counts.num_records,  # passed over to get to `begin`
        )

    def _audit(self, batch: TextBatch, tokens: TokenBatch) -> int:
        """Encode one document in `audit_rate` by the reference too, the unit's first among them."""
        rate, engine, reference = self.runtime.audit_rate, self._bench.engine, self._bench.reference
        if rate == 0 or not len(batch) or engine.name == reference.name:
            return 0
        keep = np.zeros(len(batch), np.bool_)
        keep[-(self._num_before + self.counts.num_documents) % rate :: rate] = True
        keep &= batch.lengths <= parity.MAX_BYTES
        if not keep.any():
            return 0
        sample, rows = batch.select(keep), batch.row_numbers()[keep]
        parity.compare(
            tokens.select(keep),
            reference.encode(sample),
            engine,
            reference,
            lambda i: (
                f"{batch.file}, record {rows[i] + 1} of unit {self._unit.key}, beginning {sample.document(i)[:60]!r}"
            ),
        )
        return len(sample)

    def _keep(self, rejects: tuple[Reject, ...]) -> None:
        row, line = (self.begin.num_rows, self.begin.num_lines) if self.begin is not None else (0, 0)
        for reject in rejects:
            value = {
                "part": len(self._slices),
                "file": reject.file,
                "reason": reject.reason,
                "row": reject.row - row,
                "line": reject.line - line if reject.line >= 0 else -1,
                "byte_offset": reject.offset if reject.offset >= 0 else None,
                "group": reject.group if reject.group >= 0 else None,
                "count": reject.count,
                "detail": reject.detail,
                "content": reject.record.decode("utf-8", "backslashreplace"),
            }
            self._shard.rejects.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
