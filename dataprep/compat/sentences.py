"""Texts cut into sentences, each a sequence of its own: Megatron's ``--split-sentences``.

    lines -> processes that cut, see `punkt` -> sentences as a batch -> engine -> BOS, EOD -> .bin and .idx

Cutting is Python and takes most of the time: it has the processes. Nothing is kept of a run that dies. A text that is
a list of strings is cut already, as it is for Megatron without the flag; with it, Megatron's script dies of a list.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import dataprep
from dataprep import parity, readers
from dataprep.batches import offsets_of
from dataprep.compat.punkt import cut_lines, follow_parent
from dataprep.definitions import load
from dataprep.encoders import open_engine, open_reference
from dataprep.errors import OutputError
from dataprep.indexed import CODES, Header, IndexedDataset, IndexWriter, bin_path, idx_path, write_index
from dataprep.inspection import document_lengths, length_summary
from dataprep.manifest import Counts, DatasetManifest, EngineRecord, PairFiles, Slice, Span
from dataprep.policy import find_specials, finish
from dataprep.remains import sweep
from dataprep.sources import check_unchanged
from dataprep.specs import ReaderSpec
from dataprep.stages.verify import verify
from dataprep.storage import AtomicFile, make_folder
from dataprep.usage import peak_bytes
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dataprep.batches import Mask, Offsets, TextBatch, TokenBatch
    from dataprep.compat.punkt import Cut
    from dataprep.encoders import Encoder
    from dataprep.planning import Request
    from dataprep.specs import SourceFile
    from dataprep.watcher import Watcher

BATCH_BYTES = 1 << 20
"""Lines that a process cuts at a time: punkt reads about 1 to 2 MB/s. So much of a file is seen for lists."""

LINES = ReaderSpec(format="text", separator="\n")


def are_lists(files: Iterable[SourceFile], key: str) -> bool:
    """Whether a text at the beginning of one of the files is a list of sentences. A file not fetched yet has none."""
    names = {re.escape(json.dumps(key, ensure_ascii=ascii_only).encode()) for ascii_only in (True, False)}
    begins = re.compile(rb"(?:%s)\s*:\s*\[" % b"|".join(sorted(names)))
    return any(_has_list(file, key, begins) for file in files if Path(file.path).exists())


def _has_list(file: SourceFile, key: str, begins: re.Pattern[bytes]) -> bool:
    seen = 0
    for batch in _lines(file, 1 << 16):
        if begins.search(cast("bytes", batch.values)) and any(
            _is_list(batch.document(i), key) for i in range(len(batch))
        ):
            return True
        seen += batch.num_text_bytes
        if seen >= BATCH_BYTES:
            return False
    return False


def _is_list(line: bytes, key: str) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and isinstance(value.get(key), list)


def build(request: Request, cut: Cut, target: Path, watcher: Watcher) -> DatasetManifest:
    """Write the pair.

    Args:
        request: the recipe says what is read and what is written around the tokens.
        target: prefix of the pair.

    Raises:
        SpecError: nltk or its model is not here.
        SourceError: a line is no object with a text.
        EncodeError: engine and reference disagree.
        OutputError: the file system refuses.
    """
    start, cpu = time.monotonic(), time.process_time()
    recipe, workers = request.recipe, request.runtime.workers
    make_folder(target.parent)
    sweep(target.parent)  # what a run left that was killed
    watcher.stage("sentences", recipe.num_bytes)
    writer = _Writer(request, target)
    with writer, _pool(workers) as pool:
        for number, file in enumerate(recipe.files):
            check_unchanged(file)
            lines = _lines(file, BATCH_BYTES)
            first_row, first_document = 0, writer.counts.num_documents
            for batch, counts, num_bytes in _mapped(pool, partial(cut_lines, cut, file.name), lines, 2 * workers):
                first_row += writer.add(batch, counts, f"{file.name}, documents from {first_row} on")
                watcher(writer.progress(num_bytes))
            check_unchanged(file)
            span = Span(
                file=number,
                start=0,
                stop=file.num_bytes,
                first_row=0,
                num_records=first_row,
                first_document=first_document,
                num_documents=writer.counts.num_documents - first_document,
            )
            writer.spans.append(span)
        files = writer.commit()
    watcher.stage("verify", files.bin_bytes + files.idx_bytes)
    report = verify(
        target, parts=[(files.bin_bytes, files.bin_checksum)], progress=lambda n: watcher(Progress(source_bytes=n))
    )
    if not report.ok:
        raise OutputError(f"{target} is not what was written: {report.errors[0]}; run again")
    return DatasetManifest(
        dataprep_version=dataprep.__version__,
        recipe_digest=request.digest,
        recipe=recipe,
        prefixes=(report.entry(target.name, recipe.dtype, files.idx_bytes, files.idx_checksum),),
        counts=writer.counts,
        lengths=length_summary(document_lengths(IndexedDataset(target))),
        provenance=tuple(writer.spans),
        engine=writer.engine_record(),
        verification=report.named(target.name).to_json(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_seconds=time.monotonic() - start,
        cpu_seconds=time.process_time() - cpu,
        peak_memory_bytes=peak_bytes(),
    )


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=follow_parent)


def _lines(file: SourceFile, batch_bytes: int) -> Iterator[TextBatch]:
    """The lines of a file, as they are."""
    whole = Slice(file=0, start=0, stop=file.num_bytes, num_bytes=file.num_bytes)
    return readers.read(file.model_copy(update={"format": "text"}), whole, LINES, batch_bytes)


def _mapped(
    pool: ProcessPoolExecutor, work: Callable[..., Any], batches: Iterator[TextBatch], ahead: int
) -> Iterator[Any]:
    """The results in order, with so many batches on their way."""
    pending: list[Any] = []
    for batch in batches:
        pending.append(
            pool.submit(work, batch.first_row, batch.values.tobytes(), batch.offsets, batch.num_source_bytes)
        )
        if len(pending) >= ahead:
            yield pending.pop(0).result()
    while pending:
        yield pending.pop(0).result()


class _Writer:
    """The pair while it grows."""

    def __init__(self, request: Request, target: Path) -> None:
        self._recipe, self._rate = request.recipe, request.runtime.audit_rate
        definition, special_text = load(self._recipe.tokenizer), self._recipe.policy.special_text
        self._definition = definition
        self._reference: Encoder = open_reference(definition, special_text)
        self._engine: Encoder = open_engine(definition, special_text, request.runtime.engine, self._reference)
        self._gated = 0
        self._target = target
        self._bin = AtomicFile(bin_path(target))
        self._lengths = IndexWriter(target.parent)
        self._sentences = IndexWriter(target.parent, empty_sequences=True)
        self.counts = self._added = Counts()
        self.spans: list[Span] = []

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._bin.discard()
        self._lengths.close()
        self._sentences.close()

    def add(self, sentences: TextBatch, counts: Offsets, place: str) -> int:
        """Write some documents; returns how many.

        Args:
            counts: int64[num_documents], how many of the sentences each has.
            place: where they stand, for a message.
        """
        if not self._gated and self._engine.name != self._reference.name:
            self._gated = parity.gate(self._engine, self._reference, sentences)
        tokens = self._engine.encode(sentences)
        audited = self._audit(sentences, tokens, place)
        bounds = offsets_of(counts)
        written = np.ones(len(tokens), np.bool_) if self._recipe.writes_bos else tokens.lengths > 0
        finished = finish(tokens, self._recipe, _last_of(written, bounds))
        self._bin.write(finished.ids)
        self._lengths.add(finished.lengths)
        each = np.diff(offsets_of(written)[bounds])
        self._sentences.add(each)
        added = Counts(
            num_records=len(counts),
            num_documents=len(counts),
            num_sequences=int(each.sum()),
            num_tokens=len(finished.ids),
            num_text_bytes=sentences.num_text_bytes,
            num_empty=int(np.count_nonzero(each == 0)),
            num_audited=audited,
            specials=find_specials(sentences, tokens, self._definition, self._recipe.policy.special_text)[1],
        )
        self._added = added
        self.counts = self.counts + added
        return len(counts)

    def progress(self, num_bytes: int) -> Progress:
        """What was added last, of so many bytes of source."""
        return Progress(num_bytes, self._added.num_documents, self._added.num_tokens, self._added.num_text_bytes)

    def _audit(self, sentences: TextBatch, tokens: TokenBatch, place: str) -> int:
        if self._rate == 0 or self._engine.name == self._reference.name:
            return 0
        keep = np.zeros(len(sentences), np.bool_)
        keep[-self._lengths.num_documents % self._rate :: self._rate] = True
        keep &= sentences.lengths <= parity.MAX_BYTES
        sample = sentences.select(keep)
        if len(sample):
            parity.compare(
                tokens.select(keep), self._reference.encode(sample), self._engine, self._reference, lambda _: place
            )
        return len(sample)

    def commit(self) -> PairFiles:
        """Give both files their names."""
        self._bin.commit()
        header = Header(CODES[self._recipe.dtype], self._lengths.num_sequences, self._sentences.num_documents + 1)
        with AtomicFile(idx_path(self._target)) as idx:
            write_index(idx, header, lambda: (some[some > 0] for some in self._lengths.chunks()), self._boundaries())
        return PairFiles(
            bin_bytes=self._bin.num_bytes,
            bin_checksum=self._bin.checksum,
            idx_bytes=idx.num_bytes,
            idx_checksum=idx.checksum,
        )

    def _boundaries(self) -> Iterator[Offsets]:
        total = 0
        yield np.zeros(1, np.int64)
        for some in self._sentences.chunks():
            ends: Offsets = np.cumsum(some, dtype=np.int64) + total
            yield ends
            total = int(ends[-1])

    def engine_record(self) -> EngineRecord:
        return EngineRecord(
            name=self._engine.name,
            version=self._engine.version,
            reference=self._reference.name,
            reference_version=self._reference.version,
            gate_documents=self._gated,
            audit_rate=self._rate,
            audited_documents=self.counts.num_audited,
        )


def _last_of(written: Mask, bounds: Offsets) -> Mask:
    """Which of the sentences written is the last of its document."""
    last = np.zeros(len(written), np.bool_)
    places = np.flatnonzero(written)
    found = np.searchsorted(places, bounds)  # how many are written before each document
    holds = found[1:] > found[:-1]
    last[places[found[1:][holds] - 1]] = True
    return last
