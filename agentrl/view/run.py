"""One run: how it stands, its curves, its steps, its config."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentrl.overview import detail_of
from agentrl.store import RunRecord, StepRecord
from agentrl.view.curves import NUM_SPANS, curves, more_curves
from agentrl.view.live import Live
from agentrl.view.runs import whole
from agentrl.view.viewer import Viewer, viewer_of

STEPS = 50
"""Of a run on one page, the newest first."""


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    run = viewer.store.find_run(request.path_params["id"])
    live = Live.of_run(viewer, run)
    all_steps, endings = viewer.store.steps(run.id), viewer.store.endings(run.id, NUM_SPANS)
    steps, before = _newest(all_steps, whole(request, "before"))
    return viewer.page(
        "run.html",
        run=run,
        detail=detail_of(viewer.store, run, all_steps, endings),
        charts=curves(viewer.store, run, all_steps, endings),
        more_charts=more_curves(run, all_steps),
        steps=steps,
        before=before,
        settings=dict(settings(run.config)),
        live=live,
        commands=_commands(viewer, run, steps),
    )


def settings(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(section.key, value) of a nested config."""
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _newest(steps: list[StepRecord], before: int) -> tuple[list[StepRecord], int | None]:
    """A page of steps below id `before`, and where the next one begins."""
    chosen = [step for step in reversed(steps) if not before or step.id < before][: STEPS + 1]
    return chosen[:STEPS], chosen[STEPS - 1].id if len(chosen) > STEPS else None


def _commands(viewer: Viewer, run: RunRecord, steps: list[StepRecord]) -> list[str]:
    last = [viewer.command("why", "--step", steps[0].id, "--run", run.id)] if steps else []
    find = viewer.command("find", "--run", run.id)
    return [
        viewer.command("runs", run.id),
        *last,
        find,
        viewer.command("export", "messages", "rollouts.jsonl", "--run", run.id),
    ]
