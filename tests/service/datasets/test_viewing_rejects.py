"""Rejects, some at a time, wherever in a file of any length."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from dataprep.errors import FormatError
from dataprep.manifest import load_manifest
from dataprep.service.viewing import rejects as module
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.rejects import read_rejects, rejects_of, rejects_path


@pytest.fixture
def path(tmp_path):
    """230 rejects, every tenth of another reason; the last line is still being written."""
    value = {"file": "a", "line": None, "byte_offset": None, "group": 0, "count": 1, "detail": "", "content": "x"}
    lines = [
        json.dumps({**value, "record": i + 1, "reason": "rare" if i % 10 == 9 else "not-json"}) + "\n"
        for i in range(230)
    ]
    path = tmp_path / "rejects.jsonl"
    path.write_text("".join(lines) + '{"file": ')
    return path


def numbers(page):
    return [reject.record for reject in page.rejects]


def test_rejects_of_a_dataset_and_of_its_run(shelf):
    manifest = load_manifest(shelf.output / shelf.plain / "manifest.json")
    path = rejects_path(shelf.output, manifest)
    page = read_rejects(path)

    assert [(each.record, each.line, each.reason) for each in page.rejects[:3]] == [
        (2, 2, "not-json"),
        (4, 4, "invalid-utf8"),
        (6, 6, "missing-text"),
    ]
    assert page.rejects[0].content == shelf.lines[1].decode()
    assert page.rejects[1].content == '{"text": "\\xff\x1b[2J\u202e"}'
    assert page.rejects[0].byte_offset == len(shelf.lines[0]) + 1
    assert page.rejects[0].file == "a <img src=x onerror=alert(1)>.jsonl"
    assert (len(page.rejects), page.previous, page.next) == (7, None, None)
    assert rejects_of(path.parent.parent) == path
    assert read_rejects(path, page.rejects[2].position).rejects[0] == page.rejects[2]


def test_pages_lead_to_each_other(path):
    pages, position = [], 0
    while position is not None:
        pages.append(read_rejects(path, position))
        position = pages[-1].next
        assert len(pages) < 10

    assert [number for page in pages for number in numbers(page)] == list(range(1, 231))
    assert [len(page.rejects) for page in pages] == [50, 50, 50, 50, 30, 0][: len(pages)]
    for before, page in itertools.pairwise(pages):
        assert page.previous == before.position
        assert numbers(read_rejects(path, page.previous)) == numbers(before)


def test_one_reason_only(path, monkeypatch):
    page = read_rejects(path, 0, "rare")
    assert numbers(page) == list(range(10, 231, 10))
    assert read_rejects(path, 0, "nosuch").rejects == ()
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    found, position, pages = [], 0, 0
    while position is not None and pages < 100:
        page = read_rejects(path, position, "rare")
        found, position, pages = found + numbers(page), page.next, pages + 1
    assert found == list(range(10, 231, 10))
    assert 5 < pages < 100


@pytest.mark.parametrize("position", [-1, 1, 10**6, 2**70])
def test_where_no_reject_begins(path, position):
    with pytest.raises(AbsentError):
        read_rejects(path, position)


def test_none_and_damaged_ones(tmp_path, path):
    assert read_rejects(tmp_path / "nosuch").rejects == ()
    with pytest.raises(AbsentError):
        read_rejects(tmp_path / "nosuch", 5)
    good = path.read_bytes().splitlines(keepends=True)[0]
    half = good.replace(b'"x"', b'"\\ud800 x"')
    path.write_bytes(b"no json\n[]\n{}\n\xff\n" + half)
    page = read_rejects(path)
    assert (numbers(page), page.rejects[0].content, page.num_damaged) == ([1], "\\ud800 x", 4)
    path.write_bytes(good + b"x" * (module.LINE_BYTES + 1))
    with pytest.raises(FormatError, match="damaged"):
        read_rejects(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError, match="cannot read"):
        read_rejects(tmp_path / "folder")


def test_a_large_file_is_not_read_whole(tmp_path, path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] * 400_000)
    whole, pages = [], []
    for _ in range(3):
        start = time.perf_counter()
        assert path.read_bytes().count(b"\n") == 400_000
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        last = read_rejects(path, path.stat().st_size)
        page = read_rejects(path, last.previous)
        pages.append(time.perf_counter() - start)
        assert (len(page.rejects), page.next) == (50, None)
    print(min(pages), min(whole))
    assert min(pages) < min(whole) / 3
