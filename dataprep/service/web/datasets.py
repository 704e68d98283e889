"""The pages of datasets: which there are, all that is known of one, its documents, samples and rejects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dataprep.errors import DataprepError, SpecError
from dataprep.samples import SEED, SPLIT, Sampling
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.documents import TOKENS
from dataprep.service.web.drawing import HEIGHT, WIDTH, bars, levels, spans
from dataprep.service.web.pages import Number
from dataprep.service.web.showing import page, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataprep.service.viewing.chosen import Dataset
    from dataprep.service.viewing.readings import RejectPage, SampleView
    from dataprep.service.viewing.viewer import Viewer

T = TypeVar("T")

router = APIRouter(include_in_schema=False)

SEQ_LENGTH = 4096
"""Of a training whose samples are shown, where nobody says."""

Place = Annotated[int, Query(ge=0, le=1 << 53)]
"""A token, or a byte, of something long."""


def viewer_of(request: Request) -> Viewer:
    """What the server knows of datasets."""
    found: Viewer = request.app.state.viewer
    return found


def asked(make: Callable[[], T]) -> T:
    """What somebody asked for.

    Raises:
        HTTPException: 404, it is not there; 409, these files cannot give it: they are damaged, or hold too little.
    """
    try:
        return make()
    except DataprepError as error:
        raise HTTPException(404 if isinstance(error, AbsentError) else 409, plain(str(error))) from error


def whole(text: str) -> int:
    """A number of an address; -1, which nothing has, for what is none."""
    return int(text) if re.fullmatch(r"\d{1,15}", text, re.ASCII) else -1


@router.get("/datasets")
def datasets(request: Request, output: str = "", number: Number = 1) -> Response:
    """All datasets, a page of them at a time."""
    viewer = viewer_of(request)
    found = asked(lambda: viewer.datasets.page(number, output or None))
    return page(
        request,
        "datasets.html",
        section="datasets",
        found=found,
        output=output,
        outputs=viewer.datasets.outputs,
        address=f"/datasets?{urlencode({'output': output})}&page=" if output else "/datasets?page=",
    )


@router.get("/datasets/{name}")
def dataset(request: Request, name: str, number: Number = 1) -> Response:
    """One dataset, or one version; of a versioned dataset its versions."""
    viewer = viewer_of(request)
    found = asked(lambda: viewer.datasets.find(name))
    if found.version is not None and found.id != name:
        listed = asked(lambda: viewer.datasets.versions(name, number))
        users = [f"v{row.version}: {user}" for row in listed.versions for user in row.leases]
        return page(request, "versions.html", section="datasets", listed=listed, users=users, **_home(found))
    detail = asked(lambda: viewer.details.of(found))
    try:
        lengths, why = viewer.details.lengths(found), ""
    except DataprepError as error:
        lengths, why = None, str(error)
    drawn = bars(lengths.bins) if lengths else []
    chart = {"bars": drawn, "levels": levels(drawn), "width": WIDTH, "height": HEIGHT}
    shown = {"detail": detail, "lengths": lengths, "why": why, **chart, **_home(found)}
    return page(request, "dataset.html", section="datasets", **shown)


@router.get("/datasets/{name}/files")
def files(request: Request, name: str, number: Number = 1) -> Response:
    """The source files of a dataset."""
    viewer = viewer_of(request)
    found = asked(lambda: viewer.datasets.find(name))
    listed = asked(lambda: viewer.details.sources(found, number))
    return page(request, "sources.html", section="datasets", listed=listed, **_home(found))


@router.get("/datasets/{name}/documents")
def search(request: Request, name: str, number: str = "0") -> Response:
    """To the document whose number was written."""
    found = asked(lambda: viewer_of(request).datasets.find(name))
    return RedirectResponse(f"{_home(found)['home']}/documents/{quote(number.strip() or '0', safe='')}", 303)


@router.get("/datasets/{name}/documents/{number}")
def document(request: Request, name: str, number: str, first: Place = 0) -> Response:
    """One document, as text and as tokens."""
    viewer = viewer_of(request)
    found = asked(lambda: viewer.datasets.find(name))
    view = asked(lambda: viewer.documents.document(found, whole(number), first))
    pieces = spans(view.tokens, view.first_token)
    steps = _steps(view.first_token, view.num_tokens)
    return page(request, "document.html", section="datasets", view=view, pieces=pieces, steps=steps, **_home(found))


@router.get("/datasets/{name}/samples")
def choose(request: Request, name: str) -> Response:
    """To the sample of the training that was described; to the first one of a usual training, where none was."""
    found = asked(lambda: viewer_of(request).datasets.find(name))
    if not request.query_params:
        usual = {"seq_length": SEQ_LENGTH, "seed": SEED, "split": SPLIT, "part": "train", "wanted": None, "pair": 0}
        return _sample(request, found, {**usual, "number": 0}, 0, is_usual=True)
    said = {key: value for key, value in request.query_params.items() if value}
    number = said.pop("number", "0")
    return RedirectResponse(f"{_home(found)['home']}/samples/{quote(number.strip(), safe='')}?{urlencode(said)}", 303)


@router.get("/datasets/{name}/samples/{number}")
def sample(  # noqa: PLR0913 - what decides a sample
    request: Request,
    name: str,
    number: str,
    seq_length: Annotated[int, Query(ge=1, le=1 << 20)] = SEQ_LENGTH,
    seed: Annotated[int, Query(ge=0, lt=1 << 32)] = SEED,
    split: str = SPLIT,
    part: str = "train",
    wanted: Annotated[int | None, Query(ge=1, le=1 << 53)] = None,
    pair: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
    first: Place = 0,
) -> Response:
    """One sample as Megatron trains on it, or why it has none."""
    found = asked(lambda: viewer_of(request).datasets.find(name))
    context = {"seq_length": seq_length, "seed": seed, "split": split, "part": part, "wanted": wanted, "pair": pair}
    return _sample(request, found, {**context, "number": whole(number)}, first)


@router.get("/datasets/{name}/rejects")
def rejects(request: Request, name: str, part: Place | None = None, position: Place = 0, reason: str = "") -> Response:
    """Records that became no documents of a dataset; of a version, of its newest part that has some."""
    viewer = viewer_of(request)
    found = asked(lambda: viewer.datasets.find(name))
    detail = asked(lambda: viewer.details.of(found))
    some = [row for row in detail.parts if row.num_rejected]
    place = part if part is not None else max((row.number for row in some), default=0)
    listed = asked(lambda: viewer.rejects(found, place, position, reason or None))
    home = _home(found)
    crumbs = [("/datasets", "Datasets"), (home["home"], home["label"])]
    about = {"counts": detail.rejects, "parts": detail.num_parts, "part": place, "some": some}
    return _rejects(request, listed, f"{home['home']}/rejects", {"section": "datasets", "crumbs": crumbs, **about})


@router.get("/runs/{output}/{run}/rejects")
def run_rejects(request: Request, output: str, run: str, position: Place = 0, reason: str = "") -> Response:
    """Records that became no documents of a run, as far as they are merged."""
    listed = asked(lambda: viewer_of(request).run_rejects(output, run, position, reason or None))
    home = f"/runs/{quote(output, safe='')}/{quote(run, safe='')}"
    crumbs = [("/runs", "Runs"), (home, run)]
    about = {"counts": {}, "parts": 0, "part": None, "some": []}
    return _rejects(request, listed, f"{home}/rejects", {"section": "runs", "crumbs": crumbs, **about})


def _rejects(request: Request, listed: RejectPage, address: str, shown: dict[str, Any]) -> Response:
    said = {"part": shown["part"]} if shown["parts"] > 1 else {}
    narrow = f"{address}?{urlencode(said)}&" if said else f"{address}?"
    more = f"{narrow}{urlencode({'reason': listed.reason})}&position=" if listed.reason else f"{narrow}position="
    return page(request, "rejects.html", listed=listed, address=address, narrow=narrow, more=more, **shown)


def _sample(request: Request, found: Dataset, context: dict[str, Any], first: int, is_usual: bool = False) -> Response:
    """The page of a sample, or of why Megatron would not begin the training.

    Args:
        request: for it.
        found: the dataset.
        context: what decides the sample, as in the query.
        first: token of it to begin with.
        is_usual: nobody asked for this training: where it cannot be, one that can be is shown beside the reason.
    """
    why, view = "", None
    try:
        view = _drawn(request, found, context, first)
    except SpecError as error:
        why, possible = str(error), _possible(found, context)
        if is_usual and possible:
            context = {**context, **possible}
            view = _drawn(request, found, context, first)
    query = urlencode({key: value for key, value in context.items() if (value or key == "seed") and key != "number"})
    shown = {**_home(found), "context": context, "query": query, "parts": ("train", "valid", "test")}
    if view is None:
        shown |= {"view": None, "why": why, "retry": urlencode(possible)}
        return page(request, "sample.html", 200 if is_usual else 409, section="datasets", **shown)
    pieces = [spans(piece.tokens, piece.first_token + piece.first_shown) for piece in view.pieces]
    shown |= {"view": view, "why": why, "pieces": pieces, "steps": _steps(view.first_token, view.num_tokens)}
    return page(request, "sample.html", section="datasets", **shown)


def _drawn(request: Request, found: Dataset, context: dict[str, Any], first: int) -> SampleView:
    """A sample.

    Raises:
        SpecError: Megatron would not begin the training.
        HTTPException: there is no such sample; or the files are damaged.
    """
    chosen = {key: context[key] for key in ("seq_length", "seed", "split", "part")}
    try:
        sampling = Sampling(**chosen, num_samples=context["wanted"])
        documents = viewer_of(request).documents
        return documents.sample(found, context["pair"], context["number"], sampling, (first, TOKENS))
    except AbsentError as error:
        raise HTTPException(404, plain(str(error))) from error
    except SpecError:
        raise
    except DataprepError as error:
        raise HTTPException(409, plain(str(error))) from error


def _possible(found: Dataset, context: dict[str, Any]) -> dict[str, Any]:
    """A training that a pair is large enough for; empty if there is none."""
    tokens, seq_length = found.pairs[context["pair"]].entry.num_tokens, context["seq_length"]
    while seq_length > 1 and seq_length >= tokens:
        seq_length //= 2
    return {"seq_length": seq_length, "split": "1,0,0", "pair": context["pair"]} if tokens > 1 else {}


def _home(found: Dataset) -> dict[str, Any]:
    """Where the pages of a dataset are, and what it is called there."""
    name = found.folder.name if found.version is None else found.folder.parent.name
    base = f"/datasets/{quote(f'{found.output_id}~{name}', safe='~')}"
    return {
        "found": found,
        "home": f"/datasets/{quote(found.id, safe='~')}",
        "label": name if found.version is None else f"{name} v{found.version.number}",
        "versions_home": base if found.version is not None else None,
        "name": name,
    }


def _steps(first: int, count: int) -> dict[str, int | None]:
    """Where the pages of something long begin; None: there is no such page."""
    last = max(0, count - 1) // TOKENS * TOKENS
    return {
        "first": 0 if first else None,
        "previous": max(0, first - TOKENS) if first else None,
        "next": first + TOKENS if first + TOKENS < count else None,
        "last": last if first + TOKENS < count else None,
    }
