"""What is said of a dataset and of a version: figures, proofs, lengths, files, and the lines to paste."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dataprep
from dataprep.errors import FormatError
from dataprep.manifest import load_manifest
from dataprep.service.viewing import lengths
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.details import Details
from dataprep.service.viewing.listing import Datasets
from dataprep.train.datasets import parse_data_path, read_parts
from dataprep.versions import Versions, take_lease


@pytest.fixture(scope="module")
def details(datasets):
    return Details(datasets)


def test_a_dataset_is_what_its_manifest_says(shelf, datasets, details):
    found = details.of(datasets.find(f"o~{shelf.plain}"))
    manifest = load_manifest(shelf.output / shelf.plain / "manifest.json")

    assert found.row.id == f"o~{shelf.plain}"
    counts = {name: getattr(found, name) for name in ("num_sequences", "num_text_bytes", "num_records", "num_empty")}
    assert counts == {name: getattr(manifest.counts, name) for name in counts}
    assert found.rejects == {"not-json": 3, "invalid-utf8": 2, "missing-text": 2}
    assert found.num_rejected == 7
    assert (found.tokenizer, found.policy, found.lengths) == (manifest.tokenizer, manifest.policy, manifest.lengths)
    assert (found.made.engine, found.made.recipe_digest) == (manifest.engine, manifest.recipe_digest)
    assert (found.num_pairs, found.num_parts, found.num_checks, found.is_verified) == (1, 0, 1, True)
    assert (found.checks[0].level, found.checks[0].num_with_eod) == ("tokens", 7)
    assert (found.corpus.num_files, found.corpus.num_bytes) == (1, sum(len(line) + 1 for line in shelf.lines))
    assert found.notes == found.leases == ()


def test_a_version_is_the_sum_of_its_parts(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    take_lease(Versions(copy.output / "nightly"), "2", "<b>training</b>")
    datasets = Datasets(lambda: {"o": copy.output})
    found = Details(datasets).of(datasets.find("o~nightly"))

    assert found.row.version == 2
    assert (found.num_sequences, found.corpus.num_files, found.num_records) == (6, 2, 6)
    assert [(row.number, row.num_documents, row.is_verified) for row in found.parts] == [(1, 3, True), (0, 3, True)]
    assert [pair.first_document for pair in found.pairs] == [0, 3]
    assert found.leases[0].startswith("<b>training</b>, on ")
    assert Details(datasets).of(datasets.find("o~nightly~v000001")).leases == ()


def test_a_part_that_cannot_be_read_is_said(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    datasets = Datasets(lambda: {"o": copy.output})
    version = datasets.find("o~nightly")
    version.manifests[0].write_text("{}")
    found = Details(datasets).of(version)

    assert (found.is_verified, [row.is_verified for row in found.parts]) == (False, [True, None])
    assert "no manifest of a dataset" in found.notes[0]
    with pytest.raises(FormatError):
        Details(datasets).sources(version)


def test_a_proof_that_failed_is_no_proof(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    path = copy.output / shelf.many / "manifest.json"
    manifest = json.loads(path.read_text())
    problem = {"code": "x", "severity": "error", "message": "m", "fix": "f", "place": {}, "symptom": "s"}
    manifest["verification"]["reports"][-1] |= {"ok": False, "problems": [problem]}
    path.write_text(json.dumps(manifest))
    datasets = Datasets(lambda: {"o": copy.output})
    found = Details(datasets).of(datasets.find(f"o~{shelf.many}"))

    assert not found.is_verified
    assert found.checks[0].problems[0].code == "x"


# --- the lines to paste


@pytest.mark.parametrize("name", ["plain", "many", "nightly"])
def test_the_lines_to_paste_name_all_documents(shelf, datasets, details, name):
    """A trainer takes the arguments, a shell the variable, and `verify` finds nothing to say."""
    dataset = datasets.find(f"o~{getattr(shelf, name)}")
    lines = [shlex.split(each.text) for each in details.of(dataset).commands]
    megatron, variable, train, verify = lines[:4]
    assert lines[4:] == [["dataprep", "lease", str(dataset.folder), "--", "COMMAND"]] * (name == "nightly")

    expected = [pair.path for pair in dataset.pairs]
    assert [part.prefix for part in read_parts(megatron[1:])] == expected
    line = details.of(dataset).commands[1].text
    shell = f'{line}; printf %s "$DATA_PATH"'
    value = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert [part.prefix for part in read_parts(parse_data_path(value))] == expected
    assert variable[0].startswith("DATA_PATH=")
    assert (train[:2], train[3:]) == (["dataprep", "train"], ["--model", "llama3.1-8b"])
    assert [part.prefix for part in read_parts(train[2:3])] == expected
    assert verify[:2] == ["dataprep", "verify"]
    assert sorted(part.prefix for part in read_parts(verify[2:])) == sorted(expected)


def test_a_version_is_named_by_its_number_and_not_as_the_current_one(datasets, details):
    lines = [each.text for each in details.of(datasets.find("o~nightly")).commands]

    assert "/nightly/v000002/data_args.txt" in lines[0]
    assert not any("current" in line for line in lines)


# --- lengths


def test_lengths_are_all_documents(shelf, datasets, details):
    for name in (shelf.plain, shelf.many, "nightly"):
        dataset = datasets.find(f"o~{name}")
        found = details.lengths(dataset)
        inside = [dataprep.inspect(pair.path, level="index")["histogram"] for pair in dataset.pairs]
        total = {}
        for entry in (entry for pair in inside for entry in pair):
            counts = total.setdefault((entry["from"], entry["to"]), [0, 0])
            counts[0] += entry["num_documents"]
            counts[1] += entry["num_tokens"]
        shown = {(each.first, each.last): [each.num_documents, each.num_tokens] for each in found.bins}
        assert {key: value for key, value in shown.items() if value[0]} == {k: v for k, v in total.items() if v[0]}
        assert found.num_counted == found.num_documents == dataset.num_documents
    manifest = load_manifest(shelf.output / shelf.many / "manifest.json")
    assert details.lengths(datasets.find(f"o~{shelf.many}")).lengths == manifest.lengths


def test_of_very_many_documents_blocks_at_even_distances_are_looked_at(make_pair, monkeypatch):
    monkeypatch.setattr(lengths, "MOST_DOCUMENTS", 400)
    monkeypatch.setattr(lengths, "BLOCK", 10)
    monkeypatch.setattr(lengths, "MOST_PAIRS", 2)
    prefixes = [make_pair([[1]] * 1000), make_pair([[1] * 9]), make_pair([[1] * 3] * 1000)]
    found = lengths.measure(prefixes, None, 2000)

    assert found.num_counted == 400
    assert [(each.first, each.num_documents) for each in found.bins] == [(1, 1000), (2, 1000)]
    assert [each.num_tokens for each in found.bins] == [1000, 3000]
    assert lengths.measure([], None, 0) is None


@pytest.mark.slow
def test_lengths_of_many_documents_are_found_quickly(tmp_path):
    from dataprep.indexed import CODES, Header, idx_path, write_index
    from dataprep.storage import AtomicFile

    count = 20_000_000
    drawn = np.random.default_rng(1).integers(1, 5000, 1 << 20, dtype=np.int32)
    prefix = tmp_path / "large"
    with AtomicFile(idx_path(prefix), durable=False) as file:
        blocks = [drawn] * (count // len(drawn))
        total = len(blocks) * len(drawn)
        bounds = (np.arange(i * len(drawn), (i + 1) * len(drawn), dtype="<i8") for i in range(len(blocks)))
        header = Header(CODES["uint16"], total, total + 1)
        write_index(file, header, lambda: blocks, [*bounds, np.array([total], "<i8")])
    import time

    start = time.perf_counter()
    assert [int(np.sort(block)[-1]) for block in blocks] == [4999] * len(blocks)
    whole = time.perf_counter() - start
    start = time.perf_counter()
    found = lengths.measure([prefix], None, total)
    seconds = time.perf_counter() - start
    print(f"{seconds:.2f} s of {found.num_counted:,} of {total:,}, {whole:.2f} s to sort all")
    assert found.num_counted <= 1.02 * lengths.MOST_DOCUMENTS
    assert sum(each.num_documents for each in found.bins) == pytest.approx(total, rel=1e-6)
    assert found.lengths.mean == pytest.approx(drawn.mean(), rel=1e-3)
    assert seconds < whole, "a third of it is usual"


# --- source files


def test_source_files_say_what_became_of_them(shelf, datasets, details):
    page = details.sources(datasets.find("o~nightly"))

    assert [(row.number, row.name, row.num_records, row.num_documents) for row in page.files] == [
        (0, "0.jsonl", 3, 3),
        (1, "1.jsonl", 3, 3),
    ]
    (row,) = details.sources(datasets.find(f"o~{shelf.plain}")).files
    assert (row.num_records, row.num_documents, row.name) == (14, 7, "a <img src=x onerror=alert(1)>.jsonl")
    with pytest.raises(AbsentError):
        details.sources(datasets.find("o~nightly"), 2)


def test_source_files_come_in_pages_across_parts(datasets, details, monkeypatch):
    monkeypatch.setattr("dataprep.service.viewing.details.FILES", 1)
    dataset = datasets.find("o~nightly")

    pages = [details.sources(dataset, number) for number in (1, 2)]
    assert [[row.name for row in page.files] for page in pages] == [["0.jsonl"], ["1.jsonl"]]
    assert [page.num_pages for page in pages] == [2, 2]


def test_a_manifest_that_lies_elsewhere_is_not_read(shelf, tmp_path, details):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(FormatError, match="lies elsewhere"):
        details.manifest(tmp_path / "manifest.json", "o")
    with pytest.raises(FormatError, match="cannot read"):
        details.manifest(Path(shelf.output / "nosuch" / "manifest.json"), "o")
