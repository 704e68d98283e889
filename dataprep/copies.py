"""One range of a file, copied from pieces of others: the work of a merge that any machine can do.

A task writes whole blocks of `merge.FLUSH_BYTES`, so that no two machines ever write one page or one stripe: a network
file system's client may write back all of a page of which it changed a part.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep.storage import copy_range, explain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes [start, stop) of a file, and where they come from.

    Attributes:
        target: the file.
        pieces: (file, start, stop): bytes of others, which fill the range one after another.
    """

    target: Path
    start: int
    stop: int
    pieces: tuple[tuple[Path, int, int], ...]

    def __str__(self) -> str:
        return f"bytes {self.start:,} to {self.stop:,} of {self.target}"


def copy(item: Copy, report: Callable[[Any], None]) -> None:
    """Do it, and make it durable. Done twice, even at the same time, it does no harm.

    Args:
        item: what is to be copied.
        report: may raise to stop.

    Raises:
        OutputError: the file system refuses, or a piece is not there whole.
    """
    with explain(item.target, "copy shards to"):
        target = os.open(item.target, os.O_WRONLY)
        try:
            os.lseek(target, item.start, os.SEEK_SET)
            for path, start, stop in item.pieces:
                report(None)
                source = os.open(path, os.O_RDONLY)
                try:
                    copy_range(source, target, start, stop)
                finally:
                    os.close(source)
            os.fdatasync(target)
        finally:
            os.close(target)  # network file systems report a failed write here
