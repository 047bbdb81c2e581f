"""What is known of a chat template: found out by `probe_template`, shown by `agentrl doctor`, stored with every run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from agentrl.rollout.probe.scenarios import Scenario
from agentrl.rollout.renderer import Mode

Fate = Literal["kept", "trimmed", "quoted", "changed", "dropped", "refused"]
"""What becomes of a text. quoted: written as a JSON string; changed: found, but not as it was; refused: the template
raises."""
StopOwner = Literal["model", "template", "next message", "nobody"]
Arguments = Literal["object or string", "object", "object, a string is quoted twice", "string", "dropped", "refused"]
ConsecutiveTools = Literal["one by one", "merged", "dropped", "refused"]
SeveralCalls = Literal["kept", "first only", "dropped", "refused"]
TextBesideCall = Literal["kept", "moved behind the result", "dropped", "refused"]
Tools = Literal["shown", "ignored", "refused"]

_NO_END = (
    "the template writes no token that the tokenizer knows between a reply and the next message, so the model couldn't "
    "learn where to stop. Use the chat template that belongs to the model, or add its end-of-turn token to this one"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateFacts:
    """How one chat template writes conversations, and whether a model that speaks it can be trained."""

    stop: str | None
    """The control string that ends a reply."""
    stop_owner: StopOwner
    """model: the model samples it. template: the template writes it, but neither the tokenizer nor the generation
    config stops at it, so agentrl does. next message: it opens the next message, and the model samples that. nobody:
    replies have no end."""
    stop_in_history: str | None
    """What ends the same reply when a user message follows."""
    stop_after_call: str | None
    """What ends a reply that calls a tool; None where calls or results are refused or dropped."""
    after_stop: str
    """What the template writes between the stop and the next message."""
    default_system: str | None
    """What a chat without system message is told, without control strings."""
    content: dict[str, Fate]
    """By role: what becomes of white space and quotes in content, and whether the role is taken at all."""
    lone_tool: Fate
    """A tool message that nothing precedes."""
    consecutive_tools: ConsecutiveTools
    """Results of one reply: each as a message of its own, or all in one."""
    arguments: Arguments
    """The form in which a call's arguments are rendered rightly."""
    several_calls: SeveralCalls
    text_beside_call: TextBesideCall
    thinking: str | None
    """Where thinking is shown: a message field, or inline (in think tags in the content)."""
    thinking_at_result: Fate
    """Thinking beside a call, once its result has come."""
    thinking_at_user: Fate
    """Thinking of a reply, once a user message has come."""
    opens_thinking: bool
    """The prompt opens a think block, so that replies start inside one."""
    bos: str | None
    """What the tokenizer puts in front of a text by itself. agentrl never lets it."""
    double_bos: bool
    """The template writes the same, so whoever encodes its text the usual way has it twice."""
    unknown_control: tuple[str, ...]
    """What looks like control strings in a plain conversation, and is ordinary text to the tokenizer."""
    prints_date: bool
    """Prompts of another day differ."""
    tools: Tools
    """The template's own way to show tools; else the system message describes them."""
    history: Literal["kept", "rewritten"]
    """rewritten: rendered anew, the text of some scenario differs from what was sampled."""
    append_refused: str | None
    """Why append mode can't be trained with tools, and what to change; None where it can."""
    append_refused_without_tools: str | None
    scenarios: tuple[Scenario, ...]

    def refused(self, mode: Mode) -> str | None:
        """Why a run in this mode can't start with the tools that were given, and what to change."""
        if mode == "append":
            return self.append_refused
        if self.stop_in_history is None:
            return _NO_END
        required = (one for one in self.scenarios if one.is_required and one.rerender == "refused")
        return next((one.rerender_reason for one in required), None)

    @property
    def is_trainable_with_tools(self) -> bool:
        """In at least one mode, with the tools that were given."""
        return self.refused("append") is None or self.refused("rerender") is None

    @property
    def is_trainable(self) -> bool:
        """In at least one mode, with tools or without."""
        can_rerender = self.stop_in_history is not None and self.scenarios[0].rerender != "refused"
        return can_rerender or self.append_refused_without_tools is None

    def as_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)
