"""One document, and one sample as Megatron trains on it, some tokens at a time, with their text and their source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dataprep.errors import FormatError
from dataprep.indexed import bin_path, idx_path
from dataprep.inspection.windows import document_extent, documents_of, open_index, sequence_extent
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.orders import Orders, Question
from dataprep.service.viewing.origins import Origins
from dataprep.service.viewing.readings import DocumentView, SamplePiece, SampleView, Token
from dataprep.service.viewing.rejects import rejects_path
from dataprep.service.viewing.tokens import Readers

if TYPE_CHECKING:
    from dataprep.indexed import Index
    from dataprep.inspection.windows import Extent
    from dataprep.samples import Sampling
    from dataprep.service.viewing.answers import Pair
    from dataprep.service.viewing.chosen import Dataset
    from dataprep.service.viewing.details import Details
    from dataprep.service.viewing.listing import Datasets
    from dataprep.service.viewing.readings import Origin
    from dataprep.service.viewing.tokens import Reader

TOKENS = 2000
"""Tokens of a page."""

MOST_TOKENS = 10_000
"""That may be asked for at once."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What a pair is read with."""

    pair: Pair
    index: Index
    reader: Reader | None
    notes: list[str]


class Documents:
    """The documents of datasets.

    Args:
        datasets: which there are.
        details: what is known of them.
    """

    def __init__(self, datasets: Datasets, details: Details) -> None:
        self._datasets, self._details = datasets, details
        self._readers = Readers()
        self._orders, self._origins = Orders(), Origins()

    def document(self, dataset: Dataset, number: int, first: int = 0, count: int = TOKENS) -> DocumentView:
        """Some tokens of a document.

        Args:
            dataset: which.
            number: of the document, from 0.
            first: token of it to begin with.
            count: tokens, at most.

        Raises:
            AbsentError: there is no such document, or it has no such token.
            FormatError: the pair is damaged.
        """
        place, pair_number = dataset.pair_of(number)
        source = self._open(dataset, place)
        extent = document_extent(source.index, pair_number)
        if not 0 <= first < max(1, extent.num_tokens):
            raise AbsentError(f"There is no such token: document {number} has tokens 0 to {extent.num_tokens - 1}.")
        tokens, text = _read(source.reader, self._ids(dataset, extent, first, count), first > 0)
        return DocumentView(
            dataset=dataset.id,
            number=number,
            num_documents=dataset.num_documents,
            prefix=source.pair.path,
            pair_number=pair_number,
            num_tokens=extent.num_tokens,
            num_bytes=extent.num_tokens * extent.dtype.itemsize,
            first_token=first,
            tokens=tokens,
            text=None if text is None else text.decode("utf-8", "backslashreplace"),
            num_text_bytes=None if text is None else sum(map(_num_bytes, tokens)),
            source=self._origin(dataset, place, pair_number),
            notes=tuple(source.notes),
        )

    def sample(
        self, dataset: Dataset, place: int, number: int, sampling: Sampling, window: tuple[int, int] = (0, TOKENS)
    ) -> SampleView:
        """Some tokens of the very sample that Megatron's GPTDataset would train on.

        Args:
            dataset: which.
            place: of the pair, from 0: Megatron draws the samples of each by themselves.
            number: of the sample, in the order of the training.
            sampling: what of the training decides its samples.
            window: token of the sample to begin with, and how many.

        Raises:
            AbsentError: there is no such pair, sample or token.
            SpecError: a training that Megatron would not begin, or one whose order takes too much memory here.
            FormatError: the pair is damaged.
            BusyError: others ask for the same, and it takes long.
        """
        if not 0 <= place < len(dataset.pairs):
            raise AbsentError(f"There is no such pair: {dataset.folder.name} has pairs 0 to {len(dataset.pairs) - 1}.")
        source = self._open(dataset, place)
        first, count = window
        drawn = self._orders.draw(Question(source.pair.path, sampling, number, first, count))
        sequences = np.array([piece[0] for piece in drawn.pieces], np.int64)
        pieces = []
        for found, document in zip(drawn.pieces, documents_of(source.index, sequences).tolist(), strict=True):
            start = found.pop()
            skip = max(0, first - start)
            wanted = min(start + found[2], first + count) - start - skip
            pieces.append(self._piece(dataset, place, source, found, (document, skip, wanted)))
        return SampleView(
            dataset=dataset.id,
            number=number,
            num_samples=drawn.num_samples,
            num_epochs=drawn.num_epochs,
            pair=place,
            num_pairs=len(dataset.pairs),
            prefix=source.pair.path,
            seq_length=sampling.seq_length,
            seed=sampling.seed,
            split=sampling.split,
            part=sampling.part,
            wanted=sampling.num_samples,
            first_token=first,
            num_tokens=sampling.seq_length + 1,
            num_pieces=drawn.num_pieces,
            pieces=tuple(pieces),
            notes=tuple(source.notes),
        )

    def _piece(
        self, dataset: Dataset, place: int, source: _Source, found: list[int], shown: tuple[int, int, int]
    ) -> SamplePiece:
        sequence, begin, count = found
        document, skip, wanted = shown
        extent, first = sequence_extent(source.index, sequence), begin + skip
        tokens, text = _read(source.reader, self._ids(dataset, extent, first, wanted), first > 0)
        return SamplePiece(
            document=source.pair.first_document + document,
            sequence=sequence,
            first_token=begin,
            num_tokens=count,
            num_sequence_tokens=extent.num_tokens,
            first_shown=skip,
            tokens=tokens,
            text=None if text is None else text.decode("utf-8", "backslashreplace"),
            source=self._origin(dataset, place, document),
        )

    def _open(self, dataset: Dataset, place: int) -> _Source:
        """A pair, and what reads its tokens; what is missing is noted."""
        pair, notes = dataset.pairs[place], list[str]()
        prefix = Path(pair.path)
        files = bin_path(prefix), idx_path(prefix)
        for path in files:
            self._datasets.check_inside(path, dataset.output_id)
        index = open_index(prefix)
        stated = pair.entry.files.bin_bytes, pair.entry.files.idx_bytes
        if index.num_documents != pair.entry.num_documents or _sizes(files) != stated:
            notes.append(f"These are not the files that the manifest speaks of; run: dataprep verify {prefix}")
        manifest = self._details.manifest(dataset.manifests[place], dataset.output_id)
        reader, why = self._readers.find(manifest.tokenizer)
        return _Source(pair, index, reader, [*notes, *([why] if why else [])])

    def _ids(self, dataset: Dataset, extent: Extent, first: int, count: int) -> list[int]:
        """Some tokens, and the one before them, if there is one."""
        path = bin_path(extent.prefix)
        try:
            with self._datasets.opened(path, dataset.output_id) as file:
                found: list[int] = extent.read(max(0, first - 1), count + (first > 0), file).tolist()
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        return found

    def _origin(self, dataset: Dataset, place: int, number: int) -> Origin | None:
        """Where document `number` of a pair came from."""
        path = dataset.manifests[place]
        manifest = self._details.manifest(path, dataset.output_id)
        before = dataset.pairs[place].first_document - dataset.pairs[dataset.manifests.index(path)].first_document
        rejects = rejects_path(dataset.output, manifest)
        try:
            self._datasets.check_inside(rejects, dataset.output_id)
        except FormatError:
            return self._origins.find(manifest, before + number, None)
        return self._origins.find(manifest, before + number, rejects)


def _read(reader: Reader | None, ids: list[int], has_before: bool) -> tuple[tuple[Token, ...], bytes | None]:
    """Tokens and their text; the first id only says what comes before them, where there is something."""
    before = ids.pop(0) if has_before else None
    if reader is None:
        return tuple(Token(id=number, kind="id") for number in ids), None
    return reader.tokens(ids, before)


def _num_bytes(token: Token) -> int:
    """Of the text of a document that a token is; a special one is none."""
    if token.kind == "special":
        return 0
    return len((token.text or "").encode()) if token.hex is None else len(bytes.fromhex(token.hex))


def _sizes(files: tuple[Path, Path]) -> tuple[int, int]:
    try:
        return files[0].stat().st_size, files[1].stat().st_size
    except OSError as error:
        raise FormatError(f"cannot read {error.filename}: {error.strerror}") from error
