"""What goes on beside the units while they are worked: copies, a look at rejects; and the proof of what they gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dataprep.checks.scan import Proof
from dataprep.copies import Copy, copy
from dataprep.errors import OutputError, SourceError
from dataprep.stages.verify import verify
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataprep.cluster import Cluster
    from dataprep.layout import Layout
    from dataprep.manifest import Prefix, Unit
    from dataprep.planning import Request
    from dataprep.stages.merge import Merger
    from dataprep.watcher import Watcher


def copy_rest(cluster: Cluster, merger: Merger) -> None:
    """Copy what is left, no unit being worked any more."""
    for item in cluster.map(copy, list(merger.take(last=True))):
        merger.copied(item)


def beside_copies(
    cluster: Cluster, merger: Merger, work: Callable[[Unit, Any], None], units: Iterator[Unit]
) -> Iterator[Unit]:
    """`Cluster.map`, which does what the merger has to copy, too."""
    for item in cluster.map(work, units):
        if isinstance(item, Copy):
            merger.copied(item)
        else:
            yield item
        for each in merger.take():
            cluster.add(copy, each)


EARLY_RECORDS = 10_000
"""Records before which the share of rejects is not projected to the whole corpus."""


def check_rejects(request: Request, merger: Merger, total_bytes: int) -> None:
    """Stop once more records are rejected than the whole corpus may have.

    How many records that is, is told by the records per byte so far: a terabyte is not read to its end to learn that
    its first tenth is broken.

    Raises:
        SourceError: they are.
    """
    counts, share = merger.merged.counts, request.runtime.max_rejects
    if request.recipe.limit is not None and counts.num_records < EARLY_RECORDS:
        return  # a first look says little about shares, and shows the rejects
    expected = counts.num_records * (total_bytes / max(1, merger.merged.source_bytes))
    if counts.num_rejected <= share * expected:
        return
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.rejects.items())
    raise SourceError(
        f"{counts.num_rejected:,} of {counts.num_records:,} records so far were rejected ({reasons}), more than "
        f"runtime.max_rejects={share:g} allows. The first: {merger.first_reject}. They are kept in "
        f"{request.layout.rejects}. Mend the source, choose another field with --set reader.text=NAME, or allow more "
        "with --set runtime.max_rejects=SHARE"
    )


def prove(
    layout: Layout, dtype: Literal["uint16", "int32"], merger: Merger, watcher: Watcher
) -> tuple[tuple[Prefix, ...], dict[str, Any]]:
    """Finish what was merged, and read it back: every byte has to be that of the shard it came from.

    Returns:
        The prefixes, and what a manifest says of their verification: the report; of several, one for each.

    Raises:
        OutputError: it is not what was written.
    """
    files = merger.finish()
    watcher.stage("verify", merger.merged.num_bytes + sum(idx_bytes for _, idx_bytes, _ in files))
    told = lambda n: watcher(Progress(source_bytes=n))  # noqa: E731
    proof = Proof(merger.merged.parts, continues=True)
    entries, reports = [], []
    for name, idx_bytes, idx_checksum in files:
        report = verify(layout.staged / name, parts=proof, progress=told)
        if not report.ok:
            raise OutputError(f"the merged files are not what was written: {report.errors[0]}; run again")
        entries.append(report.entry(name, dtype, idx_bytes, idx_checksum))
        reports.append(report.named(name).to_json())
    proof.finish()
    if proof.wrong:
        raise OutputError(f"the merged files are not what was written: they end before {proof.wrong[0][1]:,} bytes")
    return tuple(entries), reports[0] if len(reports) == 1 else {"ok": True, "reports": reports}
