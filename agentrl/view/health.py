"""What goes wrong and what is slow: of a run, or of all runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from agentrl.overview import status
from agentrl.store import Endings, RunRecord
from agentrl.types import StopReason
from agentrl.view.charts import Chart
from agentrl.view.curves import NUM_SPANS, endings_chart
from agentrl.view.live import Live
from agentrl.view.search import RUNS
from agentrl.view.viewer import Viewer, viewer_of

RECENT = 1000
"""Of the newest trajectories is told what was slow."""
SHOWN = 12
"""Tools, calls and episodes that are listed."""


class Kind(NamedTuple):
    """An ending, and how many came to it."""

    reason: StopReason | None
    num: int
    share: float


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    chosen = request.query_params.get("run", "")
    run = viewer.store.find_run(chosen) if chosen else None
    id = None if run is None else run.id
    runs, live = viewer.store.runs(), _live(viewer, run)
    spans = viewer.store.endings(id, NUM_SPANS)
    return viewer.page(
        "health.html",
        run=run,
        runs=runs[:RUNS],
        charts=[chart for chart in _charts(spans) if chart.series],
        kinds=_kinds(spans),
        recent=RECENT,
        tools=viewer.store.slow_tools(id, RECENT, SHOWN),
        calls=viewer.store.slow_calls(id, RECENT, SHOWN),
        longest=viewer.store.longest(id, RECENT, SHOWN),
        live=live,
        commands=[
            viewer.command("find", *(["--run", id] if id else []), "--call", "failed"),
            viewer.command("runs", *([id] if id else [])),
        ],
    )


def _live(viewer: Viewer, run: RunRecord | None) -> Live | None:
    if run is not None:
        return Live.of_run(viewer, run)
    is_written = any(status(one) == "running" for one in viewer.store.runs())
    return Live.of_runs(viewer) if is_written else None


def _charts(spans: Sequence[Endings]) -> list[Chart]:
    """Faults around the agent apart from what it did itself: they are mended elsewhere."""
    return [
        endings_chart("faults, nothing was measured", spans, _is_fault),
        endings_chart("cut off by a limit", spans, lambda reason: not _is_fault(reason) and not _is_well(reason)),
        endings_chart("completed, or running still", spans, _is_well),
    ]


def _is_fault(reason: StopReason | None) -> bool:
    return reason is not None and not reason.ending.in_baseline


def _is_well(reason: StopReason | None) -> bool:
    return reason in (None, StopReason.COMPLETED)


def _kinds(spans: Sequence[Endings]) -> list[Kind]:
    """Of the whole time, the most frequent first."""
    nums = Counter[StopReason | None]()
    for one in spans:
        nums[one.stop_reason] += one.num
    return [Kind(reason, num, num / nums.total()) for reason, num in nums.most_common()]
