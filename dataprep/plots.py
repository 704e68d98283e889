"""Pictures of what is inside a pair: document lengths, and how often its tokens occur. Needs the extra ``plot``."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import SpecError
from dataprep.storage import AtomicFile

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from dataprep.inspection import Findings

FORMATS = ("png", "svg")
BINS = 60
POINTS = 400


def check(path: Path) -> None:
    """See that a picture can be drawn to this path, before there is work to lose.

    Raises:
        SpecError: of another kind than `FORMATS`, a folder that is not there, or no matplotlib.
    """
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise SpecError(f"--plot {path}: expected a name that ends with {' or '.join(f'.{kind}' for kind in FORMATS)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise SpecError(f"--plot {path}: {path.parent} is no folder, or one that you cannot write to")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise SpecError(f"--plot needs matplotlib ({error}); run: pip install 'dataprep-llm[plot]'") from error


def draw(findings: Findings, path: Path) -> None:
    """Draw what was found to a file, which appears whole; the same findings give the same bytes.

    Raises:
        SpecError: see `check`.
        OutputError: the folder cannot take it.
    """
    check(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    content = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a matplotlibrc says here
        mpl.rcParams["svg.hashsalt"] = "dataprep"
        counts = findings.census.counts if findings.census is not None else np.zeros(0, np.int64)
        pictures = 2 if counts.any() else 1
        figure = Figure(figsize=(6 * pictures, 4.5), layout="constrained")
        axes = figure.subplots(1, pictures, squeeze=False)[0]
        pair = findings.pair
        title = f"{ascii(pair.prefix.name)[1:-1]}: {pair.num_documents:,} documents, {pair.num_tokens:,} tokens"
        figure.suptitle(title, parse_math=False)
        _lengths(axes[0], findings)
        if pictures == 2:
            _ranks(axes[1], counts)
        figure.savefig(content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    with AtomicFile(path) as file:
        file.write(content.getvalue())  # getbuffer() in the traceback of a failure ends CPython 3.12.1 at the next gc


def _lengths(axes: Any, findings: Findings) -> None:
    """Documents by length, both by powers; those without tokens stand at 0.5."""
    values, counts = np.maximum(findings.lengths.values, 0.5), findings.lengths.counts
    edges = np.geomspace(values[0], values[-1] + 1, BINS + 1)
    axes.hist(values, bins=edges, weights=counts, color="tab:blue")
    axes.set(xscale="log", yscale="log", xlabel="tokens in a document", ylabel="documents")


def _ranks(axes: Any, counts: npt.NDArray[np.int64]) -> None:
    """How often the most frequent token occurs, the second, and so on."""
    ordered = np.sort(counts[counts > 0])[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), POINTS).astype(np.int64))
    axes.plot(ranks, ordered[ranks - 1], color="tab:orange")
    axes.set(xscale="log", yscale="log", xlabel="rank of a token", ylabel="how often it occurs")
