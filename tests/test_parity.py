"""`dataprep.parity`: an engine that is wrong anywhere it is looked at stops the run, and nothing is published.

The wrong engine is the real one with one document's ids changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import dataprep
from dataprep import encoders
from dataprep.batches import TokenBatch
from dataprep.definitions import define
from dataprep.encoders import Gigatoken, open_engine, open_reference
from dataprep.errors import EncodeError
from dataprep.parity import GATE_BYTES, NASTY, gate, strings
from dataprep.stages import tokenize

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.batches import TextBatch

MARKER = "wr\u00f6ng"
FILLER = "some words and more words \u2014 " * 40  # 1.2 KB: 128 of them are more than the gate reads


def _spoil(batch: TextBatch, tokens: TokenBatch, wrong: Callable[[str], bool], how: str = "change") -> TokenBatch:
    """The same ids, but for the documents that `wrong` picks: last id changed, dropped, or one more appended."""
    parts = []
    for i in range(len(batch)):
        ids = tokens.ids[tokens.offsets[i] : tokens.offsets[i + 1]]
        if wrong(batch.document(i).decode()):
            ids = {"change": np.append(ids[:-1], ids[-1:] ^ 1), "drop": ids[:-1], "add": np.append(ids, 5)}[how]
        parts.append(ids.astype(np.uint32))
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return TokenBatch(np.concatenate(parts), offsets)


@pytest.fixture
def make_wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put an engine in place that is wrong for the documents that a predicate picks."""

    def make(wrong: Callable[[str], bool], how: str = "change") -> None:
        class Wrong(Gigatoken):
            def encode(self, batch: TextBatch) -> TokenBatch:
                right = super().encode(batch)
                return _spoil(batch, right, wrong, how) if len(batch) else right

        monkeypatch.setattr(encoders, "Gigatoken", Wrong)
        monkeypatch.setattr(tokenize, "_benches", {})  # engines of an earlier test

    return make


def _assert_nothing_published(output: Path, shards: bool = False) -> None:
    assert [path.name for path in output.iterdir()] == ["work"]  # no dataset, no link, no half-merged folder
    assert not list(output.rglob("manifest.json"))
    assert shards or not list((output / "work").glob("*/shards/*"))


@pytest.mark.parametrize("nasty", [NASTY[9], NASTY[15], NASTY[22], NASTY[29], NASTY[-1]])
@pytest.mark.parametrize("how", ["change", "drop", "add"])
def test_gate_stops_a_run_whose_engine_is_wrong_on_a_nasty_string_only(
    bpe, make_wrong, write_texts, tmp_path, nasty, how
):
    make_wrong(lambda text: text == nasty, how)
    output = tmp_path / "out"
    with pytest.raises(EncodeError) as caught:
        dataprep.run(str(write_texts(["harmless", "also harmless"])), str(bpe.path), output)
    message = str(caught.value)
    assert f"the built-in string {nasty[:40]!r}" in message
    assert "gigatoken" in message
    assert "tokenizers" in message
    assert "nothing was published" in message
    _assert_nothing_published(output)


def test_gate_runs_before_any_unit(bpe, make_wrong, write_texts, tmp_path, monkeypatch):
    make_wrong(lambda text: text == NASTY[9])
    monkeypatch.setattr(tokenize, "run", lambda *_: pytest.fail("a unit was begun"))
    with pytest.raises(EncodeError):
        dataprep.run(str(write_texts(["harmless"])), str(bpe.path), tmp_path / "out")


@pytest.mark.parametrize("number", range(len(NASTY)))
def test_gate_compares_every_nasty_string(bpe, number):
    definition = define(bpe.type, bpe.path)
    reference = open_reference(definition, "encode")

    class Wrong:
        name, version = "wrong", "0"

        def encode(self, batch: TextBatch) -> TokenBatch:
            return _spoil(batch, reference.encode(batch), lambda text: text == NASTY[number], "add")

    with pytest.raises(EncodeError) as caught:
        gate(Wrong(), reference, None)
    assert f"the built-in string {NASTY[number][:40]!r}: at token " in str(caught.value)


def test_gate_tries_the_tokenizers_own_added_tokens(make_tokenizer, byte_json, write_texts, tmp_path):
    """No fixed list holds them. gigatoken 0.10.0 finds an added token inside a word too, `single_word` or not."""
    added = [{**token, "single_word": token["content"] == "<tool>"} for token in byte_json["added_tokens"]]
    with pytest.raises(EncodeError, match=r"^the built-in string 'a<tool>b <tool> <tool><tool>': at token "):
        dataprep.run(str(write_texts(["harmless"])), str(make_tokenizer(added_tokens=added)), tmp_path / "out")
    _assert_nothing_published(tmp_path / "out")


@pytest.mark.parametrize("sizes", [range(1, 2), range(5, 1000)], ids=["alone", "among many"])
def test_gate_compares_a_string_alone_and_among_many(bpe, sizes):
    """Few small documents take another way through the engine."""
    definition = define(bpe.type, bpe.path)
    reference = open_reference(definition, "encode")
    engine = open_engine(definition, "encode", "gigatoken", reference)

    class Wrong:
        name, version = "wrong", "0"

        def encode(self, batch: TextBatch) -> TokenBatch:
            right = engine.encode(batch)
            return _spoil(batch, right, lambda text: text == NASTY[9]) if len(batch) in sizes else right

    with pytest.raises(EncodeError, match="the built-in string 'Hello  world'"):
        gate(Wrong(), reference, None)


def test_gate_compares_the_first_documents_of_the_corpus(bpe, make_wrong, write_texts, tmp_path):
    make_wrong(lambda text: MARKER in text)
    corpus = write_texts(["a", "", "b", MARKER, "c"])
    with pytest.raises(EncodeError, match=r"^record 4 of the corpus: at token "):
        dataprep.run(str(corpus), str(bpe.path), tmp_path / "out", settings=["runtime.audit_rate=0"])
    _assert_nothing_published(tmp_path / "out")


def test_gate_counts_what_it_compared(trained):
    definition = define(trained.type, trained.path)
    reference = open_reference(definition, "encode")
    engine = open_engine(definition, "encode", "gigatoken", reference)
    strange = len(NASTY) + len(getattr(reference, "added", ()))
    assert gate(engine, reference, None) == strange
    assert gate(engine, reference, strings(["a", "", "b"])) == strange + 3
    few = GATE_BYTES // len(FILLER.encode())
    assert gate(engine, reference, strings([FILLER] * 500)) == strange + few


def test_gate_is_not_stopped_by_a_first_document_that_is_too_large_for_it(bpe):
    definition = define(bpe.type, bpe.path)
    reference = open_reference(definition, "encode")
    engine = open_engine(definition, "encode", "gigatoken", reference)
    assert gate(engine, reference, strings(["x" * (2 * GATE_BYTES), "a"])) == len(NASTY) + 1


def _long_corpus(write_texts: Callable[..., Path], at: int) -> Path:
    texts = [f"{i} {FILLER}" for i in range(300)]
    texts[at] = f"{MARKER} {texts[at]}"
    return write_texts(texts, "long.jsonl")


@pytest.mark.parametrize("row", [203, 294])
@pytest.mark.parametrize("how", ["change", "drop", "add"])
def test_audit_stops_a_run_whose_engine_is_wrong_on_a_sampled_document_and_names_it(
    bpe, make_wrong, write_texts, tmp_path, row, how
):
    make_wrong(lambda text: MARKER in text, how)
    output = tmp_path / "out"
    with pytest.raises(EncodeError) as caught:
        dataprep.run(str(_long_corpus(write_texts, row)), str(bpe.path), output, settings=["runtime.audit_rate=7"])
    message = str(caught.value)
    assert message.startswith(f"long.jsonl, record {row + 1} of unit 000000-")
    assert f"beginning {f'{MARKER} {row} {FILLER}'.encode()[:60]!r}" in message
    _assert_nothing_published(output)


@pytest.mark.parametrize("batch_bytes", [1 << 16, 100_000, 1 << 20])
def test_audit_samples_the_same_rows_for_any_batch_size(bpe, make_wrong, write_texts, tmp_path, batch_bytes):
    make_wrong(lambda text: MARKER in text)
    settings = ["runtime.audit_rate=11", f"runtime.batch_bytes={batch_bytes}"]
    with pytest.raises(EncodeError, match=r"^long\.jsonl, record 287 of unit 000000-"):
        dataprep.run(str(_long_corpus(write_texts, 286)), str(bpe.path), tmp_path / "out", settings=settings)
    result = dataprep.run(str(_long_corpus(write_texts, 288)), str(bpe.path), tmp_path / "other", settings=settings)
    assert result.manifest.counts.num_audited == 28  # ceil(300 / 11): row 288 is none of them, so the run goes through


def test_audit_is_on_by_default_and_begins_with_the_first_document_of_every_unit(
    bpe, make_wrong, write_texts, tmp_path
):
    make_wrong(lambda text: MARKER in text)
    a = write_texts([FILLER] * 200, "a.jsonl")
    b = write_texts([f"{MARKER} {FILLER}", FILLER], "b.jsonl")
    with pytest.raises(EncodeError, match=r"^b\.jsonl, record 1 of unit 000001-"):
        dataprep.run(
            [str(a), str(b)], str(bpe.path), tmp_path / "out", settings=[f"runtime.unit_bytes={a.stat().st_size}"]
        )
    assert not list((tmp_path / "out").rglob("manifest.json"))


@pytest.mark.parametrize("waiting", [1, 1000], ids=["merged", "shards"])
def test_what_a_wrong_engine_made_before_the_audit_found_it_is_not_used_again(
    inline_cluster, bpe, make_wrong, write_texts, tmp_path, monkeypatch, waiting
):
    """As the message says: the same run with the reference. Units that passed the audit by luck must not go into it."""
    monkeypatch.setattr("dataprep.stages.merge.MAX_WAITING", waiting)
    a = write_texts([*[FILLER] * 100, f"{MARKER} {FILLER}"], "a.jsonl")
    b = write_texts([f"{MARKER} {FILLER}", FILLER], "b.jsonl")
    corpus, settings = [str(a), str(b)], [f"runtime.unit_bytes={a.stat().st_size}", "runtime.workers=1"]
    make_wrong(lambda text: MARKER in text)
    with pytest.raises(EncodeError, match=r"^b\.jsonl, record 1 of unit 000001-"):
        dataprep.run(corpus, str(bpe.path), tmp_path / "out", settings=settings)
    assert len(list(tmp_path.glob("out/work/*/shards/*.bin"))) == (0 if waiting == 1 else 1)
    reference = [*settings, "runtime.engine=reference"]
    result = dataprep.run(corpus, str(bpe.path), tmp_path / "out", settings=reference)
    right = dataprep.run(corpus, str(bpe.path), tmp_path / "right", settings=reference)
    assert Path(f"{result.prefix}.bin").read_bytes() == Path(f"{right.prefix}.bin").read_bytes()


def test_audit_works_for_every_type(trained, make_wrong, write_texts, tmp_path):
    make_wrong(lambda text: MARKER in text)
    corpus = str(_long_corpus(write_texts, 200))
    with pytest.raises(EncodeError, match=r"^long\.jsonl, record 201 of unit "):
        dataprep.run(corpus, str(trained.path), tmp_path / "out", settings=["runtime.audit_rate=100"])


def test_a_right_engine_passes_and_the_manifest_says_how_much_was_compared(trained, write_texts, tmp_path):
    result = dataprep.run(str(write_texts(list(NASTY))), str(trained.path), tmp_path, settings=["runtime.audit_rate=1"])
    engine = result.manifest.engine
    assert engine.name == "gigatoken"
    assert engine.reference in ("tokenizers", "sentencepiece")
    added = 0 if trained.type == "Llama2Tokenizer" else len(define(trained.type, trained.path).added)
    assert engine.gate_documents == 2 * len(NASTY) + added
    assert engine.audited_documents == result.manifest.counts.num_audited == len(NASTY)


def test_verify_at_level_source_finds_what_a_wrong_engine_wrote(bpe, make_wrong, write_texts, tmp_path):
    """The last net: gate and audit looked elsewhere, the dataset was published."""
    make_wrong(lambda text: text.endswith(FILLER) and int(text.split()[0]) >= 200)
    corpus = write_texts([f"{i} {FILLER}" for i in range(300)], "long.jsonl")
    result = dataprep.run(str(corpus), str(bpe.path), tmp_path / "out", settings=["runtime.audit_rate=0"])
    assert dataprep.verify(result.prefix, "tokens").ok
    report = dataprep.verify(result.prefix, "source")
    assert not report.ok
    found = re.fullmatch(
        r"document (2\d\d) is not what tokenizers makes of record (2\d\d) of .*/long\.jsonl", report.problems[0].message
    )
    assert found
    assert int(found[1]) + 1 == int(found[2])  # documents count from 0, records from 1


COMMAND = """
    import sys
    from dataprep import cli, encoders
    from dataprep.batches import TokenBatch
    right = encoders.Gigatoken.encode

    def wrong(self, batch):
        tokens = right(self, batch)
        ids = tokens.ids.copy()
        for i in range(len(batch)):
            if {condition}:
                ids[tokens.offsets[i]] ^= 1
        return TokenBatch(ids, tokens.offsets)

    encoders.Gigatoken.encode = wrong
    sys.argv = ["dataprep", *sys.argv[1:]]
    cli.main()
"""


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ("batch.document(i) == b'Hello  world'", "error: the built-in string 'Hello  world': at token 0"),
        ("batch.document(i).startswith('wr\\u00f6ng'.encode())", "error: long.jsonl, record 204 of unit 000000-"),
    ],
    ids=["gate", "audit"],
)
def test_the_command_ends_with_1_and_one_message(bpe, write_texts, tmp_path, condition, named):
    corpus, output = _long_corpus(write_texts, 203), tmp_path / "out"
    arguments = ["run", str(corpus), "-t", str(bpe.path), "-o", str(output), "--set", "runtime.audit_rate=7"]
    code = textwrap.dedent(COMMAND).replace("{condition}", condition)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(named)
    assert "Traceback" not in done.stderr
    _assert_nothing_published(output)
