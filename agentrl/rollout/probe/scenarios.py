"""Short conversations in both renderer modes: does the next prompt extend what was sampled?

Each is played as a model would play it that learnt the template: the reply is sampled as the template writes it.
`append` then adds what follows; `rerender` renders everything anew, and is a branch where the template rewrites.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agentrl.errors import TemplateError
from agentrl.rollout.context import num_common
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.template import Json
from agentrl.types import Message, ToolCall

Outcome = Literal["ok", "branch", "refused"]
NUM_SHOWN_IDS = 6
"""Ids of each side that a reason quotes."""
REFUSALS = (TemplateError, ValueError)
"""ValueError: the form in which the model calls tools can't express a call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """How one conversation goes on in each mode."""

    name: str
    is_required: bool
    """No run is possible without it; the others are for environments that need them."""
    append: Outcome
    """ok or refused: what was sampled is never touched."""
    rerender: Outcome
    """branch: the conversation rendered anew differs from what was sampled."""
    rewrites: bool
    """In rerender mode the text differs too, not only how it is split into ids."""
    append_reason: str | None
    """Why it is refused, and what to change."""
    rerender_reason: str | None
    """The same, or where the rendering differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Conversation:
    name: str
    reply: Message
    new: list[Message]
    history: list[Message] = field(default_factory=lambda: [_user("first question")])
    is_required: bool = False


def try_scenarios(renderer: Renderer, tools: Sequence[Json], *, thinks: bool, opens_next: bool) -> tuple[Scenario, ...]:
    """Conversations without calls, and with calls where there are `tools` (specs).

    `thinks`: also those with thinking. `opens_next`: the model ends a reply with the token that opens the next message.
    """
    conversations = [*_chats(), *(_tool_chats(tools[0]["function"]["name"]) if tools else ())]
    return tuple(
        _try(renderer, conversation, tools, opens_next)
        for conversation in conversations
        if thinks or not conversation.reply.reasoning
    )


def _try(renderer: Renderer, conversation: _Conversation, tools: Sequence[Json], opens_next: bool) -> Scenario:
    appended = _append(renderer, conversation, tools)
    rendered = _rerender(renderer, conversation, tools, opens_next)
    return Scenario(
        name=conversation.name,
        is_required=conversation.is_required,
        append=appended.outcome,
        rerender=rendered.outcome,
        rewrites=rendered.rewrites,
        append_reason=appended.reason,
        rerender_reason=rendered.reason,
    )


class _Played(NamedTuple):
    outcome: Outcome
    reason: str | None = None
    rewrites: bool = False


def _append(renderer: Renderer, conversation: _Conversation, tools: Sequence[Json]) -> _Played:
    try:
        renderer.start(conversation.history, tools)
        sampled = renderer.encode_reply(conversation.reply)
        renderer.extend(conversation.reply, sampled, conversation.new, tools)
    except REFUSALS as error:
        return _Played("refused", str(error))
    return _Played("ok")


def _rerender(renderer: Renderer, conversation: _Conversation, tools: Sequence[Json], opens_next: bool) -> _Played:
    messages = [*conversation.history, conversation.reply, *conversation.new]
    try:
        context = renderer.start(conversation.history, tools) + _sampled(renderer, conversation, tools, opens_next)
        rendered = renderer.start(messages, tools)
    except REFUSALS as error:
        return _Played("refused", str(error))
    text = renderer.decode(rendered)
    if missing := sorted({message.role for message in conversation.new if message.text not in text}):
        return _Played("refused", f"the template drops {' and '.join(missing)} messages; use one that renders the role")
    keep = num_common(context, rendered)
    if keep == len(context):
        return _Played("ok")
    if text.startswith(renderer.decode(context)):
        return _Played("branch", "the same text is split into other ids where prompt and reply meet")
    was, now = (renderer.decode(ids[:NUM_SHOWN_IDS]) for ids in (context[keep:], rendered[keep:]))
    return _Played("branch", f"sampled {was!r}, later rendered {now!r}", rewrites=True)


def _sampled(renderer: Renderer, conversation: _Conversation, tools: Sequence[Json], opens_next: bool) -> list[int]:
    """The reply as it is sampled, through its stop."""
    sampled = renderer.encode_reply(conversation.reply)
    if not opens_next:
        return sampled
    opening = renderer.extend(conversation.reply, sampled[:-1], conversation.new, tools)[0]
    return [*sampled[:-1], opening]


def _chats() -> Iterator[_Conversation]:
    said, again = _reply("first answer"), _user("second question")
    yield _Conversation(name="reply, user", reply=said, new=[again], is_required=True)
    yield _Conversation(name="reply with thinking, user", reply=_reply("first answer", "first idea"), new=[again])
    yield _Conversation(name="reply with white space around it, user", reply=_reply("  first answer \n"), new=[again])
    yield _Conversation(name="empty reply, user", reply=_reply(), new=[again])
    system = [Message(role="system", content="be brief"), _user("first question")]
    yield _Conversation(name="system message, reply, user", history=system, reply=said, new=[again])
    example = [_user("example question"), _reply("example answer"), _user("first question")]
    yield _Conversation(name="example reply in the prompt, reply, user", history=example, reply=said, new=[again])


def _tool_chats(name: str) -> Iterator[_Conversation]:
    one, two = _call(name, 0), _call(name, 1)
    calling, results = _reply(calls=[one]), [_result(one), _result(two)]
    yield _Conversation(name="call, result", reply=calling, new=results[:1], is_required=True)
    yield _Conversation(name="two calls, two results", reply=_reply(calls=[one, two]), new=results)
    yield _Conversation(name="text and call, result", reply=_reply("first answer", calls=[one]), new=results[:1])
    yield _Conversation(name="thinking and call, result", reply=_reply("", "first idea", [one]), new=results[:1])
    user = _user("second question")
    yield _Conversation(name="call, result and user", reply=calling, new=[*results[:1], user])
    history = [_user("first question"), calling, *results[:1]]
    yield _Conversation(
        name="call, result, second call, result", history=history, reply=_reply(calls=[two]), new=results[1:]
    )
    yield _Conversation(name="call, result, reply, user", history=history, reply=_reply("first answer"), new=[user])


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def _reply(text: str = "", reasoning: str | None = None, calls: Sequence[ToolCall] = ()) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=list(calls))


def _call(name: str, index: int) -> ToolCall:
    return ToolCall(id=f"call_{index}", name=name, arguments=json.dumps({"x": "value"}))


def _result(call: ToolCall) -> Message:
    return Message(role="tool", content=f"result of {call.id}", tool_call_id=call.id, name=call.name)
