"""What tests of datasets on pages share: an output with some, made as users make them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Shelf:
    """An output with datasets to look at.

    Attributes:
        output: holds `plain` (hostile texts, and rejects), `many` (several prefixes, a document of many tokens) and
            `nightly`, which has versions 1 and 2; the names are those of their folders.
        texts: of the documents of `plain`, in their order; `lines` of its source file.
        long: the text of the document of many tokens, the last one of `many`.
        nightly_texts: of the documents of version 2.
    """

    output: Path
    plain: str
    many: str
    nightly: str
    texts: tuple[str, ...]
    lines: tuple[bytes, ...]
    long: str
    nightly_texts: tuple[str, ...]

    def copy(self, folder: Path) -> Shelf:
        """The same in another folder, to be damaged."""
        shutil.copytree(self.output, folder, symlinks=True)
        return replace(self, output=folder)


HOSTILE = (
    "<script>alert('x')</script>",
    "\x1b[31mred\x1b[0m \x07",
    "abc \u202e\u2066 evil \u2069 \u202c",
    "nul \x00 and \u2028 \u2029 \x85",
    "\u4e2d\u6587 \U0001f44d\U0001f3fd e\u0301",
    'plain "quotes" & amp; {{ 7 * 7 }} {% raw %}',
    "two\n\n\tlines  and   spaces ",
)


def _publish(job: Path) -> None:
    """Make a version of what is new, as a run of a job does."""
    from dataprep.claims import Claim
    from dataprep.service.ingesting import dataset_of, ingest
    from dataprep.service.jobs import load_job
    from dataprep.watcher import Silent

    found = load_job(job)
    with Claim(dataset_of(found).claim) as claim:
        assert ingest(found, claim, Silent(), lambda request: None).version is not None


@pytest.fixture(scope="session")
def shelf(tmp_path_factory, bpe) -> Shelf:
    """An output with a dataset, one of several prefixes, and one with two versions; nobody writes to it."""
    import dataprep

    folder = tmp_path_factory.mktemp("shelf")
    output = folder / "out"
    hostile, inbox, large = folder / "hostile", folder / "inbox", folder / "large"
    for each in (hostile, inbox, large):
        each.mkdir()
    good = [json.dumps({"text": text}).encode() for text in HOSTILE]
    bad = [b'{"text": <b>no json</b>', b'{"text": "\xff\x1b[2J\xe2\x80\xae"}', b'{"other": 1}']
    lines = tuple(line for pair in zip(good, bad * 3, strict=False) for line in pair)
    name = "a <img src=x onerror=alert(1)>.jsonl"
    (hostile / name).write_bytes(b"".join(line + b"\n" for line in lines))
    settings = ["runtime.max_rejects=0.9"]
    plain = dataprep.run(str(hostile / "*.jsonl"), str(bpe.path), output, settings=settings).prefix
    long = "".join(f"{i} words of a long document, " for i in range(2000))
    texts = [*(f"short {i}" for i in range(300)), long]
    (large / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    many = dataprep.run(str(large / "*.jsonl"), str(bpe.path), output, settings=["output.max_prefix_bytes=2000"]).prefix
    job, nightly = folder / "nightly.yaml", []
    job.write_text(f"corpus: inbox/*.jsonl\ntokenizer: {bpe.path}\noutput: out\nsettle_seconds: 0\n")
    for number in range(2):
        added = [f"night {number} {letter}" for letter in "abc"]
        (inbox / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in added))
        _publish(job)
        nightly += added
    names = [Path(prefix).parent.name for prefix in (plain, many)]
    return Shelf(output, *names, "nightly", HOSTILE, lines, long, tuple(nightly))


@pytest.fixture(scope="session")
def datasets(shelf):
    """The datasets of `shelf`, whose output has the id ``o``."""
    from dataprep.service.viewing.listing import Datasets

    return Datasets(lambda: {"o": shelf.output})
