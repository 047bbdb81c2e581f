"""A tokenizer for any of the chat templates in `trl`: SmolLM2's, with the control strings that the template names."""

from __future__ import annotations

import copy
import re
from importlib.metadata import files
from typing import Any

from agentrl.rollout.renderer import Renderer
from tests.rollout.templates import smollm2, trl_template

_CONTROL = re.compile(r"<\|[^|<>]+\|?>|<｜[^｜]+｜>|<[a-z_]+\|>|</?[a-z_]+>|\[gMASK\]|</?s>")
_TAG = re.compile(r"</?(think|tool_call|tool_response|tools|function|parameter)>")
"""Added, but not special, as Qwen ships them."""
STOPS = {
    "qwen": ("<|im_end|>", "<|endoftext|>"),
    "nemotron": ("<|im_end|>",),
    "lfm2": ("<|im_end|>",),
    "smollm2": ("<|im_end|>",),
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


def names() -> list[str]:
    """The base templates in the installed package."""
    found = [str(file) for file in files("trl") or () if str(file).endswith(".jinja")]
    return sorted(name.rpartition("/")[2].removesuffix(".jinja") for name in found if "_training" not in name)


def tokenizer(name: str) -> Any:
    dressed = copy.deepcopy(smollm2())
    template = trl_template(name)
    written = sorted({*_CONTROL.findall(template), *stops(name)})
    dressed.add_tokens([text for text in written if not _TAG.fullmatch(text)], special_tokens=True)
    dressed.add_tokens([text for text in written if _TAG.fullmatch(text)])
    dressed.chat_template, dressed.name_or_path = template, name
    dressed.eos_token = stops(name)[0]
    dressed.bos_token = next((text for text in BOS if text in written), None)
    return dressed


BOS = ("<bos>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<|startoftext|>", "<BOS_TOKEN>")


def stops(name: str) -> tuple[str, ...]:
    family = max((family for family in STOPS if name.startswith(family)), key=len, default="qwen")
    return STOPS[family]


def renderer(name: str) -> Renderer:
    made = tokenizer(name)
    return Renderer(made, stop_ids=made.convert_tokens_to_ids(list(stops(name))))
