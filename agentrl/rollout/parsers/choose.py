"""Which parser reads what a chat template writes.

Conversations with one and two calls, with arguments of every JSON type, are rendered by the template; a parser fits
where it reads these calls back. Nothing is looked up by the model's name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import TemplateError
from agentrl.rollout.parsers import PARSERS, ToolCallParser, make_parser
from agentrl.tool import Tool, ToolContext, ToolResult

Json = dict[str, Any]


class Render(Protocol):
    """A template: `prompt`: with the opening of the next reply. Raises TemplateError."""

    def __call__(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, prompt: bool = True) -> str: ...


AUTO = "auto"
_USER: Json = {"role": "user", "content": "probe question"}
_ARGUMENTS: Json = {
    "text": "some words",
    "digits": "7",
    "integer": 5,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "array": [1, "a", {"b": False}],
    "object": {"c": "d", "e": []},
}
_TYPES = {"text": "string", "digits": "string"}
"""JSON schema's types of the arguments that aren't named after theirs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How calls are read and written, and what the template does about them itself."""

    parser: ToolCallParser
    shows_tools: bool
    """The template shows the tools, and the calls that it writes are of the parser's form."""
    max_calls: int
    """Calls of one reply that the template writes in the parser's form; 2 stands for any number."""


def choose_parser(name: str, render: Render, *, control: Mapping[str, int], prompt: str, model: str) -> Choice:
    """The parser of a name, or with "auto" the one that reads the template's own calls, else Hermes.

    `prompt`: of a conversation; it may end inside a think block. Raises ConfigError for an unknown name and
    TemplateError for a parser that can't read what the template writes.
    """
    written = list(_written(render))
    reading = [each for each in PARSERS if _reads(make_parser(each), written)]
    if name == AUTO:
        name = reading[0] if reading else "hermes"
    parser = make_parser(name, control=control)
    parser.in_think = prompt.rstrip().endswith(parser.think_open.rstrip())
    is_read = parser.name in reading
    if reading and not is_read and not parser.is_prompted:
        raise TemplateError(
            f"model.tool_parser={name} can't read the calls that the chat template of {model} writes, e.g. "
            f"{written[0].text!r}. Set model.tool_parser=auto, which takes {reading[0]}, or use another chat template"
        )
    max_calls = max(_num_calls(parser, each) for each in written) if is_read else 0
    return Choice(parser, shows_tools=is_read and _shows_tools(render), max_calls=max_calls)


class _Probe(Tool):
    """What the rendered calls call."""

    name = "probe_tool"
    description = ""
    schema: Json = {  # noqa: RUF012
        "type": "object",
        "properties": {name: {"type": _TYPES.get(name, name)} for name in _ARGUMENTS},
    }

    async def call(self, arguments: Json, ctx: ToolContext) -> ToolResult:
        raise NotImplementedError


_PROBE = _Probe()


@dataclass(frozen=True, slots=True)
class _Written:
    """A reply as the template writes it, and the arguments of the calls that it was given."""

    text: str
    arguments: list[Json]


def _written(render: Render) -> Iterator[_Written]:
    """Replies with one and two calls; none where the template drops or refuses them."""
    for num_calls in (1, 2):
        arguments = [_ARGUMENTS | {"integer": i} for i in range(num_calls)]
        for form in (lambda each: each, json.dumps):  # most templates want objects, some JSON
            text = _reply(render, [form(each) for each in arguments])
            if text is not None and _PROBE.name in text:
                yield _Written(text, arguments)
                break


def _reply(render: Render, arguments: Sequence[Any]) -> str | None:
    """What a reply with these calls is, between the end of the prompt and its closing; None: refused."""
    calls = [
        {"id": f"probe{i:04d}", "type": "function", "function": {"name": _PROBE.name, "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    tools = [_PROBE.spec()]
    try:
        rendered = render([_USER, message], tools, prompt=False)
        prompt = render([_USER], tools)
        closing = render([_USER, {"role": "assistant", "content": "plain reply"}], tools, prompt=False)
    except TemplateError:
        return None
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, rendered, strict=False))
    start = sum(1 for _ in same)
    if start < len(prompt) and ">" not in rendered[rendered.rfind("<", 0, start) : start]:
        start = rendered.rfind("<", 0, start)  # not in the middle of a tag
    return rendered[start:].removesuffix(closing.rpartition("plain reply")[2])


def _reads(parser: ToolCallParser, written: Sequence[_Written]) -> bool:
    """Whether the parser finds the calls that are written there, and no others."""
    return bool(written) and all(_num_calls(parser, each) for each in written)


def _num_calls(parser: ToolCallParser, written: _Written) -> int:
    """How many of the calls the parser finds: a template may keep the first of several. 0: other ones, or none."""
    calls = parser.parse_text(written.text, tools={_PROBE.name: _PROBE}).calls
    return len(calls) if [call.arguments for call in calls] == written.arguments[: len(calls)] else 0


def _shows_tools(render: Render) -> bool:
    try:
        return _PROBE.name in render([_USER], [_PROBE.spec()], prompt=False)
    except TemplateError:
        return False
