"""Messages or ids → turns, as if somebody had played them: the renderer of rollouts makes the ids."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from agentrl.errors import TemplateError
from agentrl.exchange.conversation import arguments
from agentrl.exchange.lines import ChatMessage, Ids, refuse
from agentrl.rollout.context import Context
from agentrl.rollout.renderer import Renderer
from agentrl.types import CallStatus, Message, ParsedCall, Sampler, ToolCall, Turn

Json = dict[str, Any]


def turns_of_messages(
    given: Sequence[ChatMessage], tools: Sequence[Json], renderer: Renderer, where: str
) -> list[Turn]:
    """A turn for each reply, from the first that is to be learnt; what stands before that is the first prompt.

    Messages behind the last reply teach nothing and are left out. Raises ExchangeError, naming `where`.
    """
    messages = [message.as_message(place) for place, message in enumerate(given)]
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    context, turns = Context(renderer), list[Turn]()
    for before, place in _replies(given, where):
        new, reply = messages[before:place], messages[place]
        try:
            prompt = context.follow(new) if turns else context.start(new, tools)
            sampled = renderer.encode_reply(reply)
        except (TemplateError, ValueError) as error:
            refuse(where, f"messages[{place}] can't be rendered: {error}")
        if any(id in renderer.stop_ids for id in sampled[:-1]):
            refuse(where, f"messages[{place}]: it holds the text of a control token that ends a reply: take that out")
        context.take(prompt)
        turn = _turn(len(turns), prompt.parent, prompt.keep, prompt.new_ids, sampled, reply)
        turn.prompt_messages, turn.trained = list(prompt.new_messages), given[place].is_learnt
        turn.tool_calls = [_parsed(call, results.get(call.id)) for call in reply.tool_calls]
        context.reply(turn.index, sampled, reply)
        turns.append(turn)
    return turns


def turns_of_ids(ids: Ids, renderer: Renderer, where: str) -> list[Turn]:
    """A turn for each run of ids to learn. Ids behind the last one teach nothing and are left out.

    Raises ExchangeError, naming `where`.
    """
    if len(ids.input_ids) != len(ids.assistant_masks):
        counts = f"{len(ids.input_ids)} ids, but {len(ids.assistant_masks)} of assistant_masks"
        refuse(where, f"input_ids: {counts}: give one 0 or 1 for each id")
    if not any(ids.assistant_masks):
        refuse(where, "assistant_masks: it is 0 everywhere, so there is nothing to learn: leave the example out")
    if ids.assistant_masks[0]:
        refuse(where, "assistant_masks[0]: nothing stands before the first id, so it can't be learnt: make it 0")
    if not renderer.is_id(max(ids.input_ids)):
        refuse(where, f"input_ids: {max(ids.input_ids)} is no id of the tokenizer: name the model that they are of")
    runs = [list(map(itemgetter(0), run)) for _, run in groupby(zip(*_columns(ids), strict=True), itemgetter(1))]
    turns, length = list[Turn](), 0
    for prompt, sampled in zip(runs[::2], runs[1::2], strict=False):
        said = Message(role="assistant", content=renderer.decode(sampled))
        turns.append(_turn(len(turns), len(turns) - 1 if turns else None, length, prompt, sampled, said))
        length += len(prompt) + len(sampled)
    return turns


def _columns(ids: Ids) -> tuple[list[int], list[int]]:
    return ids.input_ids, ids.assistant_masks


def _replies(given: Sequence[ChatMessage], where: str) -> Iterator[tuple[int, int]]:
    """For each reply the place of the first message since the one before, and its own."""
    places = [place for place, message in enumerate(given) if message.role == "assistant"]
    learnt = [place for place in places if given[place].is_learnt]
    if not learnt:
        refuse(where, "messages: none is a reply to learn: add an assistant's, or take its weight 0 out")
    if learnt[0] == 0:
        refuse(where, "messages[0]: a reply to nothing: put a user's message before it")
    replies = [place for place in places if place >= learnt[0]]
    yield 0, replies[0]
    for before, place in pairwise(replies):
        if place == before + 1:
            refuse(where, f"messages[{place}]: a reply right behind a reply: join them, or add what lies between")
        yield before + 1, place


def _turn(
    index: int, parent: int | None, keep: int, prompt_ids: list[int], sampled_ids: list[int], message: Message
) -> Turn:
    return Turn(
        index=index,
        parent=parent,
        keep=keep,
        prompt_ids=prompt_ids,
        sampled_ids=sampled_ids,
        logprobs=[math.nan] * len(sampled_ids),
        calls=[],
        prompt_messages=[],
        message=message,
        sampler=Sampler.IMPORT,
    )


def _parsed(call: ToolCall, result: str | None) -> ParsedCall:
    """A call with what the file says became of it."""
    value = arguments(call.arguments)
    ran = CallStatus.NOT_RUN if result is None else CallStatus.OK
    is_object = isinstance(value, dict)
    return ParsedCall(
        call=call,
        status=ran if is_object else CallStatus.INVALID_JSON,
        span=(0, 0),
        arguments=value if isinstance(value, dict) else None,
        result=result,
    )
