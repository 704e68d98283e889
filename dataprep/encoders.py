"""Text batch -> token batch: the fast engine and the reference engines.

    Gigatoken      the engine: flat buffers in, flat buffers out, no Python object per document
    Tokenizers     the reference of GPT2BPETokenizer and HuggingFaceTokenizer
    SentencePiece  the reference of Llama2Tokenizer

The reference defines the right answer; `parity` holds the engine to it. What a tokenizer is, is in
`definitions`. BOS and EOD are not an encoder's business: no encoder writes what a post-processor would
add, so that the policy alone decides about it.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dataprep.batches import TextBatch, TokenBatch
from dataprep.errors import EncodeError, SpecError

if TYPE_CHECKING:
    from dataprep.definitions import Definition, SpecialText

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """Turns documents into ids; ids of special strings included or not as it was opened, no BOS, no EOD."""

    name: str
    version: str

    def encode(self, batch: TextBatch) -> TokenBatch:
        """Encode one batch.

        Returns:
            ids uint32[num_tokens], offsets int64[num_documents + 1] from 0; the caller owns both.
        """
        ...


class Gigatoken:
    """The engine. One object per thread: its cache of words is what makes it fast, and it is not shared.

    Args:
        text: a ``tokenizer.json``.

    Raises:
        EncodeError: the engine does not know this kind of tokenizer.
    """

    name = "gigatoken"

    def __init__(self, text: str) -> None:
        import gigatoken

        self.version = version("gigatoken")
        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(text)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise EncodeError(f"gigatoken cannot open this tokenizer: {error}") from error

    def encode(self, batch: TextBatch) -> TokenBatch:
        import awkward as ak

        if not len(batch):
            return TokenBatch(np.empty(0, np.uint32), np.zeros(1, np.int64))
        # Buffers to awkward without a copy; ak.from_arrow copies. notes: 8 MiB batches, parallel=False.
        texts = ak.contents.ListOffsetArray(
            ak.index.Index64(batch.offsets),
            ak.contents.NumpyArray(batch.values, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        layout = self._tokenizer.encode_batch(ak.Array(texts), parallel=False).layout
        ids, offsets = np.asarray(layout.content.data), np.asarray(layout.offsets.data)
        if ids.dtype != np.uint32 or len(offsets) != len(batch) + 1:
            raise EncodeError(f"gigatoken {self.version} returned {ids.dtype}[{len(offsets) - 1}]; use --set runtime.engine=reference")
        return TokenBatch(ids, offsets.astype(np.int64, copy=False))


class Tokenizers:
    """The reference of GPT2BPETokenizer and HuggingFaceTokenizer: the `tokenizers` library."""

    name = "tokenizers"

    def __init__(self, text: str) -> None:
        import tokenizers

        self.version = version("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # noqa: BLE001  tokenizers raises bare Exception
            raise SpecError(f"not a tokenizer.json: {error}") from error

    def encode(self, batch: TextBatch) -> TokenBatch:
        texts = [batch.document(i).decode() for i in range(len(batch))]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return _ragged([encoding.ids for encoding in encodings])


class SentencePiece:
    """The reference of Llama2Tokenizer: the `sentencepiece` library."""

    name = "sentencepiece"

    def __init__(self, processor: Any) -> None:
        self.version = version("sentencepiece")
        self._processor = processor

    def encode(self, batch: TextBatch) -> TokenBatch:
        texts = [batch.document(i).decode() for i in range(len(batch))]
        return _ragged(self._processor.encode(texts, num_threads=1) if texts else [])


def _ragged(lists: list[list[int]]) -> TokenBatch:
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    flat = np.empty(int(offsets[-1]), np.uint32)
    for start, ids in zip(offsets.tolist(), lists, strict=False):
        flat[start : start + len(ids)] = ids
    return TokenBatch(flat, offsets)


def open_reference(definition: Definition, special_text: SpecialText) -> Encoder:
    """The encoder that defines the right answer."""
    if definition.type == "Llama2Tokenizer":
        return SentencePiece(definition.sentencepiece)
    return Tokenizers(definition.text(special_text))


def open_engine(definition: Definition, special_text: SpecialText, engine: str) -> Encoder:
    """The encoder to work with.

    Args:
        engine: ``gigatoken``, ``reference``, or ``auto``: gigatoken unless it does not know this kind of tokenizer.

    Raises:
        EncodeError: gigatoken was asked for by name and cannot.
    """
    if engine == "reference":
        return open_reference(definition, special_text)
    try:
        return Gigatoken(definition.text(special_text))
    except (EncodeError, SpecError) as error:
        if engine == "gigatoken":
            raise
        log.warning("%s; the reference encodes instead, which is 20 to 30 times slower", error)
        return open_reference(definition, special_text)
