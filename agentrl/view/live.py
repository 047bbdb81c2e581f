"""Pages of what is still being written: a script asks for a mark, and loads the page anew once that is another one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrl.errors import NotStored
from agentrl.overview import status
from agentrl.store import RunRecord
from agentrl.view.viewer import Viewer, viewer_of


class Live(NamedTuple):
    """Where a page asks whether it has changed, and the mark that it was made by."""

    address: str
    mark: str

    @classmethod
    def of_runs(cls, viewer: Viewer) -> Live:
        return cls("/changed/runs/all", _mark(viewer, "runs", "all"))

    @classmethod
    def of_run(cls, viewer: Viewer, run: RunRecord) -> Live | None:
        """None: nobody works on it."""
        if status(run) != "running":
            return None
        return cls(f"/changed/run/{quote(run.id, safe='')}", _mark(viewer, "run", run.id))

    @classmethod
    def of_trajectory(cls, viewer: Viewer, id: str) -> Live:
        return cls(f"/changed/trajectory/{quote(id, safe='')}", _mark(viewer, "trajectory", id))


def changed(request: Request) -> Response:
    """The mark of now; status 404 where it is gone."""
    viewer, kind, id = viewer_of(request), request.path_params["kind"], request.path_params["id"]
    if kind not in ("runs", "run", "trajectory"):
        raise NotStored(f"nothing of kind {kind!r} is watched")
    return JSONResponse({"mark": _mark(viewer, kind, id)})


def _mark(viewer: Viewer, kind: str, id: str) -> str:
    if kind == "runs":
        statuses = ",".join(status(run) for run in viewer.store.runs())
        return f"{viewer.store.mark('runs')} {statuses}"
    if kind == "trajectory":
        return viewer.store.mark("trajectory", id)
    run = viewer.store.find_run(id)
    file = Path(run.folder) / "metrics.jsonl"
    num_bytes = file.stat().st_size if file.is_file() else 0
    return f"{viewer.store.mark('run', run.id)} {status(run)} {num_bytes}"
