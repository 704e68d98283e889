"""What was found out about files, for as long as they are the same: manifests and datasets never change."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

V = TypeVar("V")


def stamp(path: Path) -> tuple[str, int, int, int]:
    """What tells a file from another one that took its name: path, mtime, size, inode.

    Raises:
        OSError: there is none.
    """
    found = path.stat()
    return str(path), found.st_mtime_ns, found.st_size, found.st_ino


class Kept(Generic[V]):
    """The values that were used last. One is made once, however many ask for it at the same time.

    Args:
        most: values.
        seconds: for so long a value holds; None: for ever.
    """

    def __init__(self, most: int, seconds: float | None = None) -> None:
        self._most, self._seconds = most, seconds
        self._places: OrderedDict[Hashable, _Place[V]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key; what `make` raises is raised, and tried again when somebody asks again."""
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self._most:
                self._places.popitem(last=False)
        with place.lock:
            if not place.values or (self._seconds is not None and time.monotonic() - place.since > self._seconds):
                place.values = [make()]
                place.since = time.monotonic()
            return place.values[0]


class _Place(Generic[V]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[V] = []
        self.since = 0.0
