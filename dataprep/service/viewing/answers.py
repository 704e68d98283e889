"""The shapes of what is shown of datasets, as plain values: what pages are made of, and what the API gives."""

from __future__ import annotations

from typing import Literal

from dataprep.manifest import EngineRecord, Lengths, Prefix
from dataprep.specs import Model, TokenizerIdentity, TokenPolicy


class DatasetRow(Model):
    """A dataset in a list.

    Attributes:
        id: names it in addresses.
        output: id of the output folder that it lies in.
        name: of its folder.
        folder: the same, with its path.
        kind: ``dataset``, or ``versions``, of which the newest counts here.
        version, num_versions: of versions.
        num_bytes: of all its ``.bin`` and ``.idx``.
        created: UTC.
        problem: why there are no figures; empty where there are.
    """

    id: str
    output: str
    name: str
    folder: str
    kind: Literal["dataset", "versions"]
    version: int | None = None
    num_versions: int | None = None
    corpus: str = ""
    tokenizer: str = ""
    num_documents: int | None = None
    num_tokens: int | None = None
    num_bytes: int | None = None
    created: str | None = None
    problem: str = ""


class DatasetPage(Model):
    """Some of the datasets, the newest first.

    Attributes:
        page, num_pages: counted from 1.
        num_datasets: in all.
        problems: outputs that cannot be read, and why.
    """

    datasets: tuple[DatasetRow, ...]
    page: int
    num_pages: int
    num_datasets: int
    problems: tuple[str, ...] = ()


class VersionRow(Model):
    """A version in the list of a versioned dataset.

    Attributes:
        id: names it in addresses.
        run: which run of the job made it.
        num_parts, num_files: that it consists of.
        num_changed, num_vanished: files of the version before that had other contents, or were gone.
        leases: who uses it.
        problem: why there are no figures; empty where there are.
    """

    id: str
    version: int
    name: str
    is_current: bool
    run: int | None = None
    num_parts: int | None = None
    num_files: int | None = None
    num_changed: int | None = None
    num_vanished: int | None = None
    num_documents: int | None = None
    num_tokens: int | None = None
    num_bytes: int | None = None
    created: str | None = None
    leases: tuple[str, ...] = ()
    problem: str = ""


class VersionPage(Model):
    """Some of the versions, the newest first."""

    dataset: DatasetRow
    versions: tuple[VersionRow, ...]
    page: int
    num_pages: int
    num_versions: int


class Finding(Model):
    """Something that `verify` found; see `dataprep.checks.report.Problem`."""

    code: str
    severity: str
    message: str
    fix: str


class Check(Model):
    """What `verify` said of a pair when it was made.

    Attributes:
        num_sampled: documents that were encoded again from the source.
    """

    prefix: str
    level: str
    ok: bool
    num_sampled: int
    num_with_eod: int | None
    max_id: int | None
    problems: tuple[Finding, ...]


class Pair(Model):
    """One pair of a dataset.

    Attributes:
        path: its prefix.
        first_document: of the dataset, that it begins with.
    """

    path: str
    first_document: int
    entry: Prefix


class Command(Model):
    """Something to paste: what it is for, and the words."""

    title: str
    text: str


class Corpus(Model):
    """What a dataset was made of.

    Attributes:
        num_bytes: of its source files.
        limit: documents that were asked for at most.
    """

    name: str
    origin: str
    license: str
    num_files: int
    num_bytes: int
    limit: int | None


class Made(Model):
    """How a dataset, or the newest part of a version, was made."""

    dataprep_version: str
    recipe_digest: str
    engine: EngineRecord
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


class PartRow(Model):
    """A part of a version.

    Attributes:
        number: in the version, from 0.
        is_verified: whether all its pairs were proven; None: its manifest cannot be read.
    """

    number: int
    name: str
    num_files: int
    num_documents: int
    num_tokens: int
    num_rejected: int
    created: str | None
    is_verified: bool | None


class DatasetDetail(Model):
    """All that is known of a dataset, or of a version.

    Attributes:
        num_records: that were read: documents, empty ones, rejects, and those that were joined to others.
        rejects: reason -> records.
        specials: special token -> how often it stood in a document.
        lengths: of the documents, in tokens; of a version see its lengths.
        tokenizer, policy, made: of a version those of its newest part; all parts agree in what decides their tokens.
        pairs: the first of them; `num_pairs` in all.
        parts: of a version, the newest first, and no more than the first; `num_parts` in all.
        checks: those with problems, and no more than the first of the others; `num_checks` in all.
        leases: who uses the version.
        notes: what a person should know besides.
    """

    row: DatasetRow
    num_sequences: int
    num_text_bytes: int
    num_records: int
    num_empty: int
    num_rejected: int
    rejects: dict[str, int]
    specials: dict[str, int]
    dtype: str
    lengths: Lengths | None
    corpus: Corpus
    tokenizer: TokenizerIdentity
    policy: TokenPolicy
    made: Made
    pairs: tuple[Pair, ...]
    num_pairs: int
    parts: tuple[PartRow, ...]
    num_parts: int
    checks: tuple[Check, ...]
    num_checks: int
    is_verified: bool
    commands: tuple[Command, ...]
    leases: tuple[str, ...]
    notes: tuple[str, ...]


class Bin(Model):
    """Documents of ``first`` to ``last`` tokens; where not all were looked at, estimates."""

    first: int
    last: int
    num_documents: int
    num_tokens: int


class LengthsDetail(Model):
    """How long the documents are.

    Attributes:
        num_documents: in all.
        num_counted: of which so many were looked at: all, or a sample.
        lengths: quantiles and extremes; exact where all were looked at, or where the manifest states them.
        bins: by powers of two.
    """

    num_documents: int
    num_counted: int
    lengths: Lengths
    bins: tuple[Bin, ...]


class SourceRow(Model):
    """A source file.

    Attributes:
        number: among those of the dataset, from 0.
        url: what it was fetched from; None: it is the user's own file.
        num_records, num_documents: in it, and what became of it; None: `preprocess` dealt them out otherwise.
    """

    number: int
    name: str
    path: str
    url: str | None
    num_bytes: int
    checksum: str | None
    format: str
    compression: str
    num_records: int
    num_documents: int


class SourcePage(Model):
    """Some of the source files, in their order."""

    files: tuple[SourceRow, ...]
    page: int
    num_pages: int
    num_files: int
