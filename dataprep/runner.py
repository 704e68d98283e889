"""One run from request to published dataset: plan, skip what is done, map, collect, prove, publish.

    plan       `planning`: what is to be made, of what, and cut how
    gate       the engine is held to the reference before any unit
    map        tokenize.run over the units that are not done; shards are merged in plan order meanwhile
    prove      verify reads back every byte of the merged pair
    publish    manifest, rename, symlink

Everything that survives a crash is a file that `Layout` names: what is done is asked of the disk, never remembered.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shlex
import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dataprep
from dataprep import probe, shards
from dataprep.claims import TTL_SECONDS, Claim
from dataprep.cluster import Cluster, find_place
from dataprep.errors import ClusterError, DataprepError, NoTextError, OutputError, SpecError
from dataprep.fetching import fetch
from dataprep.indexed import bin_path, idx_path
from dataprep.inspection import length_summary
from dataprep.layout import DATA_ARGS, Layout
from dataprep.manifest import Counts, DatasetManifest, EngineRecord, Unit, load_manifest
from dataprep.merging import EARLY_RECORDS, beside_copies, check_rejects, copy_rest, prove
from dataprep.monitor import Monitor, tell_pages, tell_workers
from dataprep.planning import Request, resolve, with_contents
from dataprep.remains import adopt, sweep
from dataprep.stages import merge, publish, tokenize
from dataprep.storage import append_line, make_folder
from dataprep.supply import Supply
from dataprep.usage import cpu_seconds, peak_bytes
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What `run` returns.

    Attributes:
        prefix: path without ``.bin`` of the (first) indexed pair, absolute.
        manifest: the dataset's manifest.
        rejects: folder that keeps the rejected records.
        fresh: False where the dataset was there already and nothing was done.
    """

    prefix: str
    manifest: DatasetManifest
    rejects: str
    fresh: bool

    @property
    def prefixes(self) -> tuple[str, ...]:
        """All of them, absolute."""
        folder = os.path.dirname(self.prefix)
        return tuple(os.path.join(folder, entry.name) for entry in self.manifest.prefixes)

    @property
    def data_args(self) -> str | None:
        """Where there are several prefixes, the file for Megatron's ``--data-args-path``."""
        return os.path.join(os.path.dirname(self.prefix), DATA_ARGS) if len(self.manifest.prefixes) > 1 else None


def run(  # noqa: PLR0913 - what a command line gives
    corpus: str | Sequence[str],
    tokenizer: str,
    output: str | Path = "data",
    workers: int | None = None,
    limit: int | None = None,
    settings: Sequence[str] = (),
    wait: bool = False,
) -> Result:
    """Make the dataset, or find it made. For a mixture of corpora, see `blending.run_mixture`.

    Args:
        corpus, tokenizer, output, workers, limit, settings: see `planning.resolve`.
        wait: for another run of the same dataset to end.

    Raises:
        SpecError: the request is wrong; nothing was started.
        BusyError: another run makes this dataset, and lives.
        DataprepError: the work failed; finished units are kept, and the same call goes on from there.
    """
    return execute(resolve(corpus, tokenizer, output, workers, limit, settings), Silent(), wait)


def execute(request: Request, watcher: Watcher, wait: bool = False) -> Result:
    """Carry out a resolved request.

    Args:
        request: what is to be made.
        watcher: is told how it gets on.
        wait: for another run of the same dataset to end.

    Raises:
        SpecError: see `check_limit`.
        DataprepError: see `run`.
    """
    check_limit(request)
    if request.listing.ids:
        fetch(request.corpus, request.listing, request.runtime, watcher)
        request = with_contents(request)
    layout = request.layout
    existing = find_existing(request)
    if existing is not None and publish.is_settled(layout):
        return existing
    with Claim(layout.claim, wait, lambda who: _tell(layout, watcher, who, wait)) as claim:
        request = replace(request, layout=layout.at(claim.epoch))
        if (existing := find_existing(request)) is not None:  # and its run died before it had tidied up
            publish.settle(request.layout, claim.check)
            return existing
        return _execute(request, watcher, claim)


def _tell(layout: Layout, watcher: Watcher, who: str, wait: bool) -> None:
    what = "waiting until it ends, or is silent for" if wait else "looking for a sign of life, up to"
    unlock = f"if you know that it is dead: dataprep unlock {shlex.quote(str(layout.output))}"
    log.info("%s is held by %s: %s %d s; %s", layout.work, who, what, TTL_SECONDS, unlock)
    watcher.stage("wait", 0)


def _execute(request: Request, watcher: Watcher, claim: Claim) -> Result:
    """Make the dataset, as long as nobody else does."""
    layout = request.layout
    try:
        if claim.overtook:
            log.warning("going on in place of %s, which gave no sign of life for %d s", claim.overtook, TTL_SECONDS)
            _event(layout, "overtook", holder=claim.overtook)
        adopt(layout, claim.check)
        for folder in (layout.work, layout.shards, layout.rejects):
            sweep(folder, claim.check)
        make_folder(layout.shards)
        with Monitor(request, watcher) as monitor:
            result = _build(request, monitor, claim)
            monitor.published(result.manifest.counts)
        return result
    except Exception as error:
        with contextlib.suppress(OutputError):
            claim.check()  # whatever else went wrong comes of that
        if isinstance(error, DataprepError):
            with contextlib.suppress(OutputError):
                _event(layout, "failed", error=str(error))
        raise


def check_limit(request: Request) -> None:
    """Make sure that a few documents can be had without all.

    Raises:
        SpecError: they cannot: of texts behind ids.
    """
    if request.listing.ids and request.recipe.limit is not None:
        raise SpecError(
            f"--limit: all texts of {request.recipe.corpus} are fetched before the first is tokenized; leave it "
            f"out, or fetch them once with `dataprep download {request.recipe.corpus}`"
        )


def find_existing(request: Request) -> Result | None:
    """The dataset of this recipe, if it is there whole.

    Raises:
        OutputError: its folder is there, but not with the files that its manifest names.
    """
    layout = request.layout
    if not layout.manifest.exists():
        if layout.dataset.exists():
            raise OutputError(
                f"{layout.dataset} exists without a manifest.json: not a dataset, or a damaged one. "
                "Move it away and run again: "
                f"mv {layout.dataset} {layout.dataset}.damaged"
            )
        return None
    manifest = load_manifest(layout.manifest)
    if manifest.recipe_digest != request.digest:
        raise OutputError(f"{layout.dataset} is of another recipe, {manifest.recipe_digest}; choose another --output")
    result = Result(str(layout.dataset / manifest.prefixes[0].name), manifest, str(layout.rejects), fresh=False)
    files: list[tuple[Path, int | None]] = [(layout.data_args, None)] if result.data_args else []
    for prefix in manifest.prefixes:
        files.append((bin_path(layout.dataset / prefix.name), prefix.files.bin_bytes))
        files.append((idx_path(layout.dataset / prefix.name), prefix.files.idx_bytes))
    for path, size in files:
        found = path.stat().st_size if path.exists() else None
        if found is None or size not in (None, found):
            state = "is missing" if found is None else f"has {found} bytes, expected {size}"
            raise OutputError(
                f"{path} {state}; the dataset was damaged after it was published. Move it away to have it rebuilt: "
                f"mv {layout.dataset} {layout.dataset}.damaged"
            )
    return result


def _build(request: Request, watcher: Watcher, claim: Claim) -> Result:
    layout, recipe = request.layout, request.recipe
    start, cpu = time.monotonic(), cpu_seconds()
    found = probe.check(layout.work)
    job = tokenize.Job(layout, request.digest, request.runtime)
    with contextlib.ExitStack() as stack:
        supply = stack.enter_context(Supply(request, job, watcher, claim.check))
        gate = _gate(request, supply, job, watcher)
        merger = stack.enter_context(merge.Merger(layout, recipe, supply.merged, claim.check))
        _merge(request, supply, job, merger, watcher, claim)
        prefixes, verification = prove(layout, recipe.dtype, merger, watcher)
        merged = merger.merged
        manifest = DatasetManifest(
            dataprep_version=dataprep.__version__,
            recipe_digest=request.digest,
            recipe=recipe.model_copy(update={"files": supply.files()}),
            prefixes=prefixes,
            counts=merged.counts,
            lengths=length_summary(merger.lengths()),
            provenance=tuple(merged.spans()),
            engine=EngineRecord(
                name=gate.engine.name,
                version=gate.engine.version,
                reference=gate.reference.name,
                reference_version=gate.reference.version,
                gate_documents=gate.num_documents,
                audit_rate=request.runtime.audit_rate,
                audited_documents=merged.counts.num_audited,
            ),
            verification=verification,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_seconds=time.monotonic() - start,
            cpu_seconds=cpu_seconds() - cpu,
            peak_memory_bytes=peak_bytes(),
            probe=found,
        )
        claim.check()
        publish.run(layout, manifest)
    publish.settle(layout, claim.check)
    result = Result(str(layout.dataset / manifest.prefixes[0].name), manifest, str(layout.rejects), fresh=True)
    _event(layout, "published", prefix=result.prefix, **manifest.counts.to_json())
    return result


def _merge(
    request: Request, supply: Supply, job: tokenize.Job, merger: merge.Merger, watcher: Watcher, claim: Claim
) -> None:
    """Work the units and merge them, as long as not too much is rejected.

    Raises:
        SourceError: too much was, or there is no text (NoTextError).
    """
    total = request.recipe.num_bytes
    with contextlib.closing(_in_order(request, supply, job, merger, watcher)) as units:  # here, not when it is freed
        for unit in units:
            if not claim.held:
                claim.check()
            _collect(request, job, merger, unit)
            if merger.merged.counts.num_records >= EARLY_RECORDS:
                check_rejects(request, merger, total)
    check_rejects(request, merger, merger.merged.source_bytes)
    counts = merger.merged.counts
    if not counts.num_sequences:
        raise NoTextError(
            f"the corpus {request.recipe.corpus} holds no document with text: {counts.num_records:,} records, "
            f"{counts.num_empty:,} empty, {counts.num_rejected:,} rejected; nothing was published"
        )


def _gate(request: Request, supply: Supply, job: tokenize.Job, watcher: Watcher) -> tokenize.Gate:
    """Begin to fetch, and hold the engine to the reference on the first unit that is to be worked."""
    total = request.recipe.num_bytes
    if request.recipe.limit is None:
        watcher.stage("tokenize", total)  # to find what is done may take its time
        to_fetch = supply.start()
        done = sum(unit.num_bytes for unit in supply.known() if unit.key in supply.done)
        watcher.stage("tokenize", total, done, to_fetch)
        _event(request.layout, "resume", done=len(supply.done), bytes_to_fetch=to_fetch)
    else:
        watcher.stage("tokenize", total)
    watcher(supply.earlier + Progress(planned=len(supply.known())))
    first = next((unit for units in supply for unit in units if unit.key not in supply.done), None)
    if first is None and not supply.known():
        raise NoTextError(f"the corpus {request.recipe.corpus} holds no records; nothing was published")
    gate = tokenize.gate(job, first)
    groups, units = len(supply.plan.groups), len(supply.known())
    _event(request.layout, "start", groups=groups, units=units, engine=gate.engine.name)
    return gate


def _in_order(
    request: Request, supply: Supply, job: tokenize.Job, merger: merge.Merger, watcher: Watcher
) -> Generator[Unit, None, None]:
    """Work the units, and copy; yields those not merged yet in plan order, as soon as all before them are done."""
    work, workers, done = functools.partial(tokenize.run, job), request.runtime.workers, supply.done
    order: deque[tuple[int, Unit | None]] = deque()

    def todo() -> Iterator[Unit]:
        num_merged = merger.merged.num_units
        for number, units in enumerate(supply):
            order.extend((number, unit) for unit in units[num_merged:])
            num_merged = max(0, num_merged - len(units))
            order.append((number, None))
            yield from (unit for unit in units if unit.key not in done)

    def ready() -> Iterator[Unit]:
        while order and (order[0][1] is None or order[0][1].key in done):
            number, unit = order.popleft()
            if unit is None:
                supply.used(number)
            else:
                yield unit

    if len(supply.plan.groups) == 1:
        workers = min(workers, max(1, len(supply.units(0))))
    place = find_place(request.cluster, request.runtime, workers, request.layout.work)
    with Cluster(place, watcher, request.cluster.patience_seconds) as cluster:
        tell_pages(cluster, request)
        if request.recipe.limit is not None:
            yield from _limited(request, supply, work, merger, cluster, watcher)
        else:
            told = Progress() if place.in_process else tell_workers(cluster, Progress(), watcher)
            for unit in beside_copies(cluster, merger, work, todo()):
                done.add(unit.key)
                _event(request.layout, "unit", unit=unit.key)
                watcher(Progress(units=1))
                if not place.in_process:  # nothing was reported from inside
                    watcher(_progress_of(request, unit))
                    told = tell_workers(cluster, told, watcher)
                yield from ready()
            yield from ready()
        copy_rest(cluster, merger)


def _progress_of(request: Request, unit: Unit) -> Progress:
    done = shards.load_done(request.layout, unit.key, request.digest) or ()
    counts = sum((shard.counts for shard in done), Counts())
    return Progress(unit.num_bytes, counts.num_documents, counts.num_tokens, counts.num_text_bytes)


def _limited(
    request: Request,
    supply: Supply,
    work: Callable[[Unit, Any], None],
    merger: merge.Merger,
    cluster: Cluster,
    watcher: Watcher,
) -> Iterator[Unit]:
    """One unit at a time, each told how many documents are still wanted: a limit is for a first look."""
    assert request.recipe.limit is not None
    left = request.recipe.limit
    for number, units in enumerate(supply):
        for unit in units:
            limited = unit.limited(left)
            if not supply.is_whole(limited):
                for _ in cluster.map(work, [limited]):
                    _event(request.layout, "unit", unit=limited.key)
            watcher(Progress(units=1))
            yield limited
            left = request.recipe.limit - merger.merged.counts.num_documents
            if left <= 0:
                break
        supply.used(number)
        if left <= 0:
            return  # before the next unit's file is fetched


SEEN_SECONDS = 90
"""How long a network file system may not show what another machine made; NFS keeps names for 60 (nfs(5), acdirmax)."""


def _collect(request: Request, job: tokenize.Job, merger: merge.Merger, unit: Unit) -> None:
    deadline = time.monotonic() + (SEEN_SECONDS if request.cluster.num_workers else 0)
    while (done := shards.load_done(request.layout, unit.key, request.digest)) is None:
        if time.monotonic() >= deadline:
            raise OutputError(
                f"the shard {request.layout.shard(unit.key)} disappeared while the run went on; run again"
            )
        time.sleep(1)
    for shard in done:
        if not tokenize.may_use(job, shard.engine):
            raise ClusterError(
                f"a worker made a shard with {shard.engine}, which is not what this process has; install the same "
                "packages everywhere, and run the same command again"
            )
    merger.append(unit, done)


def _event(layout: Layout, event: str, **values: Any) -> None:
    append_line(layout.events, {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **values})
