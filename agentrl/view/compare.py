"""Two runs side by side: figures, curves in one picture, and what of their configs differs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentrl.errors import ConfigError
from agentrl.overview import summaries
from agentrl.view.charts import Chart, Series
from agentrl.view.curves import NUM_SPANS, curves
from agentrl.view.run import settings
from agentrl.view.viewer import viewer_of

ABSENT = "-"
Shown = dict[str, str]


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    chosen = request.query_params.getlist("run")
    if len(chosen) != 2:
        raise ConfigError(f"{len(chosen)} runs are chosen, not two")
    runs = [viewer.store.find_run(id) for id in chosen]
    store = viewer.store
    left, right = (curves(store, run, store.steps(run.id), store.endings(run.id, NUM_SPANS)) for run in runs)
    names = [run.name if runs[0].name != runs[1].name else run.id for run in runs]
    known = {one["id"]: one for one in summaries(viewer.store)}
    last = viewer.store.last_steps()
    return viewer.page(
        "compare.html",
        runs=runs,
        names=names,
        summaries=[known[run.id] for run in runs],
        charts=_together(left, right, names),
        metrics=_beside(*(_figures(last[run.id].metrics if run.id in last else {}) for run in runs)),
        settings=[row for row in _beside(*(dict(settings(run.config)) for run in runs)) if row[1] != row[2]],
        commands=[viewer.command("runs", run.id) for run in runs],
    )


def _together(left: list[Chart], right: list[Chart], names: list[str]) -> list[Chart]:
    """Charts of the same title as one: of each run the first curve, and what both have more of."""
    charts = []
    others = {chart.title: chart for chart in right}
    for chart in left:
        pair = [chart, *([others[chart.title]] if chart.title in others else [])]
        series = [
            Series(f"{name}: {one.name}", one.points)
            for name, its in zip(names, pair, strict=False)
            for one in its.series[:2]
        ]
        charts.append(Chart(chart.title, series, chart.x_name))
    only = [chart for chart in right if chart.title not in {one.title for one in left}]
    return charts + [
        Chart(one.title, [Series(f"{names[1]}: {its.name}", its.points) for its in one.series[:2]], one.x_name)
        for one in only
    ]


def _figures(metrics: dict[str, Any]) -> Shown:
    return {name: f"{value:.4g}" for name, value in metrics.items() if isinstance(value, int | float)}


def _beside(left: Shown, right: Shown) -> list[tuple[str, str, str]]:
    return [(name, left.get(name, ABSENT), right.get(name, ABSENT)) for name in dict.fromkeys([*left, *right])]
