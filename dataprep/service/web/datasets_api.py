"""The API of datasets: what their pages show, for programs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request

from dataprep.samples import SEED, SPLIT, Sampling, SplitPart
from dataprep.service.viewing.answers import DatasetDetail, DatasetPage, LengthsDetail, SourcePage, VersionPage
from dataprep.service.viewing.documents import MOST_TOKENS, TOKENS
from dataprep.service.viewing.readings import DocumentView, RejectPage, SampleView
from dataprep.service.web.api import answers
from dataprep.service.web.datasets import asked, viewer_of
from dataprep.service.web.pages import Number

router = APIRouter(prefix="/api/v1", responses=answers())

DAMAGED = answers(404, 409)

Name = Annotated[str, Path(alias="dataset", description="Id of a dataset, or of a version, as lists have it.")]
Item = Annotated[int, Path(ge=0, description="Counted from 0.")]
First = Annotated[int, Query(ge=0, le=1 << 53, description="Token to begin with.")]
Count = Annotated[int, Query(ge=1, le=MOST_TOKENS, description="Tokens, at most.")]
Reason = Annotated[str | None, Query(description="Only rejects of this reason.")]
Position = Annotated[int, Query(ge=0, le=1 << 53, description="Of a reject: `next` or `previous` of another page.")]
Wanted = Annotated[int | None, Query(ge=1, le=1 << 53, description="Samples of the training; default: an epoch's.")]


@router.get("/datasets", responses=answers(404))
def datasets(
    request: Request,
    output: Annotated[str | None, Query(description="Only those in this output, by its id.")] = None,
    number: Number = 1,
) -> DatasetPage:
    """All datasets, the newest first, 50 on a page."""
    return asked(lambda: viewer_of(request).datasets.page(number, output))


@router.get("/datasets/{dataset}", responses=DAMAGED)
def dataset(request: Request, name: Name) -> DatasetDetail:
    """All that is known of a dataset; of a versioned one, of its newest version."""
    viewer = viewer_of(request)
    return asked(lambda: viewer.details.of(viewer.datasets.find(name)))


@router.get("/datasets/{dataset}/versions", responses=answers(404))
def versions(request: Request, name: Name, number: Number = 1) -> VersionPage:
    """The versions of a versioned dataset, the newest first, 50 on a page."""
    return asked(lambda: viewer_of(request).datasets.versions(name, number))


@router.get("/datasets/{dataset}/lengths", responses=DAMAGED)
def lengths(request: Request, name: Name) -> LengthsDetail:
    """How long the documents are."""
    viewer = viewer_of(request)
    return asked(lambda: viewer.details.lengths(viewer.datasets.find(name)))


@router.get("/datasets/{dataset}/files", responses=DAMAGED)
def files(request: Request, name: Name, number: Number = 1) -> SourcePage:
    """The source files, 100 on a page, and what became of each."""
    viewer = viewer_of(request)
    return asked(lambda: viewer.details.sources(viewer.datasets.find(name), number))


@router.get("/datasets/{dataset}/documents/{number}", responses=DAMAGED)
def document(request: Request, name: Name, number: Item, first: First = 0, count: Count = TOKENS) -> DocumentView:
    """Some tokens of a document, what they stand for, and where it came from."""
    viewer = viewer_of(request)
    return asked(lambda: viewer.documents.document(viewer.datasets.find(name), number, first, count))


@router.get("/datasets/{dataset}/samples/{number}", responses=DAMAGED)
def sample(  # noqa: PLR0913 - what decides a sample
    request: Request,
    name: Name,
    number: Item,
    seq_length: Annotated[int, Query(ge=1, le=1 << 20, description="Megatron's --seq-length.")],
    seed: Annotated[int, Query(ge=0, lt=1 << 32, description="Megatron's --seed.")] = SEED,
    split: Annotated[str, Query(description="Megatron's --split.")] = SPLIT,
    part: Annotated[SplitPart, Query(description="Of the split.")] = "train",
    wanted: Wanted = None,
    pair: Annotated[int, Query(ge=0, le=1 << 53, description="Of the dataset, from 0.")] = 0,
    first: First = 0,
    count: Count = TOKENS,
) -> SampleView:
    """Some tokens of the very sample that Megatron's GPTDataset draws."""
    viewer = viewer_of(request)

    def make() -> SampleView:
        sampling = Sampling(seq_length, seed, split, part, wanted)
        return viewer.documents.sample(viewer.datasets.find(name), pair, number, sampling, (first, count))

    return asked(make)


@router.get("/datasets/{dataset}/rejects", responses=DAMAGED)
def rejects(
    request: Request,
    name: Name,
    part: Annotated[int, Query(ge=0, le=1 << 53, description="Of a version: one of its parts, from 0.")] = 0,
    position: Position = 0,
    reason: Reason = None,
) -> RejectPage:
    """Source records that became no documents, 50 at a time."""
    viewer = viewer_of(request)
    return asked(lambda: viewer.rejects(viewer.datasets.find(name), part, position, reason))


@router.get("/runs/{output}/{run}/rejects", responses=DAMAGED)
def run_rejects(request: Request, output: str, run: str, position: Position = 0, reason: Reason = None) -> RejectPage:
    """Source records of a run that became no documents, 50 at a time; while it goes on, of what is merged."""
    return asked(lambda: viewer_of(request).run_rejects(output, run, position, reason))
