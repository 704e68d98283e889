"""`dataprep preprocess`: the bytes of Megatron's tools/preprocess_data.py, by its flags.

The golden pairs in golden/ were written by megatron-core's own writer; golden/make.py says how. Those of the assets
were written by the whole script.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.compat import flags
from dataprep.compat import preprocess as module
from dataprep.compat.preprocess import preprocess
from dataprep.errors import BusyError, DataprepError, OutputError, SourceError, SpecError
from dataprep.locks import hold
from dataprep.manifest import manifest_of
from dataprep.reshaping.selections import write_pair
from dataprep.watcher import Silent

GOLDEN = Path(__file__).parent / "golden"
SAMPLE = Path(__file__).parent.parent / "tokenizers" / "sample" / "tokenizer.json"
EOD = "<|endoftext|>"


@pytest.fixture(autouse=True)
def _inline(inline_cluster):
    """No Dask."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, Path]:
    """The sample tokenizer, and the same with a BOS of its own."""
    folder = tmp_path_factory.mktemp("tokenizers")
    config = json.loads(SAMPLE.read_text())
    eod = next(token["id"] for token in config["added_tokens"] if token["content"] == EOD)
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": EOD, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {EOD: {"id": EOD, "ids": [eod], "tokens": [EOD]}},
    }
    made = {}
    for name, value in {"plain": config, "bos": {**config, "post_processor": template}}.items():
        made[name] = folder / name
        made[name].mkdir()
        (made[name] / "tokenizer.json").write_text(json.dumps(value))
        (made[name] / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOD}))
    return made


class DiedError(Exception):
    """What a kill is here."""


def make(*arguments: object) -> list[module.Made]:
    return preprocess(flags.parse([str(argument) for argument in arguments]), Silent())


def arguments(source: Path, output: Path, tokenizer: Path, *more: object) -> list[object]:
    chosen = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer]
    return ["--input", source, "--output-prefix", output, *chosen, "--workers", 2, *more]


def content(prefix: Path | str) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@pytest.mark.parametrize(
    ("golden", "tokenizer", "source", "more"),
    [
        ("texts", "plain", "texts", []),
        ("texts-eod", "plain", "texts", ["--append-eod"]),
        ("texts-bos-eod", "bos", "texts", ["--append-eod"]),
        ("texts-eod", "bos", "texts", ["--append-eod", "--tokenizer-hf-no-include-special-tokens"]),
        ("texts-dealt-to-3", "plain", "texts", ["--append-eod", "--partitions", 3]),
        ("texts-eod", "plain", "texts", ["--append-eod", "--partitions", 3, "--keep-sequential-samples"]),
        ("sentences-eod", "plain", "sentences", ["--append-eod"]),
        ("sentences-bos-eod", "bos", "sentences", ["--append-eod"]),
    ],
)
def test_the_bytes_of_megatrons_writer(tokenizers, workspace, golden, tokenizer, source, more):
    (made,) = make(*arguments(GOLDEN / f"{source}.jsonl", workspace / "my", tokenizers[tokenizer], *more))

    assert made.prefix == workspace / "my_text_document"
    assert content(made.prefix) == content(GOLDEN / golden)
    assert sorted(path.name for path in workspace.iterdir()) == [
        f"my_text_document{suffix}" for suffix in (".bin", ".idx", ".manifest.json")
    ]
    assert dataprep.verify(made.prefix).ok


ASSETS = {
    "gpt2-hf-eod": ["HuggingFaceTokenizer", "--tokenizer-model", "gpt2"],
    "llama3-hf-eod": ["HuggingFaceTokenizer", "--tokenizer-model", "llama3"],
    "llama2-sp-eod": ["Llama2Tokenizer", "--tokenizer-model", "llama2/tokenizer.model"],
    "gpt2-fast-eod": ["HuggingFaceTokenizer", "--policy", "megatron-fast", "--tokenizer-model", "gpt2"],
}


@pytest.mark.parametrize("golden", ASSETS)
def test_the_bytes_of_the_whole_script(assets, tmp_path, golden):
    *chosen, place = ASSETS[golden]
    (made,) = make(
        *["--input", assets / "golden" / "nasty.jsonl", "--output-prefix", tmp_path / "my", "--append-eod"],
        *["--workers", "1", "--tokenizer-type", *chosen, assets / "tokenizers" / place],
    )

    assert content(made.prefix) == content(assets / "golden" / f"{golden}_text_document")


def test_gpt2_files_under_any_name(pair, write_texts, tmp_path):
    shutil.copy(pair.path / "vocab.json", tmp_path / "gpt2-vocab.json")
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(pair.path / "merges.txt", tmp_path / "elsewhere" / "gpt2 merges.txt")
    source = write_texts(["some text", f"with {EOD} inside"])
    chosen = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", tmp_path / "gpt2-vocab.json"]
    chosen += ["--merge-file", tmp_path / "elsewhere" / "gpt2 merges.txt", "--append-eod"]
    (made,) = make("--input", source, "--output-prefix", tmp_path / "my", *chosen)

    found = dataprep.open_dataset(made.prefix)
    eod = made.manifest.tokenizer.eod_id
    assert [ids.tolist() for ids in found[:]] == [[*ids, eod] for ids in pair.ids(["some text", f"with {EOD} inside"])]
    assert dataprep.decode(made.prefix, 0) == f"some text{EOD}"
    assert dataprep.verify(made.prefix, "source").num_sampled == 2


@pytest.mark.parametrize(
    ("kind", "policy", "bos"),
    [
        ("Llama2Tokenizer", "megatron", False),
        ("Llama2Tokenizer", "megatron-0.14", True),
        ("GPTSentencePieceTokenizer", "megatron-0.14", False),
        ("SentencePieceTokenizer", "megatron", False),
    ],
)
def test_versions_of_megatron_disagree_about_the_bos_of_llama_2(spm, write_texts, tmp_path, kind, policy, bos):
    chosen = ["--tokenizer-type", kind, "--tokenizer-model", spm.path / "tokenizer.model", "--policy", policy]
    (made,) = make("--input", write_texts(["some text"]), "--output-prefix", tmp_path / "my", *chosen)

    identity = made.manifest.tokenizer
    assert dataprep.open_dataset(made.prefix)[0].tolist() == [identity.bos_id] * bos + spm.ids(["some text"])[0]


def test_the_old_gpt2_tokenizer_leaves_special_strings_text(pair, write_texts, tmp_path):
    source = write_texts([f"with {EOD} inside"])
    for name, more in {"new": [], "old": ["--legacy-tokenizer"]}.items():
        chosen = ["--tokenizer-type", "GPT2BPETokenizer", "--tokenizer-model", pair.path]
        make("--input", source, "--output-prefix", tmp_path / name, *chosen, *more)
    eod = manifest_of(tmp_path / "new_text_document").tokenizer.eod_id

    assert eod in dataprep.open_dataset(tmp_path / "new_text_document")[0]
    assert eod not in dataprep.open_dataset(tmp_path / "old_text_document")[0]


@pytest.mark.parametrize(
    ("policy", "more", "expected"),
    [
        ("megatron", ["--append-eod"], [["B", "x", "E"], ["B", "E"]]),
        ("megatron", [], [["B", "x"], ["B"]]),
        ("megatron-fast", ["--append-eod"], [["x", "E"], ["E"]]),
        ("megatron-fast", [], [["x"], []]),
        ("curator", [], [["x"], []]),
        ("datatrove", [], [["x", "E"], ["E"]]),
        ("nemotron", [], [["x", "E"], ["E"]]),
    ],
)
def test_what_each_tool_writes_around_a_text_and_for_an_empty_one(
    bos_bpe, write_texts, tmp_path, policy, more, expected
):
    source = write_texts(["x", ""])
    (made,) = make(*arguments(source, tmp_path / "my", bos_bpe.path, "--policy", policy, *more))

    identity = made.manifest.tokenizer
    names = {identity.bos_id: "B", identity.eod_id: "E"} | {bos_bpe.ids(["x"])[0][0]: "x"}
    found = dataprep.open_dataset(made.prefix)
    assert [[names[number] for number in ids.tolist()] for ids in found[:]] == expected
    assert found.document_indices.tolist() == [0, 1, 2]
    assert found.dtype == (np.int32 if policy == "nemotron" else np.uint16)


def test_an_empty_document_of_megatron_is_a_boundary(bpe, write_texts, tmp_path):
    (made,) = make(*arguments(write_texts(["x", "", "y"]), tmp_path / "my", bpe.path, "--append-eod"))

    found = dataprep.open_dataset(made.prefix)
    assert (len(found), found.document_indices.tolist()) == (2, [0, 1, 1, 2])


def test_an_empty_file_of_a_glob_holds_no_line(bpe, tmp_path):
    """As for Megatron; alone, it is a mistake."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in (("a", "one"), ("b", ""), ("c", "two")):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n" if text else "")
    (made,) = make(*arguments(folder / "*.jsonl", tmp_path / "my", bpe.path))
    (other,) = make(*arguments(folder / "[ac].jsonl", tmp_path / "other", bpe.path))
    assert made.manifest.counts.num_documents == 2
    assert content(made.prefix) == content(other.prefix)
    with pytest.raises(SourceError, match=r"b\.jsonl is empty"):
        make(*arguments(folder / "b.jsonl", tmp_path / "none", bpe.path))


def test_every_key_becomes_a_pair(bpe, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a b", "title": "T", "n": 1}\n{"text": "c", "title": "", "n": null}\n')
    made = make(*arguments(source, tmp_path / "my", bpe.path, "--json-keys", "text", "title", "text"))

    assert [pair.prefix.name for pair in made] == ["my_text_document", "my_title_document"]
    assert [dataprep.decode(pair.prefix, 0) for pair in made] == ["a b", "T"]
    with pytest.raises(SpecError, match="slash"):
        make(*arguments(source, tmp_path / "my", bpe.path, "--json-keys", "a/b"))


def test_done_again_it_does_nothing_and_other_input_needs_another_name(bpe, write_texts, tmp_path):
    source = write_texts(["one", "two"])
    asked = arguments(source, tmp_path / "my", bpe.path)
    first = make(*asked)[0]
    before = content(first.prefix)

    again = make(*asked)[0]
    assert (first.fresh, again.fresh) == (True, False)
    for more in (["--append-eod"], ["--partitions", 2], ["--policy", "nemotron"]):
        with pytest.raises(SpecError, match="another --output-prefix"):
            make(*asked, *more)
    write_texts(["one", "other"])
    with pytest.raises(SpecError, match="another --output-prefix"):
        make(*asked)
    assert content(first.prefix) == before
    assert not (tmp_path / "my_text_document.work").exists()


def test_files_of_another_tool_stay_as_they_are(bpe, write_texts, tmp_path):
    for suffix in (".bin", ".idx"):
        (tmp_path / f"my_text_document{suffix}").write_bytes(b"somebody else's")
        with pytest.raises(SpecError, match=f"my_text_document{suffix} exists"):
            make(*arguments(write_texts(["one"]), tmp_path / "my", bpe.path))
        assert (tmp_path / f"my_text_document{suffix}").read_bytes() == b"somebody else's"
        (tmp_path / f"my_text_document{suffix}").unlink()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(
    ("links", "dies_at"),
    [
        (links, place)
        for links in (True, False)
        for place in ("os.link", "write_json", "shutil.rmtree")
        if links or place != "os.link"
    ],
)
def test_a_run_that_dies_while_it_publishes_goes_on(
    bpe, write_texts, tmp_path, monkeypatch, dies_at, partitions, links
):
    def refuse(*_):
        raise OSError(95, "no links here")

    def die(*_, **__):
        raise DiedError

    source = write_texts([f"text {i}" for i in range(7)])
    asked = arguments(source, tmp_path / "my", bpe.path, "--partitions", partitions)
    with monkeypatch.context() as patch:
        if not links:
            patch.setattr("dataprep.compat.preprocess.os.link", refuse)
        patch.setattr(f"dataprep.compat.preprocess.{dies_at}", die)
        with pytest.raises(DiedError):
            make(*asked)
    (made,) = make(*asked)
    assert dataprep.verify(made.prefix).ok
    assert not (tmp_path / "my_text_document.work").exists()
    order = [i for start in range(partitions) for i in range(start, 7, partitions)]
    assert [dataprep.where(made.prefix, i)["documents"][0]["source"]["first_row"] for i in range(7)] == order
    assert [dataprep.decode(made.prefix, i) for i in range(7)] == [f"text {i}" for i in order]


@pytest.mark.parametrize("other", [2, 4])
def test_what_a_dead_run_made_with_other_flags_is_not_taken(bpe, write_texts, tmp_path, monkeypatch, other):
    def die(*_, **__):
        raise DiedError

    source = write_texts([f"text {i}" for i in range(9)])
    asked = arguments(source, tmp_path / "my", bpe.path, "--partitions")
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.compat.preprocess._publish", die)
        with pytest.raises(DiedError):
            make(*asked, 3)
    (made,) = make(*asked, other)

    order = [i for start in range(other) for i in range(start, 9, other)]
    assert [dataprep.decode(made.prefix, i) for i in range(9)] == [f"text {i}" for i in order]
    assert made.manifest.preprocess.partitions == other


def test_a_work_folder_that_is_left_behind_its_manifest_goes(bpe, write_texts, tmp_path, monkeypatch):
    asked = arguments(write_texts(["one"]), tmp_path / "my", bpe.path)
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.compat.preprocess.shutil.rmtree", lambda *_, **__: None)
        make(*asked)
    work = tmp_path / "my_text_document.work"
    assert work.exists()
    with hold(work / "lock"):
        assert make(*asked)[0].fresh is False
    assert work.exists()
    assert make(*asked)[0].fresh is False
    assert not work.exists()


def test_a_folder_of_somebody_else_is_not_taken_for_the_work_folder(bpe, write_texts, tmp_path):
    work = tmp_path / "my_text_document.work"
    work.mkdir()
    (work / "thesis.txt").write_text("precious")
    with pytest.raises(SpecError, match="is not this command's"):
        make(*arguments(write_texts(["one"]), tmp_path / "my", bpe.path))
    assert (work / "thesis.txt").read_text() == "precious"


def test_a_final_file_that_was_cut_is_an_error(bpe, write_texts, tmp_path):
    asked = arguments(write_texts(["one"]), tmp_path / "my", bpe.path)
    (made,) = make(*asked)
    with open(f"{made.prefix}.idx", "r+b") as file:
        file.truncate(40)
    with pytest.raises(OutputError, match="is not what its manifest says"):
        make(*asked)


def test_a_dealt_pair_that_is_not_what_was_written_is_not_published(bpe, write_texts, tmp_path, monkeypatch):
    def damage(target, dtype, dealt, watcher):
        idx, checksums = write_pair(target, dtype, dealt, watcher)
        with open(f"{target}.bin", "r+b") as file:
            file.truncate(2)
        return idx, checksums

    monkeypatch.setattr("dataprep.compat.dealing.write_pair", damage)
    with pytest.raises(OutputError, match="is not what was written"):
        make(*arguments(write_texts(["one", "two"]), tmp_path / "my", bpe.path, "--partitions", 2))
    assert not list(tmp_path.glob("my_text_document.*n"))


def test_a_tokenizer_that_puts_its_eod_behind_a_text(tokenizers, write_texts, tmp_path):
    config = json.loads((tokenizers["bos"] / "tokenizer.json").read_text())
    config["post_processor"]["single"].reverse()
    folder = tmp_path / "adds-eod"
    shutil.copytree(tokenizers["bos"], folder)
    (folder / "tokenizer.json").write_text(json.dumps(config))
    asked = arguments(write_texts(["one"]), tmp_path / "my", folder)
    with pytest.raises(SpecError, match="behind every text itself"):
        make(*asked)
    (made,) = make(*asked, "--tokenizer-hf-no-include-special-tokens", "--append-eod")
    assert dataprep.decode(made.prefix, 0) == f"one{EOD}"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("tokenizer_config.json", {"eos_token": EOD, "pad_token": "<pad>"}),
        ("tokenizer_config.json", {"eos_token": EOD, "additional_special_tokens": [{"content": "<pad>"}]}),
        ("tokenizer_config.json", {"eos_token": EOD, "added_tokens_decoder": {"8192": {"content": "<pad>"}}}),
        ("special_tokens_map.json", {"pad_token": {"content": "<pad>"}}),
        ("added_tokens.json", {"<pad>": 8192}),
    ],
)
def test_tokens_that_only_the_config_names_are_told(tokenizers, write_texts, tmp_path, caplog, name, config):
    folder = tmp_path / "named"
    shutil.copytree(tokenizers["plain"], folder)
    (folder / name).write_text(json.dumps(config))
    make(*arguments(write_texts(["one"]), tmp_path / "my", folder))
    assert "<pad> stand in its config and not in its tokenizer.json" in caplog.text
    caplog.clear()
    make(*arguments(write_texts(["one"]), tmp_path / "theirs", folder, "--policy", "datatrove"))
    make(*arguments(write_texts(["one"]), tmp_path / "plain", tokenizers["plain"]))
    assert "stand in its config" not in caplog.text


def test_two_at_once_on_the_same_name(bpe, write_texts, tmp_path):
    asked = arguments(write_texts(["one"]), tmp_path / "my", bpe.path)
    (tmp_path / "my_text_document.work").mkdir()
    (tmp_path / "my_text_document.work" / "lock").touch()
    with hold(tmp_path / "my_text_document.work" / "lock"), pytest.raises(BusyError, match=r"my_text_document\.work"):
        make(*asked)


BAD_LINES = [
    '{"text": 5}',
    '{"other": "x"}',
    "[]",
    "no json",
    '{"text": "\\ud800"}',
    '{"text": null}',
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_is_no_document_stops_it_as_it_stops_megatron(bpe, tmp_path, line):
    (tmp_path / "in.jsonl").write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(DataprepError, match="line 2"):
        make(*arguments(tmp_path / "in.jsonl", tmp_path / "my", bpe.path))
    assert not (tmp_path / "my_text_document.idx").exists()


@pytest.mark.parametrize("number", [2, 3, 9])
def test_documents_are_dealt_out_one_by_one(bpe, write_texts, tmp_path, monkeypatch, number):
    monkeypatch.setattr("dataprep.compat.dealing.BLOCK_DOCUMENTS", 4)
    monkeypatch.setattr("dataprep.compat.dealing.PIECE_TOKENS", 3)
    monkeypatch.setattr("dataprep.reshaping.selections.BLOCK_DOCUMENTS", 5)
    texts = [f"text {i} " * (i % 4) for i in range(20)]
    (made,) = make(*arguments(write_texts(texts), tmp_path / "my", bpe.path, "--partitions", number))

    order = [i for start in range(number) for i in range(start, 20, number)]
    found = dataprep.open_dataset(made.prefix)
    assert [found.document(i).tolist() for i in range(20)] == [bpe.ids([texts[i]])[0] for i in order]


def test_the_command_line(tokenizers, tmp_path):
    def call(*more: object) -> subprocess.CompletedProcess[str]:
        asked = [str(a) for a in arguments(GOLDEN / "texts.jsonl", tmp_path / "my", tokenizers["plain"], *more)]
        command = [sys.executable, "-m", "dataprep", "preprocess", *asked]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)

    done = call("--append-eod", "--log-interval", 100)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/my_text_document\n"), done.stderr
    assert "--log-interval is ignored" in done.stderr
    again = call("--append-eod", "--json")
    assert [(pair["fresh"], pair["prefix"]) for pair in json.loads(again.stdout)] == [
        (False, f"{tmp_path}/my_text_document")
    ]
    wrong = call("--apend-eod")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean --append-eod?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_help_lists_the_flags():
    command = [sys.executable, "-m", "dataprep", "preprocess", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "--tokenizer-hf-no-include-special-tokens" in shown
    assert "Example: dataprep preprocess" in shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tokenizer-special-tokens", "<a>"], "save a tokenizer that has them"),
        (["--tokenizer-metadata", "m.json"], "leave it out"),
        (["--vocab-file", "v", "--merge-file", "m"], "exclude --tokenizer-model"),
        (["--tokenizer-type", "TikTokenizer"], "give the folder of its tokenizer.json"),
        (["--tokenizer-type", "NullTokenizer"], "nothing to tokenize"),
        (["--tokenizer-type", "HuggingFaceTokenizr"], "did you mean HuggingFaceTokenizer"),
        (["--tokenizer-hf-no-use-fast"], "leave it out"),
        (["--workers", "0"], "--workers: expected a number, at least 1, found '0'"),
        (["--partitions", "many"], "--partitions: expected a number, at least 1, found 'many'"),
        (["--input", ""], "--input is empty"),
        (["--output-prefix", ""], "--output-prefix is empty"),
        (["--set", "reader.text=body"], "use --json-keys"),
        (["--set", "output.max_prefix_bytes=1GB"], "use `dataprep run`"),
        (["--set", "output.merge=false"], "use `dataprep run`"),
        (["--policy", "mine"], "--policy"),
        (["--dataset-impl", "cached"], "--dataset-impl"),
        (["--legacy-tokenizer", "--policy", "nemotron"], "give one of them"),
        (["--legacy-tokenizer", "--tokenizer-type", "SentencePieceTokenizer"], "GPTSentencePieceTokenizer"),
        (["--no-such-thing"], "unknown: --no-such-thing"),
        (["stray"], "unknown: stray"),
    ],
)
def test_what_is_not_followed_is_refused(tmp_path, more, message):
    with pytest.raises(SpecError, match=message):
        flags.parse([str(argument) for argument in arguments(tmp_path, tmp_path, tmp_path, *more)])


def test_megatrons_switches_that_change_nothing_are_taken(tmp_path):
    more = ["--vocab-size", "5", "--trust-remote-code", "--find-optimal-num-workers", "--workers-to-check", "16", "32"]
    more += ["--make-vocab-size-divisible-by", "128", "--use-gigatoken", "--seq-length", "1"]
    asked = flags.parse([str(argument) for argument in arguments(tmp_path, tmp_path, tmp_path, *more)])

    assert len(asked.notes) == 7
    assert asked == flags.parse([str(a) for a in arguments(tmp_path, tmp_path, tmp_path)] + more)
    missing = [str(a) for a in arguments(tmp_path, tmp_path, tmp_path)]
    assert flags.parse([*missing, "--tokenizer-hf-no-inc"]).include_specials is False  # as argparse abbreviates


def test_a_missing_tokenizer_is_named():
    common = ["--input", "in.jsonl", "--output-prefix", "my", "--tokenizer-type"]
    with pytest.raises(SpecError, match="needs --vocab-file and --merge-file"):
        flags.parse([*common, "GPT2BPETokenizer", "--vocab-file", "v"])
    with pytest.raises(SpecError, match="needs --tokenizer-model"):
        flags.parse([*common, "HFTokenizer"])


def test_advice_names_the_flags_of_this_command(bpe, write_texts, tmp_path, monkeypatch):
    (tmp_path / "in.jsonl").write_text('{"other": "x"}\n')
    with pytest.raises(SourceError, match="another with --json-keys"):
        make(*arguments(tmp_path / "in.jsonl", tmp_path / "my", bpe.path))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"choose another --output-prefix$"):
        make(*arguments(tmp_path / "in.jsonl", tmp_path / "file" / "my", bpe.path))


def test_the_same_in_python(bpe, write_texts, tmp_path):
    (made,) = dataprep.preprocess([str(a) for a in arguments(write_texts(["one"]), tmp_path / "my", bpe.path)])
    assert (made.prefix, made.fresh) == (tmp_path / "my_text_document", True)


def test_a_vocabulary_that_is_not_there(tmp_path):
    chosen = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "nope.json", "--merge-file", "nope.txt"]
    with pytest.raises(SpecError, match=r"--vocab-file: no such file: .*nope\.json"):
        flags.parse(["--input", "in.jsonl", "--output-prefix", str(tmp_path / "my"), *chosen])


def test_a_source_that_cannot_be_read(bpe, tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        make(*arguments(tmp_path / "nothing.jsonl", tmp_path / "my", bpe.path))
    (tmp_path / "in.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 this is no gzip")
    with pytest.raises(SourceError):
        make(*arguments(tmp_path / "in.jsonl.gz", tmp_path / "my", bpe.path))
