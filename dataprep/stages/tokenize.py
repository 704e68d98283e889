"""Unit -> shard: read, encode, apply the policy, write; then the manifest that says "done".

    TextBatch -> engine -> uint32 ids -> audit -> empty and special documents out -> BOS, EOD, narrow -> shard

One unit is worked by one thread. The shard's bytes are a function of recipe
and unit alone, so that the same unit, done twice at once after a worker was lost, is merely waste.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep import parity, readers
from dataprep.definitions import load
from dataprep.encoders import open_engine, open_reference
from dataprep.errors import OutputError
from dataprep.indexed import IndexedWriter, idx_path
from dataprep.layout import Layout
from dataprep.manifest import Counts, PairFiles, SliceRows, UnitManifest
from dataprep.policy import choose, finish
from dataprep.sources import check_unchanged
from dataprep.specs import Recipe, Runtime
from dataprep.storage import AtomicFile, write_json
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.batches import Reject, TextBatch, TokenBatch
    from dataprep.definitions import Definition
    from dataprep.encoders import Encoder
    from dataprep.manifest import Unit

    Report = Callable[[Progress], None]


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
    """Make the shard of one unit, unless its manifest is there already.

    Args:
        job: the run it belongs to.
        unit: what to read.
        report: called after every batch; may raise to stop.

    Raises:
        SourceError: a file is corrupt, or changed.
        EncodeError: engine and reference disagree, or an id does not fit.
        OutputError: the file system refuses.
    """
    if job.layout.unit_manifest(unit.key).exists():
        return
    start, cpu = time.monotonic(), time.thread_time()
    recipe = job.recipe
    bench = _bench(job, recipe)
    prefix = job.layout.shard(unit.key)
    with (
        IndexedWriter(prefix, recipe.dtype, durable=False, empty_sequences=recipe.writes_empty_sequences) as writer,
        AtomicFile(job.layout.unit_rejects(unit.key), durable=False) as rejects,
    ):
        work = _Work(job, bench, writer, rejects, unit.limit)
        rows = []
        for work.part, part in enumerate(unit.slices):
            file = recipe.files[part.file]
            check_unchanged(file)
            before, num_lines = work.counts, 0
            for batch in readers.read(file, part, recipe.reader, job.batch_bytes):
                report(work.add(batch))
                num_lines += batch.num_lines
                if work.full:
                    break
            check_unchanged(file)
            rows.append(
                SliceRows(
                    file=part.file,
                    start=part.start,
                    stop=part.stop,
                    num_records=work.counts.num_records - before.num_records,
                    num_documents=work.counts.num_documents - before.num_documents,
                    num_lines=num_lines,
                )
            )
            if work.full:
                break
        idx = writer.commit()
        files = PairFiles(
            bin_bytes=writer.bin.num_bytes,
            bin_checksum=writer.bin.checksum,
            idx_bytes=idx.num_bytes,
            idx_checksum=idx.checksum,
        )
    manifest = UnitManifest(
        unit=unit.key,
        recipe_digest=job.digest,
        dtype=recipe.dtype,
        counts=work.counts,
        slices=tuple(rows),
        files=files,
        engine=_label(bench.engine),
        wall_seconds=time.monotonic() - start,
        cpu_seconds=time.thread_time() - cpu,
    )
    write_json(job.layout.unit_manifest(unit.key), manifest.to_json(), durable=False)


def load_done(layout: Layout, key: str, digest: str) -> UnitManifest | None:
    """The manifest of a unit that is done, or None: not done, of another recipe, or its index is not there whole.

    Its ``.bin`` may have gone into the merged one.
    """
    try:
        value = json.loads(layout.unit_manifest(key).read_text(encoding="utf-8"))
        manifest = UnitManifest.model_validate_json(json.dumps(value))
        size = idx_path(layout.shard(key)).stat().st_size
    except (OSError, ValueError):
        return None
    whole = size == manifest.files.idx_bytes
    return manifest if whole and manifest.recipe_digest == digest and manifest.unit == key else None


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
    """One unit while it is worked: what has been written and counted so far."""

    def __init__(self, job: Job, bench: Bench, writer: IndexedWriter, rejects: AtomicFile, limit: int | None) -> None:
        self.recipe, self.runtime, self.definition = job.recipe, job.runtime, bench.definition
        self.engine, self.reference = bench.engine, bench.reference
        self.writer, self.rejects, self.limit = writer, rejects, limit
        self.part = 0
        self.counts = Counts()
        self._mark = self._save()

    @property
    def full(self) -> bool:
        return self.limit is not None and self.counts.num_documents >= self.limit

    def _save(self) -> tuple[Any, Any, Counts]:
        return self.writer.mark(), self.rejects.mark(), self.counts

    def add(self, batch: TextBatch) -> Progress:
        """Encode one batch and write its documents."""
        before = self.counts
        if batch.restart:
            self._mark = self._save()
        if batch.undo:
            writer, rejects, self.counts = self._mark
            self.writer.undo(writer)
            self.rejects.undo(rejects)
        tokens = self.engine.encode(batch)
        audited = self._audit(batch, tokens)
        left = None if self.limit is None else self.limit - self.counts.num_documents
        batch, tokens, dropped = choose(batch, tokens, self.recipe, self.definition, left)
        finished = finish(tokens, self.recipe)
        self.writer.append(finished)
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
        return Progress(
            batch.num_source_bytes,
            self.counts.num_documents - before.num_documents,  # below zero where a row group was taken back
            self.counts.num_tokens - before.num_tokens,
            self.counts.num_text_bytes - before.num_text_bytes,
        )

    def _audit(self, batch: TextBatch, tokens: TokenBatch) -> int:
        """Encode one document in `audit_rate` by the reference too, the unit's first among them."""
        rate = self.runtime.audit_rate
        if rate == 0 or not len(batch) or self.engine.name == self.reference.name:
            return 0
        keep = np.zeros(len(batch), np.bool_)
        keep[-self.counts.num_documents % rate :: rate] = True
        keep &= batch.lengths <= parity.MAX_BYTES
        if not keep.any():
            return 0
        sample, rows = batch.select(keep), batch.row_numbers()[keep]
        parity.compare(
            tokens.select(keep),
            self.reference.encode(sample),
            self.engine,
            self.reference,
            lambda i: (
                f"{batch.file}, record {rows[i] + 1} of unit {self.writer.prefix.name}, beginning "
                f"{sample.document(i)[:60]!r}"
            ),
        )
        return len(sample)

    def _keep(self, rejects: tuple[Reject, ...]) -> None:
        for reject in rejects:
            line = {
                "part": self.part,
                "file": reject.file,
                "reason": reject.reason,
                "row": reject.row,
                "line": reject.line,
                "byte_offset": reject.offset if reject.offset >= 0 else None,
                "group": reject.group if reject.group >= 0 else None,
                "count": reject.count,
                "detail": reject.detail,
                "content": reject.record.decode("utf-8", "backslashreplace"),
            }
            self.rejects.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
