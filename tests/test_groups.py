"""reader.group_rows from source to dataset: the same bytes for any runtime, and counts that add up."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataprep
from dataprep.errors import SourceError
from dataprep.inspection.excerpts import document
from dataprep.planning import resolve

N = 7


def _records() -> list[bytes | None]:
    draw = random.Random(0)
    kinds: list[bytes | None] = [None, b"", b"\xff", b"a <|endoftext|> b"]
    return [
        kinds[draw.randrange(4)] if draw.random() < 0.2 else f"row {i} ".encode() * draw.randint(1, 60)
        for i in range(4000)
    ]


def _write(path: Path, records: list[bytes | None]) -> Path:
    options = {"row_group_size": 300, "write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"text": pa.array(records, pa.binary())}), path, data_page_size=4096, **options)
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[Path, list[bytes | None]]:
    """A Parquet file whose fourth row group is corrupt near its end, and its records, None where there is none."""
    records = _records()
    path = _write(tmp_path_factory.mktemp("groups") / "c.parquet", records)
    chunk = pq.read_metadata(path).row_group(3).column(0)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset + chunk.total_compressed_size - 100)
        file.write(b"\xff\xfe\xfd")
    return path, records[:900] + [None] * 300 + records[1200:]


def _run(path: Path, output: Path, *settings: str, limit: int | None = None, rows: int = N):
    given = [f"reader.group_rows={rows}", "runtime.max_rejects=1", *settings]
    return dataprep.run(str(path), "sample", output, limit=limit, settings=given)


def _texts(records: list[bytes | None], rows: int = N) -> list[str]:
    groups = [
        [r.decode() for r in records[i : i + rows] if r not in (None, b"", b"\xff")] for i in range(0, 4000, rows)
    ]
    return ["\n".join(group) for group in groups if group]


@pytest.mark.parametrize("rows", [N, 1000])
def test_each_group_is_a_document(corpus, tmp_path, rows):
    path, records = corpus
    result = _run(path, tmp_path, rows=rows)
    texts = _texts(records, rows)

    pair = dataprep.open_dataset(result.prefix)
    assert len(pair) == len(texts) == result.manifest.counts.num_documents
    for i in range(0, len(texts), 13):
        assert dataprep.decode(result.prefix, i) == texts[i] + "<|endoftext|>"


RUNTIMES = [
    ("runtime.workers=1", "runtime.unit_bytes=256MB", "runtime.engine=reference"),
    ("runtime.workers=2", "runtime.unit_bytes=1", "runtime.batch_bytes=1024"),
    ("runtime.workers=4", "runtime.unit_bytes=100000", "runtime.batch_bytes=4096"),
]


FEW = [(129, "policy.special_text=reject")]
POLICIES = ("policy.special_text=encode", "policy.special_text=reject", "policy.empty=keep")


@pytest.mark.parametrize(
    ("limit", "policy"),
    [
        pytest.param(limit, policy, marks=() if (limit, policy) in FEW else pytest.mark.slow)
        for limit in (None, 40, 129, 160)
        for policy in POLICIES
    ],
)
def test_the_runtime_changes_neither_bytes_nor_counts_and_these_add_up(corpus, tmp_path, policy, limit):
    path, _ = corpus
    found = []
    for i, runtime in enumerate(RUNTIMES):
        result = _run(path, tmp_path / str(i), policy, *runtime, limit=limit)
        counts = result.manifest.counts
        found.append((Path(result.prefix + ".bin").read_bytes(), counts.to_json() | {"num_audited": 0}))
        total = counts.num_documents + counts.num_empty + counts.num_rejected + counts.num_joined
        assert counts.num_records == total
        assert counts.num_records == (4000 if limit is None else counts.num_records // N * N)
        assert min(counts.num_joined, counts.num_empty, counts.num_rejected) > 0
    assert found[0] == found[1] == found[2]


def test_a_group_with_a_special_string_is_rejected_with_all_its_records(tmp_path):
    path = _write(tmp_path / "c.parquet", [b"a", b"<|endoftext|>", b"", b"b", b"c", b"d"])
    result = _run(path, tmp_path / "out", "policy.special_text=reject", rows=3)

    counts = result.manifest.counts
    assert (counts.rejects, counts.num_documents, counts.num_joined) == ({"special-text": 2}, 1, 2)
    assert counts.num_empty == 1


@pytest.mark.parametrize("runtime", [RUNTIMES[2], *(pytest.param(r, marks=pytest.mark.slow) for r in RUNTIMES[:2])])
def test_level_source_makes_the_same_groups_again(corpus, tmp_path, monkeypatch, runtime):
    path, records = corpus
    result = _run(path, tmp_path, *runtime)
    monkeypatch.setattr("dataprep.stages.verify.SAMPLE", 1000)

    report = dataprep.verify(result.prefix, "source")

    assert (report.codes, report.num_sampled) == ({"eod-inside"}, len(_texts(records)))  # special strings in the texts


def test_a_document_is_led_back_to_the_rows_it_was_joined_from(tmp_path):
    path = _write(tmp_path / "c.parquet", [f"row {i}".encode() for i in range(1000)])
    result = _run(path, tmp_path / "out", "runtime.unit_bytes=1")

    rows = [document(result.prefix, i)["source"] for i in (0, 60, 142)]

    assert [(r["first_row"], r["last_row"]) for r in rows] == [(0, 6), (420, 426), (994, 999)]
    assert dataprep.decode(result.prefix, 142).startswith("row 994\nrow 995\n")


def test_an_interrupted_run_goes_on_to_the_same_bytes(corpus, tmp_path, monkeypatch):
    def fail(*_):
        raise SourceError("stopped")

    path, _ = corpus
    whole = _run(path, tmp_path / "whole", rows=4)
    with monkeypatch.context() as patched:
        patched.setattr("dataprep.runner.copy_rest", fail)
        with pytest.raises(SourceError, match="stopped"):
            _run(path, tmp_path / "out", "runtime.unit_bytes=1", rows=4)
    units = sorted((tmp_path / "out").glob("work/*/shards/*.json"))
    assert len(units) == 14
    for unit in units[::2]:
        unit.unlink()

    again = _run(path, tmp_path / "out", "runtime.workers=2", rows=4)

    assert Path(again.prefix + ".bin").read_bytes() == Path(whole.prefix + ".bin").read_bytes()
    assert again.manifest.counts.to_json() == whole.manifest.counts.to_json() | {
        "num_audited": again.manifest.counts.num_audited
    }


def test_the_size_of_a_group_is_part_of_the_recipe(corpus, tmp_path):
    path, _ = corpus
    prefixes = {resolve(str(path), "sample", tmp_path, settings=[f"reader.group_rows={n}"]).digest for n in (1, 2, 3)}

    assert len(prefixes) == 3
