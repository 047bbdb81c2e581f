"""Tool calls in sampled replies, one file for each format. `PARSERS` names them; `choose` picks one for a template."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from agentrl.errors import ConfigError
from agentrl.rollout.parsers.action import ActionParser
from agentrl.rollout.parsers.base import ParsedReply, ToolCallParser
from agentrl.rollout.parsers.bash import BashParser
from agentrl.rollout.parsers.deepseek import DeepseekParser
from agentrl.rollout.parsers.gemma4 import Gemma4Parser
from agentrl.rollout.parsers.glm import GlmParser
from agentrl.rollout.parsers.harmony import HarmonyParser
from agentrl.rollout.parsers.hermes import HermesParser
from agentrl.rollout.parsers.llama3 import Llama3Parser
from agentrl.rollout.parsers.mistral import MistralArgsParser, MistralParser
from agentrl.rollout.parsers.muse import MuseParser
from agentrl.rollout.parsers.one_tool import OneToolParser
from agentrl.rollout.parsers.pythonic import Lfm2Parser, PythonicParser
from agentrl.rollout.parsers.qwen3_coder import Qwen3CoderParser

_CLASSES: tuple[type[ToolCallParser], ...] = (
    HermesParser,
    Qwen3CoderParser,
    Llama3Parser,
    MistralParser,
    MistralArgsParser,
    GlmParser,
    DeepseekParser,
    Gemma4Parser,
    HarmonyParser,
    Lfm2Parser,
    PythonicParser,
    MuseParser,
    BashParser,
    ActionParser,
)
PARSERS = {parser.name: parser for parser in _CLASSES}
"""By the name in `model.tool_parser`; `auto` tries them in this order."""

__all__ = ["PARSERS", "ParsedReply", "ToolCallParser", "make_parser"]


def make_parser(choice: str, *, control: Mapping[str, int] | None = None, in_think: bool = False) -> ToolCallParser:
    """The parser that `model.tool_parser` names, e.g. hermes or bash:shell.script. Raises ConfigError."""
    name, _, options = choice.partition(":")
    if name not in PARSERS:
        near = difflib.get_close_matches(name, PARSERS, n=3) or [*PARSERS]
        raise ConfigError(f"model.tool_parser={choice}: there is no such parser; choose auto or {', '.join(near)}")
    parser = PARSERS[name]
    if issubclass(parser, OneToolParser):
        return parser(control=control, in_think=in_think, options=options)
    if options:
        raise ConfigError(f"model.tool_parser={choice}: {name} takes nothing behind a colon; write {name}")
    return parser(control=control, in_think=in_think)
