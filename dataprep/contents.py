"""Texts of a corpus whose rows hold ids only: fetched one by one from an object store, kept as Parquet.

    ids file, rows [0, N) [N, 2N) ...  ->  contents/<ids file>/<first row>.parquet, a column of text each
                                           contents/<ids file>.json, once all of them are there

A piece is written when every one of its texts was fetched and proven, or found missing. A missing text is a null,
which the readers reject and count as ``missing-content``. Each piece is atomic, so a run that is killed loses what it
had of the pieces under way. The files of the corpus are then the pieces: their checksums, of rows and not of bytes, say
what was there when they were made.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import objects, web
from dataprep.errors import SourceError
from dataprep.locks import hold
from dataprep.specs import SourceFile
from dataprep.storage import AtomicFile, explain, make_folder, write_json
from dataprep.web import Patience, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from dataprep.layout import RawFolder
    from dataprep.specs import Contents

log = logging.getLogger(__name__)

PIECE_ROWS = 10_000
"""Rows of a piece: what is fetched again after a crash."""

TEXTS_PER_CONNECTION = 16
"""Texts of a few kilobytes fetched at the same time for each file of gigabytes: 128 by default. Each takes one round
trip to the store, so their number, not the line, is what limits."""

PIECES = 2
"""Pieces at the same time, so that the slow texts at the end of one do not stop the next."""

CALLS_PER_CONNECTION = 4
"""Texts asked for at once, for each connection: between two such calls progress is told and a Ctrl-C is heard."""

DAMAGED_ATTEMPTS = 3
"""How often a text whose checksum is wrong is fetched before it counts as missing."""

REASON = b"missing-content"
"""Why the readers reject a null in such a file; see `readers.columns`."""


@dataclass(frozen=True)
class Fetching:
    """What all pieces share.

    Attributes:
        folder: the raw folder.
        contents: where the texts are.
        connections: texts fetched at the same time.
        report: called with the number of texts that are done.
    """

    folder: RawFolder
    contents: Contents
    connections: int
    pause: Pause
    report: Callable[[int], None]
    patience: Patience = Patience()  # noqa: RUF009 - frozen


def load(folder: RawFolder, ids: Sequence[SourceFile], contents: Contents) -> tuple[SourceFile, ...] | None:
    """The pieces of all id files, sorted by name, or None: they are not all there."""
    found: list[SourceFile] = []
    for file in ids:
        try:
            value = json.loads(folder.contents_record(file.name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if value["ids"] != file.checksum or value["contents"] != contents.to_json():
            return None
        found += [
            SourceFile.from_json({**piece, "path": str(folder.contents / piece["name"])}, "")
            for piece in value["pieces"]
        ]
    try:
        whole = all(Path(piece.path).stat().st_size == piece.num_bytes for piece in found)
    except FileNotFoundError:
        return None
    return tuple(sorted(found, key=lambda piece: piece.name)) if whole else None


def run(
    folder: RawFolder,
    ids: Sequence[SourceFile],
    contents: Contents,
    connections: int,
    report: Callable[[int], None],
) -> None:
    """Fetch the texts of id files that are here.

    Args:
        folder: the raw folder.
        ids: the files with ids.
        contents: where the texts are.
        connections: as for files; a text takes one for a much shorter time, see `TEXTS_PER_CONNECTION`.
        report: called with the number of texts that are done, from several threads.

    Raises:
        SourceError: the store cannot be reached, or holds none of them.
        OutputError: the file system refuses.
        BusyError: another run is at it.
        Cancelled: the pause was stopped.
    """
    fetching = Fetching(folder, contents, connections * TEXTS_PER_CONNECTION, Pause(), report)
    make_folder(folder.contents)
    with (
        hold(folder.contents_lock),
        ThreadPoolExecutor(PIECES, "contents") as pool,
        fetching.pause,  # left first, however it is left: the pool's threads then come to an end
    ):
        for file in ids:
            _one_file(fetching, pool, file)


def _one_file(fetching: Fetching, pool: ThreadPoolExecutor, file: SourceFile) -> None:
    make_folder(fetching.folder.contents_piece(file.name, 0).parent)
    pieces: list[dict[str, Any]] = []
    window: deque[Future[dict[str, Any]]] = deque()
    for first, keys in _ids(file, fetching.contents.column):
        window.append(pool.submit(_one_piece, fetching, fetching.folder.contents_piece(file.name, first), keys))
        if len(window) > PIECES:
            pieces.append(window.popleft().result())
    pieces += [future.result() for future in window]
    done = [{**piece, "name": f"{file.name}/{piece['name']}"} for piece in pieces]
    record = {"ids": file.checksum, "contents": fetching.contents.to_json(), "pieces": done}
    write_json(fetching.folder.contents_record(file.name), record)


def _ids(file: SourceFile, column: str) -> Iterator[tuple[int, list[str]]]:
    """Ids, `PIECE_ROWS` at a time, with the number of the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path) as opened:
            if column not in opened.schema_arrow.names:
                raise SourceError(f"{file.path} has no column {column!r}; there are {opened.schema_arrow.names}")
            if not pa.types.is_string(opened.schema_arrow.field(column).type):
                raise SourceError(f"{file.path}: the ids in {column!r} are no strings")
            first = 0
            kept: list[str] = []
            for batch in opened.iter_batches(PIECE_ROWS, columns=[column]):
                kept += batch.column(0).to_pylist()
                while len(kept) >= PIECE_ROWS:
                    yield first, kept[:PIECE_ROWS]
                    kept, first = kept[PIECE_ROWS:], first + PIECE_ROWS
            if kept:
                yield first, kept
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {file.path} as parquet: {error}") from error


def _one_piece(fetching: Fetching, path: Path, keys: list[str]) -> dict[str, Any]:
    """Make a piece, unless it is there and of these ids; returns what identifies it."""
    texts = _left(path, fetching.contents.column, keys)
    if texts is None:
        texts = _fetch(fetching, keys)
        if all(text is None for text in texts):
            example = _url(fetching.contents, next(filter(None, keys), ""))
            raise SourceError(
                f"{fetching.contents.url} gives none of {len(keys):,} texts, among them {example}: check the address, "
                "and whether the store lets you read it"
            )
        _write(path, fetching.contents.column, keys, texts)
    else:
        fetching.report(len(keys))
    rows = hashlib.sha256()
    for key, text in zip(keys, texts, strict=True):
        rows.update(f"{key} {hashlib.sha256(text).hexdigest() if text is not None else 'missing'}\n".encode())
    with explain(path, "read"):
        size = path.stat().st_size
    return {"name": path.name, "num_bytes": size, "format": "parquet", "checksum": f"texts:{rows.hexdigest()}"}


def _write(path: Path, column: str, keys: list[str], texts: list[bytes | None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    field = pa.field("text", pa.large_binary(), metadata={b"null": REASON})
    ids = pa.field(column, pa.string())
    table = pa.table([pa.array(texts, pa.large_binary()), pa.array(keys, pa.string())], schema=pa.schema([field, ids]))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1000, write_page_checksum=True)
    with AtomicFile(path) as file:
        file.write(memoryview(sink.getvalue()))


def _left(path: Path, column: str, keys: list[str]) -> list[bytes | None] | None:
    """The texts of a piece that a dead run left, if it is readable to its end and of these ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, page_checksum_verification=True)
        texts: list[bytes | None] = table.column("text").to_pylist()
        return texts if table.column(column).to_pylist() == keys else None
    except (pa.ArrowException, OSError, KeyError):
        return None


def _url(contents: Contents, key: str) -> str:
    return contents.url.replace("{" + contents.column + "}", key)


def _fetch(fetching: Fetching, keys: list[str]) -> list[bytes | None]:
    """The texts of ids; None where there is none."""
    store, path = objects.open_store(
        fetching.contents.url,
        anon=True,
        max_concurrency=1,  # s3fs would ask for the size of each first
        config_kwargs={"max_pool_connections": fetching.connections},
    )
    marker = "{" + fetching.contents.column + "}"
    found: dict[str, bytes | None] = dict.fromkeys(key for key in keys if not key)
    damaged: dict[str, int] = {}
    failures = 0
    while todo := [key for key in dict.fromkeys(keys) if key not in found]:
        fetching.pause.wait()
        paths = {path.replace(marker, key): key for key in todo[: fetching.connections * CALLS_PER_CONNECTION]}
        answers = store.cat(list(paths), on_error="return", batch_size=fetching.connections)
        before, broken = len(found), None
        for place, answer in answers.items():
            key = paths[place]
            if isinstance(answer, (FileNotFoundError, PermissionError)):  # who may not list a bucket is told the latter
                found[key] = None
            elif isinstance(answer, BaseException):
                broken = answer
            else:
                text = _unpack(answer, key, fetching.contents)
                damaged[key] = damaged.get(key, 0) + (text is None)
                if text is not None or damaged[key] >= DAMAGED_ATTEMPTS:
                    found[key] = text
        fetching.report(len(found) - before)
        failed = len(paths) - (len(found) - before)
        if failed:
            failures = 1 if len(found) > before else failures + 1
            reason = f"{type(broken).__name__}: {broken}" if broken is not None else "what came is damaged"
            error = web.TransientError(f"{failed:,} of {len(paths):,} texts failed, one by {reason}")
            web.give_up_or_wait(error, fetching.contents.url, failures, fetching.pause, fetching.patience)
    if any(count >= DAMAGED_ATTEMPTS for count in damaged.values()):
        log.warning("%s: some texts are damaged at the source, and count as missing", fetching.contents.url)
    return [found[key] for key in keys]


def _unpack(data: bytes, key: str, contents: Contents) -> bytes | None:
    """A text, unpacked and proven, or None."""
    if contents.compression == "gzip":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return None
    if contents.checksum == "sha1" and hashlib.sha1(data, usedforsecurity=False).hexdigest() != key.lower():
        return None
    return data
