"""The API: what pages show, for programs. Its OpenAPI document is /api/v1/openapi.json."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import StreamingResponse

import dataprep
from dataprep.errors import BusyError
from dataprep.service.records import RunRecord, log_path
from dataprep.service.runs import RunDetail, tail
from dataprep.service.state import Line, Output, pick
from dataprep.service.web.events import Events, News
from dataprep.service.web.pages import Number, paged, state_of
from dataprep.versions import Versions


class Problem(BaseModel):
    """Why a request was not done.

    Attributes:
        detail: what is wrong and what to do, in a sentence.
    """

    detail: str


def answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that a route may answer with, beside those that all may, for its OpenAPI."""
    what = {
        400: "The request makes no sense here.",
        401: "The token is missing, or is not the one of this server.",
        403: "This server is read-only, or the request is not one of its own pages.",
        404: "There is nothing of that name.",
        409: "It cannot be done now.",
        413: "The request is too large.",
        422: "A parameter is not what it has to be.",
        429: "Too many wrong tokens came from this address.",
        503: "Too many listen.",
    }
    return {code: {"model": Problem, "description": what[code]} for code in (400, 401, 422, 429, *codes)}


router = APIRouter(prefix="/api/v1", responses=answers())


class Health(BaseModel):
    """That the server answers, and what it is.

    Attributes:
        version: of dataprep.
        read_only: whether nothing can be changed through it.
    """

    version: str
    read_only: bool


class RunPage(BaseModel):
    """A page of a list of runs.

    Attributes:
        runs: those that go on first, then the newest.
        total: that there are, on all pages.
        page, pages: which one this is, from 1, and how many there are.
    """

    runs: list[Line]
    total: int
    page: int
    pages: int


class JobRun(BaseModel):
    """One run of a job.

    Attributes:
        record: what it says of itself.
        detail: of the work folder of what it makes; None: it had none, or it is gone.
        log: the last lines of its log.
    """

    record: RunRecord
    detail: RunDetail | None
    log: str


@router.get("/health")
def health(request: Request) -> Health:
    """That the server answers."""
    return Health(version=dataprep.__version__, read_only=request.app.state.settings.read_only)


@router.get("/outputs")
def outputs(request: Request) -> list[Output]:
    """The output folders that this server shows."""
    return list(state_of(request).seen().outputs.values())


@router.get("/runs")
def runs(
    request: Request,
    state: Annotated[str, Query(description="Only those in this state; `going` and `bad` mean several.")] = "",
    job: Annotated[str, Query(description="Only those of this job.")] = "",
    output: Annotated[str, Query(description="Only those in this output, by its id.")] = "",
    number: Number = 1,
) -> RunPage:
    """All runs, of jobs and from any command line, 50 on a page."""
    found = pick(state_of(request).seen().lines, state, job, output)
    rows, pages = paged(found, number)
    return RunPage(runs=rows, total=len(found), page=number, pages=pages)


@router.get("/runs/{output}/{run}", responses=answers(404))
def run(request: Request, output: str, run: str) -> RunDetail:
    """One run, from its work folder."""
    place = state_of(request).place(output)
    detail = place.works.detail(run) if place is not None else None
    if detail is None:
        raise HTTPException(404, "There is no such run here; its folder may have been removed.")
    return detail


@router.get("/runs/{output}/{job}/{number}", responses=answers(404))
def job_run(request: Request, output: str, job: str, number: Annotated[int, Path(ge=1, le=10**9)]) -> JobRun:
    """One run of a job, from its record and its log."""
    state = state_of(request)
    record, place = state.record(output, job, number), state.place(output)
    if record is None or place is None:
        raise HTTPException(404, "There is no such run of this job; the records of the oldest are removed.")
    detail = place.works.detail(record.work) if record.work else None
    return JobRun(record=record, detail=detail, log=tail(log_path(Versions(place.folder / job), number)))


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        **answers(503),
        200: {
            "description": "Server-sent events named `state`, whose data is a News document: one at once, and one "
            "whenever something is another.",
            "content": {"text/event-stream": {"schema": News.model_json_schema()}},
        },
    },
)
async def events(request: Request) -> StreamingResponse:
    """What changes, as it changes."""
    source: Events = request.app.state.events
    try:
        told = source.listen()
    except BusyError as error:
        raise HTTPException(503, str(error), {"retry-after": "10"}) from error
    return StreamingResponse(told, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
