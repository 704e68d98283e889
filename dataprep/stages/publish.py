"""Give a merged and verified dataset its name: the manifest first into the private folder, then one rename.

A dataset exists if and only if its folder does, and the folder never exists without its manifest. New
content always gets a new path (the folder's name holds the recipe digest): a training job may have the
old files mapped, and Megatron keys its index caches by the path's text.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from dataprep.errors import OutputError
from dataprep.remains import clear_shards
from dataprep.storage import AtomicFile, explain, replace_link, sync_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dataprep.layout import Layout
    from dataprep.manifest import DatasetManifest


log = logging.getLogger(__name__)


def run(layout: Layout, manifest: DatasetManifest) -> None:
    """Write ``manifest.json``, and rename the folder into place.

    Raises:
        OutputError: the file system refuses, or something else has taken the name.
    """
    if len(manifest.prefixes) > 1:
        if any(letter.isspace() for letter in str(layout.dataset)):
            log.warning(
                "the dataset has %d prefixes, and Megatron splits --data-args-path at spaces, of which %s has some: "
                "name the prefixes one by one, or by a link without spaces",
                len(manifest.prefixes),
                layout.dataset,
            )
        write_data_args(layout.staged / layout.data_args.name, prefix_weights(str(layout.dataset), manifest))
    write_json(layout.staged / layout.manifest.name, manifest.to_json())
    with explain(layout.dataset, "publish"):
        folder = layout.staged.stat()
        try:
            os.rename(layout.staged, layout.dataset)
        except FileNotFoundError:  # a network file system may say so of a rename that it did, and was asked for twice
            if not (layout.dataset.exists() and os.path.samestat(folder, layout.dataset.stat())):
                raise
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise OutputError(
                f"{layout.dataset} exists but is no complete dataset; move it away and run the same command again"
            ) from error
        sync_folder(layout.dataset.parent)


def prefix_weights(folder: str, manifest: DatasetManifest) -> Iterator[tuple[float, str]]:
    """The prefixes of a dataset in this folder, each with its share of the tokens."""
    for prefix in manifest.prefixes:
        yield prefix.num_tokens / manifest.counts.num_tokens, os.path.join(folder, prefix.name)


def write_data_args(path: Path, weights: Iterable[tuple[float, str]]) -> None:
    """Write a file for Megatron's ``--data-args-path``.

    Args:
        path: where to.
        weights: of each prefix its weight and its path, absolute.

    Raises:
        OutputError: the file system refuses.
    """
    with AtomicFile(path) as file:
        for weight, prefix in weights:
            file.write(f"{weight:.9g} {prefix}\n".encode())


def settle(layout: Layout, fence: Callable[[], None]) -> None:
    """What follows: point the symlink at the dataset and remove what it was made from. Done twice, it does no harm.

    Args:
        layout: of the run.
        fence: raises if the run does not hold its output any more.
    """
    fence()
    if layout.link is not None:
        replace_link(layout.link, layout.dataset.name)
    clear_shards(layout, fence)


def is_settled(layout: Layout) -> bool:
    """Whether the run that published the dataset came to its end; if not, `settle` is left to do."""
    try:
        return not layout.all_merged() and not any(layout.shards.iterdir())
    except OSError:
        return True
