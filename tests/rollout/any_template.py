"""A tokenizer for any of the chat templates in `trl`: SmolLM2's, with the control strings that the template names."""

from __future__ import annotations

import copy
import re
from typing import Any, TypeVar

from agentrl.rollout.renderer import Renderer
from tests.rollout.templates import smollm2, trl_template

T = TypeVar("T")
_CONTROL = re.compile(r"<\|[^|<>]+\|?>|<｜[^｜]+｜>|<[a-z_]+\|>|</?[a-z_]+>|\[gMASK\]|</?s>")
_TAG = re.compile(r"</?(think|tool_call|tool_response|tools|function|parameter)>")
"""Added, but not special, as Qwen ships them."""
STOPS = {
    "qwen": ("<|im_end|>", "<|endoftext|>"),
    "llama": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    "glm": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "phi": ("<|end|>", "<|endoftext|>"),
    "gemma4": ("<turn|>", "<|tool_response>"),
    "gemma": ("<end_of_turn>",),
    "diffusion_gemma": ("<turn|>", "<|tool_response>"),
    "gptoss": ("<|return|>", "<|call|>"),
    "muse": ("<|eot|>", "<|eom|>"),
    "cohere": ("<|END_OF_TURN_TOKEN|>",),
    "deepseek": ("<｜end▁of▁sentence｜>",),
}
"""By the beginning of a template's name: the first is the tokenizer's end token, all are the generation config's."""
BOS = {
    "gemma": "<bos>",
    "llama": "<|begin_of_text|>",
    "deepseek": "<｜begin▁of▁sentence｜>",
    "cohere": "<BOS_TOKEN>",
    "lfm2": "<|startoftext|>",
}


def tokenizer(name: str) -> Any:
    dressed = copy.deepcopy(smollm2())
    template, bos = trl_template(name), _of_family(BOS, name, "")
    written = sorted({*_CONTROL.findall(template), *stops(name), *([bos] if bos else [])})
    dressed.add_tokens([text for text in written if not _TAG.fullmatch(text)], special_tokens=True)
    dressed.add_tokens([text for text in written if _TAG.fullmatch(text)])
    dressed.chat_template, dressed.name_or_path = template, name
    dressed.eos_token, dressed.bos_token = stops(name)[0], bos or None
    return dressed


def stops(name: str) -> tuple[str, ...]:
    return _of_family(STOPS, name, ("<|im_end|>",))


def renderer(name: str) -> Renderer:
    made = tokenizer(name)
    return Renderer(made, stop_ids=made.convert_tokens_to_ids(list(stops(name))))


def _of_family(values: dict[str, T], name: str, default: T) -> T:
    family = max((family for family in values if name.startswith(family)), key=len, default="")
    return values.get(family, default)
