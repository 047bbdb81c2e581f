"""Channels: gpt-oss. Analysis is thinking, final is content, commentary for a function is a call.

::

    <|channel|>analysis<|message|>I should add.<|end|><|start|>assistant<|channel|>commentary to=functions.add
    <|constrain|>json<|message|>{"a": 1, "b": 2}<|call|>

(all in one line). Commentary for nobody is content, said before a call.
"""

from __future__ import annotations

import re
from typing import Any

from agentrl.rollout.parsers.base import Block, FoundCall
from agentrl.rollout.parsers.messages import AGAIN, MESSAGE, START, MessageParser, Part
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.strict_json import read_arguments, skip_space
from agentrl.types import Message, ToolCall

_CHANNEL, _CONSTRAIN = "<|channel|>", "<|constrain|>"
_FUNCTIONS = "functions."
_HEADER = re.compile(
    rf"(?P<author>[^\s<]*)(?:\s+to=(?P<to>[^\s<]+))?\s*"
    rf"(?:{re.escape(_CHANNEL)}(?P<channel>\w+)(?:\s+to=(?P<for>[^\s<]+))?)?\s*(?:{re.escape(_CONSTRAIN)})?\w*\s*"
)


class HarmonyParser(MessageParser):
    """A call is a message to functions.NAME in the commentary channel, and nothing but one JSON object."""

    name = "harmony"
    form = f"{_CHANNEL}commentary to=functions.NAME {_CONSTRAIN}json{MESSAGE}{{...}}<|call|>"
    how = (
        "write a message to it in the commentary channel, with its arguments as one JSON object:\n"
        f"{_CHANNEL}commentary to=functions.name {_CONSTRAIN}json{MESSAGE}{{...}}<|call|>"
    )
    ends = ("<|end|>", "<|call|>", "<|return|>")
    tags = (START, MESSAGE, _CHANNEL, _CONSTRAIN, *ends)
    think_open = f"{_CHANNEL}analysis{MESSAGE}"
    around = ("", f"<|call|>{AGAIN}", "")
    call_end = "<|call|>"

    def block(self, part: Part) -> Block:
        header = None if part.header is None else _HEADER.fullmatch(part.header)
        if header is None:
            addressed = part.header is not None and "to=" in part.header
            return Block(calls=[_bad(part, "", "its header can't be read")]) if addressed else Block(part.body)
        if header["author"] not in ("", "assistant"):
            return Block(part.body)
        recipient = header["to"] or header["for"]
        if recipient is None:
            return Block(part.body, is_thinking=header["channel"] == "analysis")
        return Block(calls=[_call(part, plain(recipient), header["channel"])])

    def write(self, message: Message) -> str:
        """All that follows "<|start|>assistant", up to where the last message is ended."""
        calls = self.write_calls(message.tool_calls)
        parts = [f"{_CHANNEL}analysis{MESSAGE}{message.reasoning}"] if message.reasoning else []
        if message.text or not calls:
            parts.append(f"{_CHANNEL}{'commentary' if calls else 'final'}{MESSAGE}{message.text}")
        return f"<|end|>{AGAIN}".join([*parts, *([calls] if calls else [])])

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return f" to={_FUNCTIONS}{call.name}{_CHANNEL}commentary json{MESSAGE}{call.arguments}"

    def write_broken(self, text: str) -> str:
        return f" to={_FUNCTIONS}unknown{_CHANNEL}commentary json{MESSAGE}{text}"


def _call(part: Part, recipient: str, channel: str | None) -> FoundCall:
    name = recipient.removeprefix(_FUNCTIONS)
    if name == recipient:
        return _bad(part, name, "it is not sent to functions.NAME")
    if channel != "commentary":
        return _bad(part, name, "it is not in the commentary channel")
    try:
        arguments, raw, end = read_arguments(part.body, skip_space(part.body, 0))
    except ValueError as error:
        return _bad(part, name, str(error))
    if skip_space(part.body, end) != len(part.body):
        return _bad(part, name, "something follows the object")
    return FoundCall(start=part.start, end=part.end, name=name, arguments=arguments, raw=raw)


def _bad(part: Part, name: str, problem: str) -> FoundCall:
    is_open = not part.is_closed
    return FoundCall(start=part.start, end=part.end, name=name, raw=part.body, problem=problem, is_open=is_open)
