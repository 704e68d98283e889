"""What the tests of launchers share: all rendered scripts, and the scripts within them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def repository_scripts(tmp_path: Path) -> list[Path]:
    """The golden scripts of launchers, and, as files of their own, those that they hold."""
    paths = [path for path in sorted(GOLDEN.iterdir()) if path.suffix in (".sh", ".sbatch")]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    for path in sorted(GOLDEN.glob("kubernetes-*.yaml")):
        texts += [each["data"]["train.sh"] for each in yaml.safe_load_all(path.read_text()) if "data" in each]
    for text in texts:  # which grows
        texts += [inner for _, inner in re.findall(r"<<'(END_OF_\w+)'[^\n]*\n(.*?)\n\1\n", text, re.DOTALL)]
    written = []
    for i, text in enumerate(texts):
        written.append(tmp_path / f"{i}.sh")
        written[-1].write_text(text, encoding="utf-8")
    return written
