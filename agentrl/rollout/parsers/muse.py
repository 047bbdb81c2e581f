"""`<atem:invoke name="…"><atem:parameter name="…">` in a message to the tool: Muse.

::

     to=self<|message|>I should add.<|eom|><|start|>assistant to=add<|message|><atem:function_calls>
    <atem:invoke name="add">
    <atem:parameter name="a">1</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

A message to self is thinking, one to user is content.
"""

from __future__ import annotations

import re
from typing import Any

from agentrl.rollout.parsers.base import Block, FoundCall
from agentrl.rollout.parsers.elements import Elements, value_without
from agentrl.rollout.parsers.messages import AGAIN, MESSAGE, START, MessageParser, Part
from agentrl.rollout.parsers.sampled import plain
from agentrl.types import Message, ToolCall

_OWN = "/?atem:"
_HEADER = re.compile(r"(?P<author>[^\s<]*)(?:\s+to=(?P<to>[^\s<]+))?\s*")
_OPEN, _CLOSE = "<atem:function_calls>\n", "\n</atem:function_calls>"
_OPENING = re.compile(r"\s*<atem:function_calls>\s*(?=<atem:invoke)")
_CLOSING = re.compile(r"</atem:function_calls>\s*")


class MuseParser(MessageParser):
    """A call is in a message to the tool of its name."""

    name = "muse"
    form = (
        ' to=NAME<|message|><atem:function_calls><atem:invoke name="NAME"><atem:parameter name="KEY">VALUE'
        "</atem:parameter></atem:invoke></atem:function_calls>"
    )
    how = (
        "write a message to it like this, with one parameter element for each argument; lists and objects are JSON:\n"
        ' to=name<|message|><atem:function_calls>\n<atem:invoke name="name">\n<atem:parameter name="key">value'
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
    )
    ends = ("<|eom|>", "<|eot|>")
    tags = (START, MESSAGE, *ends)
    think_open = f" to=self{MESSAGE}"
    around = ("", f"<|eom|>{AGAIN}", "")
    elements = Elements(
        head=re.compile(r'<atem:invoke name="([^"\n<>]++)">\s*'),
        argument=re.compile(
            rf'<atem:parameter name="([^"\n<>]++)">({value_without(_OWN)})</atem:parameter>\s*', re.DOTALL
        ),
        tail=re.compile(r"</atem:invoke>\s*"),
        written=(
            '<atem:invoke name="{name}">\n',
            '<atem:parameter name="{key}">{value}</atem:parameter>\n',
            "</atem:invoke>",
        ),
    )

    def block(self, part: Part) -> Block:
        header = None if part.header is None else _HEADER.fullmatch(part.header)
        if header is None or header["author"] not in ("", "assistant"):
            return Block(part.body)
        recipient = plain(header["to"] or "user")
        if recipient in ("user", "self"):
            return Block(part.body, is_thinking=recipient == "self")
        try:
            return Block(calls=self._calls(part, recipient))
        except ValueError as error:
            bad = FoundCall(start=part.start, end=part.end, name=recipient, raw=part.body, problem=str(error))
            bad.is_open = not part.is_closed
            return Block(calls=[bad])

    def _calls(self, part: Part, recipient: str) -> list[FoundCall]:
        """All that a message invokes. Raises ValueError."""
        opening = _OPENING.match(part.body)
        if opening is None:
            raise ValueError("it doesn't begin with <atem:function_calls>")
        calls: list[FoundCall] = []
        place = opening.end()
        while not _CLOSING.fullmatch(part.body, place):
            call = self.elements.read(part.body, place, place)
            if call.name != recipient:
                raise ValueError("it invokes another function than the message is for")
            place = call.end
            call.start, call.end = part.body_start + call.start, part.body_start + call.end
            calls.append(call)
        calls[0].start, calls[-1].end = part.start, part.end
        return calls

    def write(self, message: Message) -> str:
        """All that follows "<|start|>assistant", up to where the last message is ended."""
        calls = self.write_calls(message.tool_calls)
        parts = [f" to=self{MESSAGE}{message.reasoning}"] if message.reasoning else []
        parts += [f" to=user{MESSAGE}{message.text}"] if message.text or not calls else []
        return f"<|eom|>{AGAIN}".join([*parts, *([calls] if calls else [])])

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return f" to={call.name}{MESSAGE}{_OPEN}{self.elements.write(call.name, arguments)}{_CLOSE}"

    def write_broken(self, text: str) -> str:
        return f" to=unknown{MESSAGE}{text}"
