"""One long text of a trajectory, page by page."""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from agentrl.errors import NotStored
from agentrl.types import Sample, Turn
from agentrl.view.runs import whole
from agentrl.view.tokens import turn_of
from agentrl.view.viewer import viewer_of

AT_ONCE = 20_000
"""Characters."""


def page(request: Request) -> Response:
    """`place`: grade, error or task; or TURN.reply, TURN.reasoning, TURN.prompt.N, TURN.call.N.result and so on."""
    viewer = viewer_of(request)
    id = viewer.resolve("trajectory", request.path_params["id"])
    place, start = request.path_params["place"], whole(request, "start")
    text = _text(viewer.store.load_sample(id), place)
    return viewer.page(
        "text.html",
        trajectory=id,
        place=place,
        text=text[start : start + AT_ONCE],
        start=start,
        num=len(text),
        previous=max(0, start - AT_ONCE) if start else None,
        following=start + AT_ONCE if start + AT_ONCE < len(text) else None,
        turn=place.split(".")[0] if place[0].isdigit() else None,
        commands=[viewer.command("show", id)],
    )


def _text(sample: Sample, place: str) -> str:
    """Raises NotStored where there is no such place."""
    trajectory, grade = sample.trajectory, sample.grade
    whole_ones: dict[str, Callable[[], str | None]] = {
        "error": lambda: trajectory.error,
        "grade": lambda: grade.output if grade else None,
        "task": lambda: json.dumps(trajectory.task.data, indent=2, ensure_ascii=False),
        "artifacts": lambda: json.dumps(trajectory.artifacts.data, indent=2, ensure_ascii=False),
    }
    if place in whole_ones:
        return whole_ones[place]() or ""
    number, _, part = place.partition(".")
    try:
        found = _of_turn(turn_of(trajectory, int(number)), *part.split("."))
    except (ValueError, IndexError, TypeError):
        raise NotStored(f"trajectory {trajectory.id} has no text {place!r}") from None
    return found or ""


def _of_turn(turn: Turn, part: str, number: str = "", field: str = "") -> str | None:
    """Raises ValueError, IndexError."""
    if part in ("reply", "reasoning"):
        return turn.message.text if part == "reply" else turn.message.reasoning
    place = int(number)
    if place < 0:
        raise IndexError
    if part == "prompt":
        return turn.prompt_messages[place].text
    call = turn.tool_calls[place]
    fields = {"arguments": call.call.arguments, "result": call.result, "error": call.error}
    if part != "call" or field not in fields:
        raise ValueError
    return fields[field]
