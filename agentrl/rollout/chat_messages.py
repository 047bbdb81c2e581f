"""Messages in the form of OpenAI's chat completions, and what comes back in it.

Servers differ in what they leave out, so a reply is read leniently where nothing can be misunderstood: content may be
null, a text, or a list of parts; a refusal is what was said; arguments may have been decoded already. Tool calls keep
their raw arguments: whether they can be run is decided where it is for all calls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agentrl.types import Message, ToolCall

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What a chat endpoint said."""

    message: Message
    finish_reason: str
    """As the server put it; "length" where the reply was cut."""
    num_tokens: int | None
    """Sampled tokens by the server's own count, thinking included; None: it doesn't say."""


def to_request(message: Message) -> Json:
    """A message as it is sent. Reasoning stays here: endpoints drop or refuse it."""
    body: Json = {"role": message.role, "content": message.text}
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _readable(call.arguments)}}
            for call in message.tool_calls
        ]
    # A tool's result is known by its call; not every endpoint takes a name there.
    optional = {"tool_call_id": message.tool_call_id} if message.role == "tool" else {"name": message.name}
    return body | {name: value for name, value in optional.items() if value is not None}


def read_completion(answer: Json) -> Completion:
    """The reply in a response body. Raises ValueError for what is no chat completion."""
    try:
        choice = answer["choices"][0]
        said, finish_reason = choice["message"], choice.get("finish_reason")
        message = Message(
            role="assistant",
            content=_text(said.get("content")) or _text(said.get("refusal")),
            reasoning=_text(said.get("reasoning_content") or said.get("reasoning")) or None,
            tool_calls=[_tool_call(call) for call in said.get("tool_calls") or []],
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        error = f"; it says {answer['error']}" if answer.get("error") else ""
        raise ValueError(f"the reply is no chat completion: no choices[0].message that can be read{error}") from None
    return Completion(message=message, finish_reason=str(finish_reason), num_tokens=_num_tokens(answer))


def written(message: Message) -> str:
    """All that a reply says, as one text: for counting only, each endpoint has a form of its own."""
    return "\n".join([message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls)])


def _readable(arguments: str) -> str:
    """Raw arguments as they are, where they are a JSON object; else within one: many servers (vLLM, transformers) break
    on a history that holds others, and the agent's fault would look like theirs."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return arguments if isinstance(value, dict) else json.dumps({"unreadable": arguments}, ensure_ascii=False)


def _text(content: Any) -> str:
    """Text, of any form; "" for null. Raises TypeError for what is no text."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(_text(part.get("text", part.get("refusal"))) for part in content)
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    return content


def _tool_call(call: Json) -> ToolCall:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    return ToolCall(
        id=call["id"] if isinstance(call.get("id"), str) else "",
        name=name if isinstance(name, str) else "",
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
    )


def _num_tokens(answer: Json) -> int | None:
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else None
