"""What the manifest beside a pair claims of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataprep.checks.report import Place
from dataprep.indexed import bin_path, idx_path
from dataprep.storage import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataprep.checks.report import Report
    from dataprep.manifest import Manifest, Prefix


def check_claims(prefix: Path, manifest: Manifest, report: Report) -> None:
    """Hold sizes, counts and, above level ``index``, checksums to the manifest.

    Args:
        prefix: path without ``.bin``.
        manifest: has at least one prefix.
        report: what was found; problems are added to it.

    Raises:
        OSError: a file cannot be read.
    """
    claim = next(entry for entry in manifest.prefixes if entry.name == prefix.name)
    wrong = [*_counts(prefix, claim, report), *_files(prefix, claim, report)]
    if wrong:
        texts = "; ".join(text for _, text in wrong)
        report.add("manifest", Place(str(wrong[0][0])), f"the manifest is of other files: {texts}")


def _counts(prefix: Path, claim: Prefix, report: Report) -> Iterator[tuple[Path, str]]:
    for name, expected, found in (
        ("documents", claim.num_documents, report.num_documents),
        ("sequences", claim.num_sequences, report.num_sequences),
        ("tokens", claim.num_tokens, report.num_tokens),
        ("dtype", claim.dtype, report.dtype),
    ):
        if found and expected != found:
            yield idx_path(prefix), f"{name}: expected {expected}, found {found}"


def _files(prefix: Path, claim: Prefix, report: Report) -> Iterator[tuple[Path, str]]:
    for path, size, claimed, found in (
        (bin_path(prefix), claim.files.bin_bytes, claim.files.bin_checksum, report.bin_checksum),
        (idx_path(prefix), claim.files.idx_bytes, claim.files.idx_checksum, None),
    ):
        if not path.is_file():
            continue
        if path.stat().st_size != size:
            yield path, f"{path.suffix}: expected {size} bytes, found {path.stat().st_size}"
        elif report.level != "index":
            found = found or checksum(path)
            if found != claimed:
                yield path, f"{path.suffix}: expected the checksum {claimed}, found {found}"
