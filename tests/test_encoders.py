"""`dataprep.encoders`: the engine's ids are the reference library's, for every type of tokenizer and any text.

The reference libraries are called directly (fixtures `trained` and `real`), not through our classes.
"""

from __future__ import annotations

import functools
import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.codepoints import LETTERS, MARKS, NORMALIZED, SYMBOLS, parse
from dataprep.definitions import define
from dataprep.encoders import Gigatoken, Tokenizers, _free_caches, open_engine, open_reference
from dataprep.errors import EncodeError, SpecError
from dataprep.parity import NASTY, gate, strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dataprep.batches import TokenBatch
    from dataprep.definitions import Definition
    from dataprep.encoders import Encoder

NUM_DOCUMENTS = 11_493
"""Documents in corpora/docs-68mb.jsonl.zst."""

LONG = [
    "a" * 50_000,
    "\u00e9" * 50_000,
    " " * 50_000,
    "x" + " " * 50_000 + "y",
    "\n" * 50_000,
    "\t \r\n" * 5_000,
    "ab" * 25_000,
    "7" * 50_000,
    "\u65e5" * 20_000,
    "\U0001f44d" * 10_000,
    "\u0301" * 10_000,
    "\x00" * 10_000,
    "-" * 50_000,
    "\u2581" * 10_000,
    "<|endoftext|>" * 1_000 + "<|end_of_text|></s>" * 1_000,
]

SPECIALS = [
    *["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<tool>", "<s>", "</s>", "<unk>"],
    *["<|endoftext", "|>", "<|", "<0x0A>", "<0x00>", "\u2581", "<|reserved_special_token_0|>"],
]
FRAGMENTS = [
    *SPECIALS,
    *[
        "\u0301",
        "e\u0301\u0323",
        "\u0915\u094d\u0937\u093f",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f",
        "\U0001f1e9\U0001f1ea",
    ],
    *[
        "\x00",
        "\r",
        "\r\n",
        "\n",
        "\t",
        " ",
        "  ",
        "\u00a0",
        "\u2028",
        "\u3000",
        "\x85",
        "\x0b",
        "\x1c",
        "\ufeff",
        "\u200b",
    ],
    *["'s", "'S", "'\u017f", "'ll", "'LL", "'Ve", "\u2019s", "don't", "\u212a", "\u0130"],  # long s, Kelvin, dotted I
    *["\u0378", "\U000e0080", "\U0010ffff", "\ufffe", "\ue000"],  # unassigned, not a character, private
    *[
        "1",
        "12",
        "1234",
        "\u00bd",
        "\u0664",
        "\u2167",
        "\U0001d7d8",
        "A",
        "b",
        "\u01c5",
        "\u02b0",
        "\u05d0",
        "\u65e5",
        "_",
        "-",
        "==",
        ".",
    ],
]
NEWER = "".join(map(chr, parse(" ".join([LETTERS, MARKS, SYMBOLS, NORMALIZED]))))
ANY_TEXT = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
        st.sampled_from(NEWER),
        st.sampled_from(FRAGMENTS),
        st.builds(lambda piece, count: piece * count, st.sampled_from(FRAGMENTS), st.integers(2, 40)),
    ),
    max_size=12,
).map("".join)
ANY_TEXTS = st.lists(ANY_TEXT, min_size=1, max_size=6)


def _open(definition: Definition, special_text: str = "encode", engine: str = "gigatoken") -> Encoder:
    return open_engine(definition, special_text, engine, open_reference(definition, special_text))


@functools.cache
def _engine(type_: str, path: Path, special_text: str = "encode") -> Gigatoken:
    """One engine for many examples, as in a run: what it remembers of one text must not show in the next."""
    engine = _open(define(type_, path), special_text)
    assert isinstance(engine, Gigatoken)
    return engine


def _lists(tokens: TokenBatch) -> list[list[int]]:
    assert tokens.ids.dtype == np.uint32
    assert tokens.offsets.dtype == np.int64
    assert tokens.offsets[0] == 0
    assert tokens.offsets[-1] == len(tokens.ids)
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]


def _assert_equal(found: list[list[int]], expected: list[list[int]], texts: list[str]) -> None:
    assert len(found) == len(expected) == len(texts)
    for mine, right, text in zip(found, expected, texts, strict=True):
        if mine != right:  # a plain assert would print 50,000 ids
            at = next(
                (i for i, (a, b) in enumerate(zip(mine, right, strict=False)) if a != b), min(len(mine), len(right))
            )
            pytest.fail(f"{text[:80]!r}: at token {at}: {mine[at : at + 8]}, expected {right[at : at + 8]}")


@given(texts=ANY_TEXTS)
@example(texts=["Hello  world", "a   b", " \u2581 x"])
@example(texts=["it'\u017f", "\rx\r\n\r", ""])
def test_engine_equals_reference_library_on_any_text(trained, texts):
    _assert_equal(_lists(_engine(trained.type, trained.path).encode(strings(texts))), trained.ids(texts), texts)


@given(texts=ANY_TEXTS)
@example(texts=["<|endoftext|>", "<tool>", "a<|end_of_text|>b</s>", "<s>"])
def test_plain_special_text_equals_reference_library_and_gives_no_special_id(trained, texts):
    definition = define(trained.type, trained.path)
    expected = trained.ids(texts, plain=True)
    _assert_equal(_lists(_engine(trained.type, trained.path, "plain").encode(strings(texts))), expected, texts)
    _assert_equal(_lists(open_reference(definition, "plain").encode(strings(texts))), expected, texts)
    assert not {i for ids in expected for i in ids} & set(definition.specials.values())


@pytest.mark.parametrize("texts", [NASTY, LONG, SPECIALS, FRAGMENTS], ids=["nasty", "long", "specials", "fragments"])
def test_engine_equals_reference_library_on_nasty_text(trained, texts):
    fresh = _open(define(trained.type, trained.path))
    _assert_equal(_lists(fresh.encode(strings(texts))), trained.ids(list(texts)), list(texts))


def test_engine_and_reference_encoder_equal_reference_library_on_text_that_uses_the_merges(trained, written_text):
    """Random text hardly meets a merge: a wrong first line of merges.txt went unseen without this."""
    definition, texts = define(trained.type, trained.path), [*written_text, "\n".join(written_text)]
    expected = trained.ids(texts)
    for encoder in (_open(definition), open_reference(definition, "encode")):
        _assert_equal(_lists(encoder.encode(strings(texts))), expected, texts)
    assert len({i for ids in expected for i in ids}) > 300


@given(texts=ANY_TEXTS)
def test_reference_encoder_is_the_reference_library(trained, texts):
    definition = define(trained.type, trained.path)
    _assert_equal(_lists(_reference(definition).encode(strings(texts))), trained.ids(texts), texts)


@functools.cache
def _opened(type_: str, path: Path):
    return open_reference(define(type_, path), "encode")


def _reference(definition):
    return _opened(definition.type, definition.path)


@given(texts=ANY_TEXTS)
@example(texts=list(NASTY))
def test_real_tokenizers_equal_the_reference_library_on_any_text(real, texts):
    _assert_equal(_lists(_engine(real.type, real.path).encode(strings(texts))), real.ids(texts), texts)


@given(texts=ANY_TEXTS)
@pytest.mark.slow
def test_real_tokenizers_in_plain_mode_equal_the_reference_library_on_any_text(real, texts):
    found = _lists(_engine(real.type, real.path, "plain").encode(strings(texts)))
    _assert_equal(found, real.ids(texts, plain=True), texts)
    assert not {i for ids in found for i in ids} & set(define(real.type, real.path).specials.values())


@pytest.mark.parametrize("texts", [LONG, FRAGMENTS], ids=["long", "fragments"])
def test_real_tokenizers_equal_the_reference_library_on_nasty_text(real, texts):
    _assert_equal(_lists(_engine(real.type, real.path).encode(strings(texts))), real.ids(list(texts)), texts)


def _blocks(path: Path, num_bytes: int = 8 << 20) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"):
            block.append(json.loads(line)["text"])
            size += len(line)
            if size >= num_bytes:
                yield block
                block, size = [], 0
    yield block


@pytest.mark.slow
def test_real_tokenizers_equal_the_reference_library_on_documents_of_the_corpus(real, assets, request):
    """Every document with one of them, a quarter each: of all with all, none differed, in 80 s."""
    engine = _open(define(real.type, real.path))
    share = ["gpt2-hf", "gpt2-pair", "llama3", "llama2"].index(request.node.callspec.params["real"])
    count = 0
    for block in _blocks(assets / "corpora" / "docs-68mb.jsonl.zst"):
        texts = block[share::4]
        _assert_equal(_lists(engine.encode(strings(texts))), real.ids(texts), texts)
        count += len(block)
    assert count == NUM_DOCUMENTS


@pytest.mark.slow
def test_large_documents_are_cut_where_it_makes_no_difference(real, assets):
    """Half of the corpus again, joined to documents of 4 to 5 MB: gigatoken cuts them, unless told to work alone."""
    engine = _open(define(real.type, real.path))
    for texts in islice(_blocks(assets / "corpora" / "docs-68mb.jsonl.zst", 5 << 20), 0, None, 2):
        large = strings(["<|endoftext|>".join(texts), " ".join(texts)])
        cut = _lists(engine.encode(large))
        engine._byte_level = False  # one piece
        _assert_equal(cut, _lists(engine.encode(large)), ["joined", "joined by blanks"])
        engine._byte_level = True


def test_a_batch_that_starts_inside_its_buffer_is_encoded_from_there(trained):
    """`TextBatch.offsets[0]` may be > 0: Arrow slices are passed on without a copy."""
    batch = strings(["skipped", "one two", "", "three  "])
    tail = type(batch)(batch.values, batch.offsets[1:], first_row=1, num_rows=3)
    texts = ["one two", "", "three  "]
    assert _lists(_engine(trained.type, trained.path).encode(tail)) == trained.ids(texts)
    assert _lists(_opened(trained.type, trained.path).encode(tail)) == trained.ids(texts)


def test_an_empty_batch_gives_an_empty_batch(trained):
    assert _lists(_engine(trained.type, trained.path).encode(strings([]))) == []
    assert _lists(_opened(trained.type, trained.path).encode(strings([]))) == []


def test_encoders_write_no_bos(bos_bpe):
    """The post-processor's BOS is the policy's business, not the encoder's."""
    bos = define(bos_bpe.type, bos_bpe.path).token_id("<|begin_of_text|>")
    for encoder in (_engine(bos_bpe.type, bos_bpe.path), _opened(bos_bpe.type, bos_bpe.path)):
        assert bos not in encoder.encode(strings(["a", "", "b c"])).ids


CUTS = {
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 20},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 258,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    },
}


@pytest.mark.parametrize("keys", [("truncation",), ("padding",), ("truncation", "padding")])
@pytest.mark.parametrize("special_text", ["encode", "plain"])
def test_truncation_and_padding_of_a_tokenizer_json_are_not_obeyed(make_tokenizer, keys, special_text):
    import tokenizers

    folder = make_tokenizer(**{key: CUTS[key] for key in keys})
    obeying = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(
        "abcdefgh", add_special_tokens=False
    )
    assert obeying.ids != list(b"abcdefgh")  # the test's tokenizer does cut or pad
    definition = define("HuggingFaceTokenizer", folder)
    for encoder in (_open(definition, special_text), open_reference(definition, special_text)):
        assert _lists(encoder.encode(strings(["abcdefgh", "", "x"]))) == [list(b"abcdefgh"), [], [120]]


def test_plain_special_text_keeps_the_ids_of_other_added_tokens(make_tokenizer):
    """Without its special tokens, `tokenizers` numbers the added ones anew: `<tool>` would be 256, which is `<bos>`."""
    definition = define("HuggingFaceTokenizer", make_tokenizer())
    for encoder in (_open(definition, "plain"), open_reference(definition, "plain")):
        assert _lists(encoder.encode(strings(["a<tool>", "<eod>"]))) == [[97, 259], list(b"<eod>")]


def test_added_tokens_that_the_reference_library_numbers_otherwise_are_a_spec_error(make_tokenizer, byte_json):
    """BOS and EOD come from the file: `<eod>` would be written as 300, and the library would never give that id."""
    added = [{**token, "id": 300} if token["content"] == "<eod>" else token for token in byte_json["added_tokens"]]
    folder = make_tokenizer(added_tokens=added)
    with pytest.raises(SpecError, match=r"the added token '<eod>' the id 300, the tokenizers library \d+: "):
        open_reference(define("HuggingFaceTokenizer", folder), "encode")


def test_auto_falls_back_to_the_reference_and_says_so(make_tokenizer, monkeypatch, caplog):
    def refuse(self: Gigatoken) -> None:
        raise EncodeError("gigatoken cannot open this tokenizer: no")

    monkeypatch.setattr(Gigatoken, "_open", refuse)
    definition = define("HuggingFaceTokenizer", make_tokenizer())
    assert isinstance(_open(definition, engine="auto"), Tokenizers)
    assert "the reference encodes instead" in caplog.text
    with pytest.raises(EncodeError, match="cannot open this tokenizer"):
        _open(definition)


SENTENCEPIECE_MODELS = {
    "unigram": {"model_type": "unigram"},
    "no byte fallback": {"byte_fallback": False},
    "user-defined symbols": {"user_defined_symbols": ["<x>", "lazy dog"]},
    "no dummy prefix": {"add_dummy_prefix": False},
    "normalized": {"normalization_rule_name": "nmt_nfkc"},
    "whitespace removed": {"remove_extra_whitespaces": True},
    "control symbols": {"control_symbols": ["<x>"]},
    "no BOS, no EOS": {"bos_id": -1, "eos_id": -1},
}


@pytest.mark.parametrize("name", SENTENCEPIECE_MODELS)
def test_any_sentencepiece_model_is_encoded_as_the_library_does_or_the_gate_refuses(tmp_path, name):
    """Where gigatoken does not know a kind of model, `auto` takes the reference; where it errs, the gate stops."""
    import sentencepiece

    lines = [f"the quick brown fox  jumps   over the lazy dog {i} caf\u00e9 \ufb01n" for i in range(300)]
    options = {
        "model_type": "bpe",
        "byte_fallback": True,
        "allow_whitespace_only_pieces": True,
        "remove_extra_whitespaces": False,
    }
    fixed = {"normalization_rule_name": "identity", "vocab_size": 340, "hard_vocab_limit": False, "minloglevel": 5}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, **(options | fixed | SENTENCEPIECE_MODELS[name])
    )
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.getvalue())
    definition = define("Llama2Tokenizer", path)
    engine, reference = _open(definition, engine="auto"), open_reference(definition, "encode")
    texts = [*NASTY, *FRAGMENTS, "a<x>b", "the lazy dogs", "lazy dog<x>", "  lazy  dog ", *lines[:3]]
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    equal = _lists(engine.encode(strings(texts))) == library.encode(texts)
    if not equal:
        with pytest.raises(EncodeError, match=r"^the built-in string "):
            gate(engine, reference, None)
    assert equal or name in ("normalized", "whitespace removed")


def test_reference_engine_is_the_reference(trained):
    definition = define(trained.type, trained.path)
    assert _open(definition, engine="reference").name == open_reference(definition, "encode").name != "gigatoken"


def test_threads_share_an_engine(trained, written_text):
    """Each has a cache of its own in it; opened anew beneath them, it goes on."""
    definition = define(trained.type, trained.path)
    reference = open_reference(definition, "encode")
    engine = Gigatoken(definition.text("encode"), reference, memory=1, threads=4)
    engine._renew_bytes = 10_000
    batches = [strings(written_text[i::8] * 5) for i in range(6)] + [strings(["a few"]), strings(["words", "", "b"])]
    expected = [reference.encode(batch).ids.tolist() for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: engine.encode(batches[i % 8]).ids.tolist(), range(64)))
    assert found == expected * 8


@pytest.mark.parametrize(("given", "caches"), [("1", 1), ("7", 7), ("0", None), ("", None), ("many", None)])
def test_as_many_threads_encode_at_once_as_the_pool_has_caches(monkeypatch, given, caches):
    """A thread that finds no cache free spins; none at all would wait for ever."""
    monkeypatch.setenv("RAYON_NUM_THREADS", given)
    assert _free_caches.__wrapped__()._value == (caches or len(os.sched_getaffinity(0)))


def test_sentencepiece_waits_for_no_cache(spm):
    """It has none: a site's RAYON_NUM_THREADS=1 must not leave it one thread."""
    definition = define(spm.type, spm.path)
    engine = _open(definition)
    engine._free = threading.BoundedSemaphore(1)
    with engine._free:
        assert _lists(engine.encode(strings(["a b"] * 9))) == spm.ids(["a b"] * 9)


@pytest.mark.slow
def test_batches_and_documents_of_several_slices_equal_the_reference_library(trained, written_text):
    """Above 2 MiB gigatoken cuts a document; special strings and runs of blanks must not notice."""
    unit = " ".join(written_text) + "\n\n  <|endoftext|>  </s>\t\u00e9\u65e5" + " " * 50 + "<|end_of_text|>"
    large = unit * ((5 << 20) // len(unit.encode()))
    texts = [large, "", "a", *[unit] * 50, large[: len(large) // 2], "b"]
    definition = define(trained.type, trained.path)
    reference = open_reference(definition, "encode")
    engine = open_engine(definition, "encode", "gigatoken", reference, threads=2)
    _assert_equal(_lists(engine.encode(strings(texts))), _lists(reference.encode(strings(texts))), texts)


def test_an_engine_that_opens_itself_anew_gives_the_same_ids(bpe, monkeypatch):
    """What keeps memory bounded must not show in the ids."""
    from dataprep import encoders

    monkeypatch.setattr(encoders, "RENEW_BYTES", 0)
    opened = []
    original = Gigatoken._open
    monkeypatch.setattr(Gigatoken, "_open", lambda self: (opened.append(1), original(self))[1])
    definition = define(bpe.type, bpe.path)
    engine = Gigatoken(definition.text("encode"), open_reference(definition, "encode"), memory=1)
    for _ in range(3):
        _assert_equal(_lists(engine.encode(strings(NASTY))), bpe.ids(list(NASTY)), list(NASTY))
    assert len(opened) == 4


def _broken_models() -> dict[str, Callable[[dict], dict]]:
    return {
        "no model type": lambda c: {**c, "model": {}},
        "merge of unknown tokens": lambda c: {**c, "model": {**c["model"], "merges": ["q\u0100 z"]}},
        "unknown normalizer": lambda c: {**c, "normalizer": {"type": "Nonsense"}},
        "merges not a list": lambda c: {**c, "model": {**c["model"], "merges": 3}},
    }


@pytest.mark.parametrize("name", _broken_models())
def test_what_the_reference_library_refuses_is_a_spec_error(make_tokenizer, byte_json, name):
    folder = make_tokenizer(**_broken_models()[name](byte_json))
    with pytest.raises(SpecError):
        open_reference(define("HuggingFaceTokenizer", folder), "encode")
