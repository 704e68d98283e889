"""`dataprep.definitions`: BOS, EOD and vocabulary come from the tokenizer's own files, or the run does not start."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

import dataprep
from dataprep.definitions import define, identify, load
from dataprep.errors import SpecError
from dataprep.specs import TokenizerSpec

BOS_PIECE = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
EOD_PIECE = {"SpecialToken": {"id": "<eod>", "type_id": 0}}
TEXT_PIECE = {"Sequence": {"id": "A", "type_id": 0}}
IDS = {"<bos>": 256, "<eod>": 257, "<pad>": 258}


def _template(*pieces: dict) -> dict:
    named = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
    special_tokens = {name: {"id": name, "ids": [IDS[name]], "tokens": [name]} for name in named}
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": pair, "special_tokens": special_tokens}


def _identify(path, type_="HuggingFaceTokenizer", eod=None):
    return identify(TokenizerSpec(name="t", type=type_, path=str(path), eod=eod), path)


def test_bos_and_eod_of_each_type_come_from_its_files(bpe, bos_bpe, pair, spm):
    def facts(trained):
        identity = _identify(trained.path, trained.type)
        return (
            identity.bos_text,
            identity.bos_id,
            identity.adds_bos,
            identity.eod_text,
            identity.eod_id,
            identity.vocab_size,
        )

    assert facts(bpe) == (None, None, False, "<|endoftext|>", 0, 900)
    assert facts(bos_bpe) == ("<|begin_of_text|>", 1000, True, "<|end_of_text|>", 1001, 1004)
    assert facts(pair) == ("<|endoftext|>", 0, False, "<|endoftext|>", 0, 900)
    assert facts(spm) == ("<s>", 1, True, "</s>", 2, 900)


def test_bos_and_eod_of_the_real_tokenizers(assets):
    def facts(path, type_):
        identity = _identify(assets / "tokenizers" / path, type_)
        return identity.bos_id if identity.adds_bos else None, identity.eod_id, identity.vocab_size

    assert facts("gpt2", "HuggingFaceTokenizer") == (None, 50256, 50257)
    assert facts("gpt2", "GPT2BPETokenizer") == (None, 50256, 50257)
    assert facts("llama3", "HuggingFaceTokenizer") == (128000, 128001, 128256)
    assert facts("llama2", "Llama2Tokenizer") == (1, 2, 32000)


def test_identity_is_the_sha256_of_the_files_not_their_name_or_place(pair, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (moved / name).write_bytes((pair.path / name).read_bytes())
    one, two = _identify(pair.path, pair.type), _identify(moved, pair.type)
    assert one.path != two.path
    assert one.identity == two.identity
    assert one.files == {
        name: hashlib.sha256((pair.path / name).read_bytes()).hexdigest() for name in ("merges.txt", "vocab.json")
    }
    (moved / "merges.txt").write_bytes((pair.path / "merges.txt").read_bytes() + b"\n")
    assert _identify(moved, pair.type).identity != two.identity


@pytest.mark.parametrize("mtime", [1, None], ids=["another mtime", "same mtime, another size"])
def test_a_tokenizer_that_changes_under_its_path_is_read_again(make_tokenizer, byte_json, mtime):
    """In a notebook the process outlives many edits; a stale tokenizer would be published under its old digest."""
    folder = make_tokenizer()
    path = folder / "tokenizer.json"
    before = _identify(folder)
    stat = path.stat()
    added = byte_json["added_tokens"][:-1]
    path.write_text(json.dumps({**byte_json, "added_tokens": added}))
    os.utime(path, ns=(stat.st_atime_ns, mtime or stat.st_mtime_ns))
    after = _identify(folder)
    assert before.files != after.files
    assert (before.vocab_size, after.vocab_size) == (260, 259)
    with pytest.raises(SpecError, match=r"tokenizer.json is not the file that the recipe names: its sha256 differs"):
        load(before)
    assert load(after).vocab_size == 259


def test_a_changed_hint_is_read_again(make_tokenizer):
    folder = make_tokenizer(eos="<eod>")
    assert _identify(folder).eod_text == "<eod>"
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<pad>", "lstrip": false}}')
    assert _identify(folder).eod_id == 258


TEMPLATES = {
    "none": (None, False),
    "byte level": ({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, False),
    "bos": (_template(BOS_PIECE, TEXT_PIECE), True),
    "bos and eod": (_template(BOS_PIECE, TEXT_PIECE, EOD_PIECE), True),
    "eod": (_template(TEXT_PIECE, EOD_PIECE), False),
    "sequence": ({"type": "Sequence", "processors": [_template(TEXT_PIECE), _template(BOS_PIECE, TEXT_PIECE)]}, True),
    "bert": ({"type": "BertProcessing", "cls": ["<bos>", 256], "sep": ["<eod>", 257]}, True),
    "roberta": (
        {
            "type": "RobertaProcessing",
            "cls": ["<bos>", 256],
            "sep": ["<eod>", 257],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        True,
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_bos_auto_and_one_eod_whatever_the_post_processor_does(make_tokenizer, write_texts, tmp_path, name):
    """A post-processor that ends with EOD itself gives one EOD, not two; with `none` it gives none."""
    processor, adds_bos = TEMPLATES[name]
    folder, corpus = make_tokenizer(post_processor=processor), str(write_texts(["a"]))
    before = [256] if adds_bos else []
    result = dataprep.run(corpus, str(folder), tmp_path / "out")
    assert dataprep.open_dataset(result.prefix)[0].tolist() == [*before, 97, 257]
    result = dataprep.run(corpus, str(folder), tmp_path / "out", settings=["policy.eod=none"])
    assert dataprep.open_dataset(result.prefix)[0].tolist() == [*before, 97]


@pytest.mark.parametrize("name", TEMPLATES)
def test_bos_auto_is_what_the_reference_library_puts_first(make_tokenizer, name):
    import tokenizers

    processor, adds_bos = TEMPLATES[name]
    library = tokenizers.Tokenizer.from_file(str(make_tokenizer(post_processor=processor) / "tokenizer.json"))
    assert (library.encode("a").ids[0] == 256) == adds_bos


@pytest.mark.parametrize(
    "pieces",
    [
        (BOS_PIECE, BOS_PIECE, TEXT_PIECE),
        (BOS_PIECE, EOD_PIECE, TEXT_PIECE),
        (TEXT_PIECE, BOS_PIECE),
        (BOS_PIECE, TEXT_PIECE, EOD_PIECE, BOS_PIECE),
    ],
)
def test_a_post_processor_that_adds_more_than_bos_and_eod_is_a_spec_error(make_tokenizer, pieces):
    with pytest.raises(SpecError, match=r"around a text; dataprep writes at most a BOS and an EOD"):
        _identify(make_tokenizer(post_processor=_template(*pieces)))


def test_two_eods_after_a_text_are_a_spec_error(make_tokenizer):
    with pytest.raises(SpecError, match=r"around a text"):
        _identify(make_tokenizer(post_processor=_template(TEXT_PIECE, EOD_PIECE, EOD_PIECE)))


def test_a_post_processor_that_ends_with_another_token_than_the_eod_is_a_spec_error(make_tokenizer):
    folder = make_tokenizer(post_processor=_template(BOS_PIECE, TEXT_PIECE, EOD_PIECE))
    with pytest.raises(SpecError, match=r"around a text"):
        _identify(folder, eod="<pad>")


def test_a_folder_with_both_kinds_of_files_uses_tokenizer_json(make_tokenizer, spm, write_texts, tmp_path):
    folder = make_tokenizer()
    (folder / "tokenizer.model").write_bytes((spm.path / "tokenizer.model").read_bytes())
    corpus = str(write_texts(["a"]))
    result = dataprep.run(corpus, str(folder), tmp_path / "out")
    assert dataprep.open_dataset(result.prefix)[0].tolist() == [256, 97, 257]
    assert result.manifest.recipe.tokenizer.type == "HuggingFaceTokenizer"
    assert list(result.manifest.recipe.tokenizer.files) == ["tokenizer.json"]
    named = dataprep.run(corpus, str(folder / "tokenizer.model"), tmp_path / "out")
    assert dataprep.open_dataset(named.prefix)[0].tolist() == [1, *spm.ids(["a"])[0], 2]


def _pair(vocab: object, merges: bytes = b"#version: 0.2\n") -> dict[str, bytes]:
    return {"vocab.json": json.dumps(vocab).encode(), "merges.txt": merges}


def _json(value: object, **files: bytes) -> dict[str, bytes]:
    return {"tokenizer.json": json.dumps(value).encode(), **files}


BASE = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
DAMAGED: dict[str, dict[str, bytes]] = {
    "json: empty file": {"tokenizer.json": b""},
    "json: a git-lfs pointer": {"tokenizer.json": LFS},
    "json: cut short": {"tokenizer.json": json.dumps(BASE).encode()[:-5]},
    "json: not UTF-8": {"tokenizer.json": b"\xff\xfe{"},
    "json: null": _json(None),
    "json: a list": _json([]),
    "json: no model": _json({}),
    "json: model is a number": _json({"model": 3}),
    "json: model is null": _json({"model": None}),
    "json: model is empty": _json({"model": {}}),
    "json: empty vocabulary": _json({"model": {"type": "BPE", "vocab": {}, "merges": []}}),
    "json: vocabulary of texts": _json({"model": {"type": "BPE", "vocab": {"a": "x"}, "merges": []}}),
    "json: vocabulary is a number": _json({"model": {"vocab": 3}}),
    "json: unknown model": _json({**BASE, "model": {"type": "Nonsense", "vocab": {"a": 0}}}),
    "json: added token without content": _json({**BASE, "added_tokens": [{}]}),
    "json: added tokens are an object": _json({**BASE, "added_tokens": {"a": 1}}),
    "json: added tokens are a number": _json({**BASE, "added_tokens": 3}),
    "json: added id is text": _json({**BASE, "added_tokens": [{"id": "1", "content": "<x>", "special": True}]}),
    "json: processor without type": _json({**BASE, "post_processor": {}}),
    "json: processor is text": _json({**BASE, "post_processor": "x"}),
    "json: template without text": _json({**BASE, "post_processor": _template(BOS_PIECE)}),
    "json: template without single": _json({**BASE, "post_processor": {"type": "TemplateProcessing"}}),
    "json: sequence without processors": _json({**BASE, "post_processor": {"type": "Sequence"}}),
    "json: bert without cls": _json({**BASE, "post_processor": {"type": "BertProcessing"}}),
    "json: hint is no object": _json(BASE, **{"tokenizer_config.json": b"[]"}),
    "json: hint is no JSON": _json(BASE, **{"tokenizer_config.json": b"{"}),
    "json: hint is not UTF-8": _json(BASE, **{"special_tokens_map.json": b"\xff"}),
    "model: empty file": {"tokenizer.model": b""},
    "model: junk": {"tokenizer.model": b"junk" * 100},
    "model: a git-lfs pointer": {"tokenizer.model": LFS},
    "model: a tiktoken file": {"tokenizer.model": b"IQ== 0\nIg== 1\nIw== 2\n"},
    "pair: vocab is a list": _pair([]),
    "pair: vocab is a number": _pair(3),
    "pair: vocab is empty": _pair({}),
    "pair: id is text": _pair({"a": "b"}),
    "pair: id is a fraction": _pair({"<|endoftext|>": 1.5}),
    "pair: vocab is no JSON": {"vocab.json": b"{", "merges.txt": b""},
    "pair: merges are not UTF-8": _pair({"a": 0}, b"\xff\n"),
    "pair: merge of three": _pair({"a": 0, "b": 1, "c": 2}, b"a b c\n"),
    "pair: merge of unknown tokens": _pair({"a": 0}, b"x y\n"),
    "pair: no merges": {"vocab.json": b'{"a": 0}'},
    "nothing": {},
    "another file": {"weights.bin": b"0"},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_or_missing_files_are_a_spec_error_and_nothing_is_published(write_texts, tmp_path, name):
    """SpecError is exit code 2 and one line; whatever else came out would be a traceback."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for file, content in DAMAGED[name].items():
        (folder / file).write_bytes(content)
    with pytest.raises(SpecError) as caught:
        dataprep.run(str(write_texts(["a"])), str(folder), tmp_path / "out", settings=["policy.eod=none"])
    assert caught.value.exit_code == 2
    assert not list((tmp_path / "out").glob("**/*.bin"))


def test_a_sentencepiece_model_cut_short_is_a_spec_error(spm, tmp_path):
    path = tmp_path / "tokenizer.model"
    for size in range(1, 3000, 331):
        path.write_bytes((spm.path / "tokenizer.model").read_bytes()[:-size])
        with pytest.raises(SpecError, match=r"is not a SentencePiece model|is not a Llama2Tokenizer"):
            _ = _identify(path, "Llama2Tokenizer")


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_one_file_of_a_pair_says_what_the_other_is(tmp_path, file):
    (tmp_path / file).write_text("{}")
    with pytest.raises(SpecError, match=r"it needs vocab.json and merges.txt"):
        define("GPT2BPETokenizer", tmp_path / file)


def test_the_command_ends_with_2_and_one_message(write_texts, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    command = [
        sys.executable,
        "-m",
        "dataprep",
        "run",
        str(write_texts(["a"])),
        "-t",
        str(tmp_path),
        "-o",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_token_named_in_a_hint_that_does_not_exist_is_a_spec_error(make_tokenizer):
    with pytest.raises(SpecError, match="the token '<nope>' does not exist"):
        _identify(make_tokenizer(eos="<nope>"))
