"""What a template itself writes: plain transformers, nothing of agentrl's renderer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentrl.types import Message, ToolCall

_PARTS = frozenset({"smolvlm", "idefics3", "llava_next"})
"""Templates that take a content only as a list of parts."""
_TEXT_ARGUMENTS = frozenset({"deepseekv3"})
ONE_CALL = frozenset({"gptoss"})
"""Models that stop after each call, so that a reply holds one."""
FIRST_ROUND_ONLY = "<｜tool▁outputs▁begin｜>"
"""DeepSeek's templates write it in the first round of tools and forget it in later ones; agentrl writes it in each."""
HISTORY_ENDS = ("<|end|>", "<|eom|>")
"""End tokens that stand in the history though nobody stops at them."""
_THINKING = frozenset({"gptoss", "lfm2_2_5"})
"""Templates that call reasoning so."""


class OracleRefused(Exception):
    """The template raises on this conversation."""


class Oracle:
    """The text of whole conversations by one tokenizer's template."""

    def __init__(self, name: str, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.tools = list(tools)

    def render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                [self._as_dict(message) for message in messages],
                tools=self.tools or None,
                tokenize=False,
                add_generation_prompt=prompt,
            )
        except Exception as error:
            raise OracleRefused(f"{type(error).__name__}: {error}") from error
        return text

    def _as_dict(self, message: Message) -> dict[str, Any]:
        content: Any = message.text
        if self.name in _PARTS:
            content = [{"type": "text", "text": content}]
        found: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning is not None:
            found["thinking" if self.name in _THINKING else "reasoning_content"] = message.reasoning
        if message.tool_calls:
            found["tool_calls"] = [self._call(call) for call in message.tool_calls]
        if message.role == "tool":
            found |= {"tool_call_id": message.tool_call_id, "name": message.name}
        return found

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = call.arguments if self.name in _TEXT_ARGUMENTS else json.loads(call.arguments)
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
