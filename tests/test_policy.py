"""`dataprep.policy`: what is written around and instead of the tokens, id by id.

The tokenizer of the exact cases is `byte_json`: ids are bytes, 256 `<bos>`, 257 `<eod>`, 258 `<pad>`, 259 `<tool>`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dataprep
from dataprep.batches import RECORD_BYTES, Reject, TextBatch, TokenBatch
from dataprep.definitions import define
from dataprep.encoders import open_reference
from dataprep.errors import EncodeError, SpecError
from dataprep.parity import strings
from dataprep.policy import choose, finish
from dataprep.specs import ReaderSpec, Recipe, TokenizerIdentity, TokenPolicy

if TYPE_CHECKING:
    from pathlib import Path

BOS, EOD = 256, 257
TEXTS = ["ab", "", "x<eod>y", "<tool>", "<bos>"]


def _recipe(policy: dict | None = None, vocab_size: int = 260, adds_bos: bool = True, **changes) -> Recipe:
    identity = TokenizerIdentity(
        name="t", type="HuggingFaceTokenizer", path="", files={}, vocab_size=vocab_size, bos_id=BOS, bos_text="<bos>",
        eod_id=EOD, eod_text="<eod>", adds_bos=adds_bos,
    )  # fmt: skip
    return Recipe(
        corpus="c",
        reader=ReaderSpec(),
        files=(),
        tokenizer=identity.model_copy(update=changes),
        policy=TokenPolicy(**(policy or {})),
    )


def _documents(prefix: str) -> list[list[int]]:
    """Every document between two boundaries of the index, as Megatron would see it."""
    pair = dataprep.open_dataset(prefix)
    return [pair.document(i).tolist() for i in range(pair.num_documents)]


def _tool_free(special_text: str) -> dict[str, list[int]]:
    """What TEXTS are without BOS and EOD, written out by hand."""
    if special_text == "plain":
        return {"ab": [97, 98], "": [], "x<eod>y": list(b"x<eod>y"), "<tool>": [259], "<bos>": list(b"<bos>")}
    return {"ab": [97, 98], "": [], "x<eod>y": [120, 257, 121], "<tool>": [259], "<bos>": [256]}


GRID = list(
    itertools.product(("auto", "always", "never"), ("append", "none"), ("drop", "keep"), ("encode", "plain", "reject"))
)


@pytest.mark.parametrize("adds_bos", [True, False], ids=["bos-tokenizer", "plain-tokenizer"])
@pytest.mark.parametrize(("bos", "eod", "empty", "special_text"), GRID)
def test_every_policy_writes_exactly_these_ids(
    make_tokenizer, byte_json, write_texts, tmp_path, adds_bos, bos, eod, empty, special_text
):
    changes = {} if adds_bos else {"post_processor": None}
    tokenizer = make_tokenizer(**changes)
    hints = {"eos_token": "<eod>", "bos_token": "<bos>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(hints))
    settings = [
        f"policy.bos={bos}",
        f"policy.eod={eod}",
        f"policy.empty={empty}",
        f"policy.special_text={special_text}",
    ]
    result = dataprep.run(
        str(write_texts(TEXTS)), str(tokenizer), tmp_path / "out", settings=[*settings, "runtime.max_rejects=1"]
    )

    before = [BOS] if bos == "always" or (bos == "auto" and adds_bos) else []
    after = [EOD] if eod == "append" else []
    ids = _tool_free(special_text)
    gone = {"x<eod>y", "<bos>"} if special_text == "reject" else set()
    expected = []
    for text in TEXTS:
        if text in gone or (text == "" and empty == "drop"):
            continue
        # An empty document that is kept: BOS and EOD where a BOS is written, else a boundary without a sequence.
        expected.append(before + ids[text] + after if text or before else [])
    assert _documents(result.prefix) == expected

    counts = result.manifest.counts
    assert counts.num_records == 5
    assert counts.num_documents == len(expected)
    assert counts.num_sequences == sum(1 for document in expected if document)
    assert counts.num_tokens == sum(map(len, expected))
    assert counts.num_empty == 1
    assert counts.specials == {"<bos>": 1, "<eod>": 1}
    assert counts.rejects == ({"special-text": 2} if gone else {})
    assert _kept_aside(tmp_path / "out") == ([(3, "x<eod>y"), (5, "<bos>")] if gone else [])


def _kept_aside(output: Path) -> list[tuple[int, str]]:
    lines = [
        json.loads(line)
        for path in sorted(output.glob("work/*/rejects/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert all(line["reason"] == "special-text" and line["file"] == "corpus.jsonl" for line in lines)
    return [(line["record"], line["content"]) for line in lines]


@pytest.mark.parametrize("special_text", ["encode", "reject"])
def test_a_sentencepiece_document_never_holds_a_special_id_but_its_strings_are_counted(
    spm, write_texts, tmp_path, special_text
):
    texts = ["a</s>b <s>", "c", "</s></s>"]
    settings = [f"policy.special_text={special_text}", "runtime.max_rejects=1"]
    result = dataprep.run(
        str(write_texts(texts)), str(spm.path / "tokenizer.model"), tmp_path / "out", settings=settings
    )
    expected = [[1, *ids, 2] for ids in spm.ids(texts)]
    assert _documents(result.prefix) == (expected if special_text == "encode" else expected[1:2])
    assert result.manifest.counts.specials == {"</s>": 3, "<s>": 1}
    assert result.manifest.counts.rejects == ({} if special_text == "encode" else {"special-text": 2})
    assert not {0, 1, 2} & {i for ids in spm.ids(texts) for i in ids}


def test_special_strings_are_counted_in_plain_mode_by_the_longest_match():
    """`<|a|>` inside `<|a|>x` is one string, not two."""

    class Definition:
        specials = {"<a>": 1, "<a>x": 2, "a.c": 3}  # noqa: RUF012

        def encodes_specials(self, special_text: str) -> bool:
            return False

    batch = strings(["<a>x<a>", "abc a.c", "", "nothing"])
    tokens = TokenBatch(np.zeros(4, np.uint32), np.arange(5, dtype=np.int64))
    _, _, seen = choose(batch, tokens, _recipe({"special_text": "plain"}), Definition())
    assert seen.specials == {"<a>x": 1, "<a>": 1, "a.c": 1}


def test_bos_always_without_a_bos_is_a_spec_error(bpe, pair, write_texts, tmp_path):
    with pytest.raises(SpecError, match=r"policy.bos=always: the tokenizer .* has no BOS token; use auto or never"):
        dataprep.run(str(write_texts(["a"])), str(bpe.path), tmp_path / "out", settings=["policy.bos=always"])
    assert not (tmp_path / "out").exists()


def test_an_unknown_eod_is_a_spec_error_that_names_the_choices(make_tokenizer, write_texts, tmp_path):
    folder, corpus = make_tokenizer(eos=None), str(write_texts(["a"]))
    with pytest.raises(SpecError) as caught:
        dataprep.run(corpus, str(folder), tmp_path / "out")
    for part in (
        "does not say which token ends a document",
        "tokenizer.eod=",
        "'<bos>', '<eod>', '<pad>'",
        "policy.eod=none",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()
    result = dataprep.run(corpus, str(folder), tmp_path / "out", settings=["policy.eod=none"])
    assert _documents(result.prefix) == [[BOS, 97]]


def test_an_eod_that_does_not_exist_is_a_spec_error_that_names_the_choices(make_tokenizer, spm, write_texts, tmp_path):
    corpus = str(write_texts(["a"]))
    for path, named in ((make_tokenizer(), "'<bos>', '<eod>', '<pad>'"), (spm.path, "'<unk>', '<s>', '</s>'")):
        with pytest.raises(
            SpecError, match=r"the token '<nope>' does not exist; name one with --set tokenizer.eod="
        ) as caught:
            dataprep.run(corpus, str(path), tmp_path / "out", settings=["tokenizer.eod=<nope>"])
        assert named in str(caught.value)


@pytest.mark.parametrize(("text", "number"), [("<pad>", 258), ("<tool>", 259), ("z", 122)])
def test_tokenizer_eod_overrides_what_the_files_say(make_tokenizer, write_texts, tmp_path, text, number):
    """A special token, another added one, or any of the vocabulary."""
    result = dataprep.run(
        str(write_texts(["a", "b"])), str(make_tokenizer()), tmp_path / "out", settings=[f"tokenizer.eod={text}"]
    )
    assert _documents(result.prefix) == [[BOS, 97, number], [BOS, 98, number]]
    assert (result.manifest.recipe.tokenizer.eod_id, result.manifest.recipe.tokenizer.eod_text) == (number, text)


@pytest.mark.parametrize(("text", "number"), [("<unk>", 0), ("<0x41>", 3 + 0x41), ("\u2581", None)])
def test_tokenizer_eod_overrides_a_sentencepiece_model(spm, write_texts, tmp_path, text, number):
    import sentencepiece

    number = sentencepiece.SentencePieceProcessor(model_file=str(spm.path / "tokenizer.model")).piece_to_id(text)
    result = dataprep.run(str(write_texts(["a"])), str(spm.path), tmp_path / "out", settings=[f"tokenizer.eod={text}"])
    assert _documents(result.prefix) == [[1, *spm.ids(["a"])[0], number]]


@given(size=st.integers(1, 200_000))
@example(size=65_499)
@example(size=65_500)
@example(size=65_536)
@example(size=65_537)
def test_dtype_follows_megatrons_rule_and_uint16_is_refused_where_it_cannot_hold_the_vocabulary(size):
    assert _recipe(vocab_size=size).dtype == ("uint16" if size < 65_500 else "int32")
    assert _recipe({"dtype": "int32"}, vocab_size=size).dtype == "int32"
    forced = _recipe({"dtype": "uint16"}, vocab_size=size)
    if size <= 65_536:
        assert forced.dtype == "uint16"
    else:
        with pytest.raises(
            SpecError, match=f"policy.dtype=uint16 cannot hold a vocabulary of {size}; use int32 or auto"
        ):
            _ = forced.dtype


def test_uint16_that_cannot_hold_the_vocabulary_stops_before_anything_is_written(
    make_tokenizer, byte_json, write_texts, tmp_path
):
    vocab = byte_json["model"]["vocab"] | {f"w{i}": 256 + i for i in range(65_277)}
    added = [{**token, "id": token["id"] + 65_277} for token in byte_json["added_tokens"]]
    folder = make_tokenizer(model={**byte_json["model"], "vocab": vocab}, added_tokens=added)
    with pytest.raises(SpecError, match="cannot hold a vocabulary of 65537"):
        dataprep.run(str(write_texts(["a"])), str(folder), tmp_path / "out", settings=["policy.dtype=uint16"])
    assert not (tmp_path / "out").exists()
    result = dataprep.run(str(write_texts(["a"])), str(folder), tmp_path / "out")
    assert dataprep.open_dataset(result.prefix)[0].dtype == np.int32
    assert _documents(result.prefix) == [[256 + 65_277, 97, 257 + 65_277]]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(260, "uint16"), (260, "int32"), (65_536, "uint16"), (128_256, "int32")]
)
def test_an_id_outside_the_vocabulary_is_an_encode_error(vocab_size, dtype):
    recipe = _recipe({"dtype": dtype}, vocab_size=vocab_size)

    def tokens(last: int) -> TokenBatch:
        return TokenBatch(np.array([0, last], np.uint32), np.array([0, 2], np.int64))

    assert finish(tokens(vocab_size - 1), recipe).ids.tolist() == [BOS, 0, vocab_size - 1, EOD]
    for last in (vocab_size, 2**31, 2**32 - 1):
        with pytest.raises(EncodeError, match=f"id {last} does not fit: vocabulary {vocab_size}, {dtype}"):
            finish(tokens(last), recipe)


def _batch(documents: list[list[int]]) -> TokenBatch:
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(ids) for ids in documents], out=offsets[1:])
    return TokenBatch(np.array([i for ids in documents for i in ids], np.uint32), offsets)


DOCUMENTS = st.lists(st.lists(st.integers(0, 99_999), max_size=6), max_size=12)


@given(
    documents=DOCUMENTS,
    bos=st.sampled_from(("auto", "always", "never")),
    eod=st.sampled_from(("append", "none")),
    adds_bos=st.booleans(),
)
@example(documents=[[], [], []], bos="always", eod="none", adds_bos=False)
@example(documents=[[]], bos="never", eod="append", adds_bos=False)
def test_finish_equals_a_loop_over_documents(documents, bos, eod, adds_bos):
    recipe = _recipe({"bos": bos, "eod": eod}, vocab_size=100_000, adds_bos=adds_bos)
    expected = []
    for ids in documents:
        begins = bos == "always" or (bos == "auto" and adds_bos)
        written = begins or bool(ids)
        expected.append(([BOS] if begins else []) + ids + ([EOD] if eod == "append" and written else []))
    found = finish(_batch(documents), recipe)
    assert found.ids.dtype == np.int32
    assert found.offsets.dtype == np.int64
    assert found.offsets.tolist() == _batch(expected).offsets.tolist()
    assert found.ids.tolist() == [i for ids in expected for i in ids]


WORDS = st.lists(st.sampled_from(["a", "b ", "<eod>", "<bos>", "<tool>", "\u00e9", "\x00"]), max_size=3).map("".join)


@st.composite
def _slices(draw: st.DrawFn) -> tuple[TextBatch, list[tuple[int, str | None]]]:
    """A batch with rejected records between its documents, and its records one by one: row, text or None."""
    records = draw(st.lists(st.one_of(st.none(), WORDS), max_size=12))
    first = draw(st.integers(0, 5))
    rows = [first + i for i, text in enumerate(records) if text is not None]
    rejects = tuple(Reject("f", "not-json", first + i) for i, text in enumerate(records) if text is None)
    plain = strings([text for text in records if text is not None])
    batch = TextBatch(
        plain.values,
        plain.offsets,
        first_row=first,
        num_rows=len(records),
        file="f",
        rows=np.array(rows, np.int64) if rejects else None,
        rejects=rejects,
    )
    return batch, [(first + i, text) for i, text in enumerate(records)]


@given(
    case=_slices(),
    special_text=st.sampled_from(("encode", "plain", "reject")),
    empty=st.sampled_from(("drop", "keep")),
    limit=st.one_of(st.none(), st.integers(1, 8)),
)
def test_choose_equals_a_loop_over_records(byte_definition, case, special_text, empty, limit):
    batch, records = case
    definition, encode = byte_definition
    recipe = _recipe({"special_text": special_text, "empty": empty})
    documents, rejects, num_empty, specials, end = [], [], 0, {}, None
    for row, text in records:
        if limit is not None and len(documents) == limit:
            break
        end = row + 1
        if text is None:
            rejects.append((row, "not-json"))
            continue
        found = [word for word in ("<eod>", "<bos>", "<pad>") for _ in range(text.count(word))]
        for word in found:
            specials[word] = specials.get(word, 0) + 1
        num_empty += not text
        if special_text == "reject" and found:
            rejects.append((row, "special-text"))
        elif text or empty == "keep":
            documents.append((row, text))
    texts, tokens, seen = choose(batch, encode[special_text].encode(batch), recipe, definition, limit)
    assert [(row, texts.document(i).decode()) for i, row in enumerate(texts.row_numbers().tolist())] == documents
    assert tokens.offsets.tolist() == _batch([_ids(text, special_text) for _, text in documents]).offsets.tolist()
    assert tokens.ids.tolist() == [i for _, text in documents for i in _ids(text, special_text)]
    assert sorted((reject.row, reject.reason) for reject in texts.rejects) == sorted(rejects)
    assert {reject.record for reject in texts.rejects if reject.reason == "special-text"} == {
        text.encode() for row, text in records if (row, "special-text") in rejects
    }
    assert texts.num_rows == (0 if end is None else end - batch.first_row)
    assert (seen.num_empty, seen.specials) == (num_empty, specials)


def test_a_joined_document_without_tokens_counts_all_its_records(byte_definition):
    # With a tokenizer that takes blanks away, a text can become nothing.
    texts = TextBatch(np.frombuffer(b"ab ", np.uint8), np.array([0, 2, 3]), 0, 7, rows=np.array([0, 4]))
    batch = dataclasses.replace(texts, group_rows=4, joined=np.array([3, 2]))
    recipe = _recipe({"empty": "drop"})
    left, _, seen = choose(batch, TokenBatch.of([[97, 98], []]), recipe, byte_definition[0])
    assert (len(left), left.num_joined(), seen.num_empty) == (1, 3, 3)


def _ids(text: str, special_text: str) -> list[int]:
    numbers = {"<tool>": 259} | ({} if special_text == "plain" else {"<bos>": 256, "<eod>": 257})
    ids = []
    while text:
        word = next((word for word in numbers if text.startswith(word)), None)
        ids += [numbers[word]] if word else list(text[0].encode())
        text = text[len(word or " ") :]
    return ids


@pytest.fixture(scope="session")
def byte_definition(tmp_path_factory, byte_json):
    """The byte tokenizer's definition, and a reference encoder for each value of special_text."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "tokenizer.json").write_text(json.dumps(byte_json))
    definition = define("HuggingFaceTokenizer", folder)
    return definition, {name: open_reference(definition, name) for name in ("encode", "plain", "reject")}


def test_a_rejected_document_is_kept_up_to_a_bound(byte_definition):
    """The rest is found by file and row."""
    definition, encoders = byte_definition
    batch = strings(["<eod>" + "x" * (2 * RECORD_BYTES)])
    texts, tokens, _ = choose(batch, encoders["reject"].encode(batch), _recipe({"special_text": "reject"}), definition)
    assert len(texts) == len(tokens) == 0
    assert len(texts.rejects[0].record) == RECORD_BYTES


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9])
def test_limit_counts_documents_written_not_records_read(make_tokenizer, write_texts, tmp_path, limit):
    texts = ["", "a", "<eod>", "b", "", "c", "d"]
    settings = ["policy.special_text=reject", "runtime.max_rejects=1"]
    result = dataprep.run(
        str(write_texts(texts)), str(make_tokenizer()), tmp_path / "out", limit=limit, settings=settings
    )
    expected = [[BOS, ord(text), EOD] for text in "abcd"][:limit]
    assert _documents(result.prefix) == expected
    assert result.manifest.counts.num_records == {1: 2, 2: 4, 3: 6}.get(limit, 7)
