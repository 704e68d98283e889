"""The token policy at work: which documents are written, and what is written around them.

    choose   empty documents and documents with special strings out, as the policy says
    finish   range check, BOS, EOD, narrow to the dtype on disk

Both are functions of recipe and batch alone. The policy's meaning is in `specs.TokenPolicy`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.batches import RECORD_BYTES, Reject, TextBatch, TokenBatch, offsets_of
from dataprep.errors import EncodeError

if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep.batches import Mask
    from dataprep.definitions import Definition
    from dataprep.specs import Recipe


@dataclass(frozen=True, slots=True)
class Seen:
    """What `choose` met.

    Attributes:
        num_empty: records of documents without a token, dropped or kept.
        specials: special token's text -> how often it stood in a document.
    """

    num_empty: int
    specials: dict[str, int]


def choose(
    batch: TextBatch, tokens: TokenBatch, recipe: Recipe, definition: Definition, limit: int | None = None
) -> tuple[TextBatch, TokenBatch, Seen]:
    """Take out the documents that the policy does not write.

    Args:
        batch: documents as text.
        tokens: the same documents as ids, special strings encoded as the recipe's policy says.
        limit: keep at most this many (at least 1), and account only for records up to the last of them.

    Returns:
        What is left of both; documents that went because of a special string are among the batch's rejects.
    """
    policy = recipe.policy
    holds, specials = find_specials(batch, tokens, definition, policy.special_text)
    empty = tokens.lengths == 0
    keep = np.ones(len(batch), np.bool_)
    if policy.special_text == "reject":
        keep &= ~holds
    if policy.empty == "drop":
        keep &= ~empty
    num_empty = int(np.count_nonzero(empty))
    kept = np.flatnonzero(keep)
    if limit is not None and len(kept) >= limit:
        cut = int(kept[limit - 1]) + 1
        if cut < len(batch):
            return choose(batch.head(cut), tokens.head(cut), recipe, definition)
        batch, tokens = batch.head(cut), tokens.head(cut)
    if len(kept) < len(batch):
        rows = batch.row_numbers()
        gone = tuple(
            Reject(
                batch.file,
                "special-text",
                int(rows[i]),
                count=1 + batch.num_joined(slice(i, i + 1)),
                record=batch.document(i)[:RECORD_BYTES],
            )
            for i in np.flatnonzero(holds & (policy.special_text == "reject")).tolist()
        )
        num_empty += batch.num_joined(empty)
        batch, tokens = batch.select(keep, gone), tokens.select(keep)
    return batch, tokens, Seen(num_empty, specials)


def find_specials(
    batch: TextBatch, tokens: TokenBatch, definition: Definition, special_text: Any
) -> tuple[Mask, dict[str, int]]:
    """Which documents hold a literal special string, and how often each string stands in them.

    By the ids where a special string becomes its special id; else by a search through the text.

    Returns:
        bool[num_documents], and special token's text -> count.
    """
    if not definition.specials or not len(batch):
        return np.zeros(len(batch), np.bool_), {}
    if definition.encodes_specials(special_text):
        return _specials_by_id(tokens, definition.specials)
    return _specials_by_text(batch.to_arrow(), definition.specials)


def _specials_by_id(tokens: TokenBatch, specials: dict[str, int]) -> tuple[Mask, dict[str, int]]:
    holds = np.zeros(len(tokens), np.bool_)
    wanted = np.array(sorted(specials.values()), np.uint32)
    if not len(tokens.ids) or tokens.ids.max() < wanted[0]:
        return holds, {}  # the usual case: special ids are the largest of the vocabulary, and none occurs
    # One subtraction and one comparison per id: special ids mostly lie together. uint32 wraps below the lowest.
    hits = np.flatnonzero((tokens.ids - wanted[0]) <= wanted[-1] - wanted[0])
    hits = hits[np.isin(tokens.ids[hits], wanted)]
    if not len(hits):
        return holds, {}
    holds[np.searchsorted(tokens.offsets, hits, side="right") - 1] = True
    texts = {number: text for text, number in specials.items()}
    values, counts = np.unique(tokens.ids[hits], return_counts=True)
    return holds, {texts[value]: count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}


def _specials_by_text(texts: pa.LargeStringArray, specials: dict[str, int]) -> tuple[Mask, dict[str, int]]:
    import pyarrow.compute as pc

    pattern = "|".join(re.escape(text) for text in sorted(specials, key=len, reverse=True))
    holds = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    counts: dict[str, int] = {}
    for i in np.flatnonzero(holds).tolist():
        for text in re.findall(pattern, texts[i].as_py()):
            counts[text] = counts.get(text, 0) + 1
    return holds, counts


def finish(tokens: TokenBatch, recipe: Recipe, ends: Mask | None = None) -> TokenBatch:
    """Check the range of the ids, put BOS and EOD around every document, and narrow.

    A document without tokens stays one, unless a BOS goes before it: then it is BOS and EOD, as in Megatron's
    preprocess_data; or unless the policy writes it as a sequence.

    Args:
        tokens: ids uint32[num_tokens].
        ends: bool[num_documents], which of them an EOD goes behind; None: all. False for sentences inside a document.

    Returns:
        ids of the recipe's dtype; offsets int64 from 0.

    Raises:
        EncodeError: an id is outside the vocabulary or the dtype.
    """
    dtype = np.dtype(recipe.dtype)
    limit = min(recipe.tokenizer.vocab_size, int(np.iinfo(dtype).max) + 1)
    if len(tokens.ids) and int(tokens.ids.max()) >= limit:
        raise EncodeError(
            f"id {int(tokens.ids.max())} does not fit: vocabulary {recipe.tokenizer.vocab_size}, {dtype.name}"
        )
    bos = recipe.tokenizer.bos_id if recipe.writes_bos else None
    eod = recipe.tokenizer.eod_id if recipe.policy.eod == "append" else None
    lengths = tokens.lengths
    always = bos is not None or recipe.writes_empty_sequences
    written = np.ones(len(lengths), np.bool_) if always else lengths > 0
    ended = written if ends is None else written & ends
    offsets = offsets_of(lengths + written * (bos is not None) + ended * (eod is not None))
    if offsets[-1] == len(tokens.ids):
        return TokenBatch(tokens.ids.astype(dtype), offsets)
    ids = np.empty(int(offsets[-1]), dtype)
    inner = np.ones(len(ids), np.bool_)
    for value, places in ((bos, offsets[:-1][written]), (eod, offsets[1:][ended] - 1)):
        if value is not None:
            ids[places] = value
            inner[places] = False
    ids[inner] = tokens.ids
    return TokenBatch(ids, offsets)
