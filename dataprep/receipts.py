"""What was fetched, and what each file is: one line of JSON per file, appended; the last one of a name counts.

Several processes may append. What another one added is read when the file has grown, from where the last look ended.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dataprep.storage import append_line, mend_lines

if TYPE_CHECKING:
    from dataprep.layout import RawFolder
    from dataprep.parts import Wanted


@dataclass(frozen=True)
class Receipt:
    """What a fetched file is.

    Attributes:
        sha256: of its content, 64 hex digits.
        mtime_ns: when it was published: tells whether somebody has changed it since.
    """

    name: str
    num_bytes: int
    checksum: str | None
    sha256: str
    mtime_ns: int

    def fits(self, wanted: Wanted) -> bool:
        """Whether it is of this very content, as far as the source states it."""
        return (self.num_bytes, self.checksum) == (wanted.num_bytes, wanted.checksum)


class Receipts:
    """The receipts of one raw folder; may be used by several threads."""

    def __init__(self, folder: RawFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._found: dict[str, Receipt] = {}
        self._end = 0

    def get(self, name: str) -> Receipt | None:
        """The receipt of a file, by whichever process."""
        with self._lock:
            self._read()
            return self._found.get(name)

    def add(self, wanted: Wanted, sha256: str) -> Receipt:
        """Note what a file that lies there whole is."""
        mtime_ns = (self._folder.files / wanted.name).stat().st_mtime_ns
        receipt = Receipt(wanted.name, wanted.num_bytes, wanted.checksum, sha256, mtime_ns)
        with self._lock:
            mend_lines(self._folder.receipts)
            append_line(self._folder.receipts, asdict(receipt))
        return receipt

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._folder.receipts.stat().st_size == self._end:
                return
        with contextlib.suppress(FileNotFoundError), self._folder.receipts.open("rb") as lines:
            lines.seek(self._end)
            for line in lines:
                if not line.endswith(b"\n"):
                    return  # being written, or cut off by a crash
                self._end += len(line)
                with contextlib.suppress(ValueError, TypeError):
                    receipt = Receipt(**json.loads(line))
                    self._found[receipt.name] = receipt
