"""What bounds an episode: the tokens of the next call, and the length of an observation."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.config import LimitsConfig
from agentrl.rollout.client import Generation
from agentrl.types import StopReason, Trajectory

CHARACTERS_PER_TOKEN = 16
"""More than a token holds on average in any text: a flood is cut to this before it is tokenised."""


def call_budget(limits: LimitsConfig, window: int, num_context: int, num_sampled: int) -> tuple[int, StopReason]:
    """How many ids the next call may sample, and the ending if it uses them all. Zero or less: it can't start."""
    bounds = [
        (limits.max_turn_tokens, StopReason.TURN_LENGTH),
        (limits.max_episode_tokens - num_sampled, StopReason.TOKEN_BUDGET),
        (window - num_context, StopReason.CONTEXT_OVERFLOW),
    ]
    return min(bounds, key=lambda bound: bound[0])


def no_room(trajectory: Trajectory, num_context: int, bound: StopReason, window: int) -> str:
    """Why the next call of a trajectory can't start."""
    place = f"trajectory {trajectory.id}, turn {len(trajectory.turns)}: nothing can be sampled"
    if bound is StopReason.CONTEXT_OVERFLOW:
        return (
            f"{place} after a prompt of {num_context} ids in a window of {window}, the engine's or the configured one"
        )
    return f"{place}: limits.max_episode_tokens is reached"


def ending_of_cut(generation: Generation, max_tokens: int, bound: StopReason) -> StopReason:
    """Why a reply was cut that was allowed `max_tokens` ids, where using them all would end as `bound`.

    A server that cut it earlier ran out of room: of its window only itself knows.
    """
    num_tokens = generation.num_tokens
    return bound if num_tokens is None or num_tokens >= max_tokens else StopReason.CONTEXT_OVERFLOW


def cap_observation(
    text: str, max_tokens: int, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> str:
    """`text`, or its head and tail around a line that says how much is left out."""
    if len(text) <= max_tokens // 4:  # at most four bytes a character, at least one byte a token
        return text
    half = max_tokens // 2
    head_text, tail_text = text[: half * CHARACTERS_PER_TOKEN], text[-half * CHARACTERS_PER_TOKEN :]
    is_short = len(text) <= 2 * half * CHARACTERS_PER_TOKEN
    if is_short and len(encode(text)) <= max_tokens:
        return text
    head, tail = decode(encode(head_text)[:half]), decode(encode(tail_text)[-half:])
    num_left_out = max(0, len(text) - len(head) - len(tail))
    return f"{head}\n[... {num_left_out} characters left out ...]\n{tail}"


def cap_result(text: str, max_characters: int) -> str:
    """`text`, or its head and tail around a line that says how much is left out: what is kept of a tool's result."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    num_left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {num_left_out} characters left out ...]\n{text[-half:]}"
