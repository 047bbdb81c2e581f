"""Builders of AgentLoops over a scripted endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.config import LimitsConfig, SamplingConfig
from agentrl.environment import Environment
from agentrl.rollout.boxes import Boxes
from agentrl.rollout.client import Generation, SamplingParams, VersionSpan
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.rollout.unrendered import Unrendered
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.types import Sample

WINDOW = 2000


class TextClient:
    """An InferenceClient that says the texts of a script in turn; "…" at the end: cut by max_tokens, no stop id."""

    def __init__(self, renderer: Renderer, *texts: str | Exception) -> None:
        self.renderer = renderer
        self.texts = list(texts)
        self.seen: list[tuple[list[int], SamplingParams]] = []

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        text = self.texts[min(len(self.seen), len(self.texts) - 1)]
        self.seen.append((list(ids), sampling))
        if isinstance(text, Exception):
            raise text
        sampled = self.renderer.tokenizer.encode(text.removesuffix("…"), add_special_tokens=False)
        is_cut = text.endswith("…") or len(sampled) >= sampling.max_tokens
        sampled = sampled[: sampling.max_tokens] if is_cut else [*sampled, self.renderer.stop_ids[0]]
        return Generation(
            request_id=request_id,
            engine="scripted",
            ids=sampled,
            logprobs=[-0.25] * len(sampled),
            spans=[VersionSpan(version=3, start=0, end=len(sampled))],
            finish_reason="length" if is_cut else "stop",
        )


def call(name: str, arguments: str) -> str:
    """A tool call as the model writes it."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def make_loop(
    renderer: Renderer | Unrendered,
    client: Any,
    recorder: MemoryRecorder | None = None,
    *,
    env: type[Environment] = Toy,
    config: ToyConfig | None = None,
    sampler: Callable[..., Any] | None = None,
    window: int = WINDOW,
    boxes: Boxes | None = None,
    **limits: Any,
) -> AgentLoop:
    return AgentLoop(
        env_class=env,
        env_config=config or ToyConfig(),
        sampler=sampler or (lambda env, trajectory: EngineSampler(client)),
        renderer=renderer,
        recorder=recorder or MemoryRecorder(),
        limits=LimitsConfig(**limits),
        sampling=SamplingConfig(),
        window=window,
        boxes=boxes,
    )


async def play(loop: AgentLoop, **spec: Any) -> Sample:
    """One rollout of the first train task."""
    task = loop.env_class.tasks(loop.env_config, "train")[0]
    return await loop.run(RolloutSpec(run="run", task=task, group=None, **spec))
