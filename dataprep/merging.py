"""The merge's copies, done by the workers: while units are worked, and when all are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataprep.copies import Copy, copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataprep.cluster import Cluster
    from dataprep.manifest import Unit
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
