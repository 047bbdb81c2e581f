"""Who replies when a trajectory is played again: what was sampled then, for as long as the environment goes along.

ids and messages before a reply ──▶ as recorded? ──yes──▶ the recorded ids
                                          └──no──▶ the episode ends there, with the difference
no recorded reply left ──▶ `then`: the recorded ending, a live policy, or a person
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from agentrl.errors import RolloutFault
from agentrl.replay.difference import Difference, messages_differ
from agentrl.rollout.chat import ChatEndpoint
from agentrl.rollout.chat_client import ChatReply
from agentrl.rollout.chat_messages import Completion
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.samplers import ReplySampler
from agentrl.types import Message, Sampler, StopReason, Trajectory, Turn

CUT = frozenset({StopReason.TURN_LENGTH, StopReason.TOKEN_BUDGET, StopReason.CONTEXT_OVERFLOW})
"""Endings in which the last reply may have been cut."""


class ReplaySampler:
    """Plays the recorded replies before turn `until` (None: all), then hands over."""

    def __init__(
        self, recorded: Trajectory, decode: Callable[[Sequence[int]], str], then: ReplySampler, until: int | None = None
    ) -> None:
        self.recorded = recorded
        self.decode = decode
        self.then = then
        self.until = len(recorded.turns) if until is None else until
        self.difference: Difference | None = None
        """What stopped it."""
        self._turns = (turn for turn in recorded.turns_of() if turn.index <= self.until)
        self._before: list[Message] = []
        """The conversation at the last reply."""

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        turn = next(self._turns, None)
        if turn is not None:
            self.difference = self._compare(turn, ids, messages)
            if self.difference is not None:
                raise stopped(self.difference)
        if turn is None or turn.index == self.until:
            return await self.then.sample(ids, messages, params, request_id)
        self._before = messages.copy()
        return _generation(turn, self.recorded, request_id)

    def _compare(self, turn: Turn, ids: list[int], messages: list[Message]) -> Difference | None:
        """What the model would read now against what it read then: messages, then ids."""
        num_before = len(self._before)
        is_longer = num_before > 0 and messages[:num_before] == self._before
        new = messages[num_before + 1 :] if is_longer else messages  # without the last reply
        where = f"turn {turn.index}"
        if turn.prompt_messages not in (new, messages):
            return messages_differ(where, turn.prompt_messages, new)
        was = self.recorded.context(turn.index)
        if was == ids:
            return None
        texts = self.decode(was), self.decode(ids)
        texts = texts if texts[0] != texts[1] else (str(was), str(ids))
        where += ", the same messages with other tools or in another template"
        return Difference(where=where, recorded=texts[0], now=texts[1])


class RecordedEnding:
    """After the last recorded reply it ends as it ended then, unless it was the environment that ended it."""

    def __init__(self, recorded: Trajectory) -> None:
        self.recorded = recorded

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        reason = self.recorded.stop_reason
        assert reason is not None
        if reason in ENDED_BY_ENVIRONMENT:
            raise RolloutFault.of(StopReason.INTERRUPTED, "the environment goes on after the last recorded reply")
        raise RolloutFault.of(reason, self.recorded.error or "")


ENDED_BY_ENVIRONMENT = frozenset(
    {
        StopReason.COMPLETED, StopReason.ENV_TRUNCATED, StopReason.ENV_ERROR, StopReason.TOOL_ERROR,
        StopReason.SANDBOX_ERROR,
    }
)  # fmt: skip


class RecordedChat:
    """`ctx.chat` from the record: the first reply not yet given to the same question. Then, if there is one, live."""

    def __init__(self, turns: Sequence[Turn], then: ChatEndpoint | None = None) -> None:
        self.name = "replay" if then is None else then.name
        self.difference: Difference | None = None
        """A question that was never asked."""
        self._turns = [turn for turn in turns if turn.agent != "main"]
        self._then = then

    async def ask(self, messages: Sequence[Message], *, sampling: dict[str, Any], request_id: str) -> ChatReply:
        """See ChatEndpoint."""
        asked = list(messages)
        turn = next((turn for turn in self._turns if turn.prompt_messages == asked), None)
        if turn is not None:
            self._turns.remove(turn)
            call = turn.calls[0]
            completion = Completion(message=turn.message, finish_reason=call.finish_reason, num_tokens=None)
            return ChatReply(completion=completion, sampling=call.sampling)
        if self._then is not None and not self._turns:
            return await self._then.ask(asked, sampling=sampling, request_id=request_id)
        due = self._turns[0].prompt_messages if self._turns else []
        self.difference = messages_differ("a question to ctx.chat", due, asked)
        assert self.difference is not None, "equal questions are answered"
        raise stopped(self.difference)


def stopped(difference: Difference) -> RolloutFault:
    """The end of an episode that doesn't go as recorded."""
    return RolloutFault.of(StopReason.INTERRUPTED, "; ".join(line.strip() for line in difference.lines()))


def _generation(turn: Turn, recorded: Trajectory, request_id: str) -> Generation:
    """The recorded reply. It counts as imported: nobody samples it now."""
    is_text = turn.sampler is Sampler.TEXT
    # A chat endpoint that cut a reply for want of room said so by a count that isn't kept.
    is_overflow = is_text and recorded.stop_reason is StopReason.CONTEXT_OVERFLOW
    return Generation(
        request_id=request_id,
        engine="replay",
        ids=turn.sampled_ids,
        logprobs=[math.nan] * len(turn.sampled_ids),
        spans=[],
        finish_reason=_finish_reason(turn, recorded),
        sampler=Sampler.IMPORT,
        message=turn.message if is_text else None,
        num_tokens=len(turn.sampled_ids) if is_overflow else None,
    )


def _finish_reason(turn: Turn, recorded: Trajectory) -> Literal["stop", "length", "abort"]:
    """As the engine said; of a script's reply the ending tells whether it was cut."""
    if turn.calls:
        return cast(Literal["stop", "length", "abort"], turn.calls[-1].finish_reason)
    is_cut = turn is recorded.turns_of()[-1] and recorded.stop_reason in CUT and "env" not in turn.timings
    return "length" if is_cut else "stop"
