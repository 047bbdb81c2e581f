"""Forms in which a reply holds the text of one argument of one tool: which, the config says.

`model.tool_parser=bash` calls the tool bash with its argument command, `bash:shell.script` the tool shell with its
argument script. Text that holds what ends the form can't be expressed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl.errors import ConfigError
from agentrl.rollout.parsers.base import FoundCall, as_text
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.tagged import TaggedParser
from agentrl.types import ToolCall

_OPTIONS = re.compile(r"(\w[\w-]*)\.(\w+)")


class OneToolParser(TaggedParser):
    """A format that says where the text begins (`opening`), ends (`closing`) and how it is written."""

    is_prompted = True
    default: ClassVar[str]
    """TOOL.ARGUMENT."""
    closing: ClassVar[re.Pattern[str]]
    written: ClassVar[str]
    """With {text}."""

    def __init__(self, *, control: Mapping[str, int] | None = None, in_think: bool = False, options: str = "") -> None:
        """`options`: TOOL.ARGUMENT. Raises ConfigError for another form."""
        super().__init__(control=control, in_think=in_think)
        match = _OPTIONS.fullmatch(options or self.default)
        if match is None:
            raise ConfigError(
                f"model.tool_parser={self.name}:{options}: what follows the colon must be TOOL.ARGUMENT, the tool that "
                f"is called and its argument that gets the text, e.g. {self.name}:{self.default}"
            )
        self.tool, self.argument = match.groups()

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        end = self.closing.search(text, place)
        if end is None:
            problem = "it isn't closed"
            call = FoundCall(
                start=start, end=len(text), name=self.tool, raw=text[place:], problem=problem, is_open=True
            )
            return [call], len(text)
        arguments = {self.argument: plain(text[place : end.start()])}
        call = FoundCall(start=start, end=end.end(), name=self.tool, arguments=arguments, as_text=True)
        return [call], end.end()

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return self.written.format(text=as_text(arguments.get(self.argument, "")))

    def write_broken(self, text: str) -> str:
        return self.written.format(text=text)
