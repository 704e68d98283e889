"""What goes on beside the units while they are worked: the merge's copies, and a look at what was rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataprep.copies import Copy, copy
from dataprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataprep.cluster import Cluster
    from dataprep.manifest import Unit
    from dataprep.planning import Request
    from dataprep.stages.merge import Merger


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
