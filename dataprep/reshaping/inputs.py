"""Pairs that others are made from: found, proven as far as their indices go, and held against each other.

All that can be wrong with them is said before anything is written, and of all of them at once.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import Index, IndexedDataset, bin_path, idx_path, read_header
from dataprep.manifest import DatasetManifest, eod_of, readable_manifest
from dataprep.prefixes import find_prefixes
from dataprep.reshaping.making import check_encodable
from dataprep.reshaping.selections import Run, read_documents
from dataprep.stages.verify import verify
from dataprep.storage import checksum
from dataprep.watcher import Progress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dataprep.manifest import Manifest, PairFiles
    from dataprep.specs import Recipe
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)

NUM_NAMED = 5
"""Pairs that a message names; of more it says how many."""

NUM_ENDS = 100
"""Documents whose last ids tell the EOD of a pair without a manifest: they lie at the start of its file."""

HARMLESS = {"no-tokens", "too-many", "cache-stale", "cache-damaged"}
"""Errors that a pair may have and still be an input: they are of training on it as it is."""


def find_inputs(texts: Iterable[str | Path]) -> list[Path]:
    """What a person calls some prefixes, in the order given; a folder or a glob stands for all pairs in it, by name.

    A glob may match prefixes, their files, or folders. What is half-made, or hidden, is left out.

    Raises:
        SpecError: one of them stands for no pair, or two for the same.
    """
    found: dict[str, tuple[Path, str | Path]] = {}
    for text in texts:
        for real, path in _pairs(text).items():
            if real in found:
                first, named = found[real]
                raise SpecError(f"{first} comes twice: by {named}, and by {text}")
            found[real] = path, text
    return [path for path, _ in found.values()]


def _pairs(text: str | Path) -> dict[str, Path]:
    """The pairs that one name stands for, by where they really lie: a link to a folder brings nothing twice.

    Hard links are names of their own: so a pair can be taken several times where that is meant.
    """
    found: dict[str, Path] = {}
    for pair in find_prefixes(text):
        found.setdefault(os.path.realpath(bin_path(pair)), pair)
    return found


@dataclass(frozen=True, slots=True)
class Input:
    """A pair whose index is right.

    Attributes:
        prefix: path without ``.bin``.
        manifest: if it has one.
        dtype: of the tokens.
        run: all of its documents.
    """

    prefix: Path
    manifest: Manifest | None
    dtype: Literal["uint16", "int32"]
    run: Run

    @property
    def bin_checksum(self) -> str | None:
        """Of the whole ``.bin``, where a manifest states it."""
        files = _files(self.prefix, self.manifest)
        return files.bin_checksum if files is not None else None

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """By which its documents were made, as far as known."""
        if self.manifest is None:
            return ()
        return (self.manifest.recipe,) if isinstance(self.manifest, DatasetManifest) else self.manifest.recipes


def _files(prefix: Path, manifest: Manifest | None) -> PairFiles | None:
    """What the manifest of a pair states of its two files."""
    entries = manifest.prefixes if manifest is not None else ()
    return next((entry.files for entry in entries if entry.name == prefix.name), None)


def open_inputs(prefixes: Sequence[Path], watcher: Watcher) -> list[Input]:
    """Prove the index of every pair, also to be that of its manifest, and see that they go together.

    A manifest that cannot be read is a warning: it may be another program's.

    Raises:
        FormatError: some are broken; names all of them.
        SpecError: they are of several dtypes, tokenizers or policies, or of a name that is no UTF-8.
    """
    for prefix in prefixes:
        check_encodable(prefix)
    inputs, broken, unreadable = [], [], dict.fromkeys([""])
    sizes = [_idx_bytes(prefix) for prefix in prefixes]
    watcher.stage("check the inputs", sum(sizes))
    for prefix, size in zip(prefixes, sizes, strict=True):
        watcher(Progress(source_bytes=size))
        manifest, why = readable_manifest(prefix)
        problem = _problem(prefix) or _claim_problem(prefix, manifest)
        if problem is None:
            dtype: Literal["uint16", "int32"] = "uint16" if read_header(idx_path(prefix)).code == 8 else "int32"
            unreadable[why] = None
            inputs.append(Input(prefix, manifest, dtype, Run.of(prefix)))
        else:
            broken.append(f"  {prefix}: {problem}")
    if broken:
        of = f"{len(broken):,} of {len(prefixes):,} inputs are broken" if len(prefixes) > 1 else "the input is broken"
        raise FormatError(
            "\n".join([f"{of}; nothing was written. `dataprep repair` mends what can be mended", *broken[:100]])
            + (f"\n  and {len(broken) - 100:,} more" if len(broken) > 100 else "")
        )
    for why in filter(None, unreadable):
        log.warning("warning: going on as if it were not there: %s", why)
    _check_dtypes(inputs)
    _check_conventions(inputs)
    _compare_eods(inputs)
    _compare_sequences(inputs)
    return inputs


def _idx_bytes(prefix: Path) -> int:
    try:
        return idx_path(prefix).stat().st_size
    except OSError:
        return 0  # it is broken, which is said later


def _problem(prefix: Path) -> str | None:
    """What makes a pair unfit, None if nothing does."""
    problem = index_problem(prefix)
    if problem is not None:
        return problem
    header = read_header(idx_path(prefix))
    if header.dtype.name not in ("uint16", "int32"):
        return f"dtype-unusual: {header.dtype.name}; expected uint16 or int32"
    if idx_path(prefix).stat().st_size != header.num_bytes:
        return (
            f"idx-tail: {header.num_sequences:,} bytes behind the index: the modes of multimodal data, which would be "
            "lost, or stray bytes"
        )
    return None


def _claim_problem(prefix: Path, manifest: Manifest | None) -> str | None:
    """Whether the manifest is of another index of the same size: documents in another order have one."""
    files = _files(prefix, manifest)
    if files is None or checksum(idx_path(prefix)) == files.idx_checksum:
        return None
    return "manifest: the .idx is not what its manifest says: it is damaged, or the manifest is of other files"


def index_problem(prefix: Path, harmless: Collection[str] = frozenset(HARMLESS)) -> str | None:
    """What is wrong with an index or the sizes of a pair, None if nothing is; a pair of nothing is right."""
    if _is_empty(prefix):
        return None
    for problem in verify(idx_path(prefix), level="index").errors:
        if problem.code not in harmless:
            return f"{problem.code}: {problem.message}"
    return None


def _is_empty(prefix: Path) -> bool:
    """Whether a pair holds nothing, or boundaries alone: what is left where all documents are filtered out."""
    try:
        header = read_header(idx_path(prefix))
        empty = header.num_boundaries > 0 == header.num_sequences and bin_path(prefix).stat().st_size == 0
    except (FormatError, OSError):
        return False
    return empty and not any(piece.any() for piece in Index(idx_path(prefix)).chunks("document_indices"))


def _check_dtypes(inputs: Sequence[Input]) -> None:
    groups: dict[str, list[Path]] = {}
    for each in inputs:
        groups.setdefault(each.dtype, []).append(each.prefix)
    if len(groups) > 1:
        found = "; ".join(f"{dtype}: {named(prefixes)}" for dtype, prefixes in sorted(groups.items()))
        raise SpecError(
            f"the inputs are of two dtypes ({found}). Make them one first: every uint16 fits int32, "
            f"`dataprep repair {groups['uint16'][0]} --output NEW --dtype int32`; and where no id is above 65,535 "
            f"uint16 takes half the room, `dataprep repair {groups['int32'][0]} --output NEW --dtype uint16`"
        )


def named(prefixes: Sequence[Path]) -> str:
    """Some prefixes for a message."""
    more = f" and {len(prefixes) - NUM_NAMED:,} more" if len(prefixes) > NUM_NAMED else ""
    return ", ".join(map(str, prefixes[:NUM_NAMED])) + more


def _check_conventions(inputs: Sequence[Input]) -> None:
    """Tokenizer and policy, as far as manifests know them."""
    first: tuple[Path, Recipe] | None = None
    for each in inputs:
        for recipe in each.recipes:
            first = first or (each.prefix, recipe)
            differing = [key for key, value in recipe.conventions.items() if first[1].conventions[key] != value]
            if differing:
                what = ", ".join(_difference(key, first[1], recipe) for key in differing)
                raise SpecError(
                    f"{first[0]} and {each.prefix} do not go together: {what}. Build one of them again, or leave them "
                    "apart and give both to the training"
                )


def _difference(key: str, one: Recipe, other: Recipe) -> str:
    if key == "tokenizer":
        a, b = one.tokenizer, other.tokenizer
        names = (a.name, b.name) if a.name != b.name else (_identity(a.files), _identity(b.files))
        return f"tokenizers {names[0]} and {names[1]}"
    words = {True: "written", False: "not written"}
    a_value, b_value = one.conventions[key], other.conventions[key]
    return f"{key} {words.get(a_value, a_value)} and {words.get(b_value, b_value)}"


def _identity(files: dict[str, str]) -> str:
    return ", ".join(f"{name} {sha256[:12]}" for name, sha256 in sorted(files.items()))


def _compare_eods(inputs: Sequence[Input]) -> None:
    """Warn where documents of different inputs end differently, and one of them has no manifest to speak for it."""
    if len(inputs) < 2 or all(each.manifest is not None for each in inputs):
        return
    groups: dict[int | None, list[Path]] = {}
    for each in inputs:
        if each.run.num_bytes:
            known = each.manifest is not None and each.manifest.policy is not None
            groups.setdefault(eod_of(each.manifest) if known else _likely_eod(each.prefix), []).append(each.prefix)
    if len(groups) > 1:
        ways = (f"{'in no one way' if eod is None else f'with {eod}'}: {named(some)}" for eod, some in groups.items())
        log.warning("warning: the documents of the inputs do not end alike: %s", "; ".join(ways))


def _compare_sequences(inputs: Sequence[Input]) -> None:
    """Warn where the documents of some inputs are cut into sentences, and those of others are not."""
    groups: dict[bool, list[Path]] = {}
    for each in inputs:
        if each.run.num_bytes:
            groups.setdefault(each.run.num_sequences > each.run.num_documents, []).append(each.prefix)
    if len(groups) > 1:
        log.warning(
            "warning: some inputs have several sequences in a document (%s), and others have not (%s). GPT training "
            "takes each sequence for a document; to join those of one: dataprep repair %s --output NEW --documents",
            *(named(groups[True]), named(groups[False]), groups[True][0]),
        )


def _likely_eod(prefix: Path) -> int | None:
    """The id that ends more than half of the first documents, if there is one."""
    pair = IndexedDataset(prefix)
    _, _, places = read_documents(pair.index, 0, min(NUM_ENDS, pair.num_documents))
    ends = places[1:][np.diff(places) > 0] - 1
    ids, counts = np.unique(pair.tokens[ends], return_counts=True)
    return int(ids[counts.argmax()]) if len(ids) and counts.max() * 2 > len(ends) else None


def check_sequences(runs: Iterable[Run], limit: int) -> None:
    """See that all inputs together have fewer sequences than Megatron can count.

    Raises:
        SpecError: they have not; says how many pairs to make of them.
    """
    groups, filled, total = 1, 0, 0
    for run in runs:
        if run.num_sequences > limit:
            raise SpecError(
                f"{run.prefix} alone has {run.num_sequences:,} sequences, and Megatron's sample index holds {limit:,}; "
                f"cut it first: dataprep split {run.prefix} --output NEW --documents 1000000000"
            )
        groups, filled = (groups, filled) if filled + run.num_sequences <= limit else (groups + 1, 0)
        filled += run.num_sequences
        total += run.num_sequences
    if groups > 1:
        raise SpecError(
            f"the inputs have {total:,} sequences, and Megatron's sample index holds {limit:,} of one pair; make at "
            f"least {groups} pairs of them, each of consecutive inputs, and give all of them to the training"
        )
