"""One pass over a ``.bin``: checksums and counts, at about the speed of a disk, 10 GB/s from memory.

A few threads take blocks in turn; each reads its block into a buffer of its own, hashes it once the block before is
hashed, and counts in it (`tally`). So a byte is looked at while it lies in the cache of the processor that read it, and
what is done between two reads of one thread happens beside the reads of the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dataprep.checks.documents import Documents
from dataprep.checks.tally import HEAD, Block, Looked, Tally
from dataprep.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt

BLOCK = 4 << 20
"""Bytes read at a time: with 1 MiB, what Python does for each block costs as much as the counting."""

THREADS = min(4, len(os.sched_getaffinity(0)))
"""Threads for one file. Two take 10 GB/s from memory, where a plain read took 21; more help where a disk far away
answers late."""


class Proof:
    """Compares bytes, as they come, with the checksums of the parts they came from; also over several files.

    Args:
        parts: of each its end in bytes, from the beginning of the first file on, and the checksum it must have.
        continues: a file may follow each file; whoever knows that none does calls `finish`.

    Attributes:
        position: bytes so far.
        wrong: number and end of the parts that have another checksum.
    """

    def __init__(self, parts: Sequence[tuple[int, str]] = (), continues: bool = False) -> None:
        self._parts, self._next, self.continues = parts, 0, continues
        self._digest = xxhash.xxh3_128()
        self.position = 0
        self.wrong: list[tuple[int, int]] = []

    def add(self, view: memoryview) -> None:
        """The next bytes."""
        while self._next < len(self._parts):
            stop, checksum = self._parts[self._next]
            some = view[: stop - self.position]
            self._digest.update(some)
            view = view[len(some) :]
            self.position += len(some)
            if self.position < stop:
                return
            if f"xxh3_128:{self._digest.hexdigest()}" != checksum:
                self.wrong.append((self._next, stop))
            self._digest.reset()
            self._next += 1

    def finish(self) -> None:
        """No bytes follow: parts that are not all here are wrong."""
        while self._next < len(self._parts):
            self.wrong.append((self._next, self._parts[self._next][0]))
            self._next += 1


class Scan:
    """The pass; `run` it once.

    Args:
        path: the ``.bin``.
        size: its bytes, a whole number of tokens and not 0.
        documents: where its documents begin.
        looked: what to look for.
        progress: called with the bytes just read, by one thread at a time.
    """

    def __init__(
        self,
        path: Path,
        size: int,
        documents: Documents,
        looked: Looked,
        progress: Callable[[int], None],
    ) -> None:
        self._path, self._size, self._documents, self._looked = path, size, documents, looked
        self._proof = Proof()
        self._progress = progress
        self._lock, self._turn = threading.Lock(), threading.Condition()
        self._next = self._hashed = 0
        self._stopped = False
        self._whole = xxhash.xxh3_128()

    @property
    def checksum(self) -> str:
        """``xxh3_128:<hex>`` of the whole file."""
        return f"xxh3_128:{self._whole.hexdigest()}"

    def run(self, proof: Proof | None = None) -> Tally:
        """Read and count.

        Args:
            proof: is given all bytes.

        Raises:
            FormatError: the file ends before it should.
        """
        self._proof = proof or self._proof
        threads = min(THREADS, -(-self._size // BLOCK))
        with self._path.open("rb", buffering=0) as file, ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(self._work, file.fileno()) for _ in range(threads)]
            try:
                return reduce(add, [future.result() for future in futures])
            finally:
                self._stop()

    def _stop(self) -> None:
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def _work(self, fd: int) -> Tally:
        tally, width = Tally(), self._looked.dtype.itemsize
        room = memoryview(bytearray(HEAD + BLOCK))
        mask = np.empty(BLOCK // width, np.bool_)
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop)  # if this thread fails, the others need not go on
            while (claim := self._claim()) is not None:
                position, starts = claim
                head, count = min(HEAD, position), min(BLOCK, self._size - position)
                view = room[HEAD - head : HEAD + count]
                self._read(fd, view, position - head)
                if not self._hash(view[head:], position):
                    break
                data = np.frombuffer(view, np.uint8)
                block = Block(data, head, position // width, width, starts, position + count == self._size)
                tally.look(block, self._looked, mask)
            stack.pop_all()
        return tally

    def _claim(self) -> tuple[int, npt.NDArray[np.int32]] | None:
        """Position of the next block, and the documents that begin in it, in tokens from there."""
        with self._lock:
            position = self._next
            if position >= self._size or self._stopped:
                return None
            self._next += BLOCK
            width = self._looked.dtype.itemsize
            return position, self._documents.take_near(position // width, min(self._next, self._size) // width)

    def _read(self, fd: int, view: memoryview, position: int) -> None:
        while view:
            count = os.preadv(fd, [view], position)
            if not count:
                raise FormatError(f"{self._path} ends at byte {position}, and had {self._size} a moment ago")
            view, position = view[count:], position + count

    def _hash(self, view: memoryview, position: int) -> bool:
        """Hash a block once its turn has come; whether it still matters."""
        with self._turn:
            self._turn.wait_for(lambda: self._hashed == position or self._stopped)
            if self._stopped:
                return False
        self._whole.update(view)
        self._proof.add(view)
        self._progress(len(view))
        with self._turn:
            self._hashed += BLOCK
            self._turn.notify_all()
        return True
