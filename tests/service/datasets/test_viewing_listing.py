"""Which datasets there are; what leads elsewhere is not shown; and that many are listed quickly."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from dataprep.errors import FormatError, OutputError
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.listing import Datasets
from dataprep.versions import Versions, take_lease


def test_datasets_are_listed_with_their_figures(shelf, datasets):
    page = datasets.page()
    rows = {row.name: row for row in page.datasets}

    assert (page.page, page.num_pages, page.num_datasets) == (1, 1, 3)
    assert rows.keys() == {shelf.plain, shelf.many, "nightly"}
    plain, nightly = rows[shelf.plain], rows["nightly"]
    manifest = json.loads((shelf.output / shelf.plain / "manifest.json").read_text())
    assert plain.id == f"o~{shelf.plain}"
    assert (plain.kind, plain.corpus, plain.problem) == ("dataset", "hostile", "")
    assert (plain.num_documents, plain.num_tokens) == (7, manifest["counts"]["num_tokens"])
    files = (shelf.output / shelf.plain).iterdir()
    assert plain.num_bytes == sum(path.stat().st_size for path in files if path.suffix in (".bin", ".idx"))
    assert (nightly.kind, nightly.version, nightly.num_versions) == ("versions", 2, 2)
    assert (nightly.num_documents, nightly.corpus, nightly.tokenizer) == (6, "inbox", plain.tokenizer)


def test_versions_are_listed_newest_first_with_who_uses_them(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    lease = take_lease(Versions(copy.output / "nightly"), "1", "training 7")
    page = Datasets(lambda: {"o": copy.output}).versions("o~nightly")

    assert [(row.version, row.is_current, row.num_parts, row.num_documents) for row in page.versions] == [
        (2, True, 2, 6),
        (1, False, 1, 3),
    ]
    assert [row.leases for row in page.versions] == [(), (f"training 7, on {lease.host}",)]
    assert [row.id for row in page.versions] == ["o~nightly~v000002", "o~nightly~v000001"]
    assert page.dataset.name == "nightly"


def test_a_version_is_its_parts_in_their_order(shelf, datasets):
    newest, first = datasets.find("o~nightly"), datasets.find("o~nightly~v000001")

    assert newest.id == "o~nightly~v000002"
    assert [pair.first_document for pair in newest.pairs] == [0, 3]
    assert newest.pairs[:1] == first.pairs
    assert all(os.path.exists(f"{pair.path}.idx") for pair in newest.pairs)
    assert [newest.pair_of(number) for number in (0, 2, 3, 5)] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    for number in (-1, 6, 2**80):
        with pytest.raises(AbsentError, match="documents 0 to 5"):
            newest.pair_of(number)


def test_prefixes_of_a_dataset_number_their_documents_on(shelf, datasets):
    found = datasets.find(f"o~{shelf.many}")

    assert len(found.pairs) > 2
    ends = [pair.first_document + pair.entry.num_documents for pair in found.pairs]
    assert [pair.first_document for pair in found.pairs] == [0, *ends[:-1]]
    assert ends[-1] == 301


@pytest.mark.parametrize(
    "name",
    [
        *("", "o", "o~", "x~nightly", "o~nosuch", "o~..", "o~../out/nightly", "o~work", "o~raw", "o~nightly~v000003"),
        *("o~nightly~v1", "o~nightly~v99999999999999999999", "o~nightly/v000001", "o~hostile-bpe", "o~a\0b"),
        "o~nightly~",
    ],
)
def test_what_is_not_listed_is_not_there(datasets, name):
    with pytest.raises(AbsentError):
        datasets.find(name)


def test_pages_that_are_not_there(datasets, shelf):
    for number in (0, -1, 2, 2**70):
        with pytest.raises(AbsentError, match="pages 1 to 1"):
            datasets.page(number)
        with pytest.raises(AbsentError):
            datasets.versions("o~nightly", number)
    with pytest.raises(AbsentError, match="has no versions"):
        datasets.versions(f"o~{shelf.plain}")
    with pytest.raises(AbsentError, match="output"):
        datasets.page(1, "other")
    assert datasets.page(1, "o").num_datasets == 3


def test_links_are_not_followed(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    outside = tmp_path / "outside"
    shutil.copytree(shelf.output / shelf.plain, outside)
    (copy.output / "link").symlink_to(outside)
    (copy.output / "holds-link").mkdir()
    (copy.output / "holds-link" / "manifest.json").symlink_to(outside / "manifest.json")
    version = copy.output / "nightly" / "v000003"
    shutil.copytree(copy.output / "nightly" / "v000002", version)
    manifest = json.loads((version / "manifest.json").read_text())
    manifest["number"] = 3
    manifest["parts"][0]["folder"] = os.path.relpath(outside, version)
    (version / "manifest.json").write_text(json.dumps(manifest))
    found = Datasets(lambda: {"o": copy.output})
    rows = {row.name: row for row in found.page().datasets}

    assert "link" not in rows
    assert "lies elsewhere" in rows["holds-link"].problem
    assert rows["holds-link"].num_documents is None
    with pytest.raises(FormatError, match="lies elsewhere"):
        found.find("o~nightly")
    assert found.find("o~nightly~v000002").num_documents == 6


def test_a_pipe_is_not_waited_for(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    path = copy.output / shelf.plain / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    row = next(row for row in Datasets(lambda: {"o": copy.output}).page().datasets if row.name == shelf.plain)

    assert "neither a file nor a folder" in row.problem


def test_a_name_in_a_manifest_leads_nowhere(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    path = copy.output / shelf.plain / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["prefixes"][0]["name"] = "../../outside/secret"
    path.write_text(json.dumps(manifest))
    found = Datasets(lambda: {"o": copy.output})

    with pytest.raises(FormatError, match="no manifest of a dataset"):
        found.find(f"o~{shelf.plain}")
    assert next(row for row in found.page().datasets if row.name == shelf.plain).num_tokens is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema_version": 2}', "\xff", '{"schema_version": 1, "recipe": 3}']
)
def test_a_damaged_manifest_is_a_row_that_says_so(shelf, tmp_path, content):
    copy = shelf.copy(tmp_path / "copy")
    (copy.output / shelf.plain / "manifest.json").write_text(content)
    (copy.output / "nightly" / "v000002" / "manifest.json").write_text(content)
    found = Datasets(lambda: {"o": copy.output})
    rows = {row.name: row for row in found.page().datasets}

    assert "manifest.json" in rows[shelf.plain].problem
    assert "manifest" in rows["nightly"].problem
    assert rows[shelf.many].problem == ""
    assert [bool(row.problem) for row in found.versions("o~nightly").versions] == [True, False]


def test_what_appears_and_goes_is_seen(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.service.viewing.listing.FRESH_SECONDS", 0.0)
    copy = shelf.copy(tmp_path / "copy")
    found = Datasets(lambda: {"o": copy.output, "empty": tmp_path / "nosuch"})
    assert found.page().num_datasets == 3
    (copy.output / shelf.many).rename(tmp_path / "gone")
    assert found.page().num_datasets == 2
    (tmp_path / "gone").rename(copy.output / "again")
    assert {row.name for row in found.page().datasets} == {shelf.plain, "again", "nightly"}
    assert found.page(1, "empty").datasets == ()


def test_an_output_that_cannot_be_read_is_said(shelf, tmp_path):
    (tmp_path / "file").write_text("")
    found = Datasets(lambda: {"f": tmp_path / "file", "o": shelf.output})
    page = found.page()

    assert page.num_datasets == 3
    assert page.problems == (f"cannot look into {tmp_path / 'file'}: Not a directory",)
    with pytest.raises(OutputError):
        found.find("f~x")


def test_a_run_is_found_by_its_name_alone(shelf, datasets):
    work = next((shelf.output / "work").iterdir())

    assert datasets.work("o", work.name) == work
    for output, name in (("o", ".."), ("o", "../work"), ("o", "nosuch"), ("x", work.name), ("o", ""), ("o", "a\0b")):
        with pytest.raises(AbsentError):
            datasets.work(output, name)


@pytest.mark.slow
def test_ten_thousand_versions_are_listed_before_they_could_all_be_read(shelf, tmp_path):
    """The first pages of a server that has just started, and later ones."""
    copy = shelf.copy(tmp_path / "copy")
    home, plain = copy.output / "nightly", copy.output / shelf.plain
    for number in range(3, 5003):
        (home / f"v{number:06d}").mkdir()
        os.link(home / "v000002" / "manifest.json", home / f"v{number:06d}" / "manifest.json")
    for number in range(5000):
        (copy.output / f"many-{number}").mkdir()
        os.link(plain / "manifest.json", copy.output / f"many-{number}" / "manifest.json")
    found = Datasets(lambda: {"o": copy.output})

    start = time.perf_counter()
    page, versions = found.page(), found.versions("o~nightly", 100)
    first = time.perf_counter() - start
    assert (page.num_datasets, page.num_pages, versions.num_versions) == (5003, 101, 5002)
    start = time.perf_counter()
    assert len(found.page(3).datasets) == len(found.versions("o~nightly").versions) == 50
    again = time.perf_counter() - start
    start = time.perf_counter()
    assert (
        sum(json.loads(path.read_bytes())["schema_version"] > 0 for path in copy.output.glob("*/manifest.json")) >= 5000
    )
    parsed = time.perf_counter() - start
    print(f"first {first:.3f} s, again {again:.3f} s; half of them parsed {parsed:.3f} s")
    assert max(first, again) < parsed


@pytest.mark.timeout(20)
def test_a_file_that_is_open_is_the_one_that_was_looked_at(shelf, tmp_path):
    copy = shelf.copy(tmp_path / "copy")
    found, secret = Datasets(lambda: {"o": copy.output}), tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = copy.output / copy.plain / "manifest.json"
    whole = path.read_bytes()

    with found.opened(path, "o") as file:
        path.unlink()
        path.symlink_to(secret)
        assert file.read() == whole
    with pytest.raises(FormatError, match="lies elsewhere"), found.opened(path, "o"):
        pytest.fail("it was opened")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError, match="is no file"), found.opened(path, "o"):
        pytest.fail("it was opened")
    path.unlink()
    with pytest.raises(FileNotFoundError), found.opened(path, "o"):
        pytest.fail("it was opened")
