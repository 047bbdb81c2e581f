"""One group: its samples side by side, as texts; ids are on the page of each."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agentrl.types import Group
from agentrl.view.live import Live
from agentrl.view.runs import whole
from agentrl.view.viewer import viewer_of

TURNS = 12
"""Of each sample at once."""


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    id = viewer.resolve("group", request.path_params["id"])
    group = viewer.store.load_group(id, outline=True)
    run = viewer.store.find_run(group.run)
    live = Live.of_run(viewer, run)
    lengths = {one.id: one for one in viewer.store.find_trajectories(group=id)}
    start = whole(request, "start") if "start" in request.query_params else None
    ids = [sample.trajectory.id for sample in group.samples]
    num_turns = max((lengths[one].num_turns for one in ids), default=0)
    return viewer.page(
        "group.html",
        group=group,
        run=run,
        lengths=lengths,
        rewards=[sample.reward for sample in group.samples if sample.reward is not None],
        replies=viewer.store.replies(ids, start, TURNS),
        pages=_pages(start, num_turns),
        is_dead=_is_dead(group),
        live=live,
        commands=[
            *(viewer.command("why", one) for one in ids[:1]),
            viewer.command("export", "messages", "group.jsonl", "--group", id),
        ],
    )


def _pages(start: int | None, num_turns: int) -> list[tuple[str, str]]:
    """(address, name) of the other turns; none where all are shown."""
    if num_turns <= TURNS:
        return []
    pages = [] if start == 0 else [("?start=0", "First turns")]
    if start is not None:
        if start > TURNS:
            pages.append((f"?start={start - TURNS}", f"Turns from {start - TURNS}"))
        if start + TURNS < num_turns:
            pages.append((f"?start={start + TURNS}", f"Turns from {start + TURNS}"))
        pages.append(("?", "Last turns of each"))
    return pages


def _is_dead(group: Group) -> bool:
    rewards = {sample.reward for sample in group.samples}
    return len(group.samples) > 1 and len(rewards) == 1
