"""`dataprep.catalog`: what a name, a path or a YAML stands for, and what is said where it stands for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.catalog import describe, find_corpus, find_tokenizer, names
from dataprep.catalog.tokenizers import guess_type
from dataprep.errors import SpecError


def test_shipped_names_resolve():
    assert set(names("pipelines")) >= {"sample"}
    assert set(names("tokenizers")) >= {"gpt2", "llama2", "llama3.1-8b", "sample"}
    corpus, _ = find_corpus(["sample"], {})
    assert corpus.name == "sample"
    spec, path = find_tokenizer("sample", {})
    assert (spec.name, spec.type) == ("sample", "HuggingFaceTokenizer")
    assert (path / "tokenizer.json").is_file()


def test_every_shipped_yaml_is_named_like_its_file_and_validates():
    for what, kind in (("corpora", "pipelines"), ("tokenizers", "tokenizers")):
        assert [entry["name"] for entry in describe(what)] == list(names(kind))


def test_users_folder_wins_over_the_shipped_one(tmp_path, monkeypatch):
    for kind in ("pipelines", "tokenizers"):
        (tmp_path / kind).mkdir()
    (tmp_path / "tokenizers" / "gpt2.yaml").write_text("name: gpt2\ntype: GPT2BPETokenizer\npath: files\n")
    (tmp_path / "pipelines" / "mine.yaml").write_text("name: mine\nsource: {kind: files, paths: [a.jsonl]}\n")
    monkeypatch.setenv("DATAPREP_PATH", str(tmp_path))
    spec, path = find_tokenizer("gpt2", {})
    assert (spec.type, path) == ("GPT2BPETokenizer", tmp_path / "tokenizers" / "files")
    corpus, folder = find_corpus(["mine"], {})
    assert (corpus.name, folder) == ("mine", tmp_path / "pipelines")
    assert "sample" in names("pipelines")


def test_unknown_names_say_which_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"unknown corpus 'fineweb-nope'; shipped are .*sample"):
        find_corpus(["fineweb-nope"], {})
    with pytest.raises(SpecError, match=r"unknown tokenizer 'nope'; shipped are .*gpt2, .*sample"):
        find_tokenizer("nope", {})
    with pytest.raises(SpecError, match=r"unknown tokenizer './nope/none'"):
        find_tokenizer("./nope/none", {})


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["dump/*.jsonl.zst"], "dump"),
        (["books.jsonl"], "books"),
        (["a b/my books!.jsonl"], "my-books"),
        (["x/a.jsonl", "x/b.jsonl"], "x"),
        (["x/part-?.parquet"], "x"),
        (["\u672c/\u672c.jsonl"], "corpus"),
    ],
)
def test_a_corpus_of_paths_is_named_by_them(arguments, name):
    corpus, folder = find_corpus(arguments, {})
    assert corpus.name == name
    assert corpus.source.paths == tuple(arguments)
    assert folder == Path()


def test_settings_reach_source_and_reader_of_a_yaml(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: c\nsource: {kind: files, paths: [a.jsonl]}\nreader: {text: body, max_document_bytes: 1KiB}\n"
    )
    corpus, folder = find_corpus([str(path)], {"reader": {"text": "content"}, "source": {"exclude": ["*.tmp"]}})
    assert (corpus.reader.text, corpus.reader.max_document_bytes, corpus.source.exclude) == (
        "content",
        1024,
        ("*.tmp",),
    )
    assert folder == tmp_path


def test_a_bad_setting_names_where_it_came_from(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nsource: {kind: files, paths: [a.jsonl]}\n")
    with pytest.raises(SpecError, match=r"c.yaml with --set: reader.txet: unknown key; known here: format, text"):
        find_corpus([str(path)], {"reader": {"txet": "content"}})
    with pytest.raises(SpecError, match=r"the corpus with --set: source.pahts: unknown key; known here: kind, paths"):
        find_corpus(["a.jsonl"], {"source": {"pahts": ["b"]}})


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (["tokenizer.json"], "HuggingFaceTokenizer"),
        (["tokenizer.model"], "Llama2Tokenizer"),
        (["vocab.json", "merges.txt"], "GPT2BPETokenizer"),
        (["tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"], "HuggingFaceTokenizer"),
        (["tokenizer.model", "vocab.json", "merges.txt"], "Llama2Tokenizer"),
        (["tokenizer.model", "vocab.json"], "Llama2Tokenizer"),
    ],
)
def test_the_type_of_a_folder_is_told_by_its_files(tmp_path, present, expected):
    for name in present:
        (tmp_path / name).touch()
    assert guess_type(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tokenizer.json", "HuggingFaceTokenizer"),
        ("other.json", "HuggingFaceTokenizer"),
        ("tokenizer.model", "Llama2Tokenizer"),
        ("spm-32k.model", "Llama2Tokenizer"),
        ("vocab.json", "GPT2BPETokenizer"),
        ("merges.txt", "GPT2BPETokenizer"),
    ],
)
def test_the_type_of_a_file_is_told_by_its_name(tmp_path, name, expected):
    (tmp_path / name).touch()
    assert guess_type(tmp_path / name) == expected


def test_a_folder_or_file_without_a_tokenizer_says_what_was_expected_and_found(tmp_path):
    with pytest.raises(
        SpecError, match=r"expected tokenizer.json; tokenizer.model; vocab.json \+ merges.txt; found nothing"
    ):
        guess_type(tmp_path)
    (tmp_path / "readme.txt").touch()
    (tmp_path / "vocab.json").touch()
    with pytest.raises(SpecError, match=r"found readme.txt, vocab.json"):
        guess_type(tmp_path)
    with pytest.raises(SpecError, match=r"readme.txt: expected a tokenizer.json"):
        guess_type(tmp_path / "readme.txt")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("my-tok/tokenizer.json", "my-tok"),
        ("my-tok", "my-tok"),
        ("spm 32k.model", "spm-32k"),
        ("my-tok/../my-tok", "my-tok"),
    ],
)
def test_a_tokenizer_on_disk_is_named_by_its_folder_or_file(tmp_path, path, name):
    (tmp_path / "my-tok").mkdir()
    (tmp_path / "my-tok" / "tokenizer.json").write_text("{}")
    (tmp_path / "spm 32k.model").touch()
    assert find_tokenizer(str(tmp_path / path), {})[0].name == name


def test_a_shipped_name_wins_over_a_folder_unless_it_is_written_as_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "tokenizer.model").touch()
    assert find_tokenizer("sample", {})[0].type == "HuggingFaceTokenizer"
    assert find_tokenizer("./sample", {})[0].type == "Llama2Tokenizer"


def test_a_tokenizer_yaml_is_relative_to_its_folder_and_takes_settings(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text("name: t\ntype: Llama2Tokenizer\npath: files/tokenizer.model\n")
    spec, place = find_tokenizer(str(path), {"eod": "</s>"})
    assert (spec.eod, place) == ("</s>", tmp_path / "files" / "tokenizer.model")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: t\ntype: Llama2Tokenizer\n", "give path: or repo:"),
        ("name: t\ntype: Nonsense\npath: x\n", "type: "),
        ("name: t\npath: x\n", "type: Field required"),
        ("name: ../t\ntype: Llama2Tokenizer\npath: x\n", "name: "),
        ("name: no\ntype: Llama2Tokenizer\npath: x\n", "name: expected text, found False; quote it in YAML"),
        ("- a\n", "expected a mapping of keys to values, found list"),
        ("a: [\n", "is not YAML"),
        ("", "expected a mapping"),
    ],
)
def test_a_bad_tokenizer_yaml_is_a_spec_error(tmp_path, text, message):
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        find_tokenizer(str(path), {})
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_yaml_that_is_not_there_is_a_spec_error(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read .*none.yaml: No such file"):
        find_tokenizer(str(tmp_path / "none.yaml"), {})
    with pytest.raises(SpecError, match=r"cannot read .*none.yaml: No such file"):
        find_corpus([str(tmp_path / "none.yaml")], {})
