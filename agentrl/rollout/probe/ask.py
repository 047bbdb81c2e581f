"""One question to a chat template: a short conversation is rendered whose texts are markers.

The template is asked as it is, without the ways around it that the renderer knows (tools in the system message, calls
as text). That it refuses, by raising, is an answer too.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.errors import TemplateError
from agentrl.rollout.probe.facts import Fate
from agentrl.rollout.template import ChatTemplate, Json, call_dict

TOOL: Json = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
"""Stands for an environment's tools where there is no environment."""
USER: Json = {"role": "user", "content": "user0marker"}
NEXT_USER: Json = {"role": "user", "content": "user1marker"}
REPLY: Json = {"role": "assistant", "content": "reply0marker"}


class Ask:
    """The answers of one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template

    def text(self, *messages: Json, tools: Sequence[Json] = (), prompt: bool = False) -> str | None:
        """The rendering; None where the template refuses."""
        try:
            return self.template.render(messages, tools, prompt=prompt)
        except TemplateError:
            return None

    def fate(self, marker: str, *messages: Json) -> Fate:
        """Of a marker in a conversation."""
        return fate(marker, self.text(*messages))

    def control_strings(self, text: str) -> list[str]:
        """Those that the template wrote, in order."""
        return [found.text for found in self.template.encoder.written_by_template(text)]


def fate(content: str, rendered: str | None) -> Fate:
    """What became of a content in a rendering."""
    if rendered is None:
        return "refused"
    if content in rendered:
        return "kept"
    bare = content.strip()
    if bare in rendered:
        return "trimmed"
    word = bare.strip('"')
    return "quoted" if f'\\"{word}\\"' in rendered else "changed" if word in rendered else "dropped"


def between(text: str, first: str, second: str) -> str:
    """What lies between two markers; nothing where one is missing."""
    _, _, after = text.partition(first)
    inside, found, _ = after.partition(second)
    return inside if found else ""


def common_prefix(one: str, other: str) -> str:
    """What both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))]


def calling(*arguments: Json | str, content: str = "") -> Json:
    """A reply with one call for each of the arguments."""
    calls = [call_dict(f"call_{i}", "lookup", one) for i, one in enumerate(arguments)]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(index: int, content: str | None = None) -> Json:
    """The result of a call."""
    content = f"result{index}marker" if content is None else content
    return {"role": "tool", "content": content, "tool_call_id": f"call_{index}", "name": "lookup"}
