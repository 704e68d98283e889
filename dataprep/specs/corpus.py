"""A corpus: where its files are, and how they are read. One YAML of ``pipelines/`` each; also mixtures of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ByteSize, Field, model_validator

from dataprep.errors import SpecError
from dataprep.specs.models import MIB, Model, Name


class FilesSource(Model):
    """Files on this machine or a mounted file system.

    Attributes:
        paths: paths and globs (``**`` crosses folders). ``{stdlib}`` stands for the standard library of the
            running Python, as `sysconfig.get_paths` names it. Relative ones start at the YAML's folder.
        exclude: globs of what to leave out, matched against the path below the common folder.
    """

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field(min_length=1)
    exclude: tuple[str, ...] = ()


class Contents(Model):
    """Where the texts are of rows that hold ids only.

    Attributes:
        url: in S3, with the name of a column in braces, e.g. ``s3://softwareheritage/content/{blob_id}``.
        compression: the container around each text.
        checksum: what the id is of its text, unpacked; the texts are held to it.
    """

    url: str = Field(pattern=r"^s3://.*\{\w+\}")
    compression: Literal["none", "gzip"] = "none"
    checksum: Literal["none", "sha1"] = "none"

    @property
    def column(self) -> str:
        """The column of ids that `url` names."""
        return self.url[self.url.index("{") + 1 : self.url.index("}")]


class HubSource(Model):
    """Files of a repository on the Hugging Face hub, at one commit.

    Attributes:
        repo: ``org/name``.
        type: what kind of repository; the hub keeps them apart.
        revision: branch, tag or commit; resolved to a commit when a run begins.
        gated: whether its page asks to accept conditions first.
        paths: globs of the files; ``*`` stays within a folder, ``**`` crosses them.
        subset: which of `subsets` is meant, or, where there are neither those nor `paths`, which configuration of the
            repository's card.
        subsets: name -> globs. A name may hold one ``*``; ``{subset}`` in its globs stands for the name asked for.
        exclude: globs of what to leave out.
        contents: where the texts are, if the rows hold ids only.
    """

    kind: Literal["hub"]
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    type: Literal["dataset", "model"] = "dataset"
    revision: str = "main"
    gated: bool = False
    paths: tuple[str, ...] = ()
    subset: str | None = None
    subsets: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    contents: Contents | None = None

    @model_validator(mode="after")
    def _names_its_files_once(self) -> Self:
        if self.paths and (self.subsets or self.subset):
            raise ValueError("give paths: or subsets:, not both")
        if self.subsets and self.subset is None:
            raise ValueError("name the subset to use when none is asked for: subset:")
        return self

    @property
    def globs(self) -> tuple[str, ...]:
        """The files wanted; empty where the repository's card has to say.

        Raises:
            SpecError: there is no such subset.
        """
        if not self.subsets:
            return self.paths
        assert self.subset is not None
        for name, globs in sorted(self.subsets.items(), key=lambda item: item[0] != self.subset):
            begin, star, end = name.partition("*")
            inside = self.subset.startswith(begin) and self.subset.endswith(end) and len(self.subset) > len(begin + end)
            if self.subset == name or (star and inside):
                return tuple(glob.replace("{subset}", self.subset) for glob in globs)
        raise SpecError(f"{self.repo}: no subset {self.subset!r}; there are {', '.join(self.subsets)}")


class UrlsSource(Model):
    """Files by their addresses: ``https://``, ``s3://``, ``gs://``, whatever `fsspec` knows.

    Attributes:
        urls: addresses; of those that are not HTTP, also globs and folders.
        sha256: file name -> what its content must have, 64 hex digits, where somebody states it.
        exclude: globs of what to leave out.
    """

    kind: Literal["urls"]
    urls: tuple[Annotated[str, Field(pattern=r"^[a-z0-9]+://")], ...] = Field(min_length=1)
    sha256: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    exclude: tuple[str, ...] = ()


Source = Annotated[FilesSource | HubSource | UrlsSource, Field(discriminator="kind")]


class ReaderSpec(Model):
    """How a source file becomes documents. Part of the recipe: every key decides bytes.

    Attributes:
        format: ``auto`` looks at the content.
        text: the field (JSON lines) or column (Parquet, Arrow) that holds the text; top level only.
        separator: for plain text, what ends a document; None: a file is one document. It belongs to no document.
        max_document_bytes: a longer record is rejected: the whole line of JSON lines, the value of a column file,
            the piece of a text file. At most 1 GiB. What `group_rows` joins may be longer.
        group_rows: this many consecutive records of a file are one document, a newline between two: rows 0 to N - 1,
            N to 2 N - 1, ...; the last group of a file may be smaller. Rejected and empty records are left out of
            their group, a group of which nothing is left is no document.
    """

    format: Literal["auto", "jsonl", "parquet", "arrow", "text"] = "auto"
    text: str = "text"
    separator: Annotated[str, Field(min_length=1)] | None = None
    max_document_bytes: ByteSize = Field(default=ByteSize(256 * MIB), ge=1, le=1024 * MIB)
    group_rows: int = Field(default=1, ge=1)

    @property
    def identity(self) -> dict[str, Any]:
        # Left out where it changes nothing: it came later, and the digests of before hold.
        return self.model_dump(mode="json", exclude={"group_rows"} if self.group_rows == 1 else set())


class Corpus(Model):
    """One YAML of ``pipelines/``: a named body of documents.

    Attributes:
        aliases: other names people type for it.
        license: as the source states it.
        size: what there is to download, about.
    """

    name: Name
    aliases: tuple[Name, ...] = ()
    description: str = ""
    license: str = ""
    size: ByteSize | None = None
    source: Source
    reader: ReaderSpec = ReaderSpec()


class MixturePart(Model):
    """One corpus of a mixture.

    Attributes:
        corpus: as on the command line: ``name`` or ``name:subset``.
        weight: its share; weights need not add up to 1.
        limit: at most this many documents of it.
    """

    corpus: str
    weight: float = Field(gt=0, allow_inf_nan=False)
    limit: int | None = Field(default=None, ge=1)


class MixtureSpec(Model):
    """Corpora and their shares.

    Attributes:
        unit: what the weights count. A trainer that draws rows (documents) and one that draws tokens mean different
            things by the same number; Megatron's are tokens.
        tokens: the budget: how many tokens are to be trained on in all.
    """

    unit: Literal["rows", "tokens"]
    tokens: int | None = Field(default=None, ge=1)
    corpora: tuple[MixturePart, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        names = [part.corpus for part in self.corpora]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} stands here twice; add the weights")
        return self


class Mixture(Model):
    """One YAML of ``pipelines/`` with ``mixture:``: several corpora, each made a dataset, and how to blend them."""

    name: Name
    aliases: tuple[Name, ...] = ()
    description: str = ""
    license: str = ""
    mixture: MixtureSpec
