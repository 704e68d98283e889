"""From a request to units: what is moved, touched or changed between two runs, and what is refused at once."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataprep
from dataprep import parity
from dataprep.errors import SourceError, SpecError
from dataprep.outputs import status
from dataprep.planning import resolve
from dataprep.units import MAX_SLICES, cut_units


@pytest.fixture
def corpus(workspace):
    folder = workspace / "in"
    folder.mkdir()
    lines = [json.dumps({"text": f"text {i}."}) for i in range(300)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "a.jsonl"


def read(result):
    with open(result.prefix + ".bin", "rb") as file:
        return file.read()


def test_an_interrupted_run_goes_on_after_its_input_moved(corpus, tmp_path, monkeypatch):
    def fail(*_):
        raise SourceError("stopped")

    with monkeypatch.context() as patched:
        patched.setattr("dataprep.runner.copy_rest", fail)
        with pytest.raises(SourceError, match="stopped"):
            dataprep.run(str(corpus), "sample", tmp_path / "out", settings=["runtime.unit_bytes=2000"])
    (entry,) = status(tmp_path / "out")
    assert (entry["state"], entry["last_event"]["error"]) == ("failed", "stopped")
    for path in (tmp_path / "out" / "work").glob("*/shards/000000-0000[13]*.json"):
        path.unlink()
    moved = shutil.move(corpus.parent, tmp_path / "moved")

    again = dataprep.run(os.path.join(moved, "a.jsonl"), "sample", tmp_path / "out")

    assert again.manifest.recipe.files[0].path == os.path.join(moved, "a.jsonl")
    assert dataprep.verify(again.prefix, "source").problems == []


def test_a_relative_tokenizer_is_found_from_everywhere(corpus, tmp_path, monkeypatch):
    sample = dataprep.catalog.names("tokenizers")["sample"].parent / "sample" / "tokenizer.json"
    (tmp_path / "tok").mkdir()
    shutil.copy(sample, tmp_path / "tok")
    monkeypatch.chdir(tmp_path)
    result = dataprep.run(str(corpus), "./tok", "out", settings=["tokenizer.eod=<|endoftext|>"])
    monkeypatch.chdir("/")

    assert dataprep.decode(result.prefix, 0) == "text 0.<|endoftext|>"


def test_a_dataset_without_eod_is_sound(corpus, tmp_path):
    result = dataprep.run(str(corpus), "sample", tmp_path, settings=["policy.eod=none"])

    assert dataprep.verify(result.prefix).problems == []


def test_a_touched_source_is_still_the_source(corpus, tmp_path):
    result = dataprep.run(str(corpus), "sample", tmp_path)
    os.utime(corpus, (1, 1))

    assert dataprep.verify(result.prefix, "source").ok
    assert dataprep.run(str(corpus), "sample", tmp_path).fresh is False


def test_a_file_without_row_groups_holds_no_records(workspace):
    path = workspace / "empty.parquet"
    pq.ParquetWriter(path, pa.schema([("text", pa.string())])).close()

    with pytest.raises(SourceError, match="holds no records"):
        dataprep.run(str(path), "sample", workspace / "out")


def test_level_source_knows_that_a_corrupt_row_group_was_taken_back(workspace, monkeypatch):
    path = workspace / "corrupt.parquet"
    table = pa.table({"text": [f"document {i} of many" for i in range(4000)]})
    options = {"row_group_size": 1000, "write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(table, path, data_page_size=4096, **options)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    with path.open("r+b") as file:  # late in the group: its first pages are read, encoded and written by then
        file.seek(column.data_page_offset + column.total_compressed_size - 100)
        file.write(b"\xff\xfe\xfd")
    settings = ["runtime.max_rejects=1", "runtime.batch_bytes=1024", "runtime.unit_bytes=256MiB"]

    result = dataprep.run(str(path), "sample", workspace / "out", settings=settings)
    monkeypatch.setattr("dataprep.stages.verify.SAMPLE", 3000)

    assert result.manifest.counts.rejects == {"corrupt-row-group": 1000}
    report = dataprep.verify(result.prefix, "source")
    assert (report.problems, report.num_sampled) == ([], 3000)


def test_long_documents_are_not_given_to_the_reference(corpus, workspace, monkeypatch):
    seen = []
    encode = dataprep.encoders.Tokenizers.encode

    def watched(self, batch):
        seen.extend(batch.lengths.tolist())
        return encode(self, batch)

    (workspace / "long.jsonl").write_text(json.dumps({"text": "long " * 1000}) + "\n" + corpus.read_text())
    monkeypatch.setattr(parity, "MAX_BYTES", 2000)
    monkeypatch.setattr(parity, "GATE_BYTES", 2000)
    monkeypatch.setattr(dataprep.encoders.Tokenizers, "encode", watched)
    settings = ["runtime.audit_rate=1"]
    result = dataprep.run(str(workspace / "long.jsonl"), "sample", workspace / "out", settings=settings)
    monkeypatch.setattr("dataprep.stages.verify.SAMPLE", 301)

    assert dataprep.verify(result.prefix, "source").num_sampled == 300
    assert result.manifest.counts.num_audited == 300
    assert max(seen) <= 2000


def test_rejects_of_a_failed_run_do_not_outlive_the_mended_input(workspace):
    path = workspace / "a.jsonl"
    path.write_text('{"text": "a"}\n{"tixt": "b"}\n')
    with pytest.raises(SourceError, match=r"missing-text 1.*a\.jsonl, line 2, byte 14"):
        dataprep.run(str(path), "sample", workspace / "out")
    path.write_text('{"text": "a"}\n{"text": "b"}\n')

    result = dataprep.run(str(path), "sample", workspace / "out")

    assert result.manifest.counts.num_documents == 2
    assert list((workspace / "out").glob("work/*/rejects/*")) == []


def test_the_output_among_the_input_is_refused(corpus):
    dataprep.run(str(corpus.parent), "sample", corpus.parent)

    with pytest.raises(SpecError, match="lies among the input"):
        dataprep.run(str(corpus.parent), "sample", corpus.parent, settings=["reader.format=text"])


def test_many_small_files_are_several_units(workspace):
    for i in range(MAX_SLICES + 1):
        (workspace / f"{i:04d}.txt").write_text("x")
    request = resolve(str(workspace), "sample")

    assert [len(unit.slices) for unit in cut_units(request.recipe, request.runtime)] == [MAX_SLICES, 1]


def test_two_recipes_at_once_keep_their_benches(corpus, tmp_path):
    from dataprep.stages import tokenize

    for bos in ("auto", "never"):
        dataprep.run(str(corpus), "sample", tmp_path, settings=[f"policy.bos={bos}"])

    assert 2 <= len(tokenize._benches) <= tokenize.MAX_BENCHES
