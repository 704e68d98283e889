"""Ids back to text, whatever the ids are."""

from __future__ import annotations

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
