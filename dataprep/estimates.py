"""How much a corpus will take, before anything is fetched: text, tokens, disk, time. Rough, and called so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dataprep.errors import SourceError
from dataprep.sources.columns import look
from dataprep.specs import Model

if TYPE_CHECKING:
    from dataprep.specs import Compression, FileFormat, Recipe, Runtime

BYTES_PER_TOKEN = 4.2
"""Of English web text with a vocabulary of 32,000 to 128,000. OpenWebMath: 56.65 GB of text, 14.7 G tokens (its card);
BookCorpus: 4.85 GB, 1.1 G. Other scripts take up to three times as many tokens."""

TEXT_PER_BYTE: dict[FileFormat, float] = {"jsonl": 0.93, "parquet": 1.7, "arrow": 0.93, "text": 1.0}
"""Text in a byte of a file; JSON lines and Parquet with a handful of other fields beside it, as FineWeb has them."""

UNPACKED: dict[Compression, float] = {"none": 1.0, "gzip": 2.6, "zstd": 2.8, "bz2": 3.2, "xz": 3.4}
"""Bytes of web text in a compressed byte."""

WORKER_BYTES_PER_SECOND = 30e6
"""Text that a worker does in a second, whole runs, Llama-3 (README, How it compares)."""

UNSYNCED_BYTES = 256 << 20
"""Of shards that wait for a range of the merge to be full, and to be copied: some times `stages.merge.FLUSH_BYTES`."""

LINE_BYTES_PER_SECOND = 125e6
"""1 Gbit/s."""


class Estimate(Model):
    """What a run will take, about.

    Attributes:
        text_bytes: UTF-8 bytes of the documents.
        tokens: in the dataset.
        dataset_bytes: the published pair.
        disk_bytes: at the most during the run: what is fetched and kept, the pair, and the shards not yet gone into it.
        tokenize_seconds: with this many workers, if they are fast enough fed.
        fetch_seconds: at 1 Gbit/s.
    """

    text_bytes: int
    tokens: int
    dataset_bytes: int
    disk_bytes: int
    tokenize_seconds: float
    fetch_seconds: float


def estimate(recipe: Recipe, runtime: Runtime, ask: bool = True) -> Estimate:
    """What a recipe will take.

    Args:
        recipe: its files and dtype.
        runtime: workers, connections, keep_raw.
        ask: look into the first file, afar, for how much of it is text, where that can be told.
    """
    fetched = sum(file.num_bytes for file in recipe.files if file.url is not None)
    missing = sum(f.num_bytes for f in recipe.files if f.url is not None and not os.path.exists(f.path))
    text = int(recipe.num_bytes * _text_share(recipe, ask))
    tokens = int(text / BYTES_PER_TOKEN)
    pair = tokens * (2 if recipe.dtype == "uint16" else 4)
    largest = max((file.num_bytes for file in recipe.files if file.url is not None), default=0)
    raw = fetched if runtime.keep_raw else min(fetched, runtime.ahead_bytes(largest))
    return Estimate(
        text_bytes=text,
        tokens=tokens,
        dataset_bytes=pair,
        disk_bytes=raw + pair + min(pair, UNSYNCED_BYTES),
        tokenize_seconds=text / (WORKER_BYTES_PER_SECOND * runtime.workers),
        fetch_seconds=missing / LINE_BYTES_PER_SECOND,
    )


def _text_share(recipe: Recipe, ask: bool) -> float:
    first = recipe.files[0]
    if ask and first.url is not None and first.format == "parquet":
        try:
            columns = look(first)
        except SourceError:
            columns = None
        if columns is not None and columns.text_bytes.get(recipe.reader.text):
            return columns.text_bytes[recipe.reader.text] / first.num_bytes
    return TEXT_PER_BYTE[first.format] * UNPACKED[first.compression]
