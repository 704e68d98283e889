"""`preprocess --split-sentences`, held to nltk's own splitter and to what Megatron does with each sentence.

The model is trained here, on the text of the test, and stored as nltk's downloads are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.batches import offsets_of
from dataprep.compat import flags
from dataprep.compat.preprocess import preprocess
from dataprep.compat.punkt import Cut, cut_lines, splitter
from dataprep.errors import EncodeError, SourceError, SpecError
from dataprep.watcher import Silent

nltk = pytest.importorskip("nltk")

TEXTS = [
    "Mr. Smith went to Washington. He arrived at 3 p.m. on Jan. 5th!  Did he stay?\nNobody knows.",
    "",
    "   \n\n  ",
    "No end",
    'He said: "Stop." Then he left.\n\nA new paragraph. (In brackets.) Dr. Who? Yes.',
    "One.Two.Three. Four...five... Six",
    "\u4f60\u597d\u3002\u4e16\u754c\u3002 Hello. World.",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder to name with NLTK_DATA."""
    from nltk.tabdata import TabEncoder
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    trainer.train(" ".join(TEXTS * 20))
    parameters, encoder = trainer.get_params(), TabEncoder()
    folder = tmp_path_factory.mktemp("nltk") / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    (folder / "collocations.tab").write_text(encoder.tups2tab(parameters.collocations))
    (folder / "sent_starters.txt").write_text(encoder.set2txt(parameters.sent_starters))
    (folder / "abbrev_types.txt").write_text(encoder.set2txt(parameters.abbrev_types))
    (folder / "ortho_context.tab").write_text(encoder.ivdict2tab(parameters.ortho_context))
    return folder.parents[2]


@pytest.fixture
def _found(model, monkeypatch):
    """nltk finds it: in the processes by the environment, here by its path, which it reads once."""
    monkeypatch.setenv("NLTK_DATA", str(model))
    monkeypatch.setattr(nltk.data, "path", [str(model)])
    monkeypatch.setattr("dataprep.compat.punkt._tokenizers", {})


def make(source: Path, output: Path, tokenizer: Path, *more: str):
    chosen = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tokenizer), "--workers", "2"]
    asked = flags.parse(["--input", str(source), "--output-prefix", str(output), *chosen, "--split-sentences", *more])
    return preprocess(asked, Silent())[0]


def split(text: str, keep_newlines: bool) -> list[str]:
    """What Megatron's splitter gives: punkt's sentences; kept apart by nothing when white space belongs to them."""
    from nltk.tokenize.punkt import PunktLanguageVars, PunktSentenceTokenizer, PunktTokenizer

    class Variables(PunktLanguageVars):
        _period_context_fmt = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"

    plain = PunktTokenizer("english")
    tokenizer = PunktSentenceTokenizer(plain._params, lang_vars=Variables()) if keep_newlines else plain
    return tokenizer.tokenize(text)


@pytest.mark.usefixtures("_found")
@pytest.mark.parametrize("keep_newlines", [False, True])
@pytest.mark.parametrize("tokenizer", ["bpe", "bos_bpe"])
def test_each_sentence_is_a_sequence(request, write_texts, tmp_path, tokenizer, keep_newlines):
    chosen = request.getfixturevalue(tokenizer)
    more = ["--append-eod", *(["--keep-newlines"] if keep_newlines else [])]
    made = make(write_texts(TEXTS), tmp_path / "my", chosen.path, *more)

    identity = made.manifest.tokenizer
    begin = [identity.bos_id] if identity.adds_bos else []
    sequences, boundaries = [], [0]
    for text in TEXTS:
        found = [begin + ids for ids in chosen.ids(split(text, keep_newlines)) if begin or ids] if text else []
        if found:
            found[-1] = [*found[-1], identity.eod_id]
        sequences += found
        boundaries.append(len(sequences))
    pair = dataprep.open_dataset(made.prefix)
    assert made.prefix == tmp_path / "my_text_sentence"
    assert [ids.tolist() for ids in pair[:]] == sequences
    assert pair.document_indices.tolist() == boundaries
    assert len(sequences) == 12
    assert [split(text, True) for text in TEXTS] != [split(text, False) for text in TEXTS]
    report = dataprep.verify(made.prefix)
    assert report.ok, report.problems
    assert made.manifest.counts.num_documents == len(TEXTS)
    assert dataprep.where(made.prefix, 4)["documents"][0]["source"]["first_row"] == 4
    problem = dataprep.verify(made.prefix, "source").errors[0]
    assert problem.code == "source-unknown"
    assert "made by preprocess with --split-sentences, and not encoded again" in problem.message
    merged = dataprep.merge([made.prefix], tmp_path / "merged").prefix
    assert dataprep.where(merged, 4)["documents"][0]["source"]["first_row"] == 4
    assert [problem.code for problem in dataprep.verify(merged, "source").errors] == ["source-unknown"]
    assert make(write_texts(TEXTS), tmp_path / "my", chosen.path, *more).fresh is False


@pytest.mark.usefixtures("_found")
@pytest.mark.parametrize("number", [2, 3, 20])
def test_sentences_are_dealt_out_by_document(bpe, write_texts, tmp_path, number):
    source = write_texts(TEXTS)
    whole = dataprep.open_dataset(make(source, tmp_path / "whole", bpe.path).prefix)
    dealt = make(source, tmp_path / "dealt", bpe.path, "--partitions", str(number)).prefix

    order = [i for start in range(number) for i in range(start, len(TEXTS), number)]
    found = dataprep.open_dataset(dealt)
    bounds = whole.document_indices
    expected = [whole[int(bounds[i]) : int(bounds[i + 1])] for i in order]
    assert np.diff(found.document_indices).tolist() == [len(sentences) for sentences in expected]
    assert [ids.tolist() for ids in found[:]] == [ids.tolist() for sentences in expected for ids in sentences]
    assert [dataprep.where(dealt, i)["documents"][0]["source"]["first_row"] for i in range(7)] == order


@pytest.mark.usefixtures("_found")
def test_runs_of_a_million_characters_are_cut_apart_as_megatron_cuts_them(bpe, write_texts, tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.compat.punkt.CUT_CHARACTERS", 10)  # here; the processes have their own
    found = splitter(Cut("text", "english", keep_newlines=False))("One two. Three four. Five.")
    assert found == [b"One two.", b"T", b"hree four.", b" Five."]


@pytest.mark.usefixtures("_found")
def test_many_batches_come_out_in_order(bpe, write_texts, tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.compat.sentences.BATCH_BYTES", 1000)
    texts = [f"Number {i}. And {i * i} more." for i in range(300)]
    made = make(write_texts(texts), tmp_path / "my", bpe.path)

    pair = dataprep.open_dataset(made.prefix)
    assert pair.document_indices.tolist() == list(range(0, 601, 2))
    expected = [ids for i in range(300) for ids in bpe.ids([f"Number {i}.", f"And {i * i} more."])]
    assert np.array_equal(np.concatenate(pair[:]), np.concatenate(expected))


@pytest.mark.usefixtures("_found")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": 5}', "line 9: expected 'text' to be a string, found int"),
        ('{"text": ["a", 5]}', "found list"),
        ('{"other": "x"}', "no field 'text'"),
        ("[]", "line 9"),
        ("no json", "line 9"),
        ('{"text": "", "deep": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 9"),
        ('{"text": "\\ud800."}', "surrogates not allowed"),
    ],
)
def test_a_line_that_is_no_document_is_named(line, message):
    lines = [b'{"text": "Fine."}', b"", line.encode()]
    offsets = offsets_of([len(one) for one in lines])
    with pytest.raises(SourceError, match=message):
        cut_lines(Cut("text", "english", False), "in.jsonl", 6, b"".join(lines), offsets, 0)


@pytest.mark.usefixtures("_found")
def test_a_line_that_is_no_document_stops_it(bpe, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Fine."}\n\n[]\n')
    with pytest.raises(SourceError, match="line 3"):
        make(tmp_path / "in.jsonl", tmp_path / "my", bpe.path)
    assert [path.name for path in tmp_path.glob("my_*")] == ["my_text_sentence.work"]


@pytest.mark.usefixtures("_found")
def test_a_language_that_is_not_here(bpe, write_texts, tmp_path, monkeypatch):
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)  # what it gives without network
    with pytest.raises(SpecError, match=r"nltk's model of 'klingon'.*downloader punkt_tab"):
        make(write_texts(TEXTS), tmp_path / "my", bpe.path, "--lang", "klingon")


def test_without_nltk_it_says_what_to_install(bpe, write_texts, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nltk", None)
    monkeypatch.setattr("dataprep.compat.punkt._tokenizers", {})
    with pytest.raises(SpecError, match=r"pip install 'dataprep-llm\[sentences\]'"):
        make(write_texts(TEXTS), tmp_path / "my", bpe.path)


@pytest.mark.usefixtures("_found")
def test_other_ways_to_cut_are_other_pairs(bpe, write_texts, tmp_path):
    source = write_texts(TEXTS)
    make(source, tmp_path / "my", bpe.path)
    with pytest.raises(SpecError, match="another --output-prefix"):
        make(source, tmp_path / "my", bpe.path, "--keep-newlines")


def test_a_text_that_is_a_list_is_cut_already(bpe, tmp_path):
    rows = [["One.", "", "Two."], [], "Three. Four."]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    chosen = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(bpe.path), "--append-eod"]
    asked = flags.parse(["--input", str(tmp_path / "in.jsonl"), "--output-prefix", str(tmp_path / "my"), *chosen])
    (made,) = preprocess(asked, Silent())

    eod = made.manifest.tokenizer.eod_id
    one, two, rest = bpe.ids(["One.", "Two.", "Three. Four."])
    pair = dataprep.open_dataset(tmp_path / "my_text_document")
    assert [ids.tolist() for ids in pair[:]] == [one, [*two, eod], [*rest, eod]]
    assert pair.document_indices.tolist() == [0, 2, 2, 3]


def _mixed(folder, bpe, **files):
    """The pair of texts and lists, file by file."""
    for name, rows in files.items():
        lines = (json.dumps({"other": ["x"], "t\u00eb": row}, ensure_ascii=name == "b") + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    chosen = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(bpe.path), "--json-keys", "t\u00eb"]
    asked = flags.parse(["--input", str(folder / "*.jsonl"), "--output-prefix", str(folder / "my"), *chosen])
    (made,) = preprocess(asked, Silent())
    return dataprep.open_dataset(made.prefix)


@pytest.mark.parametrize(
    "files",
    [
        {"a": ["One. Two.", ["Three.", "Four."]]},
        {"a": ["One. Two."], "b": [["Three.", "Four."]]},
        {"a": [["One. Two."]], "b": [["Three.", "Four."]]},
    ],
)
def test_a_list_behind_a_text_is_cut_already(bpe, tmp_path, files):
    pair = _mixed(tmp_path, bpe, **files)
    assert [ids.tolist() for ids in pair[:]] == bpe.ids(["One. Two.", "Three.", "Four."])
    assert pair.document_indices.tolist() == [0, 1, 3]


def test_a_list_behind_the_beginning_of_a_file_is_told(bpe, tmp_path, monkeypatch, inline_cluster):
    monkeypatch.setattr("dataprep.compat.sentences.BATCH_BYTES", 1000)
    texts = ["x" * 70_000, "y" * 70_000]
    with pytest.raises(SourceError, match=r"line 3.* found an array; lists of sentences are taken if a file"):
        _mixed(tmp_path, bpe, a=[*texts, ["One."]])
    (tmp_path / "b").mkdir()
    assert len(_mixed(tmp_path / "b", bpe, a=[["One."], *texts])) == 3


POOL = """
import os, time
from dataprep.compat.sentences import _pool
if __name__ == "__main__":
    with _pool(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 300).result()
"""


def _runs(process: Path) -> bool:
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


def test_the_processes_end_with_the_one_that_started_them(tmp_path):
    (tmp_path / "pool.py").write_text(POOL)
    with subprocess.Popen([sys.executable, str(tmp_path / "pool.py")], stdout=subprocess.PIPE, text=True) as parent:
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        assert child.exists()
        parent.kill()
        deadline = time.monotonic() + 120
        while _runs(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert time.monotonic() < deadline


@pytest.mark.usefixtures("_found")
def test_how_long_a_text_takes_never_decides(monkeypatch):
    redos = pytest.importorskip("nltk.redos")
    monkeypatch.setattr(redos, "DEFAULT_TIMEOUT", 1e-9)
    found = splitter(Cut("text", "english", False))("One two. " * 50_000)
    assert found == [b"One two."] * 50_000


@pytest.mark.usefixtures("_found")
@pytest.mark.parametrize(
    "more",
    [
        ["--policy", "datatrove"],
        ["--set", "policy.empty=drop"],
        ["--set", "reader.group_rows=3"],
        ["--set", "policy.special_text=reject"],
    ],
)
def test_what_sentences_do_not_follow_is_refused(bpe, write_texts, tmp_path, more):
    with pytest.raises(SpecError, match="of sentences do not follow it"):
        make(write_texts(TEXTS), tmp_path / "my", bpe.path, *more)
    assert not list(tmp_path.glob("my*"))


@pytest.mark.usefixtures("_found")
def test_other_ways_to_cut_after_a_run_that_died(bpe, write_texts, tmp_path, monkeypatch):
    def die(*_, **__):
        raise KeyboardInterrupt

    source = write_texts(TEXTS)
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.compat.preprocess._publish", die)
        with pytest.raises(KeyboardInterrupt):
            make(source, tmp_path / "my", bpe.path)
    made = make(source, tmp_path / "my", bpe.path, "--keep-newlines")
    expected = [ids for text in TEXTS if text for ids in bpe.ids(split(text, True)) if ids]
    assert [ids.tolist() for ids in dataprep.open_dataset(made.prefix)[:]] == expected


@pytest.mark.usefixtures("_found")
def test_special_strings_are_counted_and_what_was_left_goes(bpe, write_texts, tmp_path, monkeypatch):
    def die(*_, **__):
        raise KeyboardInterrupt

    source = write_texts(["One <|endoftext|> two. Three."])
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("dataprep.compat.preprocess._publish", die)
            with pytest.raises(KeyboardInterrupt):
                make(source, tmp_path / "my", bpe.path)
        (manifest,) = tmp_path.glob("my_text_sentence.work/*/*.manifest.json")
        left = manifest.with_name("my_text_sentence.bin.tmp-1-00000000")
        assert not left.exists()
        left.touch()
        manifest.unlink()
    made = make(source, tmp_path / "my", bpe.path)
    assert made.manifest.counts.specials == {"<|endoftext|>": 1}
    assert made.manifest.peak_memory_bytes > 1 << 20


class Liar:
    """An engine that gets one id wrong, from a given call on."""

    name, version = "liar", "1"

    def __init__(self, right, calls: int) -> None:
        self._right, self._calls = right, calls

    def start(self) -> int:
        self._calls = 0
        return 1

    def encode(self, batch):
        tokens = self._right.encode(batch)
        self._calls -= 1
        if self._calls < 0 and len(tokens.ids):
            tokens.ids[0] += 1
        return tokens


@pytest.mark.usefixtures("_found")
@pytest.mark.parametrize("calls", [0, 1000])
def test_an_engine_that_lies_is_found(bpe, write_texts, tmp_path, monkeypatch, calls):
    """At the gate, or later, by the audit: the gate makes some calls, the first batch one."""
    used = []

    def lying(definition, special_text, engine, reference):
        used.append(Liar(reference, calls))
        return used[-1]

    monkeypatch.setattr("dataprep.compat.sentences.open_engine", lying)
    if calls:
        monkeypatch.setattr(
            "dataprep.compat.sentences.parity.gate", lambda engine, *_: setattr(engine, "_calls", 0) or 1
        )
    with pytest.raises(EncodeError, match="liar"):
        make(write_texts(TEXTS), tmp_path / "my", bpe.path, "--set", "runtime.audit_rate=1")
    assert used
