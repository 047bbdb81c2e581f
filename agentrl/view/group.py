"""One group: its samples side by side."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agentrl.types import Group, Sample, Turn
from agentrl.view.live import Live
from agentrl.view.viewer import viewer_of

TURNS = 12
"""Of each sample, the last ones are shown."""


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    id = viewer.resolve("group", request.path_params["id"])
    group = viewer.store.load_group(id)
    run = viewer.store.find_run(group.run)
    return viewer.page(
        "group.html",
        group=group,
        run=run,
        rewards=[sample.reward for sample in group.samples if sample.reward is not None],
        shown={sample.trajectory.id: _last_turns(sample) for sample in group.samples},
        is_dead=_is_dead(group),
        live=Live.of_run(viewer, run),
        commands=[
            *(viewer.command("why", sample.trajectory.id) for sample in group.samples[:1]),
            viewer.command("export", "messages", "group.jsonl", "--group", id),
        ],
    )


def _last_turns(sample: Sample) -> list[Turn]:
    return sample.trajectory.turns_of()[-TURNS:]


def _is_dead(group: Group) -> bool:
    rewards = {sample.reward for sample in group.samples}
    return len(group.samples) > 1 and len(rewards) == 1
