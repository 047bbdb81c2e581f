"""Tool calls in sampled replies, one file for each format. `PARSERS` names them; `choose` picks one for a template."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from agentrl.errors import ConfigError
from agentrl.rollout.parsers.base import ParsedReply, ToolCallParser
from agentrl.rollout.parsers.glm import GlmParser
from agentrl.rollout.parsers.hermes import HermesParser
from agentrl.rollout.parsers.qwen3_coder import Qwen3CoderParser

PARSERS: dict[str, type[ToolCallParser]] = {
    parser.name: parser for parser in (HermesParser, Qwen3CoderParser, GlmParser)
}
"""By the name in `model.tool_parser`; `auto` tries them in this order."""

__all__ = ["PARSERS", "ParsedReply", "ToolCallParser", "make_parser"]


def make_parser(name: str, *, control: Mapping[str, int] | None = None, in_think: bool = False) -> ToolCallParser:
    """The parser of a name in `model.tool_parser`. Raises ConfigError for a name that there isn't."""
    if name not in PARSERS:
        near = difflib.get_close_matches(name, PARSERS, n=3) or [*PARSERS]
        raise ConfigError(f"model.tool_parser={name}: there is no such parser; choose auto or {', '.join(near)}")
    return PARSERS[name](control=control, in_think=in_think)
