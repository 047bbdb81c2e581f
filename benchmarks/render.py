"""What rendering a further turn costs, and that it doesn't grow with the conversation.

    python -m benchmarks.render

A user's or a tool's text of 200 tokens is rendered behind conversations of 1,000 to 32,000 tokens, with Qwen3's
template over SmolLM2's vocabulary. Ends with one JSON line; `value` is the median in ms at 32,000 tokens, and how many
times that of 1,000 tokens it is.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.rollout.context import Context
from agentrl.rollout.renderer import Renderer
from agentrl.types import Message
from benchmarks import report
from tests.models.families import renderer
from tests.rollout.templates import SPECS, calling, result, user

NUM_NEW, CONTEXTS, ROUNDS = 200, (1_000, 8_000, 32_000), 200


def text_of(made: Renderer, num_tokens: int) -> str:
    """Ordinary text of that many tokens."""
    words = "The door of the old house was open and nobody had been there for years. "
    return made.decode(made.encode_text(words * (num_tokens // 10))[:num_tokens])


def median_ms(made: Renderer, num_context: int, reply: Message, new: Message) -> float:
    """Of `Context.follow`: everything that the loop does for a further turn but sampling."""
    context = Context(made)
    context.take(context.start([user(text_of(made, num_context))], SPECS))
    context.reply(0, made.encode_reply(reply), reply)
    assert len(context.ids) >= num_context
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        prompt = context.follow([new])
        seconds.append(time.perf_counter() - started)
    assert len(prompt.new_ids) >= NUM_NEW
    return 1000 * statistics.median(seconds)


def main() -> int:
    made = renderer("qwen3")
    text = text_of(made, NUM_NEW)
    turns = {
        "a user's message": (Message(role="assistant", content="Yes."), user(text)),
        "a tool's result": (calling('{"a": 1, "b": 2}'), result(text)),
    }
    worst = growth = 0.0
    for what, (reply, new) in turns.items():
        found = {num: median_ms(made, num, reply, new) for num in CONTEXTS}
        print(f"{what}: " + ", ".join(f"{ms:.3f} ms behind {num:,} tokens" for num, ms in found.items()))
        worst, growth = max(worst, found[CONTEXTS[-1]]), max(growth, found[CONTEXTS[-1]] / found[CONTEXTS[0]])
    value = {"median_ms": round(worst, 3), "times_of_1000_tokens": round(growth, 2)}
    ok = worst <= 1.0 and growth <= 1.5
    return 0 if report("render_turn_of_200_tokens_at_32k", value, "<= 1 ms, growth <= 1.5", ok) else 1


if __name__ == "__main__":
    sys.exit(main())
