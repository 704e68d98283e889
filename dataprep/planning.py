"""From what a user typed to what would be done: recipe, paths, units. Reads, and writes only the plan.

    resolve     corpus, tokenizer, settings -> Request: recipe, digest, runtime, every path
    load_plan   Request -> units; written once to ``plan.json``, reused on resume
    plan        what `run` would do, as plain JSON values

Doing it is the runner's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import catalog
from dataprep.definitions import identify, missing_eod
from dataprep.errors import SpecError
from dataprep.layout import Layout, clear_shards
from dataprep.manifest import Slice, Unit, load_manifest
from dataprep.readers import cut
from dataprep.sources import list_files, with_checksum
from dataprep.specs import Recipe, Runtime, TokenPolicy, parse_settings
from dataprep.storage import explain, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A resolved request: what would be made, and where.

    Attributes:
        recipe: all that decides the bytes.
        runtime: all that does not.
        layout: every path.
        digest: of the recipe.
    """

    recipe: Recipe
    runtime: Runtime
    layout: Layout
    digest: str


def resolve(
    corpus: str | Sequence[str],
    tokenizer: str,
    output: str | Path = "data",
    workers: int | None = None,
    limit: int | None = None,
    settings: Sequence[str] = (),
) -> Request:
    """Turn what a user typed into a recipe, a runtime and a layout; touches nothing.

    Args:
        corpus: a shipped name, a YAML, or paths and globs.
        tokenizer: a shipped name, a folder, a file, a YAML, or ``org/name`` on the hub.
        output: folder the dataset goes into.
        workers: units at the same time; default: the processors this process may use.
        limit: at most this many documents.
        settings: ``NAMESPACE.KEY=VALUE``, as for ``--set``.

    Raises:
        SpecError: something in it is wrong, unknown or without effect.
        SourceError: a source file cannot be read.
    """
    given = parse_settings(list(settings))
    if workers is not None:
        if "workers" in given.get("runtime", {}):
            raise SpecError("--workers and --set runtime.workers say the same thing; give one of them")
        given.setdefault("runtime", {})["workers"] = workers
    runtime = Runtime.from_json(given.get("runtime", {}), "runtime settings")
    policy = TokenPolicy.from_json(given.get("policy", {}), "policy settings")
    if limit is not None and limit < 1:
        raise SpecError(f"--limit {limit}: expected a number of documents, at least 1")
    arguments = [corpus] if isinstance(corpus, str) else list(corpus)
    found, folder = catalog.find_corpus(arguments, given)
    spec, place = catalog.find_tokenizer(tokenizer, given.get("tokenizer", {}))
    identity = identify(spec, place)
    if policy.eod == "append" and identity.eod_id is None:
        raise missing_eod(identity)
    if policy.bos == "always" and identity.bos_id is None:
        raise SpecError(f"policy.bos=always: the tokenizer {identity.name} has no BOS token; use auto or never")
    listing = list_files(found.source, found.reader, folder)
    work = os.path.join(os.path.abspath(output), "work", "")
    if any(file.path.startswith(work) for file in listing):
        raise SpecError(f"the output {os.path.abspath(output)} lies among the input; choose another --output")
    recipe = Recipe(
        corpus=found.name, reader=found.reader, files=listing, tokenizer=identity, policy=policy, limit=limit
    )
    return _unchanged_or_new(_request(recipe, runtime, Path(output)), Path(output))


def _request(recipe: Recipe, runtime: Runtime, output: Path) -> Request:
    assert recipe.dtype  # an impossible policy.dtype is a SpecError before anything is written
    digest = recipe.digest
    layout = Layout.of(Path(os.path.abspath(output)), recipe.corpus, recipe.tokenizer.name, digest)
    return Request(recipe, runtime, layout, digest)


def _unchanged_or_new(request: Request, output: Path) -> Request:
    """Where a dataset of this recipe exists but a file has another mtime, look whether its content is another too.

    A changed file gets its checksum into the listing, so that new content gets a new digest and a new path.
    """
    if not request.layout.manifest.exists():
        return request
    old = {file.name: file for file in load_manifest(request.layout.manifest).recipe.files}
    files = list(request.recipe.files)
    for i, file in enumerate(files):
        if file.mtime_ns != old[file.name].mtime_ns:
            hashed = with_checksum(file)
            if hashed.checksum != old[file.name].checksum:
                files[i] = hashed
    if files == list(request.recipe.files):
        return request
    return _request(request.recipe.model_copy(update={"files": tuple(files)}), request.runtime, output)


MAX_SLICES = 500
"""Files in a unit at the most: thousands of tiny ones are work for several workers, too."""


def cut_units(recipe: Recipe, runtime: Runtime) -> list[Unit]:
    """The units of a listing: large files in pieces, small neighbours together."""
    unit_bytes = runtime.unit_size(sum(file.num_bytes for file in recipe.files))
    units: list[Unit] = []
    pending: list[Slice] = []
    size = 0
    for index, file in enumerate(recipe.files):
        for part in cut(index, file, recipe.reader, unit_bytes):
            if pending and (size + part.num_bytes > unit_bytes or len(pending) == MAX_SLICES):
                units.append(Unit(index=len(units), slices=tuple(pending)))
                pending, size = [], 0
            pending.append(part)
            size += part.num_bytes
    if pending:
        units.append(Unit(index=len(units), slices=tuple(pending)))
    return units


def load_plan(request: Request) -> list[Unit]:
    """The plan on disk if it is of these very files, else a new one, written before it is used.

    A plan of other files (an input changed while its run was interrupted) is dropped, and its shards with it.
    """
    layout = request.layout
    seal = [[file.name, file.num_bytes, file.mtime_ns] for file in request.recipe.files]
    try:
        value = json.loads(layout.plan.read_text(encoding="utf-8"))
        if value["seal"] == seal and value["digest"] == request.digest:
            write_json(layout.recipe, request.recipe.to_json())  # a power failure may have left it hollow
            return [
                Unit(index=i, slices=tuple(Slice(file=a, start=b, stop=c, num_bytes=d) for a, b, c, d in parts))
                for i, parts in enumerate(value["units"])
            ]
        log.warning("the input changed since this run was interrupted: starting it anew")
        clear_shards(layout)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with explain(layout.rejects, "clear"), contextlib.suppress(FileNotFoundError):
        for path in layout.rejects.iterdir():  # of other units: nothing would overwrite them
            path.unlink()
    units = cut_units(request.recipe, request.runtime)
    parts = [[[s.file, s.start, s.stop, s.num_bytes] for s in unit.slices] for unit in units]
    write_json(layout.recipe, request.recipe.to_json())
    write_json(layout.plan, {"digest": request.digest, "seal": seal, "units": parts})
    return units


def plan(
    corpus: str | Sequence[str],
    tokenizer: str,
    output: str | Path = "data",
    workers: int | None = None,
    limit: int | None = None,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """What `run` with the same arguments would do, as plain JSON values; touches nothing."""
    request = resolve(corpus, tokenizer, output, workers, limit, settings)
    recipe = request.recipe
    units = cut_units(recipe, request.runtime)
    return {
        "recipe_digest": request.digest,
        "recipe": recipe.to_json(),
        "runtime": request.runtime.to_json(),
        "prefix": str(request.layout.prefix),
        "exists": request.layout.manifest.exists(),
        "dtype": recipe.dtype,
        "bos": recipe.tokenizer.bos_text if recipe.writes_bos else None,
        "eod": recipe.tokenizer.eod_text if recipe.policy.eod == "append" else None,
        "num_files": len(recipe.files),
        "num_bytes": sum(file.num_bytes for file in recipe.files),
        "num_units": len(units),
        "units": [
            {"key": unit.key, "num_bytes": unit.num_bytes, "slices": [part.to_json() for part in unit.slices]}
            for unit in units
        ],
    }
