"""Which forms of contents, arguments and results a chat template takes: found out once, by trying.

contents     a string; or only a list of parts (Idefics, SmolVLM, LLaVA)
arguments    an object, which most templates iterate over; or their JSON text (DeepSeek-V3)
results      behind a reply whose calls are part of its text; or only behind calls as such (gpt-oss, Gemma 4)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import TemplateError
from agentrl.rollout.control import SENTINEL

Json = dict[str, Any]
_USER: Json = {"role": "user", "content": "hi"}
_TEXT: Json = {"role": "assistant", "content": "x"}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_RESULT: Json = {"role": "tool", "content": SENTINEL, "tool_call_id": "call_0", "name": "probe_tool"}


class Render(Protocol):
    """Messages → text. Raises TemplateError."""

    def __call__(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, prompt: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Forms:
    """What a template takes; where it takes neither form of something, nothing is done about it."""

    contents_in_parts: bool
    """Contents are shown only as lists of parts."""
    object_arguments: bool
    text_arguments: bool
    """A call is shown where its arguments are an object, or a text."""
    reasoning_key: str
    results_of_text: bool
    """Results are shown behind a reply that holds its calls as text, or in no way at all."""

    def arguments(self, text: str) -> Json | str | None:
        """Raw arguments as the template takes them: an object where they are one, else the text. None: not at all."""
        value = _object(text) if self.object_arguments else None
        return value if value is not None or not self.text_arguments else text


def learn_forms(render: Render) -> Forms:
    """Try each form in a short conversation."""
    as_object, as_text = _calling({"x": SENTINEL}), _calling(json.dumps({"x": SENTINEL}, ensure_ascii=False))
    user = {"role": "user", "content": SENTINEL}
    in_parts = not _is_shown(render, user) and _is_shown(render, with_parts(user))

    def shown(*messages: Json) -> bool:
        return _is_shown(render, *map(with_parts, messages) if in_parts else messages)

    return Forms(
        contents_in_parts=in_parts,
        object_arguments=shown(_USER, as_object),
        text_arguments=shown(_USER, as_text),
        reasoning_key=next((k for k in _REASONING_KEYS if shown(_USER, _TEXT | {k: SENTINEL})), _REASONING_KEYS[0]),
        results_of_text=shown(_USER, _TEXT, _RESULT) or not shown(_USER, _calling({"x": "x"}), _RESULT),
    )


def with_parts(message: Json) -> Json:
    """The content as a list of one part."""
    return message | {"content": [{"type": "text", "text": message["content"]}]}


def _is_shown(render: Render, *messages: Json) -> bool:
    """Does the sentinel survive?"""
    try:
        return SENTINEL in render(messages, prompt=False)
    except TemplateError:
        return False


def _calling(arguments: Json | str) -> Json:
    call = {"id": "call_0", "type": "function", "function": {"name": "probe_tool", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _object(text: str) -> Json | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
