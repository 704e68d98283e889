"""One index cache on disk: proven and kept, or built and put in place.

Megatron takes a cache as present when all of its files are. So none appears before all are whole; what has to be
replaced loses its description first, and gets it back last:

    arrays written under private names  ->  compared with those that are there
    old description and stamp removed   ->  arrays renamed  ->  stamp  ->  description

A crash leaves a cache without a description, which Megatron builds anew, and never one of old arrays and new ones.
"""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dataprep.caching.keys import ARRAYS
from dataprep.checks.stamps import SCHEMA, content_change, pair_content, read_stamp, stamp_of
from dataprep.errors import FormatError
from dataprep.locks import Users
from dataprep.storage import MARK, AtomicFile, checksum, explain, make_folder, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.caching.arrays import Arrays
    from dataprep.caching.keys import Key
    from dataprep.watcher import Watcher

State = Literal["built", "kept", "replaced"]


@dataclass(frozen=True, slots=True)
class Content:
    """What a pair was when it began to be read.

    Attributes:
        prefix: of the pair.
        found: see `stamps.pair_content`.
    """

    prefix: Path
    found: dict[str, Any]

    @classmethod
    def of(cls, prefix: Path) -> Content:
        """Raises FormatError where a file cannot be read."""
        return cls(prefix, pair_content(prefix))


@dataclass(frozen=True, slots=True)
class CacheFiles:
    """The files of one cache.

    Attributes:
        key: its name.
        folder: where Megatron looks for it.
        content: of its pair, from before it was read; None: of a blend.
    """

    key: Key
    folder: Path
    content: Content | None

    @property
    def description(self) -> Path:
        return self.key.file(self.folder, "description.txt")

    def array(self, name: str) -> Path:
        """The file of one array."""
        return self.key.file(self.folder, f"{name}.npy")

    def ensure(self, arrays: Arrays, version: str, watcher: Watcher) -> State:
        """Have it there, and right.

        Args:
            arrays: what it is to hold.
            version: of dataprep, for the stamp.
            watcher: is told how it gets on.

        Returns:
            kept: it was there, and byte for byte what Megatron would write. replaced: it was there, and was not.

        Raises:
            OutputError: the file system refuses.
            SpecError: see `BlendArrays`.
            FormatError: the pair was changed meanwhile.
        """
        if self._is_proven():
            return "kept"
        make_folder(self.folder)
        lock = self.key.file(self.folder, "dataprep.lock")
        with Users(lock) as users:
            with users.alone() as is_alone:
                if is_alone:
                    self._sweep()
            try:
                return self._build(arrays, version, watcher)
            finally:
                with users.alone() as is_last, contextlib.suppress(OSError):
                    if is_last:
                        lock.unlink(missing_ok=True)  # left behind, it is in nobody's way

    def _build(self, arrays: Arrays, version: str, watcher: Watcher) -> State:
        with ExitStack() as stack:
            files: dict[str, AtomicFile] = {}
            for name in ARRAYS[self.key.kind]:
                files[name] = AtomicFile(self.array(name))
                stack.callback(files[name].discard)
            arrays.write(files, watcher)
            if self.content is not None and pair_content(self.content.prefix) != self.content.found:
                raise FormatError(f"{self.content.prefix} was written while its caches were built; run it again")
            checksums = {name: file.checksum for name, file in files.items()}
            there = self._is_there()
            equal = there and checksums == self._checksums() and self._is_described()
            if not equal:
                self._unname()
                for file in files.values():
                    file.commit()
        self._stamp(checksums, version)
        if not equal:
            with AtomicFile(self.description) as file:
                file.write(self.key.description.encode("utf-8"))
        return "kept" if equal else "replaced" if there else "built"

    def _sweep(self) -> None:
        """Remove what runs that died left half-written of this cache; nobody else is at work on it."""
        base = self.description.name.removesuffix("description.txt")
        with explain(self.folder, "clear"):
            for path in self.folder.iterdir():
                if path.name.startswith(base) and MARK in path.name:
                    path.unlink(missing_ok=True)

    def _is_there(self) -> bool:
        """Whether Megatron would find it."""
        return self.description.is_file() and all(self.array(name).is_file() for name in ARRAYS[self.key.kind])

    def _is_described(self) -> bool:
        with explain(self.description, "read"):
            return self.description.read_bytes() == self.key.description.encode("utf-8")

    def _checksums(self) -> dict[str, str]:
        with explain(self.description, "read the cache of"):
            return {name: checksum(self.array(name)) for name in ARRAYS[self.key.kind]}

    def _is_proven(self) -> bool:
        """Whether it is what an earlier run wrote, and its pair still what it was then."""
        stamp = read_stamp(stamp_of(self.description))
        if stamp is None or not self._is_there() or not self._is_described():
            return False
        if self.content is not None and content_change(self.content.prefix, stamp) is not None:
            return False
        return stamp.get("arrays") == self._checksums()

    def _unname(self) -> None:
        for path in (self.description, stamp_of(self.description)):
            with explain(path, "delete"):
                path.unlink(missing_ok=True)

    def _stamp(self, checksums: dict[str, str], version: str) -> None:
        value: dict[str, Any] = {
            "schema_version": SCHEMA,
            "dataprep_version": version,
            "arrays": checksums,
            "pair": None if self.content is None else self.content.found,
        }
        write_json(stamp_of(self.description), value)
