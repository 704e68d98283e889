"""Every problem that has a name: how bad it is, what Megatron does with it, and what mends it.

Codes are stable: scripts and schedulers match them. The symptoms were measured with megatron-core 0.16.1 and
Megatron-LM d98e8a64 on 400 documents of both dtypes: 40 of 53 broken pairs opened without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of problem.

    Attributes:
        severity: ``error``: training on it is wrong or fails; ``warning``: it may be meant.
        symptom: what Megatron does with it; the sentence begins with Megatron.
        fix: what to do; ``{prefix}`` stands for the pair's.
    """

    severity: Severity
    symptom: str
    fix: str


_REPAIR = "dataprep repair {prefix} --output NEW"
_BY_EOD = f"{_REPAIR} --eod ID; or --tokenizer T in place of --eod ID; --dtype where the tokens do not tell it"
_TAIL = (
    f"{_REPAIR}; it cuts off a tail that holds no EOD, which few documents do not tell: name it with --eod ID. A tail "
    "with EODs may be documents that the .idx does not know: copy both files again"
)
_REBUILD = "build the dataset again"
_COPY = "copy both files again from where they were written, or build the dataset again"
_OTHER = "move the manifest away, if it is of another pair; else copy both files again from where they were written"
_PLAIN = "where they are not meant: build the dataset again, with --set policy.special_text=plain"
_UNREAD = "reads no source; nothing is known to be wrong with the pair"
_JOINS = "lets documents run into each other; --reset-position-ids and --eod-mask-loss do nothing there"

RULES: dict[str, Rule] = {
    # the .idx and the sizes
    "missing-idx": Rule("error", "fails at open", _BY_EOD),
    "missing-bin": Rule("error", "fails at open", _COPY),
    "unreadable": Rule("error", "fails at open", "make it a regular file that you may read, on a disk that works"),
    "idx-short": Rule("error", "fails at open", _BY_EOD),
    "magic": Rule("error", "fails at open, unless Python runs with -O", _BY_EOD),
    "swapped": Rule(
        "error",
        "fails at open",
        "rename them: mv {prefix}.bin {prefix}.swap && mv {prefix}.idx {prefix}.bin && mv {prefix}.swap {prefix}.idx",
    ),
    "format-foreign": Rule("error", "fails at open", _REBUILD),
    "version": Rule("error", "fails at open; under python -O it trains on whatever the fields mean", _REPAIR),
    "dtype-code": Rule("error", "fails at open, or when the first sample is cast", _REPAIR),
    "dtype-float": Rule("error", "builds its indices, then fails when the first sample is cast", _REPAIR),
    "dtype-width": Rule("error", "trains on wrong tokens without a word, or fails late", _REPAIR),
    "dtype-unusual": Rule("warning", "reads it; other readers of the format may not", _REPAIR),
    "idx-size": Rule("error", "fails at open, or trains on arrays that are cut at the wrong places", _REPAIR),
    "idx-tail": Rule(
        "warning", "reads it and ignores the bytes behind; as multimodal data it takes them for modes", _REPAIR
    ),
    "no-sequences": Rule("error", "hangs while it builds its sample index", _REBUILD),
    "no-tokens": Rule("error", "hangs while it builds its sample index", _REBUILD),
    "no-documents": Rule("error", "fails at open", _REPAIR),
    "length-negative": Rule("error", "reads the whole rest of the file as one sample, or hangs", _REPAIR),
    "pointers": Rule("error", "trains on wrong tokens without a word, or fails late", _REPAIR),
    "bin-size": Rule("error", "trains on wrong tokens or on uninitialised memory, or fails late", _COPY),
    "bin-tail": Rule("error", "ignores the tokens behind: it never sees them", _TAIL),
    "eod-uncounted": Rule(
        "error", "reads every document shifted by as many tokens as there are documents before it", _REPAIR
    ),
    "boundaries-start": Rule("error", "trains GPT all the same; BERT and T5 read wrong documents", _REPAIR),
    "boundaries-order": Rule("error", "trains GPT all the same; BERT and T5 read wrong documents", _REPAIR),
    "boundaries-end": Rule(
        "error", "fails at open, with an empty message; not with --dataloader-fast-cache-load", _REPAIR
    ),
    "sequences-empty": Rule("warning", "skips them", _REPAIR),
    "documents-empty": Rule("warning", "skips them", ""),
    "sentence-level": Rule(
        "warning", "shuffles and packs the sentences one by one for GPT, without a word", f"{_REPAIR} --documents"
    ),
    "too-many": Rule("error", "fails, or numbers wrap around: its sample index holds none from 2**31 on", _REPAIR),
    "dtype-vocab": Rule("error", "trains on the lower halves of the ids without a word", _REBUILD),
    "dtype-band": Rule(
        "warning",
        "guesses the other dtype from the vocabulary under --per-dataset-sequences-path, and trains on garbage",
        f"{_REPAIR} --dtype uint16",
    ),
    "split-empty": Rule("error", "hangs while it builds the indices of the empty split", "choose another --split"),
    "split-short": Rule("warning", "has less than one sample in that split", "choose another --split"),
    "cache-stale": Rule(
        "error",
        "trains on the samples of the dataset that lay at this path before",
        "dataprep repair {prefix} --cache DIR, or delete the files",
    ),
    "cache-damaged": Rule(
        "error",
        "fails at every start until the files are gone, or builds them again",
        "dataprep repair {prefix} --cache DIR, or delete the files",
    ),
    # the tokens
    "id-negative": Rule("error", "takes -1 for padding without a word; fails on others", _REBUILD),
    "id-range": Rule(
        "error", "fails, on a GPU by a device assert; with tensor parallelism trains on zeros without a word", _REBUILD
    ),
    "id-padding": Rule("error", "trains rows of the embedding that stand for no token, without a word", _REBUILD),
    "eod-missing": Rule("error", _JOINS, _REBUILD),
    "eod-unclear": Rule("warning", _JOINS, _REBUILD),
    "eod-other": Rule(
        "error",
        "ignores --reset-position-ids, --reset-attention-mask and --eod-mask-loss, without a word",
        "train with the tokenizer whose EOD ends the documents, or build the dataset again with the right one",
    ),
    "eod-misplaced": Rule("error", "trains on documents cut at the wrong places without a word", _COPY),
    "eod-inside": Rule("warning", "splits these documents where it resets positions or masks at the EOD", _PLAIN),
    "specials-inside": Rule("warning", "trains on them as on any token; a model learns to write them", _PLAIN),
    "bos-mixed": Rule("warning", "trains; documents begin in two ways", _REBUILD),
    "zero-block": Rule("warning", "trains on the zeros; a hole in a file reads like this", _COPY),
    # what the manifest says
    "tokenizer-other": Rule(
        "error",
        "trains on ids of another tokenizer without a word",
        "train with the tokenizer that the manifest names, or build the dataset again",
    ),
    "tokenizer-files": Rule(
        "warning", "trains on ids of another tokenizer without a word, if they differ", "compare: --level source"
    ),
    "manifest": Rule("error", "trains on other data than was published", _OTHER),
    "manifest-unreadable": Rule(
        "warning",
        "does not read it",
        "make it readable, update dataprep, or, if it is of another program, move it away",
    ),
    "shard": Rule("error", "trains on other data than was tokenized", _REBUILD),
    "source-unknown": Rule("error", _UNREAD, "--level tokens proves what can be proven without the source"),
    "source-gone": Rule("error", _UNREAD, "put the file back where it was; or --level tokens, which needs no source"),
    "source-changed": Rule(
        "error",
        _UNREAD,
        "put the file back as it was; or --level tokens, which needs no source; or build the dataset again",
    ),
    "tokenizer-gone": Rule(
        "error", _UNREAD, "dataprep verify {prefix} --level source --tokenizer T, of the same files; or --level tokens"
    ),
    "source": Rule("error", "trains on other data than the source holds", _REBUILD),
}
