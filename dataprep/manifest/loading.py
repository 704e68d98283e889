"""The manifest of a pair, found and read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from dataprep.errors import FormatError, SpecError
from dataprep.indexed import bin_path, idx_path, read_header
from dataprep.layout import pair_manifest
from dataprep.manifest.datasets import DatasetManifest
from dataprep.manifest.pairs import PairManifest
from dataprep.manifest.units import SCHEMA
from dataprep.specs import Model
from dataprep.storage import read_whole

if TYPE_CHECKING:
    from pathlib import Path

M = TypeVar("M", bound=Model)

Manifest = DatasetManifest | PairManifest


def eod_of(manifest: Manifest | None) -> int | None:
    """The id that ends every document, if the manifest says that one does."""
    if manifest is None or manifest.tokenizer is None or manifest.policy is None:
        return None
    return manifest.tokenizer.eod_id if manifest.policy.eod == "append" else None


def manifest_of(prefix: Path) -> Manifest | None:
    """The manifest of a pair: its own, or the ``manifest.json`` of its folder that names it; None without one.

    It speaks of the pair by its present name, also where that changed: with that of its own manifest, or so that the
    folder's one speaks of files that are gone. Of a dataset of several pairs it speaks of this one alone, see
    `DatasetManifest.only`.

    Raises:
        FormatError: there is one, and it cannot be read.
    """
    own, common = pair_manifest(prefix), prefix.parent / "manifest.json"
    path = own if own.exists() else common
    if not path.exists():
        return None
    value = _read(path)
    manifest: Manifest
    if value.get("kind") == "pair":
        manifest = _model(PairManifest, value, path)
        _check_parts(manifest, path)
    else:
        manifest = _model(DatasetManifest, value, path)
    if prefix.name in {entry.name for entry in manifest.prefixes}:
        return manifest.only(prefix.name) if isinstance(manifest, DatasetManifest) else manifest
    (entry, *others) = manifest.prefixes or (None,)
    if entry is None or others or (path == common and bin_path(prefix.with_name(entry.name)).exists()):
        return None
    return manifest.model_copy(update={"prefixes": (entry.model_copy(update={"name": prefix.name}),)})


def readable_manifest(prefix: Path) -> tuple[Manifest | None, str]:
    """The manifest of a pair, and why it cannot be read if it cannot."""
    try:
        return manifest_of(prefix), ""
    except FormatError as error:
        return None, str(error)


def is_of(manifest: Manifest, prefix: Path) -> bool:
    """Whether a pair has the dtype, the counts and the file sizes that its manifest states: quickly told, no proof.

    Raises:
        FormatError: the pair cannot be read.
    """
    header = read_header(idx_path(prefix))
    try:
        sizes = bin_path(prefix).stat().st_size, idx_path(prefix).stat().st_size
    except OSError as error:
        raise FormatError(f"cannot read {error.filename}: {error.strerror}") from error
    found = (header.dtype.name, header.num_boundaries - 1, header.num_sequences, *sizes)
    return any(
        found == (e.dtype, e.num_documents, e.num_sequences, e.files.bin_bytes, e.files.idx_bytes)
        for e in manifest.prefixes
        if e.name == prefix.name
    )


def load_manifest(path: Path) -> DatasetManifest:
    """Read a dataset's ``manifest.json``.

    Raises:
        FormatError: missing, not JSON, or written by a version this one does not know.
    """
    return load_as(DatasetManifest, path)


def load_as(model: type[M], path: Path) -> M:
    """Read a manifest of another kind.

    Raises:
        FormatError: see `load_manifest`.
    """
    return _model(model, _read(path), path)


def _check_parts(manifest: PairManifest, path: Path) -> None:
    """See that the parts of a pair can be those of all its documents: what is made from it says the same of them."""
    held, found = (sum(each.num_documents for each in some) for some in (manifest.prefixes, manifest.parts))
    recipes = (None, *range(len(manifest.recipes)))
    if found != held:
        what = f"its parts have {found:,} documents, and the pair {held:,}"
    elif any(part.num_documents < 0 or part.recipe not in recipes for part in manifest.parts):
        what = f"a part has fewer than no documents, or a recipe that is none of the {len(manifest.recipes)} there"
    else:
        return
    raise FormatError(f"{path} was changed, or damaged: {what}. Put back the one that was written, or remove it")


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_whole(path))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"cannot read the manifest {path}: {error}") from error
    found = value.get("schema_version") if isinstance(value, dict) else type(value).__name__
    if found != SCHEMA:
        raise FormatError(f"{path}: expected schema_version {SCHEMA}, found {found!r}; update dataprep")
    assert isinstance(value, dict)
    return value


def _model(model: type[M], value: dict[str, Any], path: Path) -> M:
    try:
        return model.from_json(value, str(path))
    except SpecError as error:
        raise FormatError(f"not a manifest of dataprep: {error}") from error
