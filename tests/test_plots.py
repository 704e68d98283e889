"""Pictures: drawn whole or not at all, always the same, and what stands in the way is said before the work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dataprep import plots
from dataprep.errors import OutputError, SpecError
from dataprep.inspection import examine


@pytest.fixture(scope="module")
def findings(make_pair):
    return examine(make_pair([[1, 2, 3] * number for number in range(1, 40)] + [[]]))


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG\r\n"), ("a.SVG", b"<?xml")])
def test_the_same_findings_give_the_same_bytes(findings, workspace, name, begins):
    path = workspace / name
    plots.draw(findings, path)
    first = path.read_bytes()
    path.write_bytes(b"old")
    plots.draw(findings, path)

    assert first.startswith(begins)
    assert path.read_bytes() == first
    assert [entry.name for entry in workspace.iterdir()] == [name]


def test_a_name_with_formulas_in_it_is_drawn_as_it_is(make_pair, workspace):
    prefix = make_pair([[1]], prefix=workspace / "$x_{\N{SNOWMAN}$")
    plots.draw(examine(prefix, "index"), workspace / "a.svg")

    assert (workspace / "a.svg").stat().st_size


@pytest.mark.parametrize("ids", [[-1], [5]])
def test_pairs_of_next_to_nothing_are_drawn(make_pair, tmp_path, ids):
    plots.draw(examine(make_pair([ids, []], dtype="int32")), tmp_path / "a.svg")

    assert (tmp_path / "a.svg").stat().st_size


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.png.gz", ".png", "a.json"])
def test_other_kinds_of_files_are_refused(tmp_path, name):
    with pytest.raises(SpecError, match=r"ends with \.png or \.svg"):
        plots.check(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(SpecError, match="is no folder"):
        plots.check(tmp_path / "nothing" / "a.png")


def test_a_folder_that_cannot_be_written_to_is_said_before_the_work(mounted, tmp_path):
    with pytest.raises(SpecError, match="cannot write to"):
        plots.check(mounted(tmp_path / "fixed", "ro") / "a.png")


def test_a_folder_that_refuses_is_said(findings, mounted, tmp_path):
    folder = mounted(tmp_path / "small", "size=4k")
    (folder / "full").write_bytes(b"x" * 4096)

    with pytest.raises(OutputError, match="no space left"):
        plots.draw(findings, folder / "a.png")
    assert [path.name for path in folder.iterdir()] == ["full"]


def test_without_matplotlib_the_extra_is_named(make_pair, tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from dataprep.cli import main; main()"
    command = [sys.executable, "-c", code, "inspect", str(make_pair([[1]])), "--plot", str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ})

    assert done.returncode == 2
    assert "pip install 'dataprep-llm[plot]'" in done.stderr
    assert done.stdout == ""
