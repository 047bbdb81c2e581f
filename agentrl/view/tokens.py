"""The ids of one turn, each with its text, mask, logprob, version and advantage; a part of a page or one of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agentrl.errors import ModelError, NotStored
from agentrl.figures import precise, signed
from agentrl.replay.rows import Learned, learned, shown_step
from agentrl.replay.tokens import Decode, decoder, likelihood
from agentrl.types import Trajectory, Turn
from agentrl.view.runs import whole
from agentrl.view.viewer import Viewer, viewer_of

AT_ONCE = 2000
"""Ids of a turn that are sent at once."""
NUM_VERSION_STYLES = 6


@dataclass(frozen=True, slots=True)
class Token:
    """One id as it is drawn."""

    text: str
    styles: str
    """Classes: what the colours of each kind go by."""
    told: str


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    id = viewer.resolve("trajectory", request.path_params["id"])
    trajectory = viewer.store.load_trajectory(id)
    turn = turn_of(trajectory, request.path_params["turn"])
    start = whole(request, "start")
    decode, why_bare = _decoder(viewer, trajectory)
    tokens = list(_tokens(turn, _learned(viewer, trajectory).get(turn.index, []), decode, start))
    num = len(turn.prompt_ids) + len(turn.sampled_ids)
    return viewer.page(
        "tokens_part.html" if "part" in request.query_params else "tokens.html",
        trajectory=trajectory,
        turn=turn,
        tokens=tokens,
        start=start,
        num=num,
        following=start + AT_ONCE if start + AT_ONCE < num else None,
        why_bare=why_bare,
        ids={"ids that nobody sampled": json.dumps(turn.prompt_ids), "sampled ids": json.dumps(turn.sampled_ids)},
        commands=[viewer.command("show", id, "--by", "logprob")],
    )


def turn_of(trajectory: Trajectory, index: int) -> Turn:
    """Raises NotStored."""
    if index >= len(trajectory.turns):
        raise NotStored(f"trajectory {trajectory.id} has no turn {index}; it has {len(trajectory.turns)}")
    return trajectory.turns[index]


def _decoder(viewer: Viewer, trajectory: Trajectory) -> tuple[Decode | None, str]:
    """Or None, and why."""
    folder = viewer.store.find_run(trajectory.run).config.get("model_folder")
    try:
        decode = decoder(folder)
    except ModelError as error:
        return None, str(error)
    return decode, "" if decode else f"the model's folder isn't on this machine ({folder}), so ids have no text"


def _learned(viewer: Viewer, trajectory: Trajectory) -> dict[int, list[Learned | None]]:
    return learned(trajectory, [use.row for use in shown_step(viewer.store.steps_of(trajectory.id))])


def _tokens(turn: Turn, of_step: list[Learned | None], decode: Decode | None, start: int) -> Iterator[Token]:
    num_prompt, versions = len(turn.prompt_ids), turn.versions
    for place, id in list(enumerate([*turn.prompt_ids, *turn.sampled_ids]))[start : start + AT_ONCE]:
        text = f"{id} " if decode is None else decode([id])
        if place < num_prompt:
            yield Token(text, "dull", f"id {id}, mask 0: nobody sampled it")
            continue
        here = place - num_prompt
        its = of_step[here] if of_step else None
        logprob, version = turn.logprobs[here], versions[here]
        styles = f"likely{likelihood(logprob)} version{version % NUM_VERSION_STYLES if version >= 0 else 'less'}"
        told = f"id {id}, mask 1, logprob {precise(logprob)}, version {version}"
        yield Token(text, f"{styles} {_advantage_style(its)}", told + _advantage_told(its))


def _advantage_style(its: Learned | None) -> str:
    if its is None:
        return "unused"
    if its.weight == 0:
        return "silent"
    return "gain" if its.advantage > 0 else "loss" if its.advantage < 0 else "even"


def _advantage_told(its: Learned | None) -> str:
    if its is None:
        return ", no step trained on it"
    return f", advantage {signed(its.advantage)}" + (f", weight {its.weight:g} ({its.reason})" if its.reason else "")
