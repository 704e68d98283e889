"""Pairs that are made from pairs appear whole: private until they are proven, then all of them, or none.

    <NEW>.tmp-<owner>/        locked while its maker lives
      lock
      <NEW>.bin .idx          written, then proven
      <NEW>.manifest.json     written last; then all three are linked to their names, and the folder goes

A final name is a link to what lies in the folder, so that the next run can tell what a dead one had already named, and
takes it back. A file system without hard links is given renames instead: there, a process that dies between the first
and the last of them leaves names behind that somebody has to remove.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dataprep.errors import OutputError, SpecError
from dataprep.indexed import bin_path, idx_path
from dataprep.layout import pair_manifest
from dataprep.locks import hold
from dataprep.reshaping.selections import stretches
from dataprep.stages.verify import verify
from dataprep.storage import MARK, existing, explain, make_folder, sync_folder, write_json
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.checks.report import Expected, Report
    from dataprep.manifest import PairManifest
    from dataprep.watcher import Watcher

LOCK = "lock"


def check_encodable(path: Path) -> None:
    """Make sure that a manifest can name a pair.

    Raises:
        SpecError: its path is no UTF-8.
    """
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{path}: the path is not UTF-8, and the manifest of what is made has to name it; rename it"
        ) from error


def output_prefix(text: str | Path) -> Path:
    """The prefix that a person wants a new pair to have; the name of one of its files means the same.

    What a maker that died has left there goes first: it would pass for a pair of somebody.

    Raises:
        SpecError: it names a folder, or nothing, or is no UTF-8.
        BusyError: another process makes pairs of this name.
    """
    path = Path(text)
    if path == Path():
        raise SpecError("--output names nothing; name the new pair, as in data/merged")
    if path.suffix in (".bin", ".idx"):
        path = path.with_suffix("")
    check_encodable(path)
    if str(text).endswith(os.sep) or not path.name or (path.is_dir() and not _caches(path).exists()):
        raise SpecError(f"--output {text} is a folder; name the pair in it, as in {path / 'merged'}")
    clear_others(path)
    return path


OWN = re.compile(re.escape(MARK) + r"\d+-[0-9a-f]{8}$")
"""How the name of a maker's folder ends; what only begins like one may be a person's."""


def clear_others(name: Path, own: Path | None = None) -> None:
    """Remove the private folders of makers of this name that have died.

    Args:
        name: what they were to make.
        own: the folder of who asks.

    Raises:
        BusyError: one of them is alive.
    """
    for folder in sorted(name.parent.glob(f"{glob.escape(name.name)}{MARK}*")):
        if folder != own and OWN.search(folder.name) and (folder / LOCK).is_file():
            with hold(folder / LOCK):
                _take_back(folder)


def check_free(prefix: Path) -> None:
    """Make sure that nothing has the names of a pair, and that Megatron has no indices of one that had them.

    Raises:
        SpecError: something has.
    """
    for path in (bin_path(prefix), idx_path(prefix), pair_manifest(prefix)):
        if os.path.lexists(path):
            raise SpecError(f"{path} exists; choose another --output, or remove it first")
    caches = _caches(prefix)
    if caches.exists():
        raise SpecError(
            f"{caches} holds Megatron's indices of a dataset that lay here before, and Megatron would take them for "
            "the new one's; choose another --output, or remove them first"
        )


def _caches(prefix: Path) -> Path:
    """Where Megatron keeps its indices of a pair unless it is told otherwise, in a folder named like the prefix.

    Source: megatron-core 0.16.1, gpt_dataset.py, `_build_document_sample_shuffle_indices`.
    """
    return prefix / "cache" / "GPTDataset_indices"


@dataclass(frozen=True, slots=True)
class Copied:
    """A stretch of a new ``.bin``: the prefix it is from, its size, and the checksum it must have."""

    source: Path
    num_bytes: int
    checksum: str


class Outputs:
    """Pairs in the making, in one folder. Use as a context manager: what is not published is removed.

    Args:
        name: what the user calls them: the prefix of one, or what the prefixes of several begin with.
        num_bytes: that they will take on the disk, all together.

    Raises:
        BusyError: another process makes pairs of this name.
        OutputError: there is not enough room, or the file system refuses.
    """

    def __init__(self, name: Path, num_bytes: int) -> None:
        self._name, self._num_bytes = name, num_bytes
        self._parent = name.parent
        self._folder = name.with_name(f"{name.name}{MARK}{os.getpid()}-{secrets.token_hex(4)}")
        self._published = False

    def __enter__(self) -> Self:
        make_folder(self._parent)
        with contextlib.ExitStack() as stack:
            with explain(self._folder, "create the folder"):
                self._folder.mkdir()
            stack.callback(self._discard)
            stack.enter_context(hold(self._folder / LOCK))
            clear_others(self._name, self._folder)
            self._check_room()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _check_room(self) -> None:
        usage = shutil.disk_usage(existing(self._parent))
        if usage.total and usage.free < self._num_bytes:  # some network mounts know no sizes
            raise OutputError(
                f"{self._parent}: {self._num_bytes:,} bytes are needed, {usage.free:,} are free; make room, or choose "
                "another --output"
            )

    def private(self, prefix: Path) -> Path:
        """Where a pair is made."""
        return self._folder / prefix.name

    def prove(self, prefix: Path, parts: Sequence[Copied], watcher: Watcher, expect: Expected | None = None) -> Report:
        """Read back what was written.

        Args:
            prefix: the pair's final one.
            parts: what the ``.bin`` is made of, in its order.
            watcher: is told of the bytes read.
            expect: what it has to fit.

        Raises:
            OutputError: it is not what was to be written, or no training could use it.
        """
        private = self.private(prefix)
        ends = list(accumulate(part.num_bytes for part in parts))
        expected = [part.checksum for part in parts]
        told = list(zip(ends, expected, strict=True))
        report = verify(private, "tokens", expect, told, lambda count: watcher(Progress(source_bytes=count)))
        if report.ok:
            return report
        found, _ = stretches(private, ends, Silent())
        wrong = [part.source for part, checksum in zip(parts, found, strict=True) if part.checksum != checksum]
        if wrong:
            names = ", ".join(map(str, wrong[:5])) + (f" and {len(wrong) - 5:,} more" if wrong[5:] else "")
            raise OutputError(
                f"{prefix} was not made: what was copied of {names} has another checksum than is known of it. Look for "
                f"the damage with: dataprep verify {wrong[0]}"
            )
        what = report.errors[0]
        text = what.message.replace(str(self._folder), str(self._parent))
        raise OutputError(f"{prefix} was not made, because it would be broken: {what.code}: {text}")

    def verification(self, prefix: Path, report: Report) -> dict[str, Any]:
        """The report as JSON, in which the pair has its final name."""
        return report.named(prefix.name).to_json()

    def describe(self, prefix: Path, manifest: PairManifest) -> None:
        """Write the manifest of a pair, still in private."""
        write_json(pair_manifest(self.private(prefix)), manifest.to_json())

    def publish(self, prefixes: Sequence[Path]) -> None:
        """Give all files their names, the manifests last.

        Raises:
            OutputError: a name was taken meanwhile, or the file system refuses; none has its name then.
        """
        for place in (bin_path, idx_path, pair_manifest):
            for prefix in prefixes:
                _name(place(self.private(prefix)), place(prefix))
        with explain(self._parent, "finish"):
            sync_folder(self._parent)
        self._published = True

    def _discard(self) -> None:
        """Remove the folder, and names that were given already. Never raises: it follows an error that says more."""
        with contextlib.suppress(OSError):
            if self._published:
                shutil.rmtree(self._folder)
            else:
                _take_back(self._folder, whole=True)


def _name(private: Path, path: Path) -> None:
    with explain(path, "create"):
        try:
            os.link(private, path)
        except FileExistsError:
            raise OutputError(f"{path} was made by somebody else meanwhile; choose another --output") from None
        except OSError:  # no hard links here
            if os.path.lexists(path):
                raise OutputError(f"{path} was made by somebody else meanwhile; choose another --output") from None
            os.rename(private, path)


def _take_back(folder: Path, whole: bool = False) -> None:
    """Remove the folder of a maker that is gone, and the names it gave; if it gave all of them, only if `whole`."""
    with explain(folder, "clear"):
        files = [path for path in sorted(folder.iterdir()) if path.name != LOCK and MARK not in path.name]
        names = [folder.with_name(path.name) for path in files]
        given = [name for path, name in zip(files, names, strict=True) if name.exists() and name.samefile(path)]
        if whole or len(given) < len(files):
            for name in reversed(given):
                name.unlink()
        shutil.rmtree(folder)
