"""All that is known of one dataset, or of one version."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dataprep.errors import DataprepError, FormatError
from dataprep.layout import DATA_ARGS
from dataprep.manifest import load_manifest
from dataprep.service.viewing import lengths
from dataprep.service.viewing.answers import (
    Command,
    Corpus,
    DatasetDetail,
    LengthsDetail,
    Made,
    PartRow,
    SourcePage,
    SourceRow,
)
from dataprep.service.viewing.chosen import AbsentError, Dataset, page_of
from dataprep.service.viewing.kept import Kept, stamp
from dataprep.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dataprep.manifest import DatasetManifest, Span
    from dataprep.service.viewing.answers import Check
    from dataprep.service.viewing.listing import Datasets
    from dataprep.service.viewing.summaries import Summary

MOST = 20
"""Pairs, parts and reports that are listed with a dataset."""

FRESH_SECONDS = 2.0
"""For so long nobody looks again who uses a version, and whether its parts are there."""

FILES = 100
"""Source files of a page."""


class _Part(NamedTuple):
    """A part of a version, or all of a dataset that has none."""

    number: int
    manifest: Path
    num_files: int
    summary: Summary | None  # None: its manifest cannot be read
    why: str = ""


class Details:
    """What is known of datasets.

    Args:
        datasets: which there are.
    """

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._manifests: Kept[DatasetManifest] = Kept(8)
        self._details: Kept[DatasetDetail] = Kept(64, FRESH_SECONDS)
        self._known_parts: Kept[list[_Part]] = Kept(64, FRESH_SECONDS)
        self._lengths: Kept[LengthsDetail | None] = Kept(256)

    def manifest(self, path: Path, output: str) -> DatasetManifest:
        """A manifest, whole.

        Raises:
            FormatError: it cannot be read, or lies elsewhere.
        """
        self._datasets.check_inside(path, output)
        try:
            key = stamp(path)
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        return self._manifests.get(key, lambda: load_manifest(path))

    def of(self, dataset: Dataset) -> DatasetDetail:
        """All that is known of a dataset, but for its lengths, where it is a version.

        Raises:
            FormatError: its manifest, or that of its newest part, cannot be read.
        """
        return self._details.get(dataset.id, lambda: self._of(dataset))

    def _of(self, dataset: Dataset) -> DatasetDetail:
        parts = self._parts(dataset)
        if not parts:
            raise FormatError(f"{dataset.folder} has no parts")
        known = [part.summary for part in parts if part.summary is not None]
        newest = self.manifest(parts[-1].manifest, dataset.output_id)
        checks = [check for part in parts for check in _checks(part, dataset.version is not None)]
        checks.sort(key=lambda check: not check.problems)
        totals = Counter[str]()
        for summary in known:
            totals.update({name: count for name, count in summary.counts if isinstance(count, int)})
        rejects, specials = _sum(s.counts.rejects for s in known), _sum(s.counts.specials for s in known)
        recipe = newest.recipe
        version = dataset.version
        rows = [_row(part) for part in reversed(parts)] if version is not None else []
        users = self._datasets.users(Versions(dataset.folder.parent)) if version is not None else {}
        return DatasetDetail(
            row=self._datasets.row(dataset),
            num_sequences=totals["num_sequences"],
            num_text_bytes=totals["num_text_bytes"],
            num_records=totals["num_records"],
            num_empty=totals["num_empty"],
            num_rejected=sum(rejects.values()),
            rejects=rejects,
            specials=specials,
            dtype=newest.prefixes[0].dtype if newest.prefixes else recipe.dtype,
            lengths=newest.lengths if version is None else None,
            corpus=Corpus(
                name=recipe.corpus if version is None else version.corpus,
                origin=recipe.origin,
                license=recipe.license,
                num_files=sum(part.num_files for part in parts),
                num_bytes=sum(summary.source_bytes for summary in known),
                limit=recipe.limit,
            ),
            tokenizer=recipe.tokenizer,
            policy=recipe.policy,
            made=Made(
                dataprep_version=newest.dataprep_version,
                recipe_digest=newest.recipe_digest,
                engine=newest.engine,
                wall_seconds=newest.wall_seconds,
                cpu_seconds=newest.cpu_seconds,
                peak_memory_bytes=newest.peak_memory_bytes,
            ),
            pairs=dataset.pairs[:MOST],
            num_pairs=len(dataset.pairs),
            parts=tuple(rows[:MOST]),
            num_parts=len(rows),
            checks=tuple(checks[:MOST]),
            num_checks=len(checks),
            is_verified=len(known) == len(parts) and all(summary.is_verified for summary in known),
            commands=tuple(commands(dataset)),
            leases=users.get(version.number, ()) if version is not None else (),
            notes=tuple(part.why for part in parts if part.why)[:MOST],
        )

    def lengths(self, dataset: Dataset) -> LengthsDetail:
        """How long its documents are.

        Raises:
            AbsentError: it has none.
            FormatError: an index cannot be read, or is broken.
        """
        checksums = tuple(pair.entry.files.idx_checksum for pair in dataset.pairs)
        found = self._lengths.get((dataset.id, checksums), lambda: self._measured(dataset))
        if found is None:
            raise AbsentError(f"{dataset.folder.name} holds no documents.")
        return found

    def _measured(self, dataset: Dataset) -> LengthsDetail | None:
        prefixes = [Path(pair.path) for pair in dataset.pairs if pair.entry.num_documents]
        for prefix in prefixes:
            self._datasets.check_inside(prefix.with_name(f"{prefix.name}.idx"), dataset.output_id)
        known = None
        if dataset.version is None and dataset.manifests:
            known = self.manifest(dataset.manifests[0], dataset.output_id).lengths
        return lengths.measure(prefixes, known, dataset.num_documents)

    def sources(self, dataset: Dataset, number: int = 1) -> SourcePage:
        """Some of the source files, in their order.

        Raises:
            AbsentError: there is no such page.
            FormatError: a manifest cannot be read.
        """
        parts = self._parts(dataset)
        count = sum(part.num_files for part in parts)
        first, pages = page_of(number, count, FILES)
        rows: list[SourceRow] = []
        begin = 0
        for part in parts:
            start, stop = max(first, begin), min(first + FILES, begin + part.num_files)
            if start < stop:
                manifest = self.manifest(part.manifest, dataset.output_id)
                rows += _sources(manifest, range(start - begin, stop - begin), begin)
            begin += part.num_files
        return SourcePage(files=tuple(rows), page=number, num_pages=pages, num_files=count)

    def _parts(self, dataset: Dataset) -> list[_Part]:
        return self._known_parts.get(dataset.id, lambda: self._find_parts(dataset))

    def _find_parts(self, dataset: Dataset) -> list[_Part]:
        if dataset.version is None:
            assert dataset.summary is not None
            return [_Part(0, dataset.folder / "manifest.json", dataset.summary.num_files, dataset.summary)]
        home, found = Versions(dataset.folder.parent), []
        for number, part in enumerate(dataset.version.parts):
            path = home.part(part.folder) / "manifest.json"
            try:
                summary, why = self._datasets.summary(path, dataset.output_id), ""
            except DataprepError as error:
                summary, why = None, str(error)
            found.append(_Part(number, path, part.num_files, summary, why))
        return found


def commands(dataset: Dataset) -> list[Command]:
    """What to paste to train on a dataset, and to prove it again."""
    prefixes = [pair.path for pair in dataset.pairs if pair.entry.num_tokens]
    if len(prefixes) == 1 and dataset.version is None:
        named, megatron = shlex.quote(prefixes[0]), f"--data-path {shlex.quote(prefixes[0])}"
        path = f"DATA_PATH={shlex.quote(prefixes[0])}"
    else:
        named, data = shlex.quote(str(dataset.folder)), shlex.quote(str(dataset.folder / DATA_ARGS))
        megatron = f"--data-args-path {data}"
        path = f'DATA_PATH="$(cat {data} | xargs)"'
    found = [
        Command(title="Megatron's arguments", text=megatron),
        Command(title="Scripts that take a variable", text=path),
        Command(title="The built-in launcher", text=f"dataprep train {named} --model llama3.1-8b"),
        Command(title="Prove it again", text=f"dataprep verify {named}"),
    ]
    if dataset.version is not None:  # its folder stays while it is used, whatever retention removes
        keep = f"dataprep lease {shlex.quote(str(dataset.folder))} -- COMMAND"
        found.append(Command(title="Keep this version while a command runs", text=keep))
    return found if prefixes else []


def _row(part: _Part) -> PartRow:
    summary, folder = part.summary, part.manifest.parent.name
    if summary is None:
        return PartRow(
            number=part.number,
            name=folder,
            num_files=part.num_files,
            num_documents=0,
            num_tokens=0,
            num_rejected=0,
            created=None,
            is_verified=None,
        )
    return PartRow(
        number=part.number,
        name=folder,
        num_files=part.num_files,
        num_documents=summary.counts.num_documents,
        num_tokens=summary.counts.num_tokens,
        num_rejected=summary.counts.num_rejected,
        created=summary.created,
        is_verified=summary.is_verified,
    )


def _checks(part: _Part, is_part: bool) -> list[Check]:
    """What `verify` said; the pairs of several parts have one name."""
    found = part.summary.checks if part.summary is not None else ()
    if not is_part:
        return list(found)
    return [check.model_copy(update={"prefix": f"{part.manifest.parent.name}/{check.prefix}"}) for check in found]


def _sources(manifest: DatasetManifest, numbers: range, begin: int) -> list[SourceRow]:
    """Some files of a manifest, with what became of them; `begin` files come before it."""
    counts = {number: [0, 0] for number in numbers}
    span: Span
    for span in manifest.provenance:
        if span.file in counts:
            counts[span.file][0] += span.num_records
            counts[span.file][1] += span.num_documents
    rows = []
    for number, (records, documents) in counts.items():
        file = manifest.recipe.files[number]
        rows.append(
            SourceRow(
                number=begin + number,
                name=file.name,
                path=file.path,
                url=file.url,
                num_bytes=file.num_bytes,
                checksum=file.checksum,
                format=file.format,
                compression=file.compression,
                num_records=records,
                num_documents=documents,
            )
        )
    return rows


def _sum(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for table in tables:
        total.update(table)
    return dict(total.most_common())
