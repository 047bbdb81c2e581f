"""The list of runs: status and last figures; any two of them side by side."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agentrl.overview import summaries
from agentrl.view.live import Live
from agentrl.view.viewer import viewer_of

AT_ONCE = 100
"""Runs on a page."""


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    found = summaries(viewer.store)
    start = whole(request, "start")
    return viewer.page(
        "runs.html",
        runs=found[start : start + AT_ONCE],
        start=start,
        following=start + AT_ONCE if len(found) > start + AT_ONCE else None,
        num_runs=len(found),
        live=Live.of_runs(viewer),
        commands=[viewer.command("runs")],
    )


def whole(request: Request, name: str) -> int:
    """A number that isn't negative, from the query; 0 where there is none."""
    given = request.query_params.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
