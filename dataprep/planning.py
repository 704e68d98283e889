"""From what a user typed to what would be done: recipe, paths, units. Writes the hub's cache of tokenizers only.

    resolve     corpus, tokenizer, settings -> Request: recipe, digest, runtime, every path
    plan        what `run` would do, as plain JSON values

Doing it is the runner's.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import catalog, sources
from dataprep.definitions import bos_disagreement, identify, missing_eod
from dataprep.errors import SpecError
from dataprep.estimates import estimate
from dataprep.layout import Layout
from dataprep.manifest import load_manifest
from dataprep.sources import list_files, with_checksum
from dataprep.specs import Existing, HubSource, OutputSpec, Recipe, Runtime, TokenPolicy, find_cluster, parse_settings
from dataprep.units import cut_units

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dataprep.specs import ClusterSpec, Corpus, Listing


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A resolved request: what would be made, and where.

    Attributes:
        recipe: all that decides the bytes.
        runtime: all that does not.
        layout: every path.
        digest: of the recipe.
        corpus: as it was asked for.
        listing: what was found of it.
        cluster: where units are worked.
    """

    recipe: Recipe
    runtime: Runtime
    layout: Layout
    digest: str
    corpus: Corpus
    listing: Listing
    cluster: ClusterSpec


def resolve(  # noqa: PLR0913 - what a command line gives
    corpus: str | Sequence[str],
    tokenizer: str,
    output: str | Path = "data",
    workers: int | None = None,
    limit: int | None = None,
    settings: Sequence[str] = (),
    of_many: bool = False,
    only: Collection[str] | None = None,
) -> Request:
    """Turn what a user typed into a recipe, a runtime and a layout; starts nothing.

    Args:
        corpus: a shipped name, a YAML, ``hf:org/name``, addresses, or paths and globs.
        tokenizer: a shipped name, a folder, a file, a YAML, or ``org/name`` on the hub.
        output: folder the dataset goes into.
        workers: units at the same time; default: the processors this process may use.
        limit: at most this many documents.
        settings: ``NAMESPACE.KEY=VALUE``, as for ``--set``.
        of_many: the settings are for other corpora, too: one that has no effect on this one is no error.
        only: of the user's own files, the absolute paths of those that are read; None: all.

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
    cluster = find_cluster(given.get("cluster", {}))
    runtime = _elsewhere(cluster, runtime, given.get("runtime", {}))
    policy = TokenPolicy.from_json(given.get("policy", {}), "policy settings")
    wanted = OutputSpec.from_json(given.get("output", {}), "output settings")
    if wanted != OutputSpec():
        check_path(output)
    if not wanted.merge and "unit_bytes" in given.get("runtime", {}):
        raise SpecError(
            "runtime.unit_bytes decides no bytes, and with output.merge=false units do; give output.max_prefix_bytes"
        )
    if limit is not None and limit < 1:
        raise SpecError(f"--limit {limit}: expected a number of documents, at least 1")
    catalog.find_corpus(_arguments(corpus), given)  # a misspelt one is said before anything is fetched
    spec, place = catalog.find_tokenizer(os.fspath(tokenizer), given.get("tokenizer", {}))
    identity = identify(spec, place)
    if policy.eod == "append" and identity.eod_id is None:
        raise missing_eod(identity)
    if policy.bos == "always" and identity.bos_id is None:
        raise SpecError(f"policy.bos=always: the tokenizer {identity.name} has no BOS token; use auto or never")
    if policy.bos == "auto" and (doubt := bos_disagreement(identity)) is not None:
        log.warning("%s", doubt)
    found, listing = resolve_corpus(corpus, output, given, only)
    if not of_many:
        _check_effect(found, listing, runtime, given.get("runtime", {}))
    recipe = Recipe(
        corpus=found.name,
        origin=listing.origin,
        license=found.license,
        reader=found.reader,
        files=listing.files,
        tokenizer=identity,
        policy=policy,
        limit=limit,
        output=wanted,
    )
    assert recipe.dtype  # an impossible policy.dtype is a SpecError before anything is written
    digest = recipe.digest
    layout = Layout.of(Path(os.path.abspath(output)), recipe.corpus, recipe.tokenizer.name, digest)
    return unchanged_or_new(Request(recipe, runtime, layout, digest, found, listing, cluster))


def check_path(output: str | Path) -> None:
    """See that Megatron can read the paths in a file for its ``--data-args-path``.

    Raises:
        SpecError: it cannot.
    """
    if any(letter.isspace() for letter in os.path.abspath(output)):
        raise SpecError(
            f"{os.path.abspath(output)}: Megatron splits --data-args-path at spaces; choose another --output"
        )


def _arguments(corpus: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """What stands for CORPUS, one or several, as texts."""
    arguments = [corpus] if isinstance(corpus, (str, os.PathLike)) else list(corpus)
    if not arguments:
        raise SpecError("no corpus given; give a name, a YAML, hf:org/name, addresses, or paths")
    return [os.fspath(argument) for argument in arguments]


def _elsewhere(cluster: ClusterSpec, runtime: Runtime, given: dict[str, Any]) -> Runtime:
    """The runtime of a cluster's workers.

    Raises:
        SpecError: settings of workers on this machine were given as well.
    """
    if cluster.num_workers is None:
        return runtime
    if "processes" in given or ("workers" in given and not isinstance(cluster, Existing)):
        raise SpecError(
            f"runtime.workers and runtime.processes are of this machine; of {cluster.kind} say cluster.nodes and "
            "cluster.workers_per_node, or cluster.workers"
        )
    return runtime.elsewhere(runtime.workers if "workers" in given else cluster.num_workers)


def _check_effect(corpus: Corpus, listing: Listing, runtime: Runtime, given: dict[str, Any]) -> None:
    """Refuse settings of downloads for a corpus that they mean nothing to."""
    if isinstance(corpus.source, HubSource) and corpus.source.contents and not runtime.keep_raw:
        raise SpecError(f"runtime.keep_raw=false has no effect: the texts of {corpus.name} are kept; leave it out")
    for key in ("keep_raw", "connections"):
        if key in given and listing.raw is None:
            raise SpecError(f"runtime.{key} has no effect: the corpus {corpus.name} is here already; leave it out")


def resolve_corpus(
    corpus: str | Sequence[str],
    output: str | Path,
    given: dict[str, dict[str, Any]],
    only: Collection[str] | None = None,
) -> tuple[Corpus, Listing]:
    """A corpus with its files; its reader knows the column of text.

    Args:
        corpus: as for `resolve`.
        output: folder that fetched files go below.
        given: settings by namespace.
        only: of the user's own files, the absolute paths of those that are read; None: all.

    Raises:
        SpecError: it is unknown, or names nothing.
        SourceError: it cannot be reached or read.
    """
    found, folder = catalog.find_corpus(_arguments(corpus), given)
    listing = list_files(found.source, found.reader, folder, Path(output), only)
    work = os.path.join(os.path.abspath(output), "work", "")
    if any(file.path.startswith(work) for file in listing.files):
        raise SpecError(f"the output {os.path.abspath(output)} lies among the input; choose another --output")
    if listing.text is not None and "text" not in found.reader.model_fields_set:
        found = found.model_copy(update={"reader": found.reader.model_copy(update={"text": listing.text})})
    return found, listing


def with_contents(request: Request) -> Request:
    """The same request once the texts behind its ids are here: of them, and with a digest that covers them."""
    source = request.corpus.source
    assert isinstance(source, HubSource)
    assert source.contents is not None
    listing = sources.with_contents(request.listing.model_copy(update={"ids": False}), source.contents)
    assert not listing.ids
    recipe = request.recipe.model_copy(update={"files": listing.files})
    return unchanged_or_new(replace(of_recipe(request, recipe), listing=listing))


def unchanged_or_new(request: Request) -> Request:
    """Where a dataset of this recipe exists but a file has another mtime, look whether its content is another too.

    A changed file gets its checksum into the listing, so that new content gets a new digest and a new path.
    """
    if not request.layout.manifest.exists():
        return request
    old = {file.name: file for file in load_manifest(request.layout.manifest).recipe.files}
    files = list(request.recipe.files)
    for i, file in enumerate(files):
        if file.mtime_ns is not None and file.mtime_ns != old[file.name].mtime_ns:
            hashed = with_checksum(file)
            if hashed.checksum != old[file.name].checksum:
                files[i] = hashed
    if files == list(request.recipe.files):
        return request
    recipe = request.recipe.model_copy(update={"files": tuple(files)})
    return of_recipe(request, recipe)


def of_recipe(request: Request, recipe: Recipe, home: str | None = None) -> Request:
    """The same request with another recipe, and its digest and paths; see `Layout.of` for `home`."""
    layout, digest = request.layout, recipe.digest
    home = layout.home if home is None else home
    layout = Layout.of(layout.output, recipe.corpus, recipe.tokenizer.name, digest, home)
    return replace(request, recipe=recipe, layout=layout, digest=digest)


def plan(
    corpus: str | Sequence[str],
    tokenizer: str,
    output: str | Path = "data",
    workers: int | None = None,
    limit: int | None = None,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """What `run` with the same arguments would do, as plain JSON values; downloads nothing but a tokenizer."""
    return describe(resolve(corpus, tokenizer, output, workers, limit, settings))


def describe(request: Request) -> dict[str, Any]:
    """A resolved request as plain JSON values: what it would do, and about what it would take."""
    recipe, source = request.recipe, request.corpus.source
    afar = request.listing.ids or any(file.url is not None for file in recipe.files)
    units = None if afar else cut_units(recipe, request.runtime)
    return {
        "recipe_digest": request.digest,
        "recipe": recipe.public().to_json(),
        "runtime": request.runtime.to_json(),
        "prefix": str(request.layout.first_prefix),
        "exists": request.layout.manifest.exists(),
        "dtype": recipe.dtype,
        "bos": recipe.tokenizer.bos_text if recipe.writes_bos else None,
        "eod": recipe.tokenizer.eod_text if recipe.policy.eod == "append" else None,
        "num_files": len(recipe.files),
        "num_bytes": recipe.num_bytes,
        "num_bytes_here": sum(file.num_bytes for file in recipe.files if os.path.exists(file.path)),
        "texts": source.contents.url if isinstance(source, HubSource) and source.contents else None,
        "estimate": None if request.listing.ids else estimate(recipe, request.runtime).to_json(),
        "num_units": None if units is None else len(units),
        "units": [
            {"key": unit.key, "num_bytes": unit.num_bytes, "slices": [part.to_json() for part in unit.slices]}
            for unit in units or ()
        ],
    }
