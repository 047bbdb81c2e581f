"""What tests of the renderer share: tools, messages, and the templates of tests.models."""

from __future__ import annotations

from agentrl.rollout.renderer import Renderer
from agentrl.tool import FunctionTool, tool
from agentrl.types import Message, ToolCall
from tests.models.families import package_file, renderer, smollm2, tokenizer, trl_template

__all__ = ["package_file", "renderer", "smollm2", "tokenizer", "trl_template"]

FAMILIES = ("smollm2", "qwen3", "llama3_2", "glm4moe")


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@tool
def delete(path: str = "*") -> str:
    """Delete a file."""
    raise AssertionError(f"deleted {path}")


TOOLS: dict[str, FunctionTool] = {"add": add, "delete": delete}
SPECS = [each.spec() for each in TOOLS.values()]


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def calling(*arguments: str, name: str = "add") -> Message:
    calls = [ToolCall(id=f"call_{i}", name=name, arguments=raw) for i, raw in enumerate(arguments)]
    return Message(role="assistant", tool_calls=calls)


def result(text: str, index: int = 0) -> Message:
    return Message(role="tool", content=text, tool_call_id=f"call_{index}", name="add")


def control_ids(renderer: Renderer, ids: list[int]) -> list[int]:
    known = set(renderer.encoder.control.values())
    return [id for id in ids if id in known]
