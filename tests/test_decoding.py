"""Ids back to text, whatever the ids are."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dataprep.definitions import define, identify
from dataprep.inspection.decoding import Decoder
from dataprep.parity import NASTY
from dataprep.specs import TokenizerSpec


@pytest.fixture
def decoder(trained):
    return Decoder(define(trained.type, trained.path))


def test_text_comes_back_with_special_tokens_as_they_are_written(trained, decoder):
    """All but what the tokenizer itself cannot tell apart: SentencePiece's dummy prefix."""
    texts = [text for text in NASTY if "\u2581" not in text]
    for text, ids in zip(texts, trained.ids(texts), strict=True):
        assert decoder.text(ids) == text
    assert decoder.text([define(trained.type, trained.path).vocab_size - 1]) != ""
    assert decoder.text([]) == ""


def test_bos_and_eod_are_shown(trained, decoder):
    identity = identify(TokenizerSpec(name="x", type=trained.type, path=str(trained.path)), trained.path)
    ids = [*([identity.bos_id] if identity.adds_bos else []), *trained.ids(["two  words"])[0], identity.eod_id]

    assert decoder.text(ids) == f"{identity.bos_text if identity.adds_bos else ''}two  words{identity.eod_text}"


def test_what_is_no_token_is_shown_as_its_number(trained, decoder):
    ids = trained.ids(["word"])[0]

    for alien in (-1, 70_000, 2**40):
        assert decoder.text([alien, *ids, alien]) == f"<{alien}>word<{alien}>"
        assert decoder.piece(alien) == f"<{alien}>"


def test_a_gap_in_the_vocabulary_is_no_token(make_tokenizer, byte_json):
    vocab = {text: number for text, number in byte_json["model"]["vocab"].items() if number != 200}
    folder = make_tokenizer(
        eos=None, added_tokens=[], post_processor=None, model={**byte_json["model"], "vocab": vocab}
    )

    assert Decoder(define("HuggingFaceTokenizer", folder)).text([104, 200, 105]) == "h<200>i"


def test_a_piece_keeps_the_space_before_it(trained, decoder):
    first, second, *_ = trained.ids(["the the"])[0], trained.ids([" the"])[0]
    last = second[-1]

    assert decoder.piece(last).strip() in "the"
    assert "".join(decoder.piece(number) for number in first).lstrip(" ") == "the the"


def test_many_texts_are_what_each_is(trained, decoder):
    """Any tokens in any order: cut letters, special tokens, bytes that are no UTF-8."""
    random = np.random.default_rng(1)
    size = define(trained.type, trained.path).vocab_size
    documents = [np.arange(size), *(random.integers(0, size, length) for length in (0, 1, 2, 3, 5, 100, 10_000))]

    assert decoder.texts(documents) == [decoder.text(ids.tolist()) for ids in documents]


def test_an_added_token_of_characters_that_are_no_bytes(make_tokenizer, byte_json):
    added = {"id": 256, "content": "<a \u4e2d\u0120>", "special": True, "normalized": False}
    added |= {"single_word": False, "lstrip": False, "rstrip": False}
    folder = make_tokenizer(eos=None, added_tokens=[added], post_processor=None, decoder=byte_json["pre_tokenizer"])
    decoder = Decoder(define("HuggingFaceTokenizer", folder))
    ids = [104, 256, 105]

    assert decoder.texts([np.array(ids)]) == [decoder.text(ids)]


# --- pieces


def test_pieces_joined_are_the_text(trained, decoder):
    """Token by token, also where a token is a part of a character, and where two pages of a document meet."""
    texts = [text for text in NASTY if "\u2581" not in text]
    for text, ids in zip(texts, trained.ids(texts), strict=True):
        pieces = decoder.pieces(ids)
        assert len(pieces) == len(ids)
        assert b"".join(pieces).decode() == text
        for cut in {1, len(ids) // 2, max(0, len(ids) - 1)}:
            assert [*decoder.pieces(ids[:cut]), *decoder.pieces(ids[cut:], not cut)] == pieces


def test_pieces_of_any_tokens_are_their_text(trained, decoder):
    """Bytes that are no UTF-8 read as one replacement character, or one for each: libraries differ in that."""
    random = np.random.default_rng(2)
    size = define(trained.type, trained.path).vocab_size
    for length in (1, 2, 3, 50, 2000):
        ids = random.integers(-1, size + 1, length).tolist()
        pieces = decoder.pieces(ids)
        assert len(pieces) == length
        found, text = b"".join(pieces).decode("utf-8", "replace"), decoder.text(ids)
        assert re.sub("\ufffd+", "\ufffd", found) == re.sub("\ufffd+", "\ufffd", text)


def test_a_character_of_several_tokens_is_shared_by_them(make_tokenizer, byte_json):
    decoder = Decoder(define("HuggingFaceTokenizer", make_tokenizer()))

    assert decoder.pieces([*"a\u4e2d".encode(), 257, 1000]) == [b"a", b"\xe4", b"\xb8", b"\xad", b"<eod>", b"<1000>"]
    assert decoder.has(257)
    assert not decoder.has(1000)


LLAMA = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


@pytest.mark.parametrize(
    ("tokenizer_decoder", "tokens", "expected"),
    [
        (
            {"type": "Sequence", "decoders": LLAMA},
            ["\u2581", "\u2581two", "<0xE4>", "<0xB8>", "<0xAD>", "\u2581x"],
            [b"", b" two", b"\xe4", b"\xb8", b"\xad", b" x"],
        ),
        (
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
            ["\u2581two", "\u2581words", "<0xE4>"],
            [b"two", b" words", b"<0xE4>"],
        ),
        (
            {"type": "WordPiece", "prefix": "##", "cleanup": True},
            ["two", "##fold", "words", "."],
            [b"two", b"fold", b" words", b"."],
        ),
        (None, ["two", "words"], [b"two", b" words"]),
    ],
    ids=["as Llama-2", "Metaspace", "WordPiece", "no decoder"],
)
def test_pieces_by_the_decoders_of_other_tokenizers(make_tokenizer, byte_json, tokenizer_decoder, tokens, expected):
    vocab = {text: number for number, text in enumerate(dict.fromkeys(tokens))}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[0]}
    folder = make_tokenizer(eos=None, added_tokens=[], post_processor=None, decoder=tokenizer_decoder, model=model)
    decoder = Decoder(define("HuggingFaceTokenizer", folder))
    ids = [vocab[token] for token in tokens]

    assert decoder.pieces(ids) == expected
    assert b"".join(expected).decode() == decoder.text(ids)
