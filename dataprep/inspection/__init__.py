"""What is inside one pair, by whomever written.

pairs       all of it: counts, lengths, tokens, marks, repeated documents
census      the one pass over the ``.bin``
lengths     of documents: quantiles, bins, what is cut at a sequence length
excerpts    one document, one sample as Megatron trains on it
provenance  where documents come from
decoding    ids back to text
"""

from __future__ import annotations

from dataprep.inspection.pairs import Findings, document_lengths, examine, inspect, length_summary, open_pair

__all__ = ["Findings", "document_lengths", "examine", "inspect", "length_summary", "open_pair"]
