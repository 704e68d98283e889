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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from dataprep.errors import DataprepError, FormatError, SpecError
from dataprep.service.viewing.answers import DatasetPage, DatasetRow, Pair, VersionPage, VersionRow
from dataprep.service.viewing.kept import Kept, stamp
from dataprep.service.viewing.summaries import Summary, is_name, summarize
from dataprep.storage import MARK
from dataprep.versions import Versions, leases_of
from dataprep.versions.folder import load_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dataprep.manifest import Prefix
    from dataprep.versions import VersionManifest

PAGE = 50
"""Entries of a page."""

FRESH_SECONDS = 1.0
"""For so long the names that were found in a folder hold."""

_VERSION = re.compile(r"v(\d{6,18})")

OTHERS = ("raw", "work")
"""What lies in an output and is no dataset."""


class AbsentError(SpecError):
    """What was asked for is not there, and never was, or is not any more."""


class _Entry(NamedTuple):
    """A folder in an output: what it is, and when its manifest, or its newest version, came."""

    name: str
    kind: Literal["dataset", "versions"]
    mtime_ns: int


@dataclass(frozen=True)
class Dataset:
    """One dataset, or one version of a versioned one.

    Attributes:
        id: as the module says, with the version.
        output: the folder that it lies in, and `output_id` the id of that.
        folder: its own.
        summary: of a dataset that has no versions.
        version: its manifest, of a version.
        pairs: in the order of their documents.
        manifests: of each pair the manifest that speaks of it.
    """

    id: str
    output_id: str
    output: Path
    folder: Path
    summary: Summary | None
    version: VersionManifest | None
    pairs: tuple[Pair, ...]
    manifests: tuple[Path, ...]

    @property
    def num_documents(self) -> int:
        return sum(pair.entry.num_documents for pair in self.pairs)

    def pair_of(self, document: int) -> tuple[int, int]:
        """The pair that holds a document, and the number of the document there.

        Raises:
            AbsentError: there is no such document.
        """
        for number, pair in enumerate(self.pairs):
            if 0 <= document - pair.first_document < pair.entry.num_documents:
                return number, document - pair.first_document
        there = f"documents 0 to {self.num_documents - 1}" if self.num_documents else "no documents"
        raise AbsentError(f"There is no such document: {self.folder.name} holds {there}.")


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
        self._summaries: Kept[Summary] = Kept(20_000)
        self._versions: Kept[VersionManifest] = Kept(20_000)

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
        found = [(each.mtime_ns, name, each) for name in chosen for each in self._listed(name).values()]
        found.sort(key=lambda row: (-row[0], row[1], row[2].name))
        first, pages = page_of(number, len(found))
        rows = tuple(self._row(name, entry) for _, name, entry in found[first : first + PAGE])
        return DatasetPage(datasets=rows, page=number, num_pages=pages, num_datasets=len(found))

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
        return self._find_version(output, versions, numbers[-1] if number is None else number)

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
        return self._described(dataset, row)

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
        root = os.path.realpath(self.outputs[output])
        if not os.path.realpath(path).startswith(root.rstrip("/") + "/"):
            raise FormatError(f"{path} is a link to what lies elsewhere, and is not shown")
        with contextlib.suppress(OSError):
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise FormatError(f"{path} is neither a file nor a folder, and is not shown")

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
        with contextlib.suppress(FileNotFoundError), os.scandir(self.outputs[output]) as entries:
            for entry in entries:
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
            return self._described(self.find(row.id), row)
        except DataprepError as error:
            return row.model_copy(update={"problem": str(error)})

    def _described(self, dataset: Dataset, row: DatasetRow) -> DatasetRow:
        if dataset.version is not None:
            version = dataset.version
            counts = {"num_documents": version.num_documents, "num_tokens": version.num_tokens}
            numbers = self._version_numbers(Versions(dataset.folder.parent))
            more = {"version": version.number, "num_versions": len(numbers), "num_bytes": version.num_bytes}
            named = {"corpus": version.corpus, "tokenizer": version.tokenizer, "created": version.created}
            return row.model_copy(update={**counts, **more, **named})
        summary = dataset.summary
        assert summary is not None
        counts = {"num_documents": summary.counts.num_documents, "num_tokens": summary.counts.num_tokens}
        named = {"corpus": summary.corpus, "tokenizer": summary.tokenizer, "created": summary.created}
        return row.model_copy(update={**counts, **named, "num_bytes": summary.num_bytes})

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
            found = self._load_version(output, home, number)
        except DataprepError as error:
            return row.model_copy(update={"problem": str(error)})
        counted = ("run", "num_files", "num_documents", "num_tokens", "num_bytes", "created")
        values = {key: getattr(found, key) for key in counted}
        lists = {"parts": found.parts, "changed": found.changed, "vanished": found.vanished}
        return row.model_copy(update=values | {f"num_{name}": len(each) for name, each in lists.items()})

    def _load_version(self, output: str, home: Versions, number: int) -> VersionManifest:
        path = home.version(number) / "manifest.json"
        self.check_inside(path, output)
        return self._versions.get(self._stamp(path), lambda: load_version(path))

    def _find_version(self, output: str, home: Versions, number: int) -> Dataset:
        manifest = self._load_version(output, home, number)
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


def page_of(number: int, count: int, size: int = PAGE) -> tuple[int, int]:
    """The first entry of a page, and how many pages there are, at least one.

    Raises:
        AbsentError: there is no such page.
    """
    pages = max(1, -(-count // size))
    if not 1 <= number <= pages:
        raise AbsentError(f"There is no such page: there are pages 1 to {pages}.")
    return (number - 1) * size, pages


def _can_be_named(name: str) -> bool:
    """Whether a folder can be a dataset's, and be named in an address."""
    return not name.startswith(".") and MARK not in name and "~v" not in name and name.isprintable()
