"""In place of a Renderer where a chat endpoint has the model and no tokenizer is here: conversations stay text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.rollout.limits import cap_result
from agentrl.types import Message

CHARACTERS_PER_TOKEN = 4
"""About what English text has, where nobody can count."""


class Unrendered:
    """Makes no ids, so that none are recorded which no model ever saw."""

    mode = "none"
    template_hash = ""
    stop_ids: tuple[int, ...] = ()
    closing_ids: frozenset[int] = frozenset()
    opens_think = False
    call_form = "a function call with one JSON object as its arguments"

    def start(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """The endpoint renders the first prompt."""
        return []

    def extend(
        self,
        reply: Message,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """The endpoint renders what follows a reply."""
        return []

    def encode_text(self, text: str) -> list[int]:
        """No ids."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """The text of no ids."""
        return ""

    def ends_in_think(self, prompt_ids: Sequence[int]) -> bool:
        """There are no prompts."""
        return False

    def cap(self, text: str, max_tokens: int) -> str:
        """`text`, or its head and tail where it is longer than about `max_tokens`."""
        return cap_result(text, CHARACTERS_PER_TOKEN * max_tokens)
