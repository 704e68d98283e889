"""What `inspect` and `where` show to people: lines of text, made of the plain values that the verbs give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dataprep.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves a cursor, starts a command of a terminal, breaks a line, or turns the direction of writing."""


def printable(text: str) -> str:
    """The text with all that could drive a terminal escaped; newlines and tabs stay."""
    return HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def quoted(text: str, width: int = 60) -> str:
    """The text in quotes, on one line, cut where it is longer."""
    escaped = text[:width].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{printable(escaped)}"' + ("..." if len(text) > width else "")


def inspection(value: dict[str, Any], width: int) -> Iterator[str]:
    """What `dataprep.inspect` gives.

    Args:
        value: the plain values.
        width: of the terminal, in columns.
    """
    rows = _counts(value) | _made_of(value)
    if "repeats" in value:
        rows |= _marks(value["bos"], value["eod"], _num_full(value))
        rows |= _others(value)
    yield from table(rows)
    yield from ("", *_histogram(value["histogram"], width))
    if "repeats" in value:
        yield from ("", *_frequent(value))
        yield from ("", *_repeats(value["repeats"]))
    if "cuts" in value:
        yield from ("", *_cuts(value["cuts"], value["num_tokens"]))
    for note in value["notes"]:
        yield f"note: {printable(note)}"


def _counts(value: dict[str, Any]) -> dict[str, str]:
    lengths = value["lengths"]
    quantiles = "  ".join(f"{name} {number:,}" for name, number in lengths["quantiles"].items())
    sequences = f" in {value['num_sequences']:,} sequences" if value["num_sequences"] != value["num_documents"] else ""
    return {
        "prefix": printable(value["prefix"]),
        "documents": f"{value['num_documents']:,}{sequences}",
        "tokens": f"{value['num_tokens']:,} {value['dtype']}, {value['num_bytes']:,} bytes",
        "lengths": f"min {lengths['min']:,}  {quantiles}  max {lengths['max']:,}  mean {lengths['mean']:,.1f}",
    }


def _made_of(value: dict[str, Any]) -> dict[str, str]:
    rows = {}
    tokenizer = value.get("tokenizer")
    with_ = f" with {tokenizer['name']} ({tokenizer['type']})" if tokenizer else ""
    if "corpus" in value:
        rows["made of"] = f"{value['corpus']}{with_}"
        if value["origin"]:
            rows["from"] = f"{value['origin']}  ({value['license'] or 'no licence stated'})"
    elif "inputs" in value:
        more = f" and {len(value['inputs']) - 3} more" if len(value["inputs"]) > 3 else ""
        rows["made of"] = printable(f"{', '.join(value['inputs'][:3])}{more}, by {value['command']}{with_}")
    return rows


def _named(entry: dict[str, Any]) -> str:
    return f"{entry['id']} {quoted(entry['text'], 40)}" if entry["text"] is not None else str(entry["id"])


def _num_full(value: dict[str, Any]) -> int | None:
    """Documents that hold tokens, where some hold none."""
    empty = sum(entry["num_documents"] for entry in value["histogram"] if not entry["to"])
    return value["num_documents"] - empty if empty else None


def _marks(bos: dict[str, Any] | None, eod: dict[str, Any] | None, num_full: int | None) -> dict[str, str]:
    """The rows of BOS and EOD; a token that could be both, and begins nothing, is not mentioned twice.

    Args:
        bos, eod: what was found of them.
        num_full: documents that hold tokens, where some hold none: shares are of these.
    """
    idle = bos is not None and eod is not None and bos["id"] == eod["id"] and not bos["num_documents"]
    return ({} if idle else {"BOS": _mark(bos, "begins", num_full)}) | {"EOD": _mark(eod, "ends", num_full)}


def _mark(entry: dict[str, Any] | None, verb: str, num_full: int | None) -> str:
    if entry is None:
        return f"no id {verb} more than half of the documents"
    lone = f"; is all of {entry['num_lone']:,}" if entry["num_lone"] else ""
    inside = f"; stands {entry['num_inside']:,} times inside documents" if entry["num_inside"] else ""
    share = f"{entry['share']:.2%}" + (f" of {num_full:,} with tokens" if num_full is not None else "")
    return f"{_named(entry)} {verb} {entry['num_documents']:,} documents ({share}){lone}{inside}"


def _others(value: dict[str, Any]) -> dict[str, str]:
    rows = {}
    if value["specials"]:
        shown = ", ".join(f"{_named(entry)} {entry['count']:,} times" for entry in value["specials"][:5])
        more = f" and {len(value['specials']) - 5} more" if len(value["specials"]) > 5 else ""
        rows["specials"] = f"{shown}{more}"
    if value["num_unknown"]:
        found = f"{value['num_unknown']:,} tokens stand for nothing in the vocabulary"
        rows["unknown"] = printable(f"{found}; run: dataprep verify {value['prefix']}")
    return rows


def _histogram(bins: list[dict[str, int]], width: int) -> Iterator[str]:
    """A bar for each bin, as long as its share of the documents."""
    documents, tokens = (sum(entry[key] for entry in bins) for key in ("num_documents", "num_tokens"))
    names = [f"{entry['from']:,} to {entry['to']:,}" if entry["to"] > 1 else str(entry["to"]) for entry in bins]
    first = max(len("tokens"), *map(len, names))
    second = max(len("documents"), len(f"{documents:,}"))
    room = max(10, width - first - second - 25)
    most = max(entry["num_documents"] for entry in bins)
    yield f"{'tokens':>{first}}  {'documents':>{second}}  {'share':>6}  of tokens"
    for name, entry in zip(names, bins, strict=True):
        bar = "#" * -(-entry["num_documents"] * room // most)
        share, of = entry["num_documents"] / documents, entry["num_tokens"] / tokens
        yield f"{name:>{first}}  {entry['num_documents']:>{second},}  {share:>6.1%}  {of:>9.1%}  {bar}".rstrip()


def _frequent(value: dict[str, Any]) -> Iterator[str]:
    yield f"{value['num_distinct']:,} different ids; the most frequent:"
    width = max((len(f"{entry['count']:,}") for entry in value["most_frequent"]), default=0)
    for entry in value["most_frequent"]:
        text = f"  {quoted(entry['text'], 40)}" if entry["text"] is not None else ""
        yield f"{entry['id']:>8}  {entry['count']:>{width},}  {entry['share']:>6.2%}{text}"


def _repeats(value: dict[str, Any]) -> Iterator[str]:
    if not value["num_documents"]:
        yield "no document repeats another"
        return
    yield (
        f"{value['num_documents']:,} documents ({value['share_documents']:.2%}) repeat an earlier one token for token, "
        f"and hold {value['num_tokens']:,} tokens ({value['share_tokens']:.2%}); the most repeated:"
    )
    for entry in value["most"]:
        text = f": {quoted(entry['beginning'])}" if entry["beginning"] is not None else ""
        yield f"{entry['num_copies']:>8,} times document {entry['document']} of {entry['num_tokens']:,} tokens{text}"


def _cuts(value: dict[str, Any], num_tokens: int) -> Iterator[str]:
    size = f"{value['seq_length']:,}"
    dropped, truncated = value["num_tokens_dropped"], value["num_tokens_truncated"]
    yield f"at a sequence length of {size}:"
    yield f"  packed by Megatron: {value['num_samples']:,} samples an epoch"
    yield f"  dropped at the end of an epoch: {dropped:,} tokens ({dropped / num_tokens:.4%})"
    yield f"  cut between samples: about {value['share_cut']:.2%} of the documents"
    yield f"  longer than {size}: {value['num_longer']:,} documents"
    yield f"  if they were truncated instead: {truncated:,} tokens lost ({truncated / num_tokens:.2%})"
    yield f"  if each document had a sample of its own: {value['share_padding']:.2%} padding"


def place(source: dict[str, Any] | None) -> str:
    """The file and record that a document came from, counted from 1."""
    if source is None:
        return "unknown"
    first, last = source["first_row"] + 1, source["last_row"] + 1
    record = f"record {first}" if first == last else f"one of records {first} to {last}"
    origin = f"  ({source['origin'] or source['url']})" if "url" in source else ""
    return printable(f"{source['file']} {record}{origin}")


def document(value: dict[str, Any]) -> str:
    """Which document it is."""
    source = f"  {place(value['source'])}" if "source" in value else ""
    return f"document {value['document']}: {value['num_tokens']:,} tokens{source}"


def text(value: dict[str, Any]) -> str:
    """The text of a document or a piece of one; its ids where there is none."""
    return str(value["text"]) if value["text"] is not None else " ".join(map(str, value["ids"]))


def sample(value: dict[str, Any]) -> Iterator[str]:
    """What `dataprep.training_sample` gives: each piece below a line that says where it is from."""
    for piece in value["pieces"]:
        first, last = piece["first_token"], piece["first_token"] + piece["num_tokens"] - 1
        whole = piece["num_tokens"] == piece["num_sequence_tokens"]
        part = "all" if whole else f"tokens {first} to {last} of"
        sequence = f", sequence {piece['sequence']}" if piece["sequence"] != piece["document"] else ""
        yield f"--- document {piece['document']}{sequence}: {part} {piece['num_sequence_tokens']} ---"
        yield text(piece)


def drawn(value: dict[str, Any]) -> str:
    """Which sample it is."""
    sampling = value["sampling"]
    epochs = f"{value['num_epochs']} epochs" if value["num_epochs"] > 1 else "one epoch"
    return (
        f"sample {value['sample']} of {value['of']:,} ({sampling['part']}, split {sampling['split']}, {epochs}, "
        f"sequence length {sampling['seq_length']}, seed {sampling['seed']})"
    )


def where(value: dict[str, Any]) -> Iterator[str]:
    """What `dataprep.where` gives: a line for each document."""
    for entry in value["documents"]:
        from_ = entry.get("input")
        which = f"document {from_['document']}" if from_ and from_["document"] is not None else "some document"
        taken = printable(f", from {which} of {from_['prefix']}") if from_ else ""
        yield f"document {entry['document']}: {place(entry['source'])}{taken}"
