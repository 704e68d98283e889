"""Listing: sorted, complete, and nothing vanishes in silence."""

import os
from pathlib import Path

import pytest

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
