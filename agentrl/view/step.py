"""One step of a run: what it learnt from, group by group, and what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentrl.errors import NotStored
from agentrl.store import StepRow, TrajectorySummary
from agentrl.view.live import Live
from agentrl.view.viewer import viewer_of


@dataclass(kw_only=True, slots=True)
class Used:
    """A trajectory in the step."""

    summary: TrajectorySummary
    rows: list[StepRow] = field(default_factory=list)

    @property
    def silent(self) -> str:
        """Why ids of it have weight 0."""
        reasons = {reason or "" for row in self.rows for _, _, weight, reason in row.weights if weight == 0}
        return ", ".join(sorted(reasons))

    @property
    def clip_share(self) -> float | None:
        return max((row.clip_share for row in self.rows if row.clip_share is not None), default=None)

    @property
    def ratio_max(self) -> float | None:
        return max((row.ratio_max for row in self.rows if row.ratio_max is not None), default=None)


@dataclass(kw_only=True, slots=True)
class UsedGroup:
    """A group in the step."""

    id: str | None
    task_id: str
    used: list[Used]

    @property
    def rewards(self) -> list[float]:
        return sorted(one.summary.reward for one in self.used if one.summary.reward is not None)

    @property
    def is_dead(self) -> bool:
        """All rewards are equal, so there is nothing to learn."""
        return len(set(self.rewards)) < 2


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    run = viewer.store.find_run(request.path_params["run"])
    id = request.path_params["step"]
    steps = {step.id: step for step in viewer.store.steps(run.id)}
    if id not in steps:
        known = f"0 to {max(steps)}" if steps else "none"
        raise NotStored(f"run {run.id} has no step {id}; it has {known}")
    step = steps[id]
    groups = _groups(viewer.store.rows_of(run.id, id), viewer.store.find_trajectories(step=(run.id, id)))
    return viewer.page(
        "step.html",
        run=run,
        step=step,
        groups=groups,
        num_dead=sum(group.is_dead for group in groups),
        figures=figures_of(step.metrics or {}),
        neighbours=(id - 1 if id - 1 in steps else None, id + 1 if id + 1 in steps else None),
        live=Live.of_run(viewer, run),
        commands=[
            viewer.command("why", "--step", id, "--run", run.id),
            viewer.command("replay", run.id, "--step", id),
            viewer.command("find", "--run", run.id, "--step", id),
        ],
    )


def figures_of(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are one number."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _groups(rows: Sequence[StepRow], summaries: Sequence[TrajectorySummary]) -> list[UsedGroup]:
    """In the order of the step's Rows."""
    by_id = {one.id: Used(summary=one) for one in summaries}
    groups: dict[str | None, UsedGroup] = {}
    for row in rows:
        used = by_id[row.trajectory]
        summary = used.summary
        group = groups.setdefault(summary.group, UsedGroup(id=summary.group, task_id=summary.task_id, used=[]))
        if not used.rows:
            group.used.append(used)
        used.rows.append(row)
    return list(groups.values())
