"""The self-check at start: turn-by-turn ids against the template's own rendering of short conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agentrl.errors import TemplateError
from agentrl.rollout.control import TextEncoder
from agentrl.rollout.scaffold import Scaffold
from agentrl.rollout.template import ChatTemplate, Json
from agentrl.types import Message, ToolCall

Extend = Callable[[Message, Sequence[int], Sequence[Message], Sequence[Json]], list[int]]
"""`Renderer.extend`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Conversation:
    name: str
    reply: Message
    new: list[Message]
    history: list[Message] = field(default_factory=lambda: [Message(role="user", content="first question")])
    optional: bool = False
    """Templates may refuse it: some allow one call for each reply, some no system message."""
    later_round: bool = False
    """Tools were called before. DeepSeek's templates open the results of the first round only, by an oversight: turn
    by turn each round is opened like the first."""


def check_template(template: ChatTemplate, scaffold: Scaffold, extend: Extend, tools: Sequence[Json]) -> None:
    """Raises TemplateError with the model, the conversation, and what follows the reply in both ways."""
    for conversation in _conversations(tools):
        messages = [*conversation.history, conversation.reply, *conversation.new]
        try:
            rendered = template.render(*template.conversation(messages, tools))
        except TemplateError as error:
            if conversation.optional:
                continue
            raise TemplateError(f"self-check, {conversation.name}: {error}") from error
        _compare(template, scaffold, extend, conversation, rendered, tools)


def _compare(
    template: ChatTemplate,
    scaffold: Scaffold,
    extend: Extend,
    conversation: _Conversation,
    rendered: str,
    tools: Sequence[Json],
) -> None:
    """Whole rendering = … reply, closing, anchor, expected; `extend` must give the ids of expected."""
    encoder = template.encoder
    after_reply = rendered.rpartition(_last_text(conversation.reply))[2]
    anchor = scaffold.anchor(after_reply)
    sampled = [encoder.control[anchor.text]] if anchor else []
    try:
        new_ids = extend(conversation.reply, sampled, conversation.new, tools)
    except TemplateError as error:
        raise TemplateError(f"self-check, {conversation.name}: {error}") from error
    expected, got = after_reply[anchor.end :] if anchor else after_reply, encoder.decode(new_ids)
    missing = [message.text for message in conversation.new if message.text not in got]
    if conversation.later_round and _words(encoder, got) == _words(encoder, expected):
        return
    if missing or got != expected or encoder.encode(rendered)[-len(new_ids) :] != new_ids:
        raise TemplateError(
            f"the chat template of {template.name} can't be followed turn by turn, see {conversation.name}: "
            f"after the reply it writes {expected!r}, turn by turn it would be {got!r}"
            f"{f', without {missing}' if missing else ''}. Use another chat template for this model"
        )


def _words(encoder: TextEncoder, text: str) -> str:
    """The text without its control strings."""
    for found in reversed(list(encoder.written_by_template(text))):
        text = text[: found.start] + text[found.end :]
    return text.strip()


def _last_text(reply: Message) -> str:
    """The text of a reply that its rendering shows last."""
    return "last_value" if reply.tool_calls else reply.text


def _conversations(tools: Sequence[Json]) -> Iterator[_Conversation]:
    said = Message(role="assistant", content="first answer")
    user = Message(role="user", content="second question")
    yield _Conversation(name="a reply and a user message", reply=said, new=[user])
    yield _Conversation(
        name="a second reply and a user message",
        history=[Message(role="user", content="zeroth question"), said, user],
        reply=Message(role="assistant", content="second answer"),
        new=[Message(role="user", content="third question")],
    )
    yield _Conversation(
        name="a system message, a reply and a user message",
        history=[Message(role="system", content="be brief"), Message(role="user", content="first question")],
        reply=said,
        new=[user],
        optional=True,
    )
    if tools:
        name = tools[0]["function"]["name"]
        one, two = _call(name, 0), _call(name, 1)
        yield _Conversation(name="a call and its result", reply=_calling(one), new=[_result(one)])
        both = _calling(one, two)
        results = [_result(one), _result(two)]
        yield _Conversation(name="two calls and their results", reply=both, new=results, optional=True)
        yield _Conversation(
            name="a second call and its result",
            history=[Message(role="user", content="first question"), _calling(one), _result(one)],
            reply=_calling(two),
            new=[_result(two)],
            later_round=True,
        )


def _call(name: str, index: int) -> ToolCall:
    return ToolCall(id=f"call_{index}", name=name, arguments=json.dumps({"x": "last_value"}))


def _calling(*calls: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=list(calls))


def _result(call: ToolCall) -> Message:
    return Message(role="tool", content=f"result of {call.id}", tool_call_id=call.id, name=call.name)
