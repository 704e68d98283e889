"""Repair: what is wrong with a pair and can be mended without its source, in a new pair.

    arrays      an .idx in whatever state
    measures    what its arrays say, and where they agree
    readings    the ways to understand a pair that its sizes allow
    evidence    one pass over the .bin: its ids, and how documents end by a reading
    choice      which reading is borne out
    contested   and whether it is so wherever lengths and pointers contradict each other
    indices     all of that: what a pair must have been by its index
    eods        and by the EODs in its .bin alone
    sequences   lengths and boundaries as streams, and what is made of them
    findings    what is wrong, in words
    case        one pair while it is looked at
    diagnosis   what it must have been, and what is to become of it
    writing     the new pair
    caching     Megatron's index caches of a pair, the only thing that is mended in place

The input is only ever read. What cannot be proven is refused, and then nothing is written.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.catalog import find_tokenizer
from dataprep.checks.report import Expected
from dataprep.definitions import identify
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import bin_path
from dataprep.manifest import eod_of, readable_manifest
from dataprep.prefixes import find_prefix
from dataprep.repairs.caching import clear_caches
from dataprep.repairs.case import Change, Known
from dataprep.repairs.diagnosis import diagnose
from dataprep.repairs.writing import outputs_of, write
from dataprep.reshaping.making import check_encodable, output_prefix
from dataprep.stages.verify import verify
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from dataprep.manifest import Manifest
    from dataprep.repairs.case import Dtype
    from dataprep.watcher import Watcher

__all__ = ["Change", "Repaired", "Wanted", "clear_caches", "repair"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user says of a pair, and wants of the new one.

    Attributes:
        eod: the id that ends documents; wins over the tokenizer's and the manifest's.
        tokenizer: what stands for ``--tokenizer``: names the EOD and the vocabulary.
        dtype: of the new pair; and of the old one, where neither its index nor a manifest says it.
        documents: join the sequences of each document.
    """

    eod: int | None = None
    tokenizer: str | None = None
    dtype: Dtype | None = None
    documents: bool = False


@dataclass(frozen=True, slots=True)
class Repaired:
    """What came of it.

    Attributes:
        prefix: of the pair that was looked at.
        prefixes: the new pairs; the pair itself where there was nothing to do.
        changes: what differs; none: there was nothing to do.
        warnings: what the user has to know.
        is_written: whether the new pairs are there; not with ``dry_run``.
    """

    prefix: str
    prefixes: tuple[str, ...]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    is_written: bool

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "prefix": self.prefix,
            "prefixes": list(self.prefixes),
            "changes": [change.to_json() for change in self.changes],
            "warnings": list(self.warnings),
            "is_written": self.is_written,
        }


def repair(
    prefix: str | Path,
    output: str | Path,
    wanted: Wanted | None = None,
    dry_run: bool = False,
    watcher: Watcher | None = None,
) -> Repaired:
    """Mend a pair, in a new one.

    Args:
        prefix: path without ``.bin``.
        output: the new prefix; where there are too many sequences for one, the new ones begin with it.
        wanted: what is known and wanted.
        dry_run: only say what would be done.
        watcher: is told how it gets on.

    Raises:
        SpecError: no such pair, or something has the new name.
        FormatError: something is wrong that cannot be mended, or not be proven.
        EncodeError: an id does not fit the dtype that is wanted.
        OutputError: no room, or what was written is not what was read. In all cases nothing has the new name.
    """
    watcher, wanted = watcher or Silent(), wanted or Wanted()
    path, new = find_prefix(prefix), output_prefix(output)
    check_encodable(path)
    if os.path.realpath(bin_path(path)) == os.path.realpath(bin_path(new)):
        raise SpecError(f"--output {new} is the pair itself, and nothing is mended in place; choose another")
    manifest, why = readable_manifest(path)
    unreadable = (f"{why}; it was left out of account",) if why else ()
    scratch = new.parent if new.parent.is_dir() and not dry_run else Path(tempfile.gettempdir())
    known = _known(path, wanted, manifest)
    diagnosis = diagnose(path, known, scratch, watcher)
    warnings = (*unreadable, *diagnosis.warnings)
    if not diagnosis.changes:
        left = _check_sound(path, known, watcher)
        return Repaired(str(path), (os.path.abspath(path),), (), (*warnings, *left), False)
    pairs = outputs_of(path, diagnosis, new)
    if not dry_run:
        warnings += write(diagnosis, new, pairs, manifest, watcher)
    names = tuple(os.path.abspath(name) for name in pairs)
    return Repaired(str(path), names, diagnosis.changes, warnings, not dry_run)


def _known(path: Path, wanted: Wanted, manifest: Manifest | None) -> Known:
    """What the user says, and where nothing is said, the manifest."""
    eod, vocab_size = eod_of(manifest), None
    if manifest is not None and manifest.tokenizer is not None:
        vocab_size = manifest.tokenizer.vocab_size
    if wanted.tokenizer is not None:
        identity = identify(*find_tokenizer(wanted.tokenizer, {}))
        eod, vocab_size = identity.eod_id, identity.vocab_size
        if eod is None and wanted.eod is None:
            raise SpecError(f"the tokenizer {wanted.tokenizer} does not say which token ends a document; add --eod ID")
    published = next((entry for entry in manifest.prefixes if entry.name == path.name), None) if manifest else None
    return Known(eod if wanted.eod is None else wanted.eod, vocab_size, wanted.dtype, wanted.documents, published)


def _check_sound(path: Path, known: Known, watcher: Watcher) -> tuple[str, ...]:
    """Make sure that a pair of which nothing can be mended has nothing that would have to be.

    Returns:
        What may be meant, and what to do where it is not.

    Raises:
        FormatError: `verify` finds errors.
    """
    watcher.stage("verify", bin_path(path).stat().st_size)
    expect = Expected(vocab_size=known.vocab_size, eod_id=known.eod)
    report = verify(path, "tokens", expect, progress=lambda count: watcher(Progress(source_bytes=count)))
    problem = next((problem for problem in report.problems if problem.severity == "error"), None)
    if problem is not None:
        raise FormatError(f"{path} cannot be repaired: {problem.code}: {problem.message}; {problem.fix}")
    return report.warnings
