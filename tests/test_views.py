"""What people see of a pair: lines that fit, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dataprep
from dataprep import views
from dataprep.cli import app
from dataprep.commands.inspect import chosen
from dataprep.errors import SpecError
from dataprep.inspection import inspect
from dataprep.samples import Sampling


def lines(value, width=80):
    return list(views.inspection(value, width))


# --- terminals


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J\x07", "\\u001b[2J\\u0007"),
        ("\x7f\x80\x9b", "\\u007f\\u0080\\u009b"),
        ("a\rb\x00", "a\\u000db\\u0000"),
        ("\u202eabc\u2066\u2028", "\\u202eabc\\u2066\\u2028"),
        ("\U0001f468\u200d\U0001f469 \u05d0", "\U0001f468\u200d\U0001f469 \u05d0"),
    ],
)
def test_what_drives_a_terminal_is_escaped(text, shown):
    assert views.printable(text) == shown


def test_quotes_hold_one_line():
    assert views.quoted('a\n\t"\\\x1b') == '"a\\n\\t\\"\\\\\\u001b"'
    assert views.quoted("x" * 9, 4) == '"xxxx"...'


@pytest.fixture(scope="module")
def dangerous(make_pair, tmp_path_factory, byte_json):
    """A pair of bytes whose first document clears the screen, and its tokenizer."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "tokenizer.json").write_text(json.dumps(byte_json))
    return make_pair([list(b"\x1b[2Jgone\r"), list(b"\x1b[2Jgone\r")]), folder


def command(*arguments):
    return [sys.executable, "-m", "dataprep", *map(str, arguments)]


@pytest.mark.parametrize("arguments", [("--document", 0), ("--sample", 0, "--seq-length", 12, "--split", 1)])
def test_a_terminal_is_shown_no_control_characters(dangerous, arguments):
    prefix, tokenizer = dangerous
    master, slave = pty.openpty()
    done = subprocess.run(
        command("-q", "inspect", prefix, "-t", tokenizer, *arguments), stdout=slave, stderr=subprocess.PIPE, timeout=60
    )
    os.close(slave)
    shown = os.read(master, 1 << 16)
    os.close(master)

    assert done.returncode == 0, done.stderr
    assert b"\\u001b[2Jgone\\u000d" in shown
    assert b"\x1b" not in shown


def test_a_pipe_gets_the_text_as_it_is(dangerous):
    prefix, tokenizer = dangerous
    done = subprocess.run(command("inspect", prefix, "-t", tokenizer, "-d", 1), capture_output=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, b"\x1b[2Jgone\r\n")
    assert b"document 1: 9 tokens" in done.stderr


# --- lines


def test_all_that_was_found_has_a_line(make_pair, make_tokenizer):
    documents = [[256, 104, 258, 257]] * 3 + [[256, *range(97, 117), 257, 300], [257]]
    value = inspect(make_pair(documents), seq_length=8, tokenizer=str(make_tokenizer()))
    text = "\n".join(lines(value))

    for part in (
        "documents  5",
        "tokens     36 uint16, 72 bytes",
        'BOS        256 "<bos>" begins 4 documents (80.00%)',
        'EOD        257 "<eod>" ends 4 documents (80.00%); is all of 1; stands 1 times inside documents',
        'specials   258 "<pad>" 3 times',
        "unknown    1 tokens stand for nothing in the vocabulary; run: dataprep verify",
        "4 to 7          3   60.0%      33.3%  ######",
        "24 different ids; the most frequent:",
        '     257  5  13.89%  "<eod>"',
        "2 documents (40.00%) repeat an earlier one token for token, and hold 8 tokens (22.22%)",
        '       3 times document 0 of 4 tokens: "<bos>h<pad><eod>"',
        "at a sequence length of 8:",
        "packed by Megatron: 4 samples an epoch",
        "dropped at the end of an epoch: 3 tokens (8.3333%)",
        "longer than 8: 1 documents",
        "truncated instead: 15 tokens lost (41.67%)",
    ):
        assert part in text


@pytest.mark.parametrize(("width", "longest"), [(20, 10), (60, 20), (80, 40), (200, 160)])
def test_the_histogram_fits_the_terminal(make_pair, width, longest):
    value = inspect(make_pair([[1] * 3] * 9 + [[1] * 5] * 2 + [[1]]), level="index")
    bars = [line for line in lines(value, width) if line.endswith("#")]

    assert [line.count("#") for line in bars] == [-(-longest // 9), longest, -(-longest * 2 // 9)]
    assert max(len(line) for line in bars) <= max(width, 52)


def test_a_pair_of_nothing_but_damaged_ids_has_its_lines(make_pair):
    text = "\n".join(lines(inspect(make_pair([[-1, -1]], dtype="int32"))))

    assert "0 different ids" in text
    assert "unknown    2 tokens stand for nothing" in text


def test_shares_are_of_documents_with_tokens_and_say_so(make_pair):
    shown = list(lines(inspect(make_pair([[5, 3]] * 3 + [[3]] + [[]] * 2))))

    assert "EOD        3 ends 4 documents (100.00% of 4 with tokens); is all of 1" in shown
    assert "BOS        5 begins 3 documents (75.00% of 4 with tokens)" in shown
    full = "\n".join(lines(inspect(make_pair([[5, 3]] * 3))))
    assert "3 ends 3 documents (100.00%)\n" in full


def test_notes_come_last(make_pair):
    assert lines(inspect(make_pair([[1], [2]], boundaries=[0, 2])))[-1].startswith("note: sentence-level")


def test_a_record_or_all_that_it_may_be_is_named():
    source = {"file": "/a\x1b.jsonl", "first_row": 3, "last_row": 3, "corpus": "a"}

    assert views.place(source) == "/a\\u001b.jsonl record 4"
    assert views.place({**source, "last_row": 9}) == "/a\\u001b.jsonl one of records 4 to 10"
    fetched = {**source, "url": "https://x/a", "origin": "hf://o/n@1"}
    assert views.place(fetched) == "/a\\u001b.jsonl record 4  (hf://o/n@1)"
    assert views.place(None) == "unknown"


def test_a_document_that_came_through_another_pair_names_it():
    entry = {"document": 7, "source": None, "input": {"prefix": "/in", "document": 2}}

    assert list(views.where({"documents": [entry]})) == ["document 7: unknown, from document 2 of /in"]


# --- options that go together


def test_options_make_a_training():
    assert chosen(None, 3, 128, 7, "1", "valid", 10) == Sampling(128, 7, "1", "valid", 10)
    assert chosen(None, 3, 128, None, None, None, None) == Sampling(128)
    assert chosen(3, None, None, None, None, None, None) is None
    assert chosen(None, None, 128, None, None, None, None) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"document": 1, "sample": 1}, "expected one of them"),
        ({"sample": 1}, "--sample needs --seq-length"),
        ({"seed": 1}, "--seed is of a sample"),
        ({"num_samples": 1, "seq_length": 8}, "--num-samples is of a sample"),
        ({"document": 1, "split": "1"}, "--split is of a sample"),
        ({"document": 1, "seq_length": 8}, "--seq-length says nothing"),
        ({"seq_length": 0}, "--seq-length 0"),
        ({"sample": 1, "seq_length": 8, "part": "all"}, "unknown part"),
    ],
)
def test_options_that_do_not_go_together_are_said(options, says):
    names = ("document", "sample", "seq_length", "seed", "split", "part", "num_samples")
    with pytest.raises(SpecError, match=says):
        chosen(*(options.get(name) for name in names))


# --- the commands, in this process


@pytest.fixture
def dataset(tmp_path, inline_cluster):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(20)))
    return dataprep.run(str(tmp_path / "in.jsonl"), "sample", tmp_path / "out").prefix


def ran(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def said(*arguments):
    done = ran(*arguments)
    assert done.exit_code == 0
    return done.stdout


def test_where_nobody_knows_is_exit_code_1(dataset, make_pair, tmp_path):
    foreign = make_pair([[3, 0]])
    said("merge", foreign, dataset, "-o", tmp_path / "both")

    done = ran("where", tmp_path / "both", "-d", 0)
    assert (done.exit_code, done.stdout) == (1, f"document 0: unknown, from document 0 of {foreign}\n")
    done = ran("where", tmp_path / "both", "-d", 0, "--json")
    assert (done.exit_code, json.loads(done.stdout)["documents"][0]["source"]) == (1, None)
    all_tokens = dataprep.open_dataset(tmp_path / "both").num_tokens - 1
    assert ran("where", tmp_path / "both", "--sample", 0, "--seq-length", all_tokens, "--split", 1).exit_code == 1
    assert ran("where", tmp_path / "both", "-d", 1).exit_code == 0


def test_samples_of_pairs_made_of_others_are_led_to_the_records_they_are_of(dataset, tmp_path):
    texts = [json.loads(line)["text"] for line in (tmp_path / "in.jsonl").read_text().splitlines()]
    said("split", dataset, "-o", tmp_path / "part", "--documents", 7)
    said("merge", *(tmp_path / f"part-0000{number}" for number in (2, 0, 1)), "-o", tmp_path / "turned")
    said("sample", tmp_path / "turned", "-o", tmp_path / "few", "--documents", 9)

    for name in ("part-00001", "turned", "few"):
        for number in range(2):
            of_sample = ("--sample", number, "--seq-length", 9, "--split", 1, "--json")
            found = json.loads(said("where", tmp_path / name, *of_sample))["documents"]
            assert found
            for entry in found:
                (row,) = {entry["source"]["first_row"], entry["source"]["last_row"]}
                assert entry["source"]["file"] == str(tmp_path / "in.jsonl")
                text = f"{texts[row]}<|endoftext|>"
                assert dataprep.decode(tmp_path / name, entry["document"]) == text
                assert dataprep.decode(entry["input"]["prefix"], entry["input"]["document"]) == text


def test_many_parts_are_not_all_told_of(dataset, tmp_path):
    done = ran("split", dataset, "-o", tmp_path / "part", "--documents", 1)
    assert "more" not in done.stderr
    assert done.stderr.count("1 documents, ") == 20
    said("merge", dataset, tmp_path / "part-00000", "-o", tmp_path / "more")
    done = ran("split", tmp_path / "more", "-o", tmp_path / "of-more", "--documents", 1)
    assert done.stdout.splitlines() == [f"{tmp_path}/of-more-{number:05d}" for number in range(21)]
    assert done.stderr.count("1 documents, ") == 20
    assert done.stderr.endswith("... and 1 more\n")


def test_ids_and_warnings_are_shown_where_there_is_no_text(make_pair):
    prefix = make_pair([[5, 6], [7, 8]])
    with Path(f"{prefix}.bin").open("ab") as file:
        file.write(b"\0\0")

    done = ran("inspect", prefix, "-d", 1)
    assert (done.exit_code, done.stdout) == (0, "7 8\n")
    assert done.stderr.splitlines()[0] == "document 1: 2 tokens"
    assert done.stderr.splitlines()[1].startswith("warning: the index is broken, or of another .bin: these may be")
    assert done.stderr.splitlines()[2].startswith("warning: only ids are shown: ")
    value = json.loads(said("inspect", prefix, "-d", 1, "--json"))
    assert (value["ids"], value["text"], value["sound"], len(value["notes"])) == ([7, 8], None, False, 2)
    sound = make_pair([[5, 6], [7, 8]])
    done = ran("inspect", sound, "--sample", 0, "--seq-length", 3, "--split", 1)
    assert {"5 6", "7 8"} <= set(done.stdout.splitlines())
    assert "warning: only ids are shown: " in done.stderr


def test_where_prints_a_line_for_each_document(dataset, tmp_path):
    of_sample = ("--sample", 0, "--seq-length", 9, "--split", 1)

    assert said("where", dataset, "-d", 3) == f"document 3: {tmp_path}/in.jsonl record 4\n"
    found = json.loads(said("where", dataset, *of_sample, "--json"))
    assert found["sampling"]["seq_length"] == 9
    records = [(entry["document"], entry["source"]["first_row"] + 1) for entry in found["documents"]]
    expected = [f"document {number}: {tmp_path}/in.jsonl record {record}" for number, record in records]
    assert said("where", dataset, *of_sample).splitlines() == expected
    pieces = json.loads(said("inspect", dataset, *of_sample, "--json"))["pieces"]
    assert [piece["document"] for piece in pieces] == [number for number, _ in records]
    shown = said("inspect", dataset, *of_sample)
    assert [f"document {number}:" in shown for number, _ in records] == [True] * len(records)


def test_inspect_draws_and_says_what_was_asked_for(dataset, tmp_path):
    value = json.loads(said("inspect", dataset, "--seq-length", 16, "--plot", tmp_path / "a.svg", "--json"))

    assert (tmp_path / "a.svg").stat().st_size
    assert value["cuts"]["seq_length"] == 16
    assert "at a sequence length of 16" in said("inspect", dataset, "--seq-length", 16, "--level", "index")
