"""The benchmark runs on a tiny input and its table and JSON hold every row; what it measured is not looked at."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent / "bench" / "throughput.py"
ROWS = ["dataprep", "engine parallel", "engine threads", "plain", "datatrove"]

# Stands for `dataprep run`, so that the benchmark's own checks can be tested: an indexed dataset of the right size,
# off by the number of tokens in its first argument.
STUB = """
import json, struct, sys
from pathlib import Path
import gigatoken
assert sys.argv[2] == "run" and "policy.bos=never" in sys.argv
options = dict(zip(sys.argv[4::2], sys.argv[5::2]))
texts = [json.loads(line)["text"] for line in open(sys.argv[3], "rb")]
encoded = gigatoken.Tokenizer(options["--tokenizer"]).encode_batch(texts, parallel=False)
prefix = Path(options["--output"], "stub")
prefix.with_suffix(".bin").write_bytes(bytes(2 * (len(encoded.layout.content) + len(texts) + int(sys.argv[1]))))
prefix.with_suffix(".idx").write_bytes(b"MMIDIDX" + bytes(2) + struct.pack("<QBQ", 1, 8, len(texts)))
print(prefix)
"""


@pytest.fixture(scope="module")
def throughput() -> ModuleType:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("throughput", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with a corpus, a small tokenizer, a stub of dataprep and a Python without packages."""
    import tokenizers

    folder = tmp_path_factory.mktemp("bench")
    texts = [
        f"Document {number}: na\u00efve caf\u00e9, {'x' * (number % 7)} \u4e2d\u6587\n" * 3 for number in range(200)
    ]
    lines = [json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    (folder / "tiny").mkdir()
    tokenizer.save(str(folder / "tiny" / "tokenizer.json"))
    (folder / "stub.py").write_text(STUB)
    bare = folder / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    bare.chmod(0o755)
    return folder


def run_bench(inputs: Path, out: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    command = [sys.executable, SCRIPT, "--input", inputs / "corpus.jsonl", "--tokenizers", f"tiny={inputs / 'tiny'}"]
    command += ["--repeats", "1", "--datatrove-python", inputs / "bare-python", "--json", out, *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    return done, json.loads(out.read_text()) if out.exists() else {}


def stub(inputs: Path, off_by: int) -> str:
    return shlex.join([sys.executable, str(inputs / "stub.py"), str(off_by)])


def test_table_and_json_have_every_row(inputs, tmp_path):
    done, document = run_bench(inputs, tmp_path / "out.json", "--command", stub(inputs, 0), "--plain-bytes", "9000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["row"] for row in document["rows"]] == ROWS
    table = [line for line in done.stdout.splitlines() if line.startswith("tiny ")]
    assert [row in line for row, line in zip(ROWS, table, strict=True)] == [True] * 5
    statuses = {row["row"]: row["status"] for row in document["rows"]}
    assert statuses.pop("datatrove") == "not installed: datatrove"
    assert set(statuses.values()) == {"ok"}
    assert "not installed: datatrove" in table[-1]
    assert sum(row["engine_alone"] for row in document["rows"]) == 1
    assert all(row["ratio_engine"] and row["ratio_plain"] for row in document["rows"][:4])
    assert [(check["row"], check["equal"]) for check in document["checks"]] == [
        ("dataprep", True), ("engine threads", True), ("plain", True),
    ]  # fmt: skip
    assert {"date", "machine", "versions", "input", "options"} <= set(document)
    assert document["input"]["documents"] == 200


def test_unequal_work_is_an_error(inputs, tmp_path):
    options = ("--command", stub(inputs, 1), "--only", "dataprep", "engine")
    done, document = run_bench(inputs, tmp_path / "out.json", *options)
    assert done.returncode == 1
    assert "UNEQUAL WORK: tiny, dataprep" in done.stdout
    assert [check["equal"] for check in document["checks"]] == [False, True]


def test_a_failing_command_is_a_failed_row_and_not_a_figure(inputs, tmp_path):
    command = shlex.join([sys.executable, "-c", "raise SystemExit('no such thing')"])
    done, document = run_bench(inputs, tmp_path / "out.json", "--command", command, "--only", "dataprep", "--small")
    assert done.returncode == 1
    assert document["rows"][0]["status"] == "failed: exit code 1: no such thing"
    assert "mb_per_second" not in document["rows"][0]
    assert document["small"][0]["status"].startswith("failed")


@pytest.mark.slow
def test_memory_curve_and_small_input(inputs, tmp_path):
    options = ("--command", stub(inputs, 0), "--only", "--small", "--memory-curve", "0.00001,0.00002")
    done, document = run_bench(inputs, tmp_path / "out.json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["gigabytes"] for row in document["memory_curve"]] == [0.00001, 0.00002]
    assert all(row["ratio_engine"] and row["peak_bytes"] for row in document["memory_curve"])
    assert len(document["small"][0]["runs"]) == 3


@pytest.mark.slow
def test_dataprep_itself(inputs, tmp_path):
    done, document = run_bench(inputs, tmp_path / "out.json", "--only", "dataprep", "engine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in document["rows"]] == ["ok"] * 3


def test_made_corpus_is_deterministic_and_says_what_it_repeats(throughput, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(5):
            (tmp_path / folder / f"{folder}{number}.txt").write_text(f"text {number}\n" * 30)
        (tmp_path / folder / "binary.txt").write_bytes(b"\xff\xfe\0")
    outputs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    throughput.collect([tmp_path / "a"], None, 10**6, outputs[0])
    throughput.collect([tmp_path / "b", tmp_path / "a"], outputs[0], 10**6, outputs[1])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert outputs[0].read_bytes().count(b"\n") == 5

    size = outputs[0].stat().st_size
    once = throughput.grow(outputs[0], size, tmp_path / "once.jsonl")
    twice = throughput.grow(outputs[0], 2 * size, tmp_path / "twice.jsonl")
    assert (once["repeated"], twice["repeated"], twice["documents"]) == (0, 0.5, 10)
    assert throughput.describe(tmp_path / "twice.jsonl")["repeated"] == 0.5
    assert "no document repeated" in throughput.said(once)
    assert "REPEATED: 50.0%" in throughput.said(twice)
    lines = (tmp_path / "twice.jsonl").read_bytes().splitlines()
    assert sorted(lines[:5]) == sorted(lines[5:])
    assert lines[:5] != lines[5:]


def test_pieces_lose_nothing_and_cut_between_characters(throughput):
    text = "\u4e2d\u6587" * 50 + "\n" + "line\n" * 20
    parts = list(throughput.pieces(text, 64))
    assert "".join(parts) == text
    assert max(len(part.encode()) for part in parts) <= 64
