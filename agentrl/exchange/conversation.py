"""A trajectory as conversations: messages, and which of them the policy said.

Turns hold only the messages that are new. Where an environment replaced the conversation (`StepResult.history`) a turn
holds all of them, and another conversation begins there. Two turns, then a third after a history::

    turn 0: [user a]        reply b        conversation 1: a b c d        b and d are learnt
    turn 1: [tool c]        reply d
    turn 2: [user a, assistant e]  reply f      conversation 2: a e f     only f is learnt
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentrl.types import Message, StopReason, Trajectory, Turn

Json = dict[str, Any]
_CUT = frozenset({StopReason.TURN_LENGTH, StopReason.TOKEN_BUDGET, StopReason.CONTEXT_OVERFLOW})
"""Endings in which the last reply may have been cut."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Conversation:
    """One agent's messages up to the reply of one turn."""

    messages: list[Message]
    learnt: list[bool]
    """For each message: a trained turn of this trajectory said it, and no earlier conversation of it holds that."""
    num_prompt: int
    """Messages before the first reply."""


def conversations(trajectory: Trajectory, *, with_cut: bool = True) -> list[Conversation]:
    """In the order of their first turns; those without a trained turn are left out.

    `with_cut`: also a last reply that was cut. A template would end it as if it were whole.

    Where the template writes each prompt anew, ids don't tell a replaced conversation from a longer one: there it is
    one that holds a system message or a reply, or that begins as the first one did.
    """
    agents = dict.fromkeys(turn.agent for turn in trajectory.turns if turn.trained)
    return [one for agent in agents for one in _of_agent(trajectory, agent, with_cut) if any(one.learnt)]


def _of_agent(trajectory: Trajectory, agent: str, with_cut: bool) -> Iterator[Conversation]:
    turns = trajectory.turns_of(agent)
    if not with_cut and _is_cut(trajectory, turns[-1]):
        turns.pop()
    starts = [place for place, turn in enumerate(turns) if place == 0 or _is_whole(trajectory, turn, turns[0])]
    for start, end in pairwise([*starts, len(turns)]):
        yield _joined(turns[start:end])


def _is_cut(trajectory: Trajectory, last: Turn) -> bool:
    """As its server said; of a script's reply the ending tells it, and that nothing followed."""
    if last.calls:
        return last.calls[-1].finish_reason != "stop"
    return trajectory.stop_reason in _CUT and "env" not in last.timings


def _joined(turns: list[Turn]) -> Conversation:
    messages: list[Message] = []
    learnt: list[bool] = []
    for turn in turns:
        messages += [*turn.prompt_messages, turn.message]
        learnt += [False] * len(turn.prompt_messages) + [turn.trained]
    return Conversation(messages=messages, learnt=learnt, num_prompt=len(turns[0].prompt_messages))


def _is_whole(trajectory: Trajectory, turn: Turn, first: Turn) -> bool:
    """Do its prompt messages stand in place of all that was said?"""
    if any(message.role == "assistant" for message in turn.prompt_messages):
        return True
    if trajectory.renderer_mode == "append":
        return turn.parent is None or turn.keep < len(trajectory.full(turn.parent))
    is_same_start = turn.prompt_messages[:1] == first.prompt_messages[:1]
    return is_same_start or any(message.role == "system" for message in turn.prompt_messages)


def message_json(message: Message) -> Json:
    """A message by the names that chat templates know; what it doesn't have is left out."""
    optional = {"reasoning_content": message.reasoning, "tool_call_id": message.tool_call_id, "name": message.name}
    result: Json = {"role": message.role, "content": message.text}
    result |= {name: value for name, value in optional.items() if value is not None}
    if message.tool_calls:
        result["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments(call.arguments)}}
            for call in message.tool_calls
        ]
    return result


def arguments(raw: str) -> Json | str:
    """The object that a call's arguments are, as templates take them; the text itself where they are none."""
    try:
        value = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return raw
    return value if isinstance(value, dict) else raw


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
