"""One trajectory: its turns, where the time went, its grades, who trained on it. Tokens come on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentrl.replay.rows import shown_step
from agentrl.types import Group, Message, Sample, Trajectory, Turn
from agentrl.unused import why_unused
from agentrl.view.live import Live
from agentrl.view.timeline import timeline
from agentrl.view.viewer import Viewer, viewer_of


@dataclass(frozen=True, slots=True)
class Shown:
    """A turn, and what follows from those before it."""

    turn: Turn
    num_kept_of: int
    """Ids of its parent's whole context."""
    num_context: int
    results: dict[str, str | None]
    """Of its parent's calls by id."""

    @property
    def branches(self) -> bool:
        """Does it go on from somewhere else than the end of the turn before?"""
        return self.turn.index > 0 and (self.turn.parent is None or self.turn.keep < self.num_kept_of)

    def repeats(self, message: Message) -> bool:
        """Is it what a call of the parent gave, unchanged?"""
        return message.role == "tool" and self.results.get(message.tool_call_id or "") == message.text

    @property
    def versions(self) -> list[tuple[int, int]]:
        """(version, number of ids), in the order in which they were sampled."""
        return [(version, len(list(run))) for version, run in groupby(self.turn.versions)]


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    given = request.path_params["id"]
    id = viewer.resolve("trajectory", given)
    if id != given:
        return RedirectResponse(f"/trajectory/{quote(id, safe='')}")
    mark = Live.of_trajectory(viewer, id)  # before it is read, so that nothing is missed
    sample, uses = viewer.store.load_sample(id), viewer.store.steps_of(id)
    trajectory = sample.trajectory
    group = None if trajectory.group is None else viewer.store.load_group(trajectory.group, outline=True)
    return viewer.page(
        "trajectory.html",
        sample=sample,
        trajectory=trajectory,
        turns=list(_shown(trajectory)),
        timeline=timeline(trajectory),
        group=group,
        siblings=_siblings(trajectory, group),
        grades=viewer.store.grades_of(id),
        uses=uses,
        shown_uses=shown_step(uses),
        unused=None if uses else why_unused(sample, group),
        live=mark if trajectory.stop_reason is None else None,
        commands=_commands(viewer, sample),
    )


def _shown(trajectory: Trajectory) -> Iterator[Shown]:
    for turn in trajectory.turns:
        parent = None if turn.parent is None else trajectory.turns[turn.parent]
        results = {} if parent is None else {call.call.id: call.result for call in parent.tool_calls}
        yield Shown(turn, parent.num_ids if parent else 0, turn.keep + len(turn.prompt_ids), results)


def _siblings(trajectory: Trajectory, group: Group | None) -> Sequence[Sample]:
    return [] if group is None else group.samples


def _commands(viewer: Viewer, sample: Sample) -> list[str]:
    id = sample.trajectory.id
    export = viewer.command("export", "trajectories", "trajectory.jsonl", "--id", id)
    words = (("why", id), ("show", id, "--by", "logprob"), ("replay", id, "--env"), ("replay", id, "--regrade"))
    return [*(viewer.command(*line) for line in words), export]
