"""`ctx.chat`: somebody else in the conversation (a user simulator, a judge), asked over an OpenAI-compatible API.

What was asked and answered is a turn of that agent with trained = False: it stands in the trajectory beside the
policy's turns and never gets into Rows. The API gives text and no ids, so the turn holds no ids either; its one
engine call names the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from agentrl.config_servers import ChatConfig
from agentrl.environment import Chat
from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.chat_client import MAX_SEED, ChatClient, ChatReply
from agentrl.rollout.recorder import Recorder
from agentrl.types import EngineCall, Message, Sampler, Trajectory, Turn, derive_seed


class ChatEndpoint(Protocol):
    """Who is asked: a ChatClient, or a record of what one said."""

    @property
    def name(self) -> str:
        """The engine's name in records."""

    async def ask(self, messages: Sequence[Message], *, sampling: dict[str, Any], request_id: str) -> ChatReply:
        """The reply to a conversation. Raises EngineError."""


def chat_client(config: ChatConfig) -> ChatClient:
    """Asks whoever stands behind `chat.url`. Raises ConfigError where the key isn't there."""
    return ChatClient(config, temperature=config.temperature, max_tokens=config.max_tokens)


def recorded_chat(client: ChatEndpoint | None, trajectory: Trajectory, recorder: Recorder) -> Chat:
    """`ctx.chat` of one rollout. Several questions may be on their way at once; turns are in the order of replies."""
    num_asked = 0

    async def chat(agent: str, messages: list[Message]) -> Message:
        nonlocal num_asked
        if client is None:
            raise EngineError("the environment asks ctx.chat, but this loop was built without a chat client")
        if agent == "main":
            raise ValueError('ctx.chat: "main" is the policy itself; name the other side, e.g. "user" or "judge"')
        _check_open(trajectory)
        request_id, num_asked = f"{trajectory.id}-chat-{num_asked}", num_asked + 1
        seed = derive_seed(trajectory.sampling_seed, request_id.removeprefix(trajectory.id)) % MAX_SEED
        started_at, started = time.time(), time.monotonic()
        reply = await client.ask(messages, sampling={"seed": seed}, request_id=request_id)
        if not reply.completion.message.text:
            what = f"{agent!r} was asked as {request_id!r} and said nothing: {client.name} gave an empty reply"
            raise EngineError(what, EngineFault.REFUSED)
        _check_open(trajectory)
        turn = _turn(len(trajectory.turns), agent, messages, reply, request_id, client.name)
        turn.started_at, turn.timings = started_at, {"sample": time.monotonic() - started}
        trajectory.turns.append(turn)  # no await since the index was taken: turns have no gaps
        await recorder.add_turn(trajectory, turn)
        return reply.completion.message

    return chat


def _check_open(trajectory: Trajectory) -> None:
    if trajectory.finished_at is not None:
        raise RuntimeError("ctx.chat: the episode has ended; nothing can be added to it")


def _turn(index: int, agent: str, messages: list[Message], reply: ChatReply, request_id: str, engine: str) -> Turn:
    call = EngineCall(
        start=0,
        end=0,
        version=-1,
        request_id=request_id,
        engine=engine,
        finish_reason=reply.completion.finish_reason,
        sampling=reply.sampling,
    )
    return Turn(
        index=index,
        parent=None,
        keep=0,
        prompt_ids=[],
        sampled_ids=[],
        logprobs=[],
        calls=[call],
        prompt_messages=list(messages),
        message=reply.completion.message,
        agent=agent,
        trained=False,
        sampler=Sampler.TEXT,
    )
