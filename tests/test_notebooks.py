"""The notebooks run from top to bottom, and are stored without their outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> nbformat.NotebookNode:
    """Each notebook of the repository in turn."""
    return nbformat.read(request.param, as_version=4)


def test_there_is_a_quickstart():
    assert "01_quickstart" in {path.stem for path in NOTEBOOKS}


def test_is_stored_without_outputs(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.slow
def test_runs(notebook, workspace, monkeypatch):
    from nbclient import NotebookClient

    # The kernel is a process of its own. It keeps its state in the test's folder, and draws without a screen.
    monkeypatch.setenv("IPYTHONDIR", str(workspace / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(workspace / "matplotlib"))
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(workspace)}}
    )

    client.execute()

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "the histogram was drawn"
