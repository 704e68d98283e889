"""The pages of runs: what goes on and what went wrong, the list of all, and each of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from dataprep.service.records import log_path
from dataprep.service.runs import RunDetail, tail
from dataprep.service.state import BAD, State, pick
from dataprep.service.web.showing import page
from dataprep.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.service.state import Line

T = TypeVar("T")

router = APIRouter(include_in_schema=False)

PAGE = 50
"""Rows of a list that is shown at once."""

SHOWN = 6
"""Runs that the overview shows of a kind."""

STATES = {
    "": "All",
    "going": "Going on",
    "bad": "Need attention",
    "published": "Published",
    "unchanged": "Nothing new",
    "skipped": "Skipped",
}
"""What lists of runs are narrowed to, and how that is called."""

Number = Annotated[int, Query(alias="page", ge=1, le=10**9)]


@router.get("/")
def overview(request: Request) -> Response:
    """What goes on, what failed, what was made last, and how full the disks are."""
    seen = state_of(request).seen()
    bad = latest_bad(seen.lines)
    done = [line for line in seen.lines if line.state == "published"]
    coming = sorted((job for job in seen.jobs if job.next and job.paused is None), key=lambda job: job.next[0])
    return page(
        request,
        "overview.html",
        section="overview",
        outputs=list(seen.outputs.values()),
        going=seen.going,
        bad=bad[:SHOWN],
        num_bad=len(bad),
        done=done[:SHOWN],
        num_done=len(done),
        jobs=seen.jobs,
        next=coming[:SHOWN],
        broken=[job for job in seen.jobs if job.problem][:SHOWN],
    )


@router.get("/runs")
def runs(request: Request, state: str = "", job: str = "", output: str = "", number: Number = 1) -> Response:
    """All runs, a page of them at a time."""
    seen = state_of(request).seen()
    found = pick(seen.lines, state, job, output)
    rows, pages = paged(found, number)
    query = urlencode({k: v for k, v in {"state": state, "job": job, "output": output}.items() if v})
    return page(
        request,
        "runs.html",
        section="runs",
        lines=rows,
        total=len(found),
        number=number,
        pages=pages,
        address=f"/runs?{query}&page=" if query else "/runs?page=",
        states=STATES,
        state=state,
        job=job,
        output=output,
        jobs=sorted({line.job for line in seen.lines if line.job}),
        outputs=seen.outputs,
    )


@router.get("/runs/{output}/{run}")
def run(request: Request, output: str, run: str) -> Response:
    """One run, from its work folder."""
    state = state_of(request)
    place = state.place(output)
    detail = place.works.detail(run) if place is not None else None
    if place is None or detail is None:
        raise HTTPException(404, "There is no such run here; its folder may have been removed.")
    line = next((line for line in state.seen().lines if line.output == output and line.run == run), None)
    return page(
        request, "run.html", section="runs", detail=detail, line=line, place=place, record=None, log="", made=""
    )


@router.get("/runs/{output}/{job}/{number:int}")
def job_run(request: Request, output: str, job: str, number: Annotated[int, Path(ge=1)]) -> Response:
    """One run of a job, from its record, its log, and the work folder of what it made."""
    state = state_of(request)
    record, place = state.record(output, job, number), state.place(output)
    if record is None or place is None:
        raise HTTPException(404, "There is no such run of this job; the records of the oldest are removed.")
    detail: RunDetail | None = place.works.detail(record.work) if record.work else None
    line = next((x for x in state.seen().lines if (x.output, x.job, x.number) == (output, job, number)), None)
    versions = Versions(place.folder / job)
    made = "" if record.version is None else str(versions.version(record.version))
    log = tail(log_path(versions, number))
    return page(
        request,
        "run.html",
        section="runs",
        detail=detail,
        line=line,
        place=place,
        record=record,
        log=log,
        made=made,
    )


def state_of(request: Request) -> State:
    """What the server knows."""
    found: State = request.app.state.state
    return found


def paged(rows: Sequence[T], number: int) -> tuple[list[T], int]:
    """The rows of a page, and how many pages there are."""
    return list(rows[(number - 1) * PAGE : number * PAGE]), max(1, math.ceil(len(rows) / PAGE))


def latest_bad(lines: tuple[Line, ...]) -> list[Line]:
    """Runs that somebody should look at: of each job, and of each recipe, the last word, if it is a bad one."""
    told, found = set[tuple[str, str]](), []
    for line in lines:  # the newest first
        key = (line.output, line.job or f"run {line.run}")
        if line.state != "skipped" and key not in told:
            told.add(key)
            if line.state in BAD:
                found.append(line)
    return found
