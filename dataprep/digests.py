"""The checksums that sources state of their files: ``sha256:`` of the content, or ``git-sha1:``, git's name of it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from dataprep.storage import COPY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable


class Digests:
    """Checksums of a content, as it comes.

    Args:
        num_bytes: the size it will have; git's name begins with it.
        checksum: what the source states, or None. The sha256 is taken whatever it states, git's sha1 only where needed.
    """

    def __init__(self, num_bytes: int, checksum: str | None) -> None:
        self._stated = checksum or ""
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % num_bytes, usedforsecurity=False)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes."""
        self._sha256.update(data)
        if self._stated.startswith("git-sha1:"):
            self._git.update(data)

    def read(self, fd: int, stop: int, check: Callable[[], None] = lambda: None) -> int:
        """Take in the first bytes of a file, up to `stop`; says how many there were.

        Args:
            fd: an open file.
            stop: where to end.
            check: called before each block; what it raises ends it.
        """
        view, position = memoryview(bytearray(COPY_BYTES)), 0
        while position < stop and (count := os.preadv(fd, [view[: stop - position]], position)):
            check()
            self.update(view[:count])
            position += count
        return position

    @property
    def sha256(self) -> str:
        """64 hex digits."""
        return self._sha256.hexdigest()

    def agree(self) -> bool:
        """Whether the content is what the source states; what states nothing about it (``etag:``) agrees with all."""
        algorithm, _, value = self._stated.partition(":")
        known = {"sha256": self.sha256, "git-sha1": self._git.hexdigest()}
        return known.get(algorithm, value) == value


def matches(data: bytes | bytearray, checksum: str | None) -> bool:
    """Whether a whole content is what its source states."""
    digests = Digests(len(data), checksum)
    digests.update(data)
    return digests.agree()
