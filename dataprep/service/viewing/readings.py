"""The shapes of what is shown of documents, samples and rejects, as plain values; see `answers`."""

from __future__ import annotations

from typing import Literal

from dataprep.samples import SplitPart
from dataprep.specs import Model


class Token(Model):
    """One token.

    Attributes:
        id: of it.
        text: that it stands for; None where it is a part of a character, or no text, or nobody can say.
        hex: its bytes, where they are no whole characters.
        character: the text that it is a part of, together with its neighbours.
        kind: ``special``: its text stands for no text; ``unknown``: the tokenizer has no such id; ``id``: there is no
            tokenizer to ask.
    """

    id: int
    text: str | None = None
    hex: str | None = None
    character: str | None = None
    kind: Literal["ordinary", "special", "unknown", "id"] = "ordinary"


class Origin(Model):
    """Where a document came from; records are counted from 1.

    Attributes:
        first_record, last_record: the same, or the record is one of these.
    """

    file: str
    first_record: int
    last_record: int
    corpus: str
    url: str | None = None
    origin: str | None = None


class DocumentView(Model):
    """Some tokens of one document.

    Attributes:
        number: of the document in the dataset, from 0; and `pair_number` in the pair whose prefix is `prefix`.
        num_documents: of the dataset.
        num_tokens, num_bytes: of the document, as it lies in the ``.bin``.
        first_token: of it that is shown, from 0.
        tokens: these.
        text: of these; None where no tokenizer is at hand.
        num_text_bytes: of this text, as UTF-8, without special tokens.
        source: None: nobody knows.
        notes: what a person should know besides.
    """

    dataset: str
    number: int
    num_documents: int
    prefix: str
    pair_number: int
    num_tokens: int
    num_bytes: int
    first_token: int
    tokens: tuple[Token, ...]
    text: str | None
    num_text_bytes: int | None
    source: Origin | None
    notes: tuple[str, ...]


class SamplePiece(Model):
    """What a sample has of one sequence, as far as it is shown.

    Attributes:
        document: of the dataset.
        sequence: of the pair.
        first_token: of the piece, in its sequence; `num_tokens` of `num_sequence_tokens` are in the sample.
        tokens: these of them are shown, from `first_shown` of the piece on.
    """

    document: int
    sequence: int
    first_token: int
    num_tokens: int
    num_sequence_tokens: int
    first_shown: int
    tokens: tuple[Token, ...]
    text: str | None
    source: Origin | None


class SampleView(Model):
    """Some tokens of one sample as Megatron's GPTDataset draws it.

    Attributes:
        number: of the sample in the order of the training, from 0.
        num_samples, num_epochs: that there are.
        prefix: of the pair that it is drawn from, the `pair`-th of `num_pairs`.
        first_token: of the sample that is shown; it has `seq_length` + 1, inputs all but the last, labels all but the
            first.
    """

    dataset: str
    number: int
    num_samples: int
    num_epochs: int
    pair: int
    num_pairs: int
    prefix: str
    seq_length: int
    seed: int
    split: str
    part: SplitPart
    wanted: int | None
    first_token: int
    num_tokens: int
    num_pieces: int
    pieces: tuple[SamplePiece, ...]
    notes: tuple[str, ...]


class Reject(Model):
    r"""A source record that became no document.

    Attributes:
        position: byte of the file of rejects; goes into addresses.
        record, line: counted from 1.
        byte_offset: of the record in the source file, decompressed.
        group: row group, or record batch.
        count: records that this stands for.
        content: the record, as far as it is kept; bytes that are no UTF-8 as \xNN.
    """

    position: int
    file: str
    reason: str
    record: int | None
    line: int | None
    byte_offset: int | None
    group: int | None
    count: int
    detail: str
    content: str


class RejectPage(Model):
    """Some rejects, in the order of the source.

    Attributes:
        path: of the file of rejects.
        reason: only these; None: all.
        rejects: those from byte `position` of the file on.
        previous, next: where others begin; None: there are none, or with a `reason` nobody looked.
        num_damaged: lines between them that are no rejects.
        num_bytes: of the file.
    """

    path: str
    reason: str | None
    position: int
    rejects: tuple[Reject, ...] = ()
    previous: int | None = None
    next: int | None = None
    num_damaged: int = 0
    num_bytes: int
