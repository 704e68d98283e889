r"""The indexed dataset: Megatron's ``.bin``/``.idx`` pair. This docstring is the byte specification.

``.bin`` is the tokens, little-endian, one after the other, nothing else. ``.idx``, little-endian, unaligned:

    offset           bytes  field
    0                9      magic ``MMIDIDX\0\0``
    9                8      u64 version, 1
    17               1      u8 dtype code: uint8 1, int8 2, int16 3, int32 4, int64 5, float64 6, float32 7, uint16 8
    18               8      u64 n, number of sequences
    26               8      u64 d, number of document boundaries = documents + 1
    34               4 n    int32 sequence_lengths: tokens per sequence
    34 + 4 n         8 n    int64 sequence_pointers: BYTE position in the .bin; exclusive sum of lengths * item size
    34 + 12 n        8 d    int64 document_indices: the sequence each document starts at; first 0, last n
    34 + 12 n + 8 d  n      int8 sequence_modes, only multimodal data; nothing in the header says so

Source: Megatron-LM d98e8a64, megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `_IndexReader`.
The names `sequence_lengths`, `sequence_pointers` and `document_indices` are Megatron's.

We write exactly one sequence per document; a document without tokens is a boundary without a sequence.
Example, int32, documents [7 8] [] [9]: lengths [2 1], pointers [0 8], boundaries [0 1 1 2], .bin 12 bytes.

Limits: a sequence holds at most 2**31 - 1 tokens (int32); a prefix should hold fewer than 2**31 sequences
(Megatron's sample index is int32). The writer keeps nothing per document in memory.

    header  the 34 bytes, and what they exclude
    reader  memory maps, and reading in pieces
    writer  a pair as its documents come; an index from its arrays

Not here: whether a pair is *right* (`stages.verify`).
"""

from dataprep.indexed.header import (
    CHUNK,
    CODES,
    DTYPES,
    HEADER,
    MAGIC,
    MAX_SEQUENCES,
    VERSION,
    Header,
    bin_path,
    idx_path,
    read_header,
)
from dataprep.indexed.reader import Index, IndexedDataset
from dataprep.indexed.writer import IndexedWriter, IndexWriter, Mark, write_index

__all__ = [
    "CHUNK",
    "CODES",
    "DTYPES",
    "HEADER",
    "MAGIC",
    "MAX_SEQUENCES",
    "VERSION",
    "Header",
    "Index",
    "IndexWriter",
    "IndexedDataset",
    "IndexedWriter",
    "Mark",
    "bin_path",
    "idx_path",
    "read_header",
    "write_index",
]
