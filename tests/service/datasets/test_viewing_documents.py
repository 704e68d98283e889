"""Documents and samples as they are shown: every token, what it stands for, and where it came from."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import IndexedDataset
from dataprep.inspection import excerpts
from dataprep.samples import Sampling
from dataprep.service.viewing import documents as module
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.details import Details
from dataprep.service.viewing.documents import Documents
from dataprep.service.viewing.kept import Kept
from dataprep.service.viewing.listing import Datasets
from dataprep.service.viewing.orders import Orders, Question

ALL = Sampling(16, split="1")


def reading(datasets):
    return Documents(datasets, Details(datasets))


@pytest.fixture(scope="module")
def documents(datasets):
    return reading(datasets)


def joined(tokens):
    return b"".join(bytes.fromhex(token.hex) if token.text is None else token.text.encode() for token in tokens)


def test_tokens_joined_are_the_document(shelf, datasets, documents):
    dataset = datasets.find(f"o~{shelf.plain}")
    pair = IndexedDataset(dataset.pairs[0].path)
    for number, text in enumerate(shelf.texts):
        view = documents.document(dataset, number)

        assert [token.id for token in view.tokens] == pair.document(number).tolist()
        assert view.text == text + "<|endoftext|>"
        assert joined(view.tokens).decode() == view.text
        assert view.tokens[-1].kind == "special"
        assert view.num_text_bytes == len(text.encode())
        assert (view.num_tokens, view.num_bytes) == (len(view.tokens), 2 * len(view.tokens))
        assert view.notes == ()


def test_the_source_is_the_file_and_the_record(shelf, datasets, documents):
    view = documents.document(datasets.find(f"o~{shelf.plain}"), 0)

    assert view.source.file.endswith("a <img src=x onerror=alert(1)>.jsonl")
    assert (view.source.first_record, view.source.last_record) == (1, 1)
    view = documents.document(datasets.find("o~nightly"), 4)
    assert view.text == "night 1 b<|endoftext|>"
    assert (Path(view.source.file).name, view.source.first_record, view.source.last_record) == ("1.jsonl", 2, 2)
    assert (view.number, view.pair_number, view.num_documents) == (4, 1, 6)


def test_the_record_follows_from_the_rejects_as_long_as_they_are_there(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    datasets = Datasets(lambda: {"o": copy.output})
    dataset = datasets.find(f"o~{shelf.plain}")
    documents = reading(datasets)

    def records():
        found = [documents.document(dataset, number).source for number in range(7)]
        return [(source.first_record, source.last_record) for source in found]

    assert records() == [(row, row) for row in range(1, 15, 2)]
    path = next(copy.output.glob("work/*/rejects/rejects.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    for data in (b"".join(lines[1:]), lines[0].replace(b'"count": 1', b'"count": 2'), b"{}\n", b"x", b""):
        path.write_bytes(data)
        assert records() == [(1, 14)] * 7
    path.unlink()
    assert records() == [(1, 14)] * 7
    (tmp_path / "elsewhere").write_bytes(b"".join(lines))
    path.symlink_to(tmp_path / "elsewhere")
    assert records() == [(1, 14)] * 7


def test_all_documents_of_a_version_are_those_that_landed(shelf, datasets, documents):
    dataset = datasets.find("o~nightly")

    texts = [documents.document(dataset, number).text.removesuffix("<|endoftext|>") for number in range(6)]
    assert texts == list(shelf.nightly_texts)


def test_sources_are_those_that_where_gives(shelf, datasets, documents):
    """Also behind the first prefix of several."""
    dataset = datasets.find(f"o~{shelf.many}")
    for number in (0, 150, 300):
        view = documents.document(dataset, number)
        (entry,) = dataprep.where(view.prefix, view.pair_number)["documents"]
        assert view.source.first_record == entry["source"]["first_row"] + 1
        assert view.source.first_record == number + 1


def test_a_long_document_comes_in_pages(shelf, datasets, documents):
    dataset = datasets.find(f"o~{shelf.many}")
    first = documents.document(dataset, 300)
    assert len(first.tokens) == module.TOKENS
    assert first.num_tokens > 4 * module.TOKENS
    data, place = b"", 0
    while place < first.num_tokens:
        page = documents.document(dataset, 300, place, 1999)
        data += joined(page.tokens)
        place += len(page.tokens)
    assert data.decode() == shelf.long + "<|endoftext|>"
    for place in (-1, first.num_tokens, 2**70):
        with pytest.raises(AbsentError, match=f"tokens 0 to {first.num_tokens - 1}"):
            documents.document(dataset, 300, place)
    for number in (-1, 301, 2**70):
        with pytest.raises(AbsentError, match="documents 0 to 300"):
            documents.document(dataset, number)


def test_a_tokenizer_that_is_not_here_leaves_ids_and_says_so(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    path = copy.output / shelf.plain / "manifest.json"
    manifest = json.loads(path.read_text())
    place = Path(manifest["recipe"]["tokenizer"]["path"])
    shutil.copytree(place, tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    for value, words in ((str(tmp_path / "gone"), "cannot read"), (str(tmp_path / "tokenizer"), "sha256 differs")):
        manifest["recipe"]["tokenizer"]["path"] = value
        path.write_text(json.dumps(manifest))
        datasets = Datasets(lambda: {"o": copy.output})
        view = reading(datasets).document(datasets.find(f"o~{shelf.plain}"), 0)
        assert view.text is None
        assert {token.kind for token in view.tokens} == {"id"}
        assert {token.text for token in view.tokens} == {None}
        assert view.notes[0].startswith("Only ids are shown: ")
        assert words in view.notes[0]


def test_files_that_are_not_the_manifests_are_noted_or_refused(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    datasets = Datasets(lambda: {"o": copy.output})
    dataset = datasets.find(f"o~{shelf.plain}")
    data = Path(f"{dataset.pairs[0].path}.bin")
    with data.open("ab") as file:
        file.write(b"\0\0")
    assert "dataprep verify" in reading(datasets).document(dataset, 0).notes[0]
    data.write_bytes(data.read_bytes()[:4])
    with pytest.raises(FormatError, match=r"shorter.*dataprep verify"):
        reading(datasets).document(dataset, 0)
    data.unlink()
    with pytest.raises(FormatError, match="cannot read"):
        reading(datasets).document(dataset, 0)
    outside = tmp_path / "secret.bin"
    outside.write_bytes(bytes(1000))
    data.symlink_to(outside)
    with pytest.raises(FormatError, match="lies elsewhere"):
        reading(datasets).document(dataset, 0)


def test_a_broken_index_is_an_error(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    datasets = Datasets(lambda: {"o": copy.output})
    dataset = datasets.find(f"o~{shelf.plain}")
    index = Path(f"{dataset.pairs[0].path}.idx")
    good = index.read_bytes()
    for place, value in ((34, b"\xff\xff\xff\xff"), (34 + 4 * 7, b"\x01\0\0\0"), (34 + 12 * 7, b"\xff" * 8)):
        index.write_bytes(good[:place] + value + good[place + len(value) :])
        with pytest.raises(FormatError, match="broken"):
            reading(datasets).document(dataset, 0)


# --- samples


def test_a_sample_is_what_excerpts_give(shelf, datasets, documents):
    dataset = datasets.find(f"o~{shelf.many}")
    place = len(dataset.pairs) - 2
    for number in (0, 3):
        expected = excerpts.sample(dataset.pairs[place].path, number, ALL)
        view = documents.sample(dataset, place, number, ALL)
        assert [[token.id for token in piece.tokens] for piece in view.pieces] == [
            piece["ids"] for piece in expected["pieces"]
        ]
        named = ("sequence", "first_token", "num_tokens", "num_sequence_tokens", "text")
        assert [[getattr(piece, name) for name in named] for piece in view.pieces] == [
            [piece[name] for name in named] for piece in expected["pieces"]
        ]
        begin = dataset.pairs[place].first_document
        assert [piece.document for piece in view.pieces] == [begin + piece["document"] for piece in expected["pieces"]]
        assert (view.num_samples, view.num_epochs) == (expected["of"], 1)
        assert [piece.source.first_record for piece in view.pieces] == [piece.document + 1 for piece in view.pieces]


def test_a_sample_comes_in_pages(shelf, datasets, documents):
    dataset, sampling = datasets.find("o~nightly"), Sampling(11, split="1")
    whole = documents.sample(dataset, 1, 0, sampling)
    ids = [token.id for piece in whole.pieces for token in piece.tokens]
    assert len(ids) == 12
    assert len(whole.pieces) > 1
    found = []
    for first in range(0, 12, 5):
        page = documents.sample(dataset, 1, 0, sampling, (first, 5))
        assert page.num_pieces == whole.num_pieces
        found += [token.id for piece in page.pieces for token in piece.tokens]
    assert found == ids


@pytest.mark.parametrize(
    ("place", "number", "sampling", "window", "error", "words"),
    [
        (2, 0, ALL, (0, 9), AbsentError, "pairs 0 to 1"),
        (-1, 0, ALL, (0, 9), AbsentError, "pairs 0 to 1"),
        (0, -1, ALL, (0, 9), AbsentError, "samples 0 to 0"),
        (0, 2**70, ALL, (0, 9), AbsentError, "samples 0 to 0"),
        (0, 0, ALL, (17, 9), AbsentError, "tokens 0 to 16"),
        (0, 0, ALL, (-1, 9), AbsentError, "tokens 0 to 16"),
        (0, 0, Sampling(16), (0, 9), SpecError, "leaves no tokens to"),
        (0, 0, Sampling(5000, split="1"), (0, 9), SpecError, "shorter"),
        (0, 0, Sampling(1, split="1", num_samples=2**60), (0, 9), SpecError, "dataprep inspect"),
    ],
)
def test_samples_that_there_are_none_of(datasets, documents, place, number, sampling, window, error, words):
    with pytest.raises(error, match=words):
        documents.sample(datasets.find("o~nightly"), place, number, sampling, window)


@pytest.fixture
def orders():
    """Large ones are made by a child; it ends with the test."""
    found = Orders()
    yield found
    found.close()


def test_a_large_order_is_made_by_a_child(shelf, datasets, orders, monkeypatch):
    """It gives what the server itself would, says what is wrong in its words, and comes back when it was killed."""
    prefix = datasets.find(f"o~{shelf.many}").pairs[0].path
    questions = [
        Question(prefix, sampling, number, 3, 9) for sampling in (ALL, Sampling(40, 7, "1")) for number in (0, 5)
    ]
    small = [orders.draw(question) for question in questions]
    assert orders._child is None
    monkeypatch.setattr("dataprep.service.viewing.orders.SMALL_BYTES", 0)
    assert [orders.draw(question) for question in questions] == small
    child = orders._child
    with pytest.raises(AbsentError, match="samples 0 to"):
        orders.draw(Question(prefix, ALL, 10**9, 0, 1))
    with pytest.raises(SpecError, match="shorter"):
        orders.draw(Question(prefix, Sampling(10**6, split="1"), 0, 0, 1))
    assert orders._child is child
    child.kill()
    child.wait()
    assert orders.draw(questions[0]) == small[0]
    monkeypatch.setattr("dataprep.service.viewing.orders.MOST_BYTES", 8)
    with pytest.raises(SpecError, match=f"dataprep inspect {prefix} --sample 0"):
        orders.draw(questions[0])


def test_a_server_with_many_open_files_asks_the_child(shelf, datasets, orders, monkeypatch):
    """`select` refuses a descriptor above 1023; a server with many readers has some."""
    prefix = datasets.find(f"o~{shelf.many}").pairs[0].path
    question = Question(prefix, ALL, 5, 3, 9)
    small = orders.draw(question)
    monkeypatch.setattr("dataprep.service.viewing.orders.SMALL_BYTES", 0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        stack.callback(orders.close)
        while (fd := os.open(os.devnull, os.O_RDONLY)) < 1024:
            stack.callback(os.close, fd)
        stack.callback(os.close, fd)
        assert orders.draw(question) == small
        assert orders._child.stdout.fileno() > 1023


def test_an_answer_that_nobody_took_is_not_that_to_the_next_question(shelf, datasets, orders, monkeypatch):
    """A Ctrl-C comes once the child was asked."""
    prefix = datasets.find(f"o~{shelf.many}").pairs[0].path
    first, second = (Question(prefix, ALL, number, 3, 9) for number in (0, 5))
    small = orders.draw(second)
    monkeypatch.setattr("dataprep.service.viewing.orders.SMALL_BYTES", 0)

    def interrupted(fd, seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dataprep.service.viewing.orders._is_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            orders.draw(first)
    assert orders._child is None
    assert orders.draw(second) == small


def test_the_child_ends_with_its_server(tmp_path):
    """Whatever became of it: its standard input is at its end then."""
    command = [sys.executable, "-m", "dataprep.service.viewing.orders"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False).returncode == 0


# --- what is kept


def test_what_is_kept_is_made_once_and_the_oldest_goes():
    kept, made = Kept[int](2), []

    def make(value):
        made.append(value)
        time.sleep(0.01)
        return value

    threads = [threading.Thread(target=lambda: kept.get("a", lambda: make(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    for key in "bc":
        kept.get(key, lambda: make(2))
    assert kept.get("c", lambda: make(9)) == 2
    assert kept.get("a", lambda: make(3)) == 3
    with pytest.raises(KeyError):
        kept.get("d", lambda: {}["d"])
    assert kept.get("d", lambda: make(4)) == 4


@pytest.mark.slow
def test_a_document_of_ten_million_tokens_is_read_in_part(shelf, tmp_path, make_pair):
    """Faster than the whole of it."""
    copy = shelf.copy(tmp_path / "copy")
    path = copy.output / shelf.plain / "manifest.json"
    manifest = json.loads(path.read_text())
    name, count = manifest["prefixes"][0]["name"], 10_000_000
    prefix = copy.output / shelf.plain / name
    make_pair([np.full(count, 5).tolist()], prefix=prefix)
    manifest["prefixes"][0] |= {"num_documents": 1, "num_tokens": count}
    path.write_text(json.dumps(manifest))
    datasets = Datasets(lambda: {"o": copy.output})
    documents, dataset = reading(datasets), datasets.find(f"o~{shelf.plain}")
    whole, part = [], []
    for _ in range(3):
        start = time.perf_counter()
        assert len(IndexedDataset(prefix).document(0).tolist()) == count
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        view = documents.document(dataset, 0, count - 10)
        part.append(time.perf_counter() - start)
        assert (view.num_tokens, len(view.tokens)) == (count, 10)
    print(min(part), min(whole))
    assert min(part) < min(whole) / 3
