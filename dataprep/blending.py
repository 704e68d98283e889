"""Several datasets and the shares they are to be trained on in: what weights mean, and a file for the trainer.

Two trainers mean different things by the same number. One that draws rows (torchtitan, `datasets.interleave_datasets`)
takes a document at a time; Megatron takes samples of a fixed number of tokens. A corpus of long documents that has
half of the rows has more than half of the tokens:

    share of tokens of corpus i  =  weight_i * tokens_i / documents_i,  over the sum of these        (unit: rows)
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from typing import TYPE_CHECKING, Any, Literal

from dataprep.errors import SpecError
from dataprep.layout import Layout
from dataprep.planning import check_path, describe, resolve
from dataprep.runner import check_limit, execute
from dataprep.specs import Model, parse_settings
from dataprep.stages.publish import prefix_weights, write_data_args
from dataprep.storage import make_folder, replace_link, write_json
from dataprep.watcher import Silent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dataprep.manifest import DatasetManifest
    from dataprep.planning import Request
    from dataprep.specs import Mixture
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)


class Share(Model):
    """One dataset of a blend.

    Attributes:
        corpus: as the mixture names it.
        prefix: of its dataset, absolute; of several the first.
        recipe_digest: of its dataset.
        weight: as the mixture gives it, in its unit.
        token_share: of the tokens trained on; all add up to 1. What Megatron calls its weight.
        num_documents, num_tokens: of its dataset.
        epochs: how often its dataset is seen for the budget; above 1 it repeats. None: there is no budget.
    """

    corpus: str
    prefix: str
    recipe_digest: str
    weight: float
    token_share: float
    num_documents: int
    num_tokens: int
    epochs: float | None


class Blend(Model):
    """What a mixture came to.

    Attributes:
        unit: what the mixture's weights count.
        tokens: the budget.
        data_args: the file for Megatron's ``--data-args-path``.
    """

    mixture: str
    unit: Literal["rows", "tokens"]
    tokens: int | None
    shares: tuple[Share, ...]
    data_args: str


def token_shares(mixture: Mixture, manifests: Sequence[DatasetManifest]) -> list[float]:
    """The share of the tokens that each corpus of a mixture has; they add up to 1."""
    parts = mixture.mixture.corpora
    if mixture.mixture.unit == "tokens":
        raw = [part.weight for part in parts]
    else:
        counts = [manifest.counts for manifest in manifests]
        raw = [part.weight * c.num_tokens / c.num_documents for part, c in zip(parts, counts, strict=True)]
    return [share / sum(raw) for share in raw]


def write_blend(mixture: Mixture, datasets: Sequence[tuple[str, DatasetManifest]], output: Path) -> Blend:
    """Publish the blend of datasets that exist, in a folder of its own.

    Args:
        mixture: its corpora.
        datasets: prefix and manifest of each, in the order of the mixture.
        output: the folder they are in.

    Raises:
        OutputError: the file system refuses.
    """
    manifests = [manifest for _, manifest in datasets]
    budget = mixture.mixture.tokens
    shares = [
        Share(
            corpus=part.corpus,
            prefix=prefix,
            recipe_digest=manifest.recipe_digest,
            weight=part.weight,
            token_share=share,
            num_documents=manifest.counts.num_documents,
            num_tokens=manifest.counts.num_tokens,
            epochs=None if budget is None else budget * share / manifest.counts.num_tokens,
        )
        for part, share, (prefix, manifest) in zip(
            mixture.mixture.corpora, token_shares(mixture, manifests), datasets, strict=True
        )
    ]
    content = [mixture.mixture.unit, budget, [(share.recipe_digest, share.weight) for share in shares]]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    layout = Layout.of(output, mixture.name, manifests[0].recipe.tokenizer.name, digest)
    make_folder(layout.dataset)
    blend = Blend(
        mixture=mixture.name,
        unit=mixture.mixture.unit,
        tokens=budget,
        shares=tuple(shares),
        data_args=str(layout.data_args),
    )
    weights = (
        (share.token_share * weight, path)
        for share, (prefix, manifest) in zip(shares, datasets, strict=True)
        for weight, path in prefix_weights(os.path.dirname(prefix), manifest)
    )
    write_data_args(layout.data_args, weights)
    write_json(layout.dataset / "blend.json", blend.to_json())
    assert layout.link is not None  # no part of a version
    replace_link(layout.link, os.path.basename(layout.dataset))
    return blend


def resolve_mixture(
    mixture: Mixture, tokenizer: str, output: str | Path, limit: int | None, settings: Sequence[str]
) -> list[Request]:
    """The requests of a mixture, one for each corpus.

    Raises:
        SpecError: one of them is wrong.
        SourceError: one of the corpora cannot be reached.
    """
    given = parse_settings(list(settings))
    for namespace in ("source", "reader"):
        if namespace in given:
            raise SpecError(
                f"--set {namespace}.*: {mixture.name} is a mixture, whose corpora differ in that; write YAMLs"
            )
    check_path(output)
    requests = []
    for part in mixture.mixture.corpora:
        most = min(filter(None, (part.limit, limit)), default=None)
        request = resolve(part.corpus, tokenizer, output, None, most, settings, of_many=True)
        if request.recipe.corpus == mixture.name:
            raise SpecError(f"{mixture.name} is the name of a mixture and of its corpus {part.corpus}; rename one")
        check_limit(request)
        requests.append(request)
    return requests


def plan_mixture(
    mixture: Mixture,
    tokenizer: str,
    output: str | Path = "data",
    limit: int | None = None,
    settings: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """What `run_mixture` with the same arguments would do, see `planning.plan`; of each corpus."""
    return [describe(request) for request in resolve_mixture(mixture, tokenizer, output, limit, settings)]


def run_mixture(  # noqa: PLR0913 - what a command line gives
    mixture: Mixture,
    tokenizer: str,
    output: str | Path = "data",
    limit: int | None = None,
    settings: Sequence[str] = (),
    watcher: Watcher | None = None,
    wait: bool = False,
) -> Blend:
    """Make every corpus of a mixture a dataset, one after the other, and write the blend for the trainer.

    Args:
        mixture: its corpora.
        tokenizer, output, settings: see `planning.resolve`; `settings` hold for all corpora.
        limit: at most this many documents of each.
        watcher: is told how it gets on.
        wait: for other runs of the same datasets to end.

    Raises:
        SpecError: the request is wrong, for any of the corpora; nothing was started.
        DataprepError: the work failed; what was finished is kept.
    """
    requests = resolve_mixture(mixture, tokenizer, output, limit, settings)
    results = []
    for number, request in enumerate(requests):
        log.info("%s: %s, %d of %d", mixture.name, request.recipe.corpus, number + 1, len(requests))
        results.append(execute(request, watcher or Silent(), wait))
    datasets = [(result.prefix, result.manifest) for result in results]
    return write_blend(mixture, datasets, requests[0].layout.output)
