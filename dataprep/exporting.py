"""Pairs back to text, for trainers that read text: one column ``text``, a row for each document, in their order.

    <FOLDER>.tmp-<owner>/     written here, renamed at the end: the folder appears whole
    <FOLDER>/
      <prefix name>-00000-of-00004.jsonl       or .parquet
      .dataprep-export.json                    what it was made of; hidden, since `load_dataset(FOLDER)` reads any .json

What the policy wrote around each document, BOS and EOD, is left out: whoever tokenizes again writes it again. A special
token inside a document stands in the text as it is written. The first documents, one in `AUDIT`, and those with a
U+FFFD, as bytes that are no UTF-8 read, are encoded again by the reference; what does not come back is said.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
import orjson

from dataprep.batches import TextBatch
from dataprep.catalog import find_tokenizer
from dataprep.definitions import define, identify, load
from dataprep.encoders import open_reference
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import bin_path
from dataprep.inspection.decoding import Decoder
from dataprep.inspection.lengths import document_ends
from dataprep.inspection.pairs import check_ids, open_pair
from dataprep.locks import hold
from dataprep.manifest import is_of, manifest_of
from dataprep.prefixes import find_prefixes
from dataprep.reshaping.making import LOCK, check_encodable, clear_others
from dataprep.specs import TokenPolicy
from dataprep.storage import MARK, AtomicFile, explain, make_folder, sync_folder, write_json
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from dataprep.batches import Offsets
    from dataprep.encoders import Encoder
    from dataprep.indexed import IndexedDataset
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)

Format = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

RECORD = ".dataprep-export.json"

BATCH_TOKENS, BATCH_DOCUMENTS = 1 << 19, 1 << 14
"""Tokens decoded at once: some 20 MB of them as Python's numbers; a longer document is decoded alone."""

FILE_TOKENS = 100_000_000
"""Tokens of a file where their number is not given: some 400 MB of text."""

AUDIT, AUDITED_FIRST = 2000, 100
"""One document in so many is encoded again, as in a run; and so many first ones."""

AUDIT_TOKENS = 1 << 18
"""Longer documents are not: the reference takes 100 bytes of memory for each byte of text."""


@dataclass
class Exported:
    """What was written.

    Attributes:
        folder: absolute.
        files: their names, in the order of the documents.
        num_text_bytes: of the texts, as UTF-8, without what JSON or Parquet puts around them.
        num_audited, num_different: documents encoded again, and those of them whose ids are others.
    """

    folder: str
    files: list[str] = field(default_factory=list)
    num_documents: int = 0
    num_tokens: int = 0
    num_text_bytes: int = 0
    num_audited: int = 0
    num_different: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class _Input:
    """A pair, and how its documents become text."""

    pair: IndexedDataset
    cuts: list[int]
    decoder: Decoder
    reference: Encoder
    bos_id: int | None
    eod_id: int | None

    def content(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The ids of a document without BOS and EOD."""
        if self.bos_id is not None and len(ids) and ids[0] == self.bos_id:
            ids = ids[1:]
        if self.eod_id is not None and len(ids) and ids[-1] == self.eod_id:
            ids = ids[:-1]
        return ids


def export(
    prefixes: Sequence[str | Path],
    output: str | Path,
    file_format: str = "jsonl",
    tokenizer: str | None = None,
    files: int | None = None,
    watcher: Watcher | None = None,
) -> Exported:
    """Write the documents of pairs as text.

    Args:
        prefixes: paths without ``.bin``, or what stands for several, see `prefixes.find_prefixes`.
        output: the folder to make; there must be none of this name, or an empty one.
        file_format: ``jsonl`` or ``parquet``.
        tokenizer: to decode with: a shipped name, a folder, a file; None: the one that each manifest names.
        files: for each prefix, of about as many tokens; None: one for every 100 million.
        watcher: is told how it gets on.

    Raises:
        SpecError: a bad request: no such pair or tokenizer, more files than documents, a folder that is in use.
        FormatError: a pair is broken, or of another tokenizer.
        BusyError: another process exports to this folder.
        OutputError: the file system refuses.
    """
    kind = next((each for each in FORMATS if each == file_format), None)
    if kind is None:
        raise SpecError(f"--format {file_format}: expected one of {', '.join(FORMATS)}")
    if files is not None and files < 1:
        raise SpecError(f"--files {files}: expected 1 or more")
    folder = Path(os.path.abspath(output))
    with explain(folder, "look at"):
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise SpecError(f"{folder} is there already; choose another --output, or remove it")
    paths = [path for text in prefixes for path in find_prefixes(text)]
    for path in (folder, *paths):
        check_encodable(path)
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError(f"two prefixes are called {twice}, and so would be their files; export them one by one")
    inputs = [_open(path, tokenizer, files) for path in paths]
    watcher = watcher or Silent()
    watcher.stage("export", sum(each.pair.tokens.nbytes for each in inputs))
    result = Exported(str(folder))
    with _making(folder) as private:
        for each in inputs:
            _export_pair(each, private, kind, result, watcher)
        write_json(private / RECORD, {**result.to_json(), "prefixes": [os.path.abspath(path) for path in paths]})
    _warn(result)
    return result


def _warn(result: Exported) -> None:
    if result.num_different:
        log.warning(
            "warning: %d of %d documents that were encoded again have other ids than in the pair: the tokenizer does "
            "not give back every text, or it was not the one that made it",
            *(result.num_different, result.num_audited),
        )


def _open(path: Path, tokenizer: str | None, files: int | None) -> _Input:
    pair = open_pair(path)
    check_ids(pair)
    cuts = _cuts(pair, files)
    manifest = manifest_of(pair.prefix)
    if manifest is not None and not is_of(manifest, pair.prefix):
        raise FormatError(
            f"{pair.prefix}: the manifest beside it is of other files; run: dataprep verify {pair.prefix}"
        )
    identity = manifest.tokenizer if manifest is not None else None
    policy = manifest.policy if manifest is not None else None
    if tokenizer is not None:
        spec, place = find_tokenizer(tokenizer, {})
        definition, named = define(spec.type, place, spec.merges), identify(spec, place)
        if identity is not None and (identity.vocab_size, identity.eod_id) != (named.vocab_size, named.eod_id):
            raise SpecError(
                f"{pair.prefix} was made with {identity.name}, not with {named.name}: its ids mean other texts"
            )
        identity = identity or named
    elif identity is not None:
        definition = load(identity)
    else:
        raise SpecError(f"{pair.prefix} has no manifest that names its tokenizer; give it with --tokenizer")
    policy = policy or TokenPolicy()
    writes_bos = policy.bos == "always" or (policy.bos == "auto" and identity.adds_bos)
    return _Input(
        pair,
        cuts,
        Decoder(definition),
        open_reference(definition, policy.special_text),
        identity.bos_id if writes_bos else None,
        identity.eod_id if policy.eod == "append" else None,
    )


def _cuts(pair: IndexedDataset, files: int | None) -> list[int]:
    """Where each file ends, as a number of documents: so many files, of about as many tokens each, none empty.

    Reads the whole index: of a broken one, any tokens could be taken for a document's.
    """
    wanted = files or max(1, min(-(-pair.num_tokens // FILE_TOKENS), pair.num_documents))
    if wanted > max(1, pair.num_documents):
        raise SpecError(f"{pair.prefix} has {pair.num_documents} documents, too few for --files {wanted}")
    targets = pair.num_tokens * np.arange(1, wanted + 1, dtype=np.int64) // wanted
    cuts = np.zeros(wanted, np.int64)
    for ends in document_ends(pair):
        cuts += np.searchsorted(ends, targets)  # documents that end before the target
    numbers = np.arange(wanted)
    cuts = np.maximum.accumulate(np.maximum(cuts + 1, 1) - numbers) + numbers  # at least one document for each
    cuts = np.minimum(cuts, pair.num_documents - wanted + 1 + numbers)
    return [*cuts[:-1].tolist(), pair.num_documents]


@contextlib.contextmanager
def _making(folder: Path) -> Iterator[Path]:
    """A private folder that gets the name at the end, and goes if it does not come to that; or with the next one."""
    private = folder.with_name(f"{folder.name}{MARK}{os.getpid()}-{secrets.token_hex(4)}")
    make_folder(private)
    try:
        with hold(private / LOCK):
            clear_others(folder, private)
            yield private
            with explain(folder, "finish"):
                (private / LOCK).unlink()
                sync_folder(private)
                os.rename(private, folder)
                sync_folder(folder.parent)
    finally:
        shutil.rmtree(private, ignore_errors=True)  # none of that name is left where it has the other


def _export_pair(given: _Input, folder: Path, kind: Format, result: Exported, watcher: Watcher) -> None:
    batches, first = _batches(given), 0
    for number, cut in enumerate(given.cuts):
        name = f"{given.pair.prefix.name}-{number:05d}-of-{len(given.cuts):05d}.{kind}"
        with AtomicFile(folder / name) as file, _WRITERS[kind](file) as writer:
            while first < cut:
                bounds = next(batches)
                num_bytes = writer.write(_texts(given, first, bounds, result))
                first += len(bounds) - 1
                _count(given.pair.dtype.itemsize, bounds, num_bytes, result, watcher)
        result.files.append(name)


def _count(itemsize: int, bounds: Offsets, num_bytes: int, result: Exported, watcher: Watcher) -> None:
    num_documents, num_tokens = len(bounds) - 1, int(bounds[-1] - bounds[0])
    result.num_documents += num_documents
    result.num_tokens += num_tokens
    result.num_text_bytes += num_bytes
    watcher(Progress(num_tokens * itemsize, num_documents, num_tokens, num_bytes))


def _batches(given: _Input) -> Iterator[Offsets]:
    """Where documents begin and end, as numbers of tokens, int64[documents + 1]; a file ends with a batch."""
    first = position = 0
    for ends in document_ends(given.pair):
        start = 0
        while start < len(ends):
            cut = given.cuts[bisect.bisect_right(given.cuts, first + start)] - first
            full = int(np.searchsorted(ends, position + BATCH_TOKENS, side="right"))
            stop = min(max(full, start + 1), start + BATCH_DOCUMENTS, cut, len(ends))
            yield np.concatenate([np.array([position], np.int64), ends[start:stop]])
            position, start = int(ends[stop - 1]), stop
        first += len(ends)


def _texts(given: _Input, first: int, bounds: Offsets, result: Exported) -> list[str]:
    """The texts of the documents from `first` on. The tokens are read, not mapped: mapped pages count as memory."""
    dtype, count = given.pair.dtype, int(bounds[-1] - bounds[0])
    tokens = np.fromfile(bin_path(given.pair.prefix), dtype, count, offset=int(bounds[0]) * dtype.itemsize)
    if len(tokens) != count:
        raise FormatError(f"{bin_path(given.pair.prefix)} has become shorter while it was read")
    documents = [given.content(ids) for ids in np.split(tokens, bounds[1:-1] - bounds[0])]
    for number, ids in enumerate(documents):
        if not given.decoder.knows(ids):
            raise FormatError(
                f"{given.pair.prefix}: document {first + number} holds tokens that the tokenizer does not have: it "
                "was made with another, or is damaged; name the right one with --tokenizer"
            )
    texts = given.decoder.texts(documents)
    _audit(given, first, documents, texts, result)
    return texts


def _audit(
    given: _Input, first: int, documents: Sequence[npt.NDArray[Any]], texts: Sequence[str], result: Exported
) -> None:
    """Encode some of the texts again, and count those that are not what they were."""
    numbers = range(first, first + len(documents))
    chosen = [
        place
        for place, number in enumerate(numbers)
        if (number < AUDITED_FIRST or number % AUDIT == 0 or "\ufffd" in texts[place])
        and len(documents[place]) <= AUDIT_TOKENS
    ]
    if not chosen:
        return
    again = given.reference.encode(TextBatch.of([texts[place].encode() for place in chosen]))
    found = np.split(again.ids, again.offsets[1:-1])
    result.num_audited += len(chosen)
    result.num_different += sum(
        not np.array_equal(ids, documents[place]) for ids, place in zip(found, chosen, strict=True)
    )


class _Writer(Protocol):
    """Writes texts, and says how many bytes they are as UTF-8."""

    def __enter__(self) -> _Writer: ...
    def __exit__(self, *error: object) -> None: ...
    def write(self, texts: list[str]) -> int: ...


class _JsonLines:
    def __init__(self, file: AtomicFile) -> None:
        self._file = file

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def write(self, texts: list[str]) -> int:
        self._file.write(b"".join(orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE) for text in texts))
        return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


class _Parquet:
    """A row group for each batch, compressed with zstd."""

    def __init__(self, file: AtomicFile) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = file.path
        self._stream = os.fdopen(os.dup(file.fd), "wb")
        self._schema = pa.schema([pa.field("text", pa.large_string(), nullable=False)])
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd", write_page_checksum=True)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        with explain(self._path, "write"), contextlib.closing(self._stream):
            self._writer.close()

    def write(self, texts: list[str]) -> int:
        import pyarrow as pa

        column = pa.array(texts, pa.large_string())
        with explain(self._path, "write"):
            self._writer.write_table(pa.table([column], schema=self._schema))
        return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


_WRITERS: dict[Format, type[_JsonLines] | type[_Parquet]] = {"jsonl": _JsonLines, "parquet": _Parquet}
