"""The pages of runs and jobs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dataprep.service.web.showing import page

router = APIRouter(include_in_schema=False)


@router.get("/")
def overview(request: Request) -> Response:
    """What goes on, what comes next, what failed."""
    return page(request, "overview.html", section="overview")
