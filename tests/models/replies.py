"""What the scripted model says: a template's own text of a reply, as ids that no tokenizer would choose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from agentrl.rollout.renderer import Renderer
from agentrl.testing.endpoint import Reply
from agentrl.types import Message
from tests.models.families import BY_TEMPLATE
from tests.models.oracle import Oracle, OracleRefused

_THINK_BLOCK = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_GEMMA_HEADER = "<|turn>model\n"
"""DiffusionGemma's history has it behind results, its prompt doesn't."""
_EMPTY_BLOCK = re.compile(r"^<think>\s*</think>\s*")


def reply_text(
    name: str, oracle: Oracle, made: Renderer, history: Sequence[Message], reply: Message, new: Sequence[Message]
) -> str:
    """The reply as its template shows it, through the stop string, where that continues the prompt.

    Otherwise by hand: thinking between tags, calls as agentrl describes them, the first stop string.
    """
    stops = BY_TEMPLATE[name].eos, *BY_TEMPLATE[name].stops
    try:
        body = _continuation(oracle, history, reply)
    except OracleRefused:
        body = None
    if body is not None and not reply.reasoning:
        body = _without_empty_block(oracle, body, [*history, reply, *new])
    if body is None:
        body = _by_hand(made, reply)
    elif reply.reasoning and reply.reasoning not in body:
        body = (
            f"{made.parser.think_open}\n{reply.reasoning}\n{getattr(made.parser, 'think_close', '</think>')}\n\n{body}"
        )
    if reply.text not in body:  # trimmed: the model doesn't
        body = body.replace(reply.text.strip(), reply.text, 1)
    found = [(body.index(stop), stop) for stop in stops if stop in body]
    if found:
        place, stop = min(found)
        return body[: place + len(stop)]
    return body.rstrip("\n") + _stop(name, body)


def _without_empty_block(oracle: Oracle, body: str, later: Sequence[Message]) -> str:
    """Without the empty think block that Qwen3 shows in a last reply only, if the history shows the reply at all."""
    without = _EMPTY_BLOCK.sub("", body)
    try:
        shown = oracle.render(later)
    except OracleRefused:
        return body
    return without if body not in shown and without in shown else body


def _stop(name: str, body: str) -> str:
    """GLM's template writes no end: the model samples the next message's opening."""
    if name == "glm4moe":
        return "<|observation|>" if "<tool_call>" in body else "<|user|>"
    return BY_TEMPLATE[name].eos


def _continuation(oracle: Oracle, history: Sequence[Message], reply: Message) -> str | None:
    prompt, whole = oracle.render(history), oracle.render([*history, reply], prompt=False)
    if whole.startswith(prompt):
        return whole[len(prompt) :].removeprefix(_GEMMA_HEADER)
    opened = prompt.rfind("<think>")  # the prompt opens a block that history doesn't show
    if opened < 0 or not whole.startswith(prompt[:opened]):
        return None
    body = _THINK_BLOCK.sub("", whole[opened:], count=1)
    is_open = "</think>" not in prompt[opened:]
    return f"{reply.reasoning or ''}\n</think>\n\n{body}" if is_open else body


def _by_hand(made: Renderer, reply: Message) -> str:
    body = made.parser.write(reply)
    if reply.reasoning and reply.reasoning in body:  # harmony
        return body
    if made.opens_think:
        return f"{reply.reasoning or ''}\n</think>\n\n{body}"
    return f"<think>\n{reply.reasoning}\n</think>\n\n{body}" if reply.reasoning else body


def awkward_ids(renderer: Renderer, text: str) -> list[int]:
    """Control strings as their ids, everything else character by character."""
    ids: list[int] = []
    place = 0
    for found in renderer.encoder.written_by_template(text):
        ids += _characters(renderer, text[place : found.start])
        ids.append(renderer.encoder.control[found.text])
        place = found.end
    ids += _characters(renderer, text[place:])
    assert renderer.decode(ids) == text, "the vocabulary can't say this text"
    return ids


def _characters(renderer: Renderer, text: str) -> list[int]:
    return list(chain.from_iterable(map(renderer.encode_text, text)))


@dataclass
class Script:
    """What the model will say, turn by turn."""

    replies: list[Reply] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """What the replies mean."""
