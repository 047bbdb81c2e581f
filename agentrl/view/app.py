"""The web app: which page is where, and what is shown where there is none."""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, ExceptionHandler

from agentrl.errors import AgentRLError, ConfigError, DamagedRecord, NotStored
from agentrl.view import compare, group, health, live, run, runs, search, step, text, tokens, trajectory
from agentrl.view.security import Guard
from agentrl.view.viewer import Viewer, viewer_of

ROUTES = {
    "/": runs.page,
    "/compare": compare.page,
    "/search": search.page,
    "/health": health.page,
    "/run/{id:path}": run.page,
    "/step/{step:int}/{run:path}": step.page,
    "/group/{id:path}": group.page,
    "/trajectory/{id:path}": trajectory.page,
    "/tokens/{turn:int}/{id:path}": tokens.page,
    "/text/{place}/{id:path}": text.page,
    "/changed/{kind}/{id:path}": live.changed,
}
"""Ids come last, for one that was imported may hold slashes."""


def make_app(viewer: Viewer, token: str, cookie: str = "agentrl_view") -> ASGIApp:
    """The app; `token` lets a reader in (see `security`)."""

    def refuse(status: int, what: str, what_to_do: str) -> Response:
        return _error(viewer, status, what, what_to_do, database="")

    static = StaticFiles(directory=str(files("agentrl.view") / "static"))
    handlers: dict[int | type[Exception], ExceptionHandler] = {
        HTTPException: _no_page,
        AgentRLError: _known_error,
        Exception: _unknown_error,
    }
    routes = [Mount("/static", static), *(Route(path, page) for path, page in ROUTES.items())]
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.viewer = viewer
    return Guard(app, token=token, cookie=cookie, refuse=refuse)


def _no_page(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return _error(viewer_of(request), status, "There is no such page", "Go on from the list of runs.")


def _known_error(request: Request, error: Exception) -> Response:
    viewer = viewer_of(request)
    if isinstance(error, NotStored):
        what_to_do = "It may have been deleted since. Go on from the list of runs, or search."
        return _error(viewer, 404, str(error), what_to_do)
    error = _cause(viewer, error)
    if isinstance(error, DamagedRecord):
        what_to_do = f"The rest can be read. This names every damaged record: {viewer.command('db', 'verify')}"
        return _error(viewer, 500, str(error), what_to_do)
    if isinstance(error, ConfigError):
        return _error(viewer, 400, str(error), "Go back, and choose anew.")
    return _error(viewer, 500, str(error), "Mend that, then load this page again.")


def _cause(viewer: Viewer, error: Exception) -> Exception:
    """Where tables aren't as they were, they have been migrated since, and that is to be told."""
    try:
        viewer.store.check()
    except AgentRLError as changed:
        return changed
    return error


def _unknown_error(request: Request, error: Exception) -> Response:
    what = f"unexpected {type(error).__name__}: {error}"
    return _error(viewer_of(request), 500, what, "The traceback is on the terminal of agentrl view.")


def _error(viewer: Viewer, status: int, what: str, what_to_do: str, **more: str) -> Response:
    name = HTTPStatus(status).phrase
    return viewer.page("error.html", status, name=f"{status} {name}", what=what, what_to_do=what_to_do, **more)
