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
import os
import threading
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dataprep.batches import TextBatch, TokenBatch, offsets_of
from dataprep.codepoints import Unsettled
from dataprep.errors import EncodeError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.batches import Bytes, Offsets
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
    """The engine: one for all threads of a process. Its cache of words is what makes it fast, and each thread has one.

    gigatoken 0.10.0 keeps every distinct word it meets: 5 bytes per byte of random words, measured. So an engine that
    is told its memory opens itself anew once the process has outgrown it. A document on which it may differ from the
    reference, see `codepoints`, is the reference's.

    Args:
        text: a ``tokenizer.json``.
        reference: encodes the documents that the engine cannot be trusted with.
        memory: what the process may use, in bytes; None: no bound.
        threads: how many will encode at the same time.

    Raises:
        EncodeError: the engine does not know this kind of tokenizer.
    """

    name = "gigatoken"

    def __init__(self, text: str, reference: Encoder, memory: int | None = None, threads: int = 1) -> None:
        self.version = version("gigatoken")
        self._text, self._memory = text, memory
        self._reference, self._unsettled = reference, Unsettled(text)
        self._renew_bytes = RENEW_BYTES * threads
        self._changed, self._num_users = threading.Condition(), 0
        # gigatoken has a cache for each thread of its pool; how large that is, is settled when it is first used in the
        # process, for later runs with more threads too. A thread that found no cache free would wait busily.
        os.environ.setdefault("RAYON_NUM_THREADS", str(max(threads, len(os.sched_getaffinity(0)))))
        self._free = _free_caches()
        self._open()

    def _open(self) -> None:
        import gigatoken

        try:
            with _panics_explained(f"gigatoken {self.version} cannot open this tokenizer"):
                self._tokenizer: Any = gigatoken.Tokenizer.from_json(self._text)
        except (ValueError, RuntimeError, NotImplementedError) as error:  # its word for kinds of tokenizers it lacks
            raise EncodeError(f"gigatoken cannot open this tokenizer: {error}") from error
        self._encoded_bytes = 0
        # gigatoken's SentencePiece backend asks no classes of Unicode, keeps no cache, and encodes a batch on the
        # calling thread if told so; its byte-level backend would let one thread at a time do that.
        self._byte_level = not hasattr(self._tokenizer, "encode_no_normalize")

    @contextmanager
    def _in_use(self, num_bytes: int) -> Iterator[None]:
        """Keep the tokenizer for so much text; opened anew before, if the process has outgrown its memory.

        Not more often than `RENEW_BYTES` say: an empty cache costs each thread 0.7 s, opening 0.1 to 0.7 s. Nobody may
        use the old one then, so that it is freed before the new one asks for memory.
        """
        with self._changed:
            self._encoded_bytes += num_bytes
            while self._outgrown() and self._num_users:
                self._changed.wait()
            if self._outgrown():
                self._tokenizer = None
                self._open()
            self._num_users += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    def _outgrown(self) -> bool:
        if self._memory is None or self._encoded_bytes <= self._renew_bytes:
            return False
        return resident_bytes() > 0.7 * self._memory

    def encode(self, batch: TextBatch) -> TokenBatch:
        if not len(batch):
            return TokenBatch(np.empty(0, np.uint32), np.zeros(1, np.int64))
        few = batch.num_text_bytes < SMALL_BYTES and len(batch) <= 4
        with self._in_use(batch.num_text_bytes):
            tokens = self._encode_few(batch) if few else self._encode_batch(batch)
        if not self._byte_level:
            return tokens
        unsettled = np.zeros(len(batch), np.bool_)
        unsettled[self._unsettled.documents(batch)] = True
        return tokens.replace(unsettled, self._reference.encode(batch.select(unsettled))) if unsettled.any() else tokens

    def _encode_batch(self, batch: TextBatch) -> TokenBatch:
        """Slice by slice: what is below 2 MiB gigatoken encodes on the calling thread, with a cache of its own.

        A larger document it cuts at places where that makes no difference, for all threads of its pool.
        """
        if not self._byte_level:
            return self._encode_slice(batch.values, batch.offsets)
        parts, first = [], 0
        while first < len(batch):
            fitting = int(np.searchsorted(batch.offsets, batch.offsets[first] + SLICE_BYTES, side="right")) - 1
            last = max(first + 1, fitting)
            parts.append(self._encode_slice(batch.values, batch.offsets[first : last + 1]))
            first = last
        if len(parts) == 1:
            return parts[0]
        offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
        return TokenBatch(np.concatenate([part.ids for part in parts]), offsets)

    def _encode_slice(self, values: Bytes, offsets: Offsets) -> TokenBatch:
        import awkward as ak

        # Buffers to awkward without a copy; ak.from_arrow copies.
        texts = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets),
            ak.contents.NumpyArray(values, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        explained = _panics_explained(f"gigatoken {self.version} failed on a batch; use --set runtime.engine=reference")
        with self._free if self._byte_level else nullcontext(), explained:
            layout = self._tokenizer.encode_batch(ak.Array(texts), parallel=self._byte_level).layout
        ids, found = np.asarray(layout.content.data), np.asarray(layout.offsets.data)
        if ids.dtype != np.uint32 or len(found) != len(offsets):
            raise EncodeError(
                f"gigatoken {self.version} returned {ids.dtype}[{len(found) - 1}]; use --set runtime.engine=reference"
            )
        return TokenBatch(ids, found.astype(np.int64, copy=False))

    def _encode_few(self, batch: TextBatch) -> TokenBatch:
        """Document by document: a file of its own each, as source code has them, costs 0.06 ms so, 0.6 ms as a batch.

        Holds the GIL, which a batch does not: for small texts only. gigatoken wants to be alone for it, so while
        another thread is in a batch, this becomes one, too.
        """
        try:
            with _panics_explained(
                f"gigatoken {self.version} failed on a document; use --set runtime.engine=reference"
            ):
                parts = [self._tokenizer.encode(batch.document(i)) for i in range(len(batch))]
        except RuntimeError as error:
            if "borrowed" not in str(error):
                raise
            return self._encode_batch(batch)
        return TokenBatch.of(parts)


@lru_cache(maxsize=1)
def _free_caches() -> threading.BoundedSemaphore:
    """One for each thread of gigatoken's pool, read as rayon reads the variable: 0 and nonsense are all processors."""
    given = os.environ["RAYON_NUM_THREADS"]
    return threading.BoundedSemaphore(int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0)))


@contextmanager
def _panics_explained(doing: str) -> Iterator[None]:
    """Turn a Rust panic, which is no Exception to Python and would end the thread, into an EncodeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise EncodeError(f"{doing}: {' '.join(str(error).split())[:200]}") from error


class Tokenizers:
    """The reference of GPT2BPETokenizer and HuggingFaceTokenizer: the `tokenizers` library.

    Args:
        text: a ``tokenizer.json``.
        plain: leave special strings text. The library's own switch, with the special tokens still declared: without
            them it numbers the other added tokens anew (0.23.3), and one of those gets a special token's id.

    Raises:
        SpecError: the library cannot read it.
    """

    name = "tokenizers"

    def __init__(self, text: str, plain: bool = False) -> None:
        import tokenizers

        self.version = version("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise SpecError(f"not a tokenizer.json: {error}") from error
        self._tokenizer.encode_special_tokens = plain

    @property
    def added(self) -> list[str]:
        """The strings that the files declare to be tokens of their own."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]

    def token_id(self, text: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    def encode(self, batch: TextBatch) -> TokenBatch:
        texts = [batch.document(i).decode() for i in range(len(batch))]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return TokenBatch.of([encoding.ids for encoding in encodings])


class SentencePiece:
    """The reference of Llama2Tokenizer: the `sentencepiece` library."""

    name = "sentencepiece"

    def __init__(self, processor: Any) -> None:
        self.version = version("sentencepiece")
        self._processor = processor

    def encode(self, batch: TextBatch) -> TokenBatch:
        texts = [batch.document(i).decode() for i in range(len(batch))]
        return TokenBatch.of(self._processor.encode(texts, num_threads=1) if texts else [])


def open_reference(definition: Definition, special_text: SpecialText) -> Encoder:
    """The encoder that defines the right answer.

    Raises:
        SpecError: the library cannot read the files, or numbers the added tokens otherwise than they say: BOS and EOD
            are taken from the files, so that they would not be the reference's.
    """
    if definition.type == "Llama2Tokenizer":
        return SentencePiece(definition.sentencepiece)
    reference = Tokenizers(definition.text("encode"), plain=special_text == "plain")
    for text, number in definition.added.items():
        if (found := reference.token_id(text)) != number:
            raise SpecError(
                f"{definition.path}: its file gives the added token {text!r} the id {number}, the tokenizers library "
                f"{found}: added tokens have to follow the vocabulary without a gap. Load it with the library and save "
                "it again"
            )
    return reference


def open_engine(
    definition: Definition,
    special_text: SpecialText,
    engine: str,
    reference: Encoder,
    memory: int | None = None,
    threads: int = 1,
) -> Encoder:
    """The encoder to work with, for all threads.

    Args:
        engine: ``gigatoken``, ``reference``, or ``auto``: gigatoken unless it does not know this kind of tokenizer.
        reference: of the same definition; answers for what the engine cannot be trusted with.
        memory: what the process may use, in bytes.
        threads: how many will encode at the same time.

    Raises:
        EncodeError: gigatoken was asked for by name and cannot.
    """
    if engine == "reference":
        return reference
    try:
        return Gigatoken(definition.text(special_text), reference, memory, threads)
    except (EncodeError, SpecError) as error:
        if engine == "gigatoken":
            raise
        log.warning("%s; the reference encodes instead, which is 20 to 30 times slower", error)
        return reference


SLICE_BYTES = (2 << 20) - 1
"""What gigatoken 0.10.0 encodes in one piece, on the calling thread; more it spreads over its pool."""

SMALL_BYTES = 64 << 10
"""Below this a few documents are encoded one by one."""

RENEW_BYTES = 144 << 20
"""Text that each thread encodes between two openings of an engine at the least."""


def resident_bytes() -> int:
    """Resident size of this process now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0
