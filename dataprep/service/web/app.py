"""The application: pages, API and static files, behind the guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from dataprep import __version__
from dataprep.service.board import Board
from dataprep.service.state import State
from dataprep.service.viewing.viewer import Viewer
from dataprep.service.web import access, api, datasets, datasets_api, jobs, pages, telemetry
from dataprep.service.web.events import Events
from dataprep.service.web.security import Guard
from dataprep.service.web.sessions import Sessions, Tries
from dataprep.service.web.sharing import Sharing
from dataprep.service.web.showing import STATIC, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from dataprep.service.web.settings import Settings

STATIC_SECONDS = 365 * 86400
"""How long browsers keep static files: their addresses change when they do."""


DETAILS = {
    "Not Found": "There is nothing under this address; it may have been removed meanwhile.",
    "Method Not Allowed": "This address takes other requests than this one.",
}
"""What is said instead of the words that Starlette has for it."""

BEARER = HTTPBearer(auto_error=False, description="The token that the server was started with; see `security`.")
"""Tells whoever reads the OpenAPI document what to send. The guard is what looks at it."""


def create_app(settings: Settings, launch: Callable[[str], None] | None = None) -> FastAPI:
    """The application.

    Args:
        settings: what it shows, and to whom.
        launch: starts a run of a job, by its name, in a process of its own; None: nothing can be started.
    """
    app = FastAPI(
        title="dataprep",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,  # to an address that would be made of the Host header
    )
    app.state.settings, app.state.launch = settings, launch
    board = Board(settings.jobs, (*settings.allowed, *settings.outputs))
    app.state.state = State(settings.outputs, board)
    app.state.events, app.state.counters = Events(app.state.state), telemetry.Counters()
    app.state.viewer = Viewer(lambda: app.state.state.seen().folders)
    app.state.sessions, app.state.tries = Sessions(settings.token), Tries()
    app.add_middleware(Sharing, state=app.state.state)
    app.add_middleware(Guard, settings=settings, sessions=app.state.sessions, tries=app.state.tries)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    for router in (access.router, datasets.router, pages.router, telemetry.router, jobs.pages):
        app.include_router(router)  # datasets before those whose paths may stand for anything
    for router in (datasets_api.router, api.router, jobs.api):
        app.include_router(router, dependencies=[Security(BEARER)] if settings.token is not None else [])
    app.mount("/static", Static(directory=STATIC), name="static")
    return app


class Static(StaticFiles):
    """Static files, which browsers may keep."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """A file, or that it is the one that the browser has."""
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = f"public, max-age={STATIC_SECONDS}, immutable"
        return response


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = DETAILS.get(str(error.detail), str(error.detail))
    return problem(request, error.status_code, detail, error.headers)


async def _validation_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
    return problem(request, 422, "; ".join(found))
