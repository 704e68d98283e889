"""The recipe: all that decides the output bytes, resolved, and its digest."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ByteSize, Field

from dataprep.errors import SpecError, public
from dataprep.specs.corpus import ReaderSpec
from dataprep.specs.models import Model
from dataprep.specs.tokenizer import TokenizerIdentity

if TYPE_CHECKING:
    from pathlib import Path

FileFormat = Literal["jsonl", "parquet", "arrow", "text"]
Compression = Literal["none", "gzip", "zstd", "xz", "bz2"]


class TokenPolicy(Model):
    """What is written around and instead of the tokens; recorded in every manifest.

    Attributes:
        bos: ``auto`` = what the tokenizer itself does.
        eod: the token that ends a document.
        special_text: what a literal special string inside a document becomes: ``encode`` = as the reference
            does, ``plain`` = ordinary text, ``reject`` = the document goes to the rejects.
        empty: a document without text: ``drop`` (counted) or ``keep`` (as Megatron's preprocess_data does: BOS and
            EOD where the tokenizer adds BOS, else a document boundary without a sequence) or ``sequence`` (as
            preprocess_data_fast and datatrove do: a document like any other, of BOS and EOD alone, or of no token).
        dtype: ``auto`` = Megatron's rule, vocabulary size < 65500 -> uint16, else int32.
    """

    bos: Literal["auto", "always", "never"] = "auto"
    eod: Literal["append", "none"] = "append"
    special_text: Literal["encode", "plain", "reject"] = "encode"
    empty: Literal["drop", "keep", "sequence"] = "drop"
    dtype: Literal["auto", "uint16", "int32"] = "auto"


class OutputSpec(Model):
    """How a dataset is cut into prefixes, see `cuts`.

    Attributes:
        max_prefix_bytes: of a ``.bin``, unless one document is larger. None: as large as Megatron takes.
        merge: false: a prefix is what becomes of so many bytes of source as `max_prefix_bytes` says, 1 GiB without it.
            It is cut where a unit is, and not copied, unless it was long enough to be committed in pieces.
    """

    max_prefix_bytes: ByteSize | None = Field(default=None, ge=1)
    merge: bool = True

    @property
    def unit_bytes(self) -> int | None:
        """Source bytes per unit, where that decides the bytes of the dataset; None: the runtime says."""
        return None if self.merge else self.max_prefix_bytes or 1 << 30


class SourceFile(Model):
    """One file of the resolved listing.

    Attributes:
        name: path below the listing's root, ``/`` between parts: its identity and its place in the order.
        path: where it lies now, or will once it was fetched.
        url: what it is fetched from; None: it is the user's own file.
        num_bytes: its size.
        mtime_ns: its modification time; a hint that it is unchanged, never part of the identity. None: of a file
            that is fetched.
        format: what the content is.
        compression: the container around it.
        checksum: ``algorithm:value`` where the source states it (``sha256``, ``git-sha1``, or ``etag``, which tells
            contents apart and proves none); ``texts`` of a file that `contents` made, of its rows and not of its bytes,
            which may differ from one release of Arrow to the next; or where a file of the same name and size was found
            to differ from the one an earlier dataset was made of.
        stated: in the manifest of a dataset, what the source stated of a file that was fetched, whose `checksum` is of
            what was fetched.
    """

    name: str
    path: str
    url: str | None = None
    num_bytes: int
    mtime_ns: int | None = None
    format: FileFormat
    compression: Compression = "none"
    checksum: str | None = None
    stated: str | None = None

    def public(self) -> Self:
        """The same without what its address may hide; what is written down."""
        return self if self.url is None else self.model_copy(update={"url": public(self.url)})

    @property
    def identity(self) -> list[Any]:
        made_here = (self.checksum or "").startswith("texts:")
        return [self.name, None if made_here else self.num_bytes, self.checksum]


class Listing(Model):
    """The files of a corpus, resolved.

    Attributes:
        files: sorted by name.
        origin: where they come from, with the commit; '' for files of the user.
        raw: the folder that fetched files go to; None for files of the user.
        text: the column of text, where the files told it and nobody else.
        ids: the files hold ids, and the texts have to be fetched before there is anything to tokenize.
    """

    files: tuple[SourceFile, ...]
    origin: str = ""
    raw: str | None = None
    text: str | None = None
    ids: bool = False

    def public(self) -> Self:
        """The same without what addresses may hide; what is written down."""
        return self.model_copy(update={"files": tuple(file.public() for file in self.files)})

    def moved(self, raw: Path) -> Self:
        """The same files in another raw folder: a copy of the output folder, mounted elsewhere."""
        files = (f.model_copy(update={"path": str(raw / "files" / f.name)}) for f in self.files)
        return self.model_copy(update={"files": tuple(files), "raw": str(raw)})


class Recipe(Model):
    """All that decides the output bytes, resolved.

    Attributes:
        corpus: name of the corpus: part of the file names, so of the identity.
        origin: where the files come from, with the commit; the files say by their checksums what they are, so this is
            no part of the identity: a commit that mends a README makes no new dataset.
        license: of the corpus.
        limit: at most this many documents, or None.
        output: cut into prefixes how.
    """

    corpus: str
    origin: str = ""
    license: str = ""
    reader: ReaderSpec
    files: tuple[SourceFile, ...]
    tokenizer: TokenizerIdentity
    policy: TokenPolicy
    limit: int | None = None
    output: OutputSpec = OutputSpec()

    def public(self) -> Self:
        """The same without what addresses may hide; what is written down."""
        return self.model_copy(update={"files": tuple(file.public() for file in self.files)})

    @property
    def num_bytes(self) -> int:
        """Of all files together."""
        return sum(file.num_bytes for file in self.files)

    @property
    def identity(self) -> dict[str, Any]:
        """Plain JSON values; what the digest covers."""
        output = {} if self.output == OutputSpec() else {"output": self.output.to_json()}
        return {
            **output,
            "format": 1,
            "corpus": self.corpus,
            "reader": self.reader.identity,
            "files": [[*file.identity, file.format, file.compression] for file in self.files],
            "tokenizer": self.tokenizer.identity,
            "policy": self.policy.to_json(),
            "limit": self.limit,
        }

    @property
    def conventions(self) -> dict[str, Any]:
        """What documents have to have in common to be one training's: the tokenizer, and what is written around tokens.

        Not the dtype, which is that of a pair, and of BOS what is written, however it was asked for.
        """
        policy = {key: value for key, value in self.policy.to_json().items() if key not in ("bos", "dtype")}
        return {"tokenizer": self.tokenizer.identity, "bos": self.writes_bos, **policy}

    @property
    def digest(self) -> str:
        """sha256 of the identity, 64 hex digits."""
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def dtype(self) -> Literal["uint16", "int32"]:
        """The dtype of the ids on disk.

        Raises:
            SpecError: uint16 was asked for and the vocabulary does not fit.
        """
        size = self.tokenizer.vocab_size
        if self.policy.dtype == "uint16" and size > 65536:
            raise SpecError(f"policy.dtype=uint16 cannot hold a vocabulary of {size}; use int32 or auto")
        if self.policy.dtype == "auto":
            return (
                "uint16" if size < 65500 else "int32"
            )  # Megatron-LM d98e8a64, indexed_dataset.py, DType.optimal_dtype
        return self.policy.dtype

    @property
    def max_tokens(self) -> int:
        """Of a prefix, see `cuts`."""
        limit = self.output.max_prefix_bytes
        return 2**62 if limit is None or not self.output.merge else limit // (2 if self.dtype == "uint16" else 4)

    @property
    def writes_empty_sequences(self) -> bool:
        """Whether a document without tokens is a sequence without tokens, and not a boundary without a sequence."""
        return self.policy.empty == "sequence"

    @property
    def writes_bos(self) -> bool:
        return self.policy.bos == "always" or (self.policy.bos == "auto" and self.tokenizer.adds_bos)
