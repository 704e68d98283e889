"""Logging in and out, and whether the server lives."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from dataprep.service.web.security import LOGIN, LOGOUT, cookie_name, form, set_cookie
from dataprep.service.web.sessions import Session
from dataprep.service.web.showing import page

router = APIRouter(include_in_schema=False)

Next = Annotated[str, Query(alias="next")]


@router.get("/healthz")
async def healthz() -> PlainTextResponse:
    """That the server answers; for whoever watches over it."""
    return PlainTextResponse("ok\n")


@router.get(LOGIN)
async def login_page(request: Request, goal: Next = "/") -> Response:
    """The form to log in with."""
    if request.app.state.settings.token is None or request.state.session is not None:
        return RedirectResponse(local(goal), 303)
    return page(request, "login.html", goal=local(goal), wrong="")


@router.post(LOGIN)
async def login(request: Request) -> Response:
    """Log in with the token."""
    state = request.app.state
    fields = form(request.headers, await request.body())
    goal, address = local(fields.get("next", "/")), request.client.host if request.client is not None else ""
    if state.settings.token is None:
        return RedirectResponse(goal, 303)
    if wait := state.tries.seconds_left(address):
        wrong = f"Too many wrong tokens came from your address; wait {wait} seconds."
        return page(request, "login.html", 429, {"retry-after": str(wait)}, goal=goal, wrong=wrong)
    if not state.sessions.is_token(fields.get("token", "").strip()):
        state.tries.wrong(address)
        return page(request, "login.html", 401, goal=goal, wrong="That is not the token of this server.")
    session = state.sessions.new()
    return RedirectResponse(goal, 303, {"set-cookie": _cookie(request, session)})


@router.post(LOGOUT)
async def logout(request: Request) -> Response:
    """Forget the session in this browser."""
    return RedirectResponse(LOGIN, 303, {"set-cookie": _cookie(request, None)})


def local(goal: str) -> str:
    """Where to go after a login: a path of this server, or its first page. No other site can be named."""
    if not goal.startswith("/") or goal.startswith("//") or "\\" in goal or not goal.isprintable():
        return "/"
    return goal


def _cookie(request: Request, session: Session | None) -> str:
    return set_cookie(cookie_name(request.app.state.settings.port), session, request.url.scheme)
