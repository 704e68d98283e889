"""One output folder, and what is known of it: runs, records of jobs, and versions of their datasets.

What was read stays known until the folder that it lies in has another mtime: files there are replaced, not changed.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.errors import DataprepError
from dataprep.service.records import RunRecord, read_records
from dataprep.service.runs import SETTLED_NS, Works
from dataprep.storage import MARK
from dataprep.versions import VersionManifest, Versions


@dataclass
class OutputFolder:
    """An output folder, and what is known of it.

    Attributes:
        id: names it in addresses, where no path may stand.
        folder: its path, absolute.
        works: the runs in it.
    """

    id: str
    folder: Path
    works: Works
    _records: dict[str, tuple[Any, list[RunRecord]]] = field(default_factory=dict)
    _plain: set[str] = field(default_factory=set)
    _numbers: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    _newest: dict[str, VersionManifest] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> OutputFolder:
        name = output_id(folder)
        return cls(name, folder, Works(name, folder))

    def jobs(self) -> list[str]:
        """The names of the datasets here that jobs write; no link is one."""
        found = []
        try:
            with os.scandir(self.folder) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        for name in names:
            if name in self._plain or MARK in name or name in ("raw", "work"):
                continue
            if os.path.exists(self.folder / name / "manifest.json"):
                self._plain.add(name)  # it appeared whole, and stays what it is
            elif os.path.isdir(self.folder / name / "runs") and not os.path.islink(self.folder / name / "runs"):
                found.append(name)
        return sorted(found)

    def records(self, job: str) -> list[RunRecord]:
        """The records of a job's runs, oldest first."""
        versions = Versions(self.folder / job)
        try:
            stamp = tuple(os.stat(path).st_mtime_ns for path in (versions.folder / "runs", versions.claim))
        except OSError:
            stamp = ()
        known = self._records.get(job)
        if known is None or known[0] != stamp or not stamp:
            found = read_records(versions)
            young = not stamp or max(stamp) > time.time_ns() - SETTLED_NS
            is_going = any(record.state == "running" for record in found)
            known = self._records[job] = (None if young or is_going else stamp, found)
        return known[1]

    def versions(self, job: str) -> list[int]:
        """The numbers of the versions of a job's dataset, oldest first."""
        versions = Versions(self.folder / job)
        try:
            stamp = os.stat(versions.folder).st_mtime_ns
            known = self._numbers.get(job)
            found = versions.numbers() if known is None or known[0] != stamp else []
        except (OSError, DataprepError):
            return []
        if known is None or known[0] != stamp:
            young = stamp > time.time_ns() - SETTLED_NS
            known = self._numbers[job] = (0 if young else stamp, found)
        return known[1]

    def version(self, job: str, number: int) -> VersionManifest | None:
        """A version; None: it cannot be read, or was removed just now."""
        known = self._newest.get(job)
        if known is None or known.number != number:
            try:
                known = self._newest[job] = Versions(self.folder / job).load(number)
            except DataprepError:
                return None
        return known


def output_id(folder: Path) -> str:
    """What stands for an output in addresses: the same on all servers that show it under one path."""
    return hashlib.sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:10]
