"""Listing: sorted, complete, and nothing vanishes in silence."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

import dataprep
from dataprep.errors import SourceError, SpecError
from dataprep.sources import check_same, check_unchanged, with_checksum
from dataprep.sources.local import list_local
from dataprep.specs import FilesSource, ReaderSpec

LINE = '{"text": "x"}\n'


def listing(folder, *paths, exclude=()):
    source = FilesSource(paths=tuple(map(str, paths)), exclude=exclude)
    return [file.name for file in list_local(source, ReaderSpec(), folder)]


@pytest.fixture
def folder(workspace):
    for name in ("b.jsonl", "a.jsonl", "deep/er/c.jsonl", ".hidden.jsonl", "deep/.git/d.jsonl"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(LINE)
    return workspace


def test_a_folder_gives_its_files_sorted_and_no_hidden_ones(folder):
    assert listing(folder, ".") == ["a.jsonl", "b.jsonl", "deep/er/c.jsonl"]
    assert listing(folder, folder, exclude=("deep/*",)) == ["a.jsonl", "b.jsonl"]


def test_names_start_at_the_common_folder_so_that_moving_changes_nothing(folder):
    assert listing(folder, "deep/er/c.jsonl") == ["c.jsonl"]
    assert listing(folder, "*.jsonl", "deep/**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/er/c.jsonl"]
    assert listing(folder, "b.jsonl", "a.jsonl", "a.jsonl") == ["a.jsonl", "b.jsonl"]


def test_linked_folders_are_followed_once_and_a_broken_link_is_an_error(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "e.jsonl").write_text(LINE)
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "deep" / "loop").symlink_to(folder)
    assert listing(folder, ".") == ["a.jsonl", "b.jsonl", "deep/er/c.jsonl", "link/e.jsonl"]

    (folder / "broken.jsonl").symlink_to("nothing")
    with pytest.raises(SourceError, match=r"broken\.jsonl is a link to nothing"):
        listing(folder, ".")


@pytest.mark.parametrize(
    ("path", "says"),
    [("nothing.jsonl", "no such file"), ("*.parquet", "no file matches"), ("empty", "holds no files")],
)
def test_what_names_nothing_is_a_bad_request(folder, path, says):
    (folder / "empty").mkdir()

    with pytest.raises(SpecError, match=says):
        listing(folder, path)


def test_all_excluded_is_a_bad_request(folder):
    with pytest.raises(SpecError, match="no file is left"):
        listing(folder, ".", exclude=("*",))


def test_braces_that_name_no_folder_of_python_are_part_of_the_name(folder):
    (folder / "a{stdlib.x}b{0}.jsonl").write_text(LINE)

    assert listing(folder, "a{stdlib.x}b{0}.jsonl") == ["a{stdlib.x}b{0}.jsonl"]


def test_a_name_that_is_not_utf8_is_said(folder):
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.jsonl")).write_text(LINE)

    with pytest.raises(SpecError, match="not UTF-8; rename"):
        listing(folder, ".")


def test_touched_is_not_changed_but_another_content_is(folder):
    (file,) = (with_checksum(f) for f in list_local(FilesSource(paths=("a.jsonl",)), ReaderSpec(), folder))
    check_unchanged(file)
    os.utime(file.path, (1, 1))
    with pytest.raises(SourceError, match="changed"):
        check_unchanged(file)
    check_same(file)

    Path(file.path).write_text(LINE.replace("x", "y"))
    with pytest.raises(SourceError, match="changed"):
        check_same(file)
    Path(file.path).unlink()
    with pytest.raises(SourceError, match="is gone"):
        check_same(file)


def save(folder, *sizes, kind=None, **state):
    """Write what `datasets.save_to_disk` writes: a stream for each shard, and what says so."""
    folder.mkdir(parents=True)
    files = [f"data-{i:05d}-of-{len(sizes):05d}.arrow" for i in range(len(sizes))]
    for name, size in zip(files, sizes, strict=True):
        table = pa.table({"text": pa.array([f"{folder.name} {name} {i}" for i in range(size)], kind or pa.string())})
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    (folder / "dataset_info.json").write_text('{\n  "features": {}\n}')
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files], **state}))


def save_splits(folder, *splits):
    folder.mkdir()
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    for split in splits:
        save(folder / split, 3)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_of_a_saved_dataset_only_the_rows_are_read(workspace, kind):
    save(workspace / "d", 25, 0, 7, kind=kind)
    (workspace / "d" / "cache-0123.arrow").write_bytes(b"of map()")

    assert listing(workspace, "d") == [f"data-0000{i}-of-00003.arrow" for i in range(3)]
    result = dataprep.run(str(workspace / "d"), "sample", workspace / "out", settings=["runtime.unit_bytes=1"])
    assert result.manifest.counts.num_documents == 32
    assert dataprep.decode(result.prefix, 31) == "d data-00002-of-00003.arrow 6<|endoftext|>"


def test_of_saved_splits_train_or_the_only_one_is_read(workspace):
    save_splits(workspace / "two", "test", "train")
    save_splits(workspace / "one", "validation")
    save_splits(workspace / "none", "a", "b")

    assert [Path(path).parts[-3:-1] for path in paths(workspace, "two", "one")] == [
        ("one", "validation"),
        ("two", "train"),
    ]
    assert len(paths(workspace, "two/test")) == 1
    with pytest.raises(SpecError, match=r"several splits and no train: a, b; give one: .*/none/a"):
        listing(workspace, "none")


def paths(folder, *names):
    return [file.path for file in list_local(FilesSource(paths=names), ReaderSpec(), folder)]


def test_a_saved_dataset_that_cannot_be_read_is_said(workspace):
    save(workspace / "empty")
    save_splits(workspace / "splitless")
    save(workspace / "ordered", 3, _indices_data_files=[{"filename": "indices.arrow"}])
    save(workspace / "cut", 3, 3)
    (workspace / "cut" / "data-00001-of-00002.arrow").unlink()

    for name, error, says in (
        ("empty", SpecError, "without rows"),
        ("splitless", SpecError, "without splits"),
        ("ordered", SpecError, "flatten_indices"),
        ("cut", SourceError, "data-00001-of-00002.arrow as part"),
    ):
        with pytest.raises(error, match=says):
            listing(workspace, name)


@pytest.mark.parametrize("content", ['{"_data_files": []}', '{"splits": ["a"]}', LINE + "no json"])
def test_another_state_json_is_a_file_like_any(folder, content):
    (folder / "state.json").write_text(content)
    assert listing(folder, ".") == ["a.jsonl", "b.jsonl", "deep/er/c.jsonl", "state.json"]

    (folder / "state.json").write_text(content.replace("[]", "7"))
    (folder / "dataset_info.json").write_text(LINE)
    assert "state.json" in listing(folder, ".")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_datasets_saves_is_read_as_it_loads_it(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets: pip install datasets")
    rows = datasets.Dataset.from_dict({"n": range(30), "text": [f"row {i}" for i in range(30)]})
    large = datasets.Features({"n": datasets.Value("int64"), "text": datasets.Value("large_string")})
    cases = {
        "plain": rows,
        "shuffled": rows.shuffle(seed=1),
        "selected": rows.select([5, 3, 29]),
        "large": rows.cast(large),
    }
    for name, saved in cases.items():
        for shards in (1, 3):
            saved.save_to_disk(str(tmp_path / name / str(shards)), num_shards=shards)
            result = dataprep.run(str(tmp_path / name / str(shards)), "sample", tmp_path / "out" / f"{name}{shards}")
            texts = datasets.load_from_disk(str(tmp_path / name / str(shards)))["text"]
            found = [dataprep.decode(result.prefix, i) for i in range(len(saved))]
            assert found == [text + "<|endoftext|>" for text in texts] == [t + "<|endoftext|>" for t in saved["text"]]
    datasets.DatasetDict(test=rows.select(range(9)), train=rows).save_to_disk(str(tmp_path / "splits"))
    assert [Path(path).parent.name for path in paths(tmp_path, "splits")] == ["train"]
    rows.select([]).save_to_disk(str(tmp_path / "empty"))
    with pytest.raises(SpecError, match="without rows"):
        listing(tmp_path, "empty")
