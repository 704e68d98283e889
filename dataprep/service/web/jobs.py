"""Jobs: their pages, the API of them, and what can be done with one: run it, pause it, let it go on."""

from __future__ import annotations

import logging
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi import Path as InPath
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dataprep.errors import OutputError, SpecError
from dataprep.service.board import JobView
from dataprep.service.ingesting import dataset_of
from dataprep.service.records import RunRecord, pause, resume
from dataprep.service.state import Line, pick
from dataprep.service.web.api import answers
from dataprep.service.web.pages import state_of
from dataprep.service.web.showing import page

log = logging.getLogger(__name__)

pages = APIRouter(include_in_schema=False)
api = APIRouter(prefix="/api/v1/jobs", responses=answers())

HISTORY = 20
"""Runs that the page of a job shows."""

Action = Literal["run", "retry", "pause", "resume"]

SAID = {
    "run": "It was started. It shows up below as soon as it has begun.",
    "retry": "It was started again. It shows up below as soon as it has begun.",
    "resume": "It runs by its schedule again.",
}
"""What a page says once something was done; that a job is paused, it says anyway."""

Name = Annotated[str, InPath(description="The job's name.", max_length=200)]


class JobDetail(BaseModel):
    """All there is to know of a job.

    Attributes:
        job: it in short.
        text: its YAML as it was understood, without secrets; "" where it was not.
        runs: the records of its newest runs, the newest first.
    """

    job: JobView
    text: str
    runs: list[RunRecord]


class Done(BaseModel):
    """What was done with a job.

    Attributes:
        job: its name.
        action: what was done; a run that was started shows itself by its record.
    """

    job: str
    action: Action


@pages.get("/jobs")
def jobs_page(request: Request) -> Response:
    """All jobs."""
    folder = state_of(request).board.folder
    return page(request, "jobs.html", section="jobs", jobs=state_of(request).seen().jobs, folder=folder)


@pages.get("/jobs/{name}")
def job_page(request: Request, name: Name, said: str = "") -> Response:
    """One job."""
    view, text = _defined(request, name)
    lines = history(request, view)
    can_launch = request.app.state.launch is not None
    told = SAID.get(said, "")
    return page(
        request,
        "job.html",
        section="jobs",
        job=view,
        text=text,
        lines=lines[:HISTORY],
        num_lines=len(lines),
        said=told,
        can_launch=can_launch,
        outputs=state_of(request).seen().outputs,
    )


@pages.post("/jobs/{name}/{action}")
def act_page(request: Request, name: Name, action: Action) -> Response:
    """Do something with a job, and show it."""
    act(request, name, action)
    return RedirectResponse(f"/jobs/{quote(name, safe='')}?said={action}", 303)


@api.get("")
def jobs(request: Request) -> list[JobView]:
    """All jobs, by name."""
    return list(state_of(request).seen().jobs)


@api.get("/{name}", responses=answers(404))
def job(request: Request, name: Name) -> JobDetail:
    """One job."""
    view, text = _defined(request, name)
    place = state_of(request).place(view.output)
    records = place.records(name) if place is not None else []
    return JobDetail(job=view, text=text, runs=records[: -HISTORY - 1 : -1])


@api.post("/{name}/{action}", status_code=202, responses=answers(403, 404, 409, 413))
def do(request: Request, name: Name, action: Action) -> Done:
    """Run a job now, try a failed run again, pause its schedule, or let it go on."""
    act(request, name, action)
    return Done(job=name, action=action)


def act(request: Request, name: str, action: Action) -> None:
    """Do something with a job.

    Raises:
        HTTPException: there is no such job, or that cannot be done with it now.
    """
    view = _view(request, name)
    try:
        if action in ("run", "retry"):
            _launch(request, view, action)
        else:
            versions = dataset_of(state_of(request).board.find(name))
            who = request.client.host if request.client is not None else "somebody"
            pause(versions, f"the page, from {who}") if action == "pause" else resume(versions)
    except (SpecError, OutputError) as error:
        raise HTTPException(409, str(error)) from error
    log.info("%s: %s, from a page", name, action)
    state_of(request).forget()


def _launch(request: Request, view: JobView, action: Action) -> None:
    launch = request.app.state.launch
    if launch is None:
        raise SpecError("this server starts no runs; use `dataprep jobs run` on a machine that may")
    if action == "retry" and not view.has_failed:
        raise SpecError(
            f"the newest run of {view.name} did not fail, so that there is nothing to repeat; run it instead"
        )
    if view.problem:
        raise SpecError(view.problem)
    if view.state == "running":
        raise SpecError(f"{view.name} is at work already")
    launch(view.name)


def history(request: Request, view: JobView) -> list[Line]:
    """The runs of a job, the newest first."""
    return pick(state_of(request).seen().lines, job=view.name, output=view.output) if view.output else []


def _defined(request: Request, name: str) -> tuple[JobView, str]:
    """A job, and its YAML; also looks whether it names what lies elsewhere."""
    view = _view(request, name)
    text, problem = state_of(request).board.definition(name)
    if problem and not view.problem:
        view = view.model_copy(update={"problem": problem, "state": "broken"})
    return view, text


def _view(request: Request, name: str) -> JobView:
    found = next((view for view in state_of(request).seen().jobs if view.name == name), None)
    if found is None:
        raise HTTPException(404, "There is no job of this name; its YAML may have been removed.")
    return found
