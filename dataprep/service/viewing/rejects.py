"""Records that became no documents, as a run has written them: some at a time, wherever in a file of any length."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dataprep.errors import FormatError
from dataprep.layout import Layout
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.readings import Reject, RejectPage

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from dataprep.manifest import DatasetManifest

REJECTS = 50
"""Of a page."""

MOST_BYTES = 1 << 24
"""That are read for a page: where few rejects have the reason that is looked for, it says where to go on."""

LINE_BYTES = 1 << 20
"""Of one reject: its record is kept up to 64 KiB, of which JSON may make four times as much."""


def rejects_of(work: Path) -> Path:
    """Where a run keeps its rejects, by the folder that it works in."""
    return Layout.of(work.parent.parent, "", "", work.name).all_rejects


def rejects_path(output: Path, manifest: DatasetManifest) -> Path:
    """Where the run that made a dataset kept them; they are there as long as its folder is."""
    recipe = manifest.recipe
    return Layout.of(output, recipe.corpus, recipe.tokenizer.name, manifest.recipe_digest).all_rejects


def read_rejects(
    path: Path,
    position: int = 0,
    reason: str | None = None,
    opened: Callable[[Path], AbstractContextManager[BinaryIO]] = lambda path: path.open("rb"),
) -> RejectPage:
    """Some rejects.

    Args:
        path: of the file; need not exist: there were none.
        position: byte of it that a reject begins at.
        reason: only these.
        opened: opens the file.

    Raises:
        AbsentError: no reject begins there.
        FormatError: the file cannot be read.
    """
    try:
        with opened(path) as file:
            return _page(file, path, position, reason)
    except FileNotFoundError:
        if position:
            raise AbsentError("There are no rejects, or not any more.") from None
        return RejectPage(path=str(path), reason=reason, position=0, num_bytes=0)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error


def _page(file: BinaryIO, path: Path, position: int, reason: str | None) -> RejectPage:
    size = os.fstat(file.fileno()).st_size
    if not 0 <= position <= size or (position and os.pread(file.fileno(), 1, position - 1) != b"\n"):
        raise AbsentError(f"No reject begins there: {path} has {size} bytes.")
    file.seek(position)
    found: list[Reject] = []
    here, damaged = position, 0
    while len(found) < REJECTS and here - position < MOST_BYTES:
        line = file.readline(LINE_BYTES)
        if not line.endswith(b"\n"):
            if len(line) == LINE_BYTES:
                raise FormatError(f"{path} holds no rejects from byte {here} on; it is damaged")
            break  # the end, or what is being written
        reject = _reject(line, here)
        damaged += reject is None
        if reject is not None and reason in (None, reject.reason):
            found.append(reject)
        here += len(line)
    ahead = os.pread(file.fileno(), LINE_BYTES, here)
    more = b"\n" in ahead or len(ahead) == LINE_BYTES
    return RejectPage(
        path=str(path),
        reason=reason,
        position=position,
        rejects=tuple(found),
        previous=_before(file, position) if position and reason is None else None,
        next=here if more else None,
        num_damaged=damaged,
        num_bytes=size,
    )


def _reject(line: bytes, position: int) -> Reject | None:
    """One line; None: it is damaged."""
    try:
        value: dict[str, Any] = json.loads(line)
        known = {name: _text(value[name]) for name in Reject.model_fields if name != "position"}
        return Reject(position=position, **known)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _text(value: Any) -> Any:
    """The same, without half characters, which nothing can write."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _before(file: BinaryIO, position: int) -> int:
    """Where the page begins that ends at a position."""
    start, newlines, block = position, 0, 1 << 16
    while start and position - start < MOST_BYTES:
        size = min(block, start)
        data = os.pread(file.fileno(), size, start - size)
        for place in range(len(data) - 1, -1, -1):
            if data[place] == 10:
                newlines += 1
                if newlines == REJECTS + 1:
                    return start - size + place + 1
        start -= size
    return 0
