"""Which datasets and versions there are in some outputs.

    <output id>~<folder>             a dataset; of a versioned one the newest version
    <output id>~<folder>~v000007     a version

are the names that they have in addresses. A list reads names, and of a folder that is seen for the first time whether
it holds a manifest; manifests are read for what a page shows, and once.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dataprep.errors import DataprepError, FormatError, OutputError
from dataprep.service.viewing.answers import DatasetPage, DatasetRow, Pair, VersionPage, VersionRow
from dataprep.service.viewing.chosen import PAGE, AbsentError, Dataset, page_of
from dataprep.service.viewing.kept import Kept, stamp
from dataprep.service.viewing.summaries import Summary, VersionSummary, is_name, summarize, summarize_version
from dataprep.storage import MARK
from dataprep.versions import Versions, leases_of
from dataprep.versions.folder import load_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import BinaryIO

    from dataprep.manifest import Prefix
    from dataprep.versions import VersionManifest

FOUND_SECONDS = 5.0
"""For so long nobody looks again whether the parts of a version lie where they did."""

FRESH_SECONDS = 1.0
"""For so long the names that were found in a folder hold."""

_VERSION = re.compile(r"v(\d{6,18})")

OTHERS = ("raw", "work")
"""What lies in an output and is no dataset."""


class _Entry(NamedTuple):
    """A folder in an output: what it is, and when its manifest, or its newest version, came."""

    name: str
    kind: Literal["dataset", "versions"]
    mtime_ns: int


class Datasets:
    """The datasets of some outputs.

    Args:
        outputs: gives short id -> folder, as it is now.
    """

    def __init__(self, outputs: Callable[[], Mapping[str, Path]]) -> None:
        self._outputs = outputs
        self._entries: Kept[dict[str, _Entry]] = Kept(64, FRESH_SECONDS)
        self._numbers: Kept[list[int]] = Kept(64, FRESH_SECONDS)
        self._mtimes: dict[tuple[str, str, int], int] = {}
        self._summaries: Kept[Summary] = Kept(10_000)
        self._version_summaries: Kept[VersionSummary] = Kept(20_000)
        self._versions: Kept[VersionManifest] = Kept(8)  # a megabyte for a thousand parts
        self._found: Kept[Dataset] = Kept(64, FOUND_SECONDS)

    @property
    def outputs(self) -> dict[str, Path]:
        """Short id -> folder."""
        return {name: Path(os.path.abspath(folder)) for name, folder in self._outputs().items()}

    def page(self, number: int = 1, output: str | None = None) -> DatasetPage:
        """Some of the datasets, the newest first.

        Args:
            number: of the page, from 1.
            output: only of this one.

        Raises:
            AbsentError: there is no such page or output.
        """
        chosen = list(self.outputs) if output is None else [self._checked(output)]
        found, problems = list[tuple[int, str, _Entry]](), []
        for name in chosen:
            try:
                found += [(each.mtime_ns, name, each) for each in self._listed(name).values()]
            except OutputError as error:
                problems.append(str(error))
        found.sort(key=lambda row: (-row[0], row[1], row[2].name))
        first, pages = page_of(number, len(found))
        rows = tuple(self._row(name, entry) for _, name, entry in found[first : first + PAGE])
        return DatasetPage(
            datasets=rows, page=number, num_pages=pages, num_datasets=len(found), problems=tuple(problems)
        )

    def versions(self, name: str, number: int = 1) -> VersionPage:
        """Some of the versions of a versioned dataset, the newest first.

        Raises:
            AbsentError: there is no such dataset or page, or it has no versions.
        """
        output, folder, version = self._parse(name)
        entry = self._entry(output, folder)
        if entry.kind != "versions" or version is not None:
            raise AbsentError(f"{folder} is one dataset, and has no versions.")
        home = Versions(self.outputs[output] / folder)
        numbers = self._version_numbers(home)[::-1]
        first, pages = page_of(number, len(numbers))
        users = self.users(home)
        rows = (self._version_row(output, home, each, numbers[0], users) for each in numbers[first : first + PAGE])
        return VersionPage(
            dataset=self._row(output, entry),
            versions=tuple(rows),
            page=number,
            num_pages=pages,
            num_versions=len(numbers),
        )

    def find(self, name: str) -> Dataset:
        """A dataset, or a version, by its id.

        Raises:
            AbsentError: there is none of this id.
            FormatError: its manifest cannot be read.
        """
        output, folder, number = self._parse(name)
        entry = self._entry(output, folder)
        home = self.outputs[output] / folder
        if entry.kind == "dataset" and number is None:
            summary = self.summary(home / "manifest.json", output)
            found = list(self._pairs(home, summary.prefixes, 0))
            return self._dataset(name, output, home, summary, found)
        versions = Versions(home)
        numbers = self._version_numbers(versions) if entry.kind == "versions" else []
        if not numbers or (number is not None and number not in numbers):
            there = f"; the newest is {versions.version(numbers[-1]).name}" if numbers else ""
            raise AbsentError(f"{folder} has no such version{there}.")
        number = numbers[-1] if number is None else number
        path = versions.version(number) / "manifest.json"
        self.check_inside(path, output)
        return self._found.get(self._stamp(path), lambda: self._find_version(output, versions, number, path))

    def summary(self, path: Path, output: str) -> Summary:
        """What a manifest says, in short.

        Raises:
            FormatError: it cannot be read, or lies elsewhere.
        """
        self.check_inside(path, output)
        return self._summaries.get(self._stamp(path), lambda: summarize(path))

    def row(self, dataset: Dataset) -> DatasetRow:
        """A dataset as it stands in a list; of a version its own figures."""
        name = dataset.folder.parent.name if dataset.version is not None else dataset.folder.name
        kind = self._entry(dataset.output_id, name).kind
        row = DatasetRow(id=dataset.id, output=dataset.output_id, name=name, folder=str(dataset.folder), kind=kind)
        return self._described(row, dataset.version.number if dataset.version is not None else None)

    def users(self, versions: Versions) -> dict[int, tuple[str, ...]]:
        """Who uses which version."""
        try:
            leases = leases_of(versions)
        except DataprepError as error:
            return dict.fromkeys(self._version_numbers(versions), (str(error),))
        found: dict[int, tuple[str, ...]] = {}
        for lease in leases:
            found[lease.version] = (*found.get(lease.version, ()), f"{lease.who}, on {lease.host}")
        return found

    def check_inside(self, path: Path, output: str) -> None:
        """See that a file, or a folder, lies in an output, wherever links lead.

        Raises:
            FormatError: it does not, or is a pipe, which nobody could read to its end.
        """
        try:
            real = os.path.realpath(path)
        except OSError as error:  # a link that was one when it was looked at
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        self._check_real(real, path, output)
        with contextlib.suppress(OSError):
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise FormatError(f"{path} is neither a file nor a folder, and is not shown")

    @contextlib.contextmanager
    def opened(self, path: Path, output: str) -> Iterator[BinaryIO]:
        """A file of an output, to be read; it stays the one that was looked at, whatever takes its name meanwhile.

        Raises:
            FormatError: it lies elsewhere, or is no plain file.
            OSError: it cannot be opened.
        """
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FormatError(f"{path} is no file, and is not shown")
            self._check_real(os.readlink(f"/proc/self/fd/{fd}"), path, output)
            yield file

    def _check_real(self, real: str, path: Path, output: str) -> None:
        root = os.path.realpath(self.outputs[output])
        if not real.startswith(root.rstrip("/") + "/"):
            raise FormatError(f"{path} is a link to what lies elsewhere, and is not shown")

    def work(self, output: str, name: str) -> Path:
        """The folder of a run, by its name in ``work/``.

        Raises:
            AbsentError: there is none.
        """
        folder = self.outputs[self._checked(output)] / "work"
        if is_name(name) and not (folder / name).is_symlink() and (folder / name / "recipe.json").is_file():
            return folder / name
        raise AbsentError("There is no such run here; its folder may have been removed.")

    # --- names

    def _checked(self, output: str) -> str:
        if output not in self.outputs:
            raise AbsentError("There is no such output folder.")
        return output

    def _parse(self, name: str) -> tuple[str, str, int | None]:
        output, _, rest = name.partition("~")
        if match := re.fullmatch(rf"(.+)~{_VERSION.pattern}", rest):
            return self._checked(output), match[1], int(match[2])
        return self._checked(output), rest, None

    def _entry(self, output: str, folder: str) -> _Entry:
        if (found := self._listed(output).get(folder)) is None:
            raise AbsentError("There is no such dataset here; it may have been removed.")
        return found

    def _listed(self, output: str) -> dict[str, _Entry]:
        return self._entries.get(output, lambda: {entry.name: entry for entry in self._scan(output)})

    def _scan(self, output: str) -> Iterator[_Entry]:
        place = self.outputs[output]
        try:
            with os.scandir(place) as entries:
                found = list(entries)
        except FileNotFoundError:
            return  # the first run makes it
        except OSError as error:
            raise OutputError(f"cannot look into {place}: {error.strerror}") from error
        for entry in found:
            if not _can_be_named(entry.name) or entry.name in OTHERS or not entry.is_dir(follow_symlinks=False):
                continue
            key = (output, entry.name, entry.inode())
            if key in self._mtimes:
                yield _Entry(entry.name, "dataset", self._mtimes[key])
                continue
            with contextlib.suppress(OSError):
                self._mtimes[key] = os.stat(f"{entry.path}/manifest.json").st_mtime_ns  # a Path takes longer
                yield _Entry(entry.name, "dataset", self._mtimes[key])
                continue
            versions = Versions(Path(entry.path))
            with contextlib.suppress(OSError):
                if numbers := self._version_numbers(versions):
                    yield _Entry(entry.name, "versions", versions.version(numbers[-1]).stat().st_mtime_ns)

    def _version_numbers(self, versions: Versions) -> list[int]:
        return self._numbers.get(str(versions.folder), lambda: _numbers(versions.folder))

    # --- figures

    def _row(self, output: str, entry: _Entry) -> DatasetRow:
        folder = self.outputs[output] / entry.name
        row = DatasetRow(
            id=f"{output}~{entry.name}", output=output, name=entry.name, folder=str(folder), kind=entry.kind
        )
        try:
            return self._described(row, None)
        except DataprepError as error:
            return row.model_copy(update={"problem": str(error)})

    def _described(self, row: DatasetRow, number: int | None) -> DatasetRow:
        """A row with its figures; of a versioned dataset those of a version, or of the newest."""
        home, values = self.outputs[row.output] / row.name, dict[str, Any]()
        if row.kind == "versions":
            versions = Versions(home)
            numbers = self._version_numbers(versions)
            values = {"version": number or numbers[-1], "num_versions": len(numbers)}
            version = self._version_summary(row.output, versions, values["version"])
            values |= {"num_documents": version.num_documents, "num_tokens": version.num_tokens}
            made: Summary | VersionSummary = version
        else:
            made = summary = self.summary(home / "manifest.json", row.output)
            values = {"num_documents": summary.counts.num_documents, "num_tokens": summary.counts.num_tokens}
        named = {"corpus": made.corpus, "tokenizer": made.tokenizer, "created": made.created}
        return row.model_copy(update={**values, **named, "num_bytes": made.num_bytes})

    def _version_row(
        self, output: str, home: Versions, number: int, newest: int, users: Mapping[int, tuple[str, ...]]
    ) -> VersionRow:
        name = home.version(number).name
        row = VersionRow(
            id=f"{output}~{home.name}~{name}",
            version=number,
            name=name,
            is_current=number == newest,
            leases=users.get(number, ()),
        )
        try:
            found = self._version_summary(output, home, number)
        except DataprepError as error:
            return row.model_copy(update={"problem": str(error)})
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        return row.model_copy(update={key: value for key, value in values.items() if key in VersionRow.model_fields})

    def _version_summary(self, output: str, home: Versions, number: int) -> VersionSummary:
        path = home.version(number) / "manifest.json"
        self.check_inside(path, output)
        return self._version_summaries.get(self._stamp(path), lambda: summarize_version(path))

    def _find_version(self, output: str, home: Versions, number: int, path: Path) -> Dataset:
        manifest = self._versions.get(self._stamp(path), lambda: load_version(path))
        pairs: list[tuple[Pair, Path]] = []
        documents = 0
        for part in manifest.parts:
            folder = home.part(part.folder)
            self.check_inside(folder, output)
            pairs += self._pairs(folder, part.prefixes, documents)
            documents += part.num_documents
        folder = home.version(number)
        return self._dataset(f"{output}~{home.name}~{folder.name}", output, folder, manifest, pairs)

    def _dataset(
        self, name: str, output: str, folder: Path, made: Summary | VersionManifest, pairs: list[tuple[Pair, Path]]
    ) -> Dataset:
        return Dataset(
            id=name,
            output_id=output,
            output=self.outputs[output],
            folder=folder,
            summary=made if isinstance(made, Summary) else None,
            version=None if isinstance(made, Summary) else made,
            pairs=tuple(pair for pair, _ in pairs),
            manifests=tuple(path for _, path in pairs),
        )

    @staticmethod
    def _pairs(folder: Path, prefixes: tuple[Prefix, ...], documents: int) -> Iterator[tuple[Pair, Path]]:
        for entry in prefixes:
            if not is_name(entry.name):
                raise FormatError(f"{folder}: its manifest speaks of files elsewhere, {entry.name!r}")
            yield Pair(path=str(folder / entry.name), first_document=documents, entry=entry), folder / "manifest.json"
            documents += entry.num_documents

    @staticmethod
    def _stamp(path: Path) -> tuple[str, int, int, int]:
        try:
            return stamp(path)
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error


def _numbers(folder: Path) -> list[int]:
    """The versions in a folder, oldest first, by their names alone: they appear whole."""
    try:
        with os.scandir(folder) as entries:
            found = [(match[1], entry) for entry in entries if (match := _VERSION.fullmatch(entry.name))]
            return sorted(int(digits) for digits, entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _can_be_named(name: str) -> bool:
    """Whether a folder can be a dataset's, and be named in an address."""
    return not name.startswith(".") and MARK not in name and "~v" not in name and name.isprintable()
