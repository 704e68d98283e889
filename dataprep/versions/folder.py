"""The folder of a versioned dataset: which versions there are, and how one appears."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import LostClaimError, SpecError
from dataprep.layout import DATA_ARGS
from dataprep.manifest import load_as
from dataprep.stages.publish import write_data_args
from dataprep.storage import MARK, explain, make_folder, sync_folder, write_json
from dataprep.versions.manifest import VersionManifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.claims import Claim

log = logging.getLogger(__name__)

_VERSION = re.compile(r"v(\d{6,})")


class Versions:
    """One versioned dataset.

    Args:
        folder: of it; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def claim(self) -> Path:
        return self.folder / "claim"

    @property
    def parts(self) -> Path:
        return self.folder / "parts"

    @property
    def pending(self) -> Path:
        return self.folder / "pending.json"

    @property
    def link(self) -> Path:
        return self.folder / "current"

    @property
    def leases(self) -> Path:
        return self.folder / "leases"

    def gone(self, part: Path) -> Path:
        """The file that says that a part of this name was there, and was removed.

        A name is not given to other contents: Megatron knows its index caches by the paths of what they are of.
        """
        return self.folder / "gone" / part.name

    def removing(self, epoch: int) -> Path:
        """Where what a run removes is moved to."""
        return self.folder / f"removing-{epoch}"

    def version(self, number: int) -> Path:
        return self.folder / f"v{number:06d}"

    def numbers(self) -> list[int]:
        """The versions there are, oldest first."""
        with explain(self.folder, "look into"):
            return sorted(number for number, path in self._numbered() if (path / "manifest.json").is_file())

    def next_number(self) -> int:
        """The number of a version to come: what is left of one that somebody removed by hand keeps its name."""
        return max((number for number, _ in self._numbered()), default=0) + 1

    def _numbered(self) -> list[tuple[int, Path]]:
        found = ((_VERSION.fullmatch(path.name), path) for path in self._entries())
        return [(int(match[1]), path) for match, path in found if match is not None]

    def _entries(self) -> list[Path]:
        with explain(self.folder, "look into"):
            try:
                return list(self.folder.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def newest(self) -> VersionManifest | None:
        """The version that counts; None: there is none."""
        numbers = self.numbers()
        return self.load(numbers[-1]) if numbers else None

    def load(self, number: int) -> VersionManifest:
        """The manifest of a version.

        Raises:
            FormatError: it cannot be read.
        """
        return load_version(self.version(number) / "manifest.json")

    def find(self, word: str) -> int:
        """The number of a version as people call it: ``current``, ``v000007``, ``v7``, ``7``; 0: there is none."""
        numbers = self.numbers()
        digits = word.removeprefix("v")
        if word == "current":
            return numbers[-1] if numbers else 0
        number = int(digits) if re.fullmatch(r"[0-9]{1,12}", digits) else 0
        return number if number in numbers else 0

    def number_of(self, word: str) -> int:
        """The same, but never 0.

        Raises:
            SpecError: there is no such version.
        """
        number = self.find(word)
        if not number:
            there = ", ".join(self.version(each).name for each in self.numbers()[-5:]) or "none"
            raise SpecError(f"{self.folder} has no version {word}; the newest are: {there}")
        return number

    def take_over(self, claim: Claim) -> None:
        """Make what runs before this one left harmless, and finish it; to be called before anything is decided.

        Raises:
            LostClaimError: the claim is not held any more.
            OutputError: the file system refuses.
        """
        with explain(self.folder, "clear"):
            left = [path for path in self._entries() if _is_of_older(path, claim.epoch)]
            claim.check()
            for number, path in enumerate(left):  # moved in one step: its owner, asleep, may wake up and rename it
                gone = self.folder / f"gone{MARK}{claim.epoch}-{number}"
                try:
                    path.rename(gone)
                except FileNotFoundError:
                    continue  # its owner woke up and was faster
            for path in self._entries():
                if MARK in path.name:
                    discard(path)
            for path in self.leases.glob("*.mark"):
                if _is_of_older(path, claim.epoch, r"v\d+-(\d+)\.mark"):
                    path.unlink(missing_ok=True)
        self.point(claim)

    def point(self, claim: Claim) -> None:
        """Let ``current`` be the newest version; on file systems without links there is none.

        Raises:
            LostClaimError: the claim is not held any more.
            OutputError: the file system refuses.
        """
        numbers = self.numbers()
        if not numbers:
            return
        target = self.version(numbers[-1]).name
        if self.link.is_symlink() and os.readlink(self.link) == target:
            return
        temporary = self.folder / f"{self.link.name}-{claim.epoch}"
        with explain(self.link, "link"):
            temporary.unlink(missing_ok=True)
            try:
                temporary.symlink_to(target)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    return
                raise
            claim.check()  # behind it whoever takes over moves the link away, see `take_over`
            os.replace(temporary, self.link)
            sync_folder(self.folder)

    def publish(self, manifest: VersionManifest, claim: Claim) -> None:
        """Let a version appear, whole, and make it the current one.

        Args:
            manifest: of the version.
            claim: held; its epoch is `manifest.run`.

        Raises:
            LostClaimError: the claim is not held any more; nothing appeared.
            OutputError: the file system refuses.
        """
        staged, version = self.folder / f"staged-{claim.epoch}", self.version(manifest.number)
        with explain(staged, "write"):
            shutil.rmtree(staged, ignore_errors=True)
        make_folder(staged)
        if any(letter.isspace() for letter in str(self.folder)):
            log.warning(
                "Megatron splits --data-args-path at spaces, of which %s has some: its %s is of use only where the "
                "output of the job is a link without spaces",
                self.folder,
                DATA_ARGS,
            )
        write_data_args(staged / DATA_ARGS, self._weights(manifest))
        write_json(staged / "manifest.json", manifest.to_json())
        with explain(version, "publish"):
            before = staged.stat()
            claim.check()
            try:
                os.rename(staged, version)
            except OSError as error:
                if version.exists() and os.path.samestat(before, version.stat()):
                    pass  # a network file system may say so of a rename that it did, and was asked for twice
                elif error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    claim.check()
                    raise LostClaimError(f"{version} was made by another run; this one ends here") from error
                else:
                    raise
            sync_folder(self.folder)
        self.point(claim)

    def _weights(self, manifest: VersionManifest) -> Iterator[tuple[float, str]]:
        """The prefixes of a version by their absolute paths, each with its share of the tokens."""
        for part in manifest.parts:
            folder = os.path.normpath(self.version(manifest.number) / part.folder)
            for prefix in part.prefixes:
                if prefix.num_tokens:
                    yield prefix.num_tokens / manifest.num_tokens, os.path.join(folder, prefix.name)

    def part(self, folder: str) -> Path:
        """The folder of a part, as a version names it."""
        return Path(os.path.normpath(self.version(0) / folder))


def versioned(output: Path) -> list[Versions]:
    """The versioned datasets in an output folder that have a version, by their names."""
    with contextlib.suppress(FileNotFoundError):
        found = (Versions(path) for path in sorted(Path(output).iterdir()) if not path.is_symlink() and path.is_dir())
        return [versions for versions in found if versions.numbers()]
    return []


def find_version(text: str) -> tuple[Versions, str] | None:
    """The versioned dataset, and the version as `Versions.find` takes it, that people mean by a path; None: neither.

    Args:
        text: the folder of the dataset, which stands for its newest version, of a version, or ``current``; or the file
            in one for Megatron's --data-args-path.
    """
    path = Path(os.path.abspath(text))
    path = path.parent if path.name == DATA_ARGS else path
    word = path.name if re.fullmatch(r"current|v\d+", path.name) else ""
    found = Versions(path.parent if word else path)
    return (found, word or "current") if found.numbers() else None


def load_version(path: Path) -> VersionManifest:
    """Read the ``manifest.json`` of a version.

    Raises:
        FormatError: missing, or not one.
    """
    return load_as(VersionManifest, path)


def discard(path: Path) -> None:
    """Remove what means nothing any more, or as much of it as can be.

    A network file system keeps files that somebody has open, under hidden names; the next run tries again.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_of_older(path: Path, epoch: int, pattern: str = r"(?:staged|current|removing)-(\d+)") -> bool:
    """Whether a name is that of what a run was about to show, or to remove, under an older claim."""
    match = re.fullmatch(pattern, path.name)
    return match is not None and int(match[1]) < epoch
