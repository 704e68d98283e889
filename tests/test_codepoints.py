"""`dataprep.codepoints`: the tables hold every code point on which engine and reference differ, and are found in text.

The engine is asked without its safety net (`_encode_batch`), so that the difference shows.
"""

from __future__ import annotations

import itertools
import json
import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import codepoints
from dataprep.batches import TextBatch
from dataprep.codepoints import LETTERS, MARKS, NORMALIZED, SYMBOLS, Unsettled, parse
from dataprep.definitions import define
from dataprep.encoders import Gigatoken, Tokenizers, open_engine, open_reference
from dataprep.parity import strings

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE, BLANKS = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"
OTHERS = r" ?[^\s\p{L}\p{N}]+"
SCHEMES = {
    "gpt2": ([], False),
    "olmo3": ([rf"{CONTRACTIONS}|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{OTHERS}[\r\n]*|{BLANKS}"], False),
    "cl100k": (
        [rf"{CONTRACTIONS}|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{OTHERS}[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
        False,
    ),
    "cl100k, possessive": (
        [
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
            r"|\s+(?!\S)|\s+"
        ],
        False,
    ),
    "qwen2": ([rf"{CONTRACTIONS}|{BEFORE}\p{{L}}+|\p{{N}}|{OTHERS}[\r\n]*|{BLANKS}"], True),
    "qwen3.5": (
        [rf"{CONTRACTIONS}|{BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}"],
        True,
    ),
    "o200k": (
        [
            rf"{BEFORE}{UPPER}*{LOWER}+{CONTRACTIONS}?|{BEFORE}{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}"
            rf"|{OTHERS}[\r\n/]*|{BLANKS}"
        ],
        False,
    ),
    "nemotron": (
        [rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}|{OTHERS}[\r\n/]*|{BLANKS}"],
        False,
    ),
    "deepseek": (
        [
            r"\p{N}{1,3}",
            "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        ],
        False,
    ),
}
"""Every scheme of gigatoken 0.10 that a tokenizer.json can ask for: the expressions it splits by; NFC or not."""

CLASSES = ["A{0}A", "1{0}1", ":{0}:", "\n{0}\n", ":{0}A", "1{0}A", "{0}'sA", " {0}{0} "]
ORDERS = ["A\u0301{0}A", "A{0}\u0323A", "A{0}\u0334A", "{0}\u0300\u0301", "a\u0300{0}\u0323", "\u1100{0}\u11a8"]


def _tokenizer_json(scheme: str, byte_json: dict) -> str:
    """Bytes, and merges of a few ASCII characters with every other byte: what was split apart does not merge."""
    expressions, nfc = SCHEMES[scheme]
    characters = {number: text for text, number in byte_json["model"]["vocab"].items() if number < 256}
    vocab = {text: number for number, text in characters.items()}
    merges = []
    for ascii_byte, other in itertools.product(b"A1:\n' ", range(0x80, 0xF5)):
        pair = (ascii_byte, other) if other >= 0xC2 else (other, ascii_byte)
        merges.append([characters[byte] for byte in pair])
        vocab.setdefault("".join(merges[-1]), len(vocab))
    splits = [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False} for text in expressions
    ]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not splits}
    changes = {
        "added_tokens": [],
        "post_processor": None,
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, last]} if splits else last,
        "model": {**byte_json["model"], "vocab": vocab, "merges": merges},
    }
    return json.dumps({**byte_json, **changes})


def _differing(text: str, reference: Tokenizers, words: list[tuple[int, ...]], shapes: list[str]) -> set[int]:
    """The numbers of the words that engine and reference encode differently in one of the shapes."""
    engine = Gigatoken(text, reference)
    found = set()
    for start in range(0, len(words), 2_000):
        part = words[start : start + 2_000]
        batch = strings([shape.format("".join(map(chr, word))) for word in part for shape in shapes])
        mine, right = engine._encode_batch(batch), reference.encode(batch)
        alike = mine.lengths == right.lengths
        numbers = np.repeat(np.flatnonzero(alike), mine.lengths[alike])
        other = mine.ids[np.repeat(alike, mine.lengths)] != right.ids[np.repeat(alike, right.lengths)]
        for number in np.concatenate([np.flatnonzero(~alike), numbers[other]]):
            found.add(start + int(number) // len(shapes))
    return found


def _code_points(stop: int) -> list[int]:
    return [code for code in range(0x80, stop) if not 0xD800 <= code < 0xE000]


FEW = ("cl100k",)


@pytest.mark.parametrize("scheme", [s if s in FEW else pytest.param(s, marks=pytest.mark.slow) for s in SCHEMES])
def test_engine_and_reference_differ_only_on_the_tables(byte_json, scheme):
    """A part of what the slow test tries: all of the tables, and 1,500 others."""
    text = _tokenizer_json(scheme, byte_json)
    table = set(Unsettled(text).code_points)
    others = random.Random(0).sample(sorted(set(_code_points(0x40000)) - table), 1500)
    words = [(code,) for code in sorted(table | set(others))]
    found = {words[i][0] for i in _differing(text, Tokenizers(text), words, CLASSES)}
    assert found <= table
    assert set(parse(LETTERS)) <= found  # the probe sees, and no table says too much about letters


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "half"), [("gpt2", 0), ("o200k", 1)])
def test_engine_and_reference_differ_only_on_the_tables_of_all_code_points(byte_json, scheme, half):
    """Each on every other row of 16; all were tried with all schemes when the tables were made, in 60 s each."""
    text = _tokenizer_json(scheme, byte_json)
    codes = [*_code_points(0x33500), *range(0xE0000, 0xE0200), 0x10FFFF]
    words = [(code,) for code in codes if code // 16 % 2 == half]
    shapes = [*CLASSES, *ORDERS] if SCHEMES[scheme][1] else CLASSES
    found = {words[i][0] for i in _differing(text, Tokenizers(text), words, shapes)}
    assert found <= set(Unsettled(text).code_points)


@pytest.mark.slow
def test_what_normalization_composes_differs_only_on_the_tables(byte_json):
    """The parts of every composition known to this Python, and to Unicode 16, alone and together."""
    text = _tokenizer_json("qwen2", byte_json)
    table = set(Unsettled(text).code_points)
    parts = [
        tuple(int(part, 16) for part in unicodedata.decomposition(chr(code)).split())
        for code in range(0x110000)
        if unicodedata.decomposition(chr(code)) and not unicodedata.decomposition(chr(code)).startswith("<")
    ]
    newer = [(0x105D2, 0x307), (0x11382, 0x113C9), (0x113C2, 0x113C2), (0x1611E, 0x1611F), (0x16D63, 0x16D67)]
    words = [*parts, *newer]
    found = [words[i] for i in _differing(text, Tokenizers(text), words, ["{0}", "A{0}\u0323", "{0}{0}"])]
    assert set(newer) <= set(found)
    assert [word for word in found if not table & set(word)] == []


KINDS = {
    "letters": ("", LETTERS),
    "marks": (r'"Regex":"\\p{M}"', f"{LETTERS} {MARKS}"),
    "symbols": (r'"Regex":"[\\p{P}\\p{S}]"', f"{LETTERS} {SYMBOLS}"),
    "normalized": ('"normalizer":{"type":"NFC"}', f"{LETTERS} {NORMALIZED}"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_is_held_to_the_tables_it_asks_for(kind):
    text, ranges = KINDS[kind]
    assert Unsettled(text).code_points == parse(ranges)


EVERYTHING = Unsettled(" ".join(text for text, _ in KINDS.values()))
LETTER = st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from([*map(chr, EVERYTHING.code_points), "a"]))


@given(texts=st.lists(st.text(LETTER, max_size=30), max_size=8), chunk=st.integers(1, 40), skip=st.integers(0, 3))
def test_finds_the_documents_that_hold_one(texts, chunk, skip):
    batch = strings(texts)
    batch = TextBatch(batch.values, batch.offsets[skip:], 0, 0) if skip < len(batch) else batch
    before, codepoints.CHUNK = codepoints.CHUNK, chunk
    try:
        found = EVERYTHING.documents(batch).tolist()
    finally:
        codepoints.CHUNK = before
    table = {chr(code) for code in EVERYTHING.code_points}
    texts = texts[skip:] if skip < len(texts) else texts
    assert found == [i for i, text in enumerate(texts) if table & set(text)]


@pytest.mark.parametrize("filler", ["a", "\u0915", "\u1e00", "\ua000", "\U0001f44d", "\u07ff"])
def test_finds_one_in_text_of_any_script(filler):
    """Many letters that begin alike are searched another way than few."""
    for code in EVERYTHING.code_points:
        batch = strings([filler * 50, filler * 20 + chr(code) + filler * 20, ""])
        assert EVERYTHING.documents(batch).tolist() == [1], hex(code)


def test_a_document_that_holds_one_is_the_references(bos_bpe):
    """The letter of Unicode 17 that gave this away: `:A` is one token, unless the letter before takes the `:`."""
    definition = define(bos_bpe.type, bos_bpe.path)
    reference = open_reference(definition, "encode")
    engine = open_engine(definition, "encode", "gigatoken", reference)
    assert isinstance(engine, Gigatoken)
    newer = [f"the {chr(code)} the quick {chr(code)}:the" for code in (0x323B0, 0x88F, 0xA7F1)]
    texts = ["before", newer[0], "", "between", newer[1], newer[2]]
    for some in (texts, newer[:1], [*texts, "x" * 100_000]):  # few small documents take another way
        mine, right = engine.encode(strings(some)), reference.encode(strings(some))
        assert mine.ids.tolist() == right.ids.tolist()
        assert mine.ids.dtype == np.uint32
        assert mine.offsets.tolist() == right.offsets.tolist()
        assert mine.offsets.dtype == np.int64
