"""What the next reply is sampled after: ids and messages of a conversation, and the branches that it left behind.

    append      the ids that were sampled stay; new messages are rendered behind them
    rerender    the template writes the conversation anew before each reply; where that changes an id, a branch starts
    history     an environment replaced the conversation: it is rendered anew in either mode

A branch keeps the ids up to the first that differs, of the earlier turn with which it shares the most of them. That is
decided by ids alone: neither text nor place says what was sampled (T2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import Any

from agentrl.rollout.renderer import Renderer
from agentrl.rollout.unrendered import Unrendered
from agentrl.types import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The context of a turn: the first `keep` ids of its parent, reply included, then `new_ids`."""

    parent: int | None
    """The index of an earlier turn; None: there is none, and keep is 0."""
    keep: int
    new_ids: list[int]
    new_messages: list[Message]
    """Those since the last reply, or all where the environment replaced the conversation."""
    messages: list[Message]
    """The whole conversation."""

    @property
    def num_ids(self) -> int:
        """The length of the context."""
        return self.keep + len(self.new_ids)


@dataclass(slots=True)
class _Line:
    """All ids through the reply of one turn that nothing continues as a whole, or not yet."""

    turn: int
    ids: list[int]


class Context:
    """One agent's conversation in one episode: `start`, then (`take`, `reply`, `follow`) for each turn."""

    def __init__(self, renderer: Renderer | Unrendered) -> None:
        self.renderer = renderer
        self.tools: Sequence[dict[str, Any]] = ()
        self.ids: list[int] = []
        """The context of the turn that is due, then also its reply."""
        self.messages: list[Message] = []
        self._lines: list[_Line] = []
        """The last one is that of the last turn."""
        self._sampled: Sequence[int] = ()

    def start(self, messages: list[Message], tools: Sequence[dict[str, Any]] = ()) -> Prompt:
        """The first prompt; the tools stay for the whole episode."""
        self.tools = tools
        ids = self.renderer.start(messages, self.tools)
        return Prompt(parent=None, keep=0, new_ids=ids, new_messages=messages, messages=messages)

    def follow(self, messages: list[Message], history: list[Message] | None = None) -> Prompt:
        """The prompt after the last reply and new messages, or after a `history` in place of all that was said.

        Raises TemplateError where the template can't render it, ValueError for an assistant's message among `messages`.
        """
        if any(message.role == "assistant" for message in messages):
            raise ValueError("step returned an assistant's message: replies are sampled; only a history may hold some")
        if history is not None:
            return self._rendered_anew(history + messages, history + messages)
        conversation = self.messages + messages
        if self.renderer.mode == "rerender":
            return self._rendered_anew(conversation, messages)
        line = self._lines[-1]
        new_ids = self.renderer.extend(self.messages[-1], self._sampled, messages, self.tools)
        return Prompt(
            parent=line.turn, keep=len(line.ids), new_ids=new_ids, new_messages=messages, messages=conversation
        )

    def take(self, prompt: Prompt) -> None:
        """The next reply will be sampled after this prompt."""
        parent = next((line for line in self._lines if line.turn == prompt.parent), None)
        if parent is None:
            self.ids = list(prompt.new_ids)
        elif prompt.keep == len(parent.ids):  # continued, so that it isn't copied: a turn costs its new ids
            self._lines.remove(parent)
            self.ids = parent.ids
            self.ids += prompt.new_ids
        else:
            self.ids = parent.ids[: prompt.keep] + prompt.new_ids
        self.messages = list(prompt.messages)

    def reply(self, turn: int, sampled_ids: Sequence[int], message: Message) -> None:
        """What was sampled after the prompt that was taken."""
        self.ids += sampled_ids
        self._sampled = sampled_ids
        self.messages.append(message)
        self._lines.append(_Line(turn, self.ids))

    def _rendered_anew(self, conversation: list[Message], new_messages: list[Message]) -> Prompt:
        rendered = self.renderer.start(conversation, self.tools)
        shared, parent = max((num_common(line.ids, rendered), line.turn) for line in self._lines)
        keep = max(0, min(shared, len(rendered) - 1))  # a turn has at least one id of its own, where there are any
        return Prompt(
            parent=parent, keep=keep, new_ids=rendered[keep:], new_messages=new_messages, messages=conversation
        )


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    return next(compress(count(), map(ne, left, right)), min(len(left), len(right)))
