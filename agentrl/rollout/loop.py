"""The AgentLoop: one task to one finished, stored and graded trajectory.

Every rollout ends in exactly one StopReason (R1). What the environment, a tool or the engine raises is attributed
here, at the boundary, and becomes data; nothing reaches the siblings.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from agentrl.config import LimitsConfig, SamplingConfig
from agentrl.environment import Environment, EnvironmentConfig, EnvironmentContext, StepResult
from agentrl.errors import EngineError, RolloutFault, StoreError
from agentrl.interrupts import uninterrupted
from agentrl.lent_box import CLOSE_S, LentBox
from agentrl.place import locate
from agentrl.rollout.boxes import Boxes, lend
from agentrl.rollout.chat import ChatEndpoint, recorded_chat
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.context import Context, Prompt
from agentrl.rollout.faults import MAX_ERROR_CHARACTERS, describe, with_causes
from agentrl.rollout.grading import measure
from agentrl.rollout.hooks import Hooks
from agentrl.rollout.limits import call_budget, ending_of_cut, no_room
from agentrl.rollout.parsers import ParsedReply
from agentrl.rollout.recorder import Recorder
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import engine_error_behind
from agentrl.rollout.samplers import ReplySampler
from agentrl.rollout.structured import check_reply
from agentrl.rollout.threads import Threads
from agentrl.rollout.tools import ToolRunner
from agentrl.rollout.unrendered import Unrendered
from agentrl.tool import ToolContext
from agentrl.types import (
    CallStatus,
    Message,
    Sample,
    StopReason,
    Task,
    Trajectory,
    Turn,
    derive_seed,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSpec:
    """Which rollout to run: its place in the plan, from which all seeds follow."""

    run: str
    task: Task
    group: str | None
    ordinal: int = 0
    lease_generation: int = 0
    sample: int = 0
    attempt: int = 0
    reissue: int = 0
    run_seed: int = 0
    forked_from: tuple[str, int] | None = None

    @property
    def env_seed(self) -> int:
        """Shared by the samples of a group."""
        return derive_seed(self.run_seed, self.task.key, self.ordinal, "env")

    @property
    def sampling_seed(self) -> int:
        """Of this attempt; a re-issue after a crash keeps it."""
        return derive_seed(self.run_seed, self.task.key, self.ordinal, self.sample, self.attempt)


@dataclass(kw_only=True, slots=True)
class _Episode:
    """What one rollout holds while it runs."""

    env: Environment
    trajectory: Trajectory
    sampler: ReplySampler
    deadline: float
    """On the clock of `time.monotonic`."""
    context: Context
    box: LentBox | None
    num_sampled: int = 0
    """Tokens that count against limits.max_episode_tokens."""
    num_bad_replies: int = 0
    """Replies in a row whose calls were all unusable."""


class AgentLoop:
    """Plays episodes of one environment. Thousands of `run` calls may be in flight in one process."""

    def __init__(
        self,
        *,
        env_class: type[Environment],
        env_config: EnvironmentConfig,
        sampler: Callable[[Environment, Trajectory], ReplySampler],
        renderer: Renderer | Unrendered,
        recorder: Recorder,
        limits: LimitsConfig,
        sampling: SamplingConfig,
        window: int,
        chat: ChatEndpoint | None = None,
        boxes: Boxes | None = None,
    ) -> None:
        """`window` is the engine's context length in tokens; `chat`: who answers `ctx.chat`; `boxes`: where an
        environment's box comes from.

        Unrendered: there is no tokenizer, so the sampler must give messages; only the server knows its window then.
        """
        self.env_class = env_class
        self.env_config = env_config
        self.sampler = sampler
        self.renderer = renderer
        self.recorder = recorder
        self.limits = limits
        self.sampling = sampling
        self.window = min(window, limits.max_context_tokens or window)
        self.threads = Threads(limits.max_abandoned_threads)
        self.hooks = Hooks(self.threads)
        self.tool_runner = ToolRunner(limits, self.threads)
        self.chat = chat
        self.boxes = boxes
        self._turnstile = asyncio.Lock() if env_class.one_at_a_time else nullcontext()

    async def run(self, spec: RolloutSpec) -> Sample:
        """Play, store and grade one rollout. Raises StoreError, and CancelledError after recording it."""
        async with self._turnstile:
            trajectory = await self._play_and_store(spec)
        return await self.grade(trajectory)

    async def _play_and_store(self, spec: RolloutSpec) -> Trajectory:
        """From the first record to the last: whatever happens between them, both are written (R1)."""
        trajectory = self._new_trajectory(spec)
        locate(trajectory=trajectory.id)
        await self._begin(trajectory, spec.lease_generation)
        env: Environment | None = None
        box: LentBox | None = None
        try:
            env = self.env_class(self.env_config)
            box = await self._take_box(env, trajectory.task)
            await self._play_to_the_end(env, trajectory, box)
            if trajectory.stop_reason and trajectory.stop_reason.ending.graded:
                await self._collect(env, trajectory, box)
        except asyncio.CancelledError:
            _end(trajectory, StopReason.CANCELLED, "cancelled")
            raise
        except StoreError as error:
            _end(trajectory, StopReason.INTERRUPTED, str(error))
            raise
        except RolloutFault as fault:
            _end(trajectory, fault.stop_reason, str(fault)[:MAX_ERROR_CHARACTERS])
        except Exception as error:
            _end(trajectory, StopReason.ENV_ERROR, describe("environment", error))
        finally:
            await uninterrupted(self._close(env, trajectory, box))
        return trajectory

    async def _begin(self, trajectory: Trajectory, lease_generation: int) -> None:
        """A write can't be called back, so a cancellation that comes meanwhile is recorded as this rollout's ending."""
        try:
            await uninterrupted(self.recorder.begin(trajectory, lease_generation))
        except asyncio.CancelledError:
            _end(trajectory, StopReason.CANCELLED, "cancelled")
            await uninterrupted(self._close(None, trajectory, None))
            raise

    async def _take_box(self, env: Environment, task: Task) -> LentBox | None:
        """The box that the environment asks for. The wait for it is not the episode's time."""
        limits = self.limits
        hold_s = limits.episode_timeout_s + CLOSE_S + limits.grade_timeout_s + limits.tool_timeout_s
        return await lend(self.boxes, self.hooks.sandbox(env, task), hold_s=hold_s)

    # ---- one episode ----

    async def _play_to_the_end(self, env: Environment, trajectory: Trajectory, box: LentBox | None) -> None:
        deadline = time.monotonic() + self.limits.episode_timeout_s
        sampler = self.sampler(env, trajectory)
        episode = _Episode(
            env=env, trajectory=trajectory, sampler=sampler, deadline=deadline, context=Context(self.renderer), box=box
        )
        try:
            async with asyncio.timeout(self.limits.episode_timeout_s):
                reason = await self._play(episode)
            _end(trajectory, reason, None)
        except TimeoutError as error:
            fault = engine_error_behind(error)
            what = f"longer than {self.limits.episode_timeout_s:g} s (limits.episode_timeout_s)"
            if fault is None:
                _end(trajectory, StopReason.EPISODE_TIMEOUT, what)
            else:  # the engine failed the whole time: the agent had no chance
                text = f"the episode took {what}; caused by {with_causes(fault)}"
                _end(trajectory, StopReason.ENGINE_ERROR, text[:MAX_ERROR_CHARACTERS])
        except RolloutFault as fault:
            _end(trajectory, fault.stop_reason, str(fault)[:MAX_ERROR_CHARACTERS])

    async def _play(self, episode: _Episode) -> StopReason:
        messages = await self._reset(episode)  # may also choose the tools
        prompt = episode.context.start(messages, [tool.spec() for tool in episode.env.tools])
        while len(episode.trajectory.turns_of()) < self.limits.max_turns:
            max_tokens, bound = call_budget(self.limits, self.window, prompt.num_ids, episode.num_sampled)
            if max_tokens < 1:
                raise RolloutFault.of(bound, no_room(episode.trajectory, prompt.num_ids, bound, self.window))
            turn, generation = await self._sample_turn(episode, prompt, max_tokens)
            if generation.finish_reason == "length":
                return ending_of_cut(generation, max_tokens, bound)
            step = await self._answer(episode, turn)
            if step.terminated or step.truncated:
                return StopReason.COMPLETED if step.terminated else StopReason.ENV_TRUNCATED
            if episode.num_bad_replies >= self.limits.max_bad_calls:
                return StopReason.PARSE_LIMIT
            prompt = episode.context.follow(self._capped(step.messages), step.history)
        return StopReason.MAX_TURNS

    async def _reset(self, episode: _Episode) -> list[Message]:
        trajectory = episode.trajectory
        chat = recorded_chat(self.chat, trajectory, self.recorder)
        ctx = EnvironmentContext(sandbox=episode.box, seed=trajectory.env_seed, deadline=episode.deadline, chat=chat)
        return await self.hooks.reset(episode.env, trajectory.task, ctx)

    async def _sample_turn(self, episode: _Episode, prompt: Prompt, max_tokens: int) -> tuple[Turn, Generation]:
        """Sample and record one turn."""
        trajectory, context = episode.trajectory, episode.context
        locate(turn=len(trajectory.turns))
        started_at, started = time.time(), time.monotonic()
        params = self._params(trajectory, len(trajectory.turns_of()), max_tokens)
        context.take(prompt)
        generation = await self._generate(episode, params, f"{trajectory.id}-{len(trajectory.turns)}")
        episode.num_sampled += generation.num_sampled
        turn = self._make_turn(episode, generation, params, prompt)
        turn.started_at = started_at
        turn.timings["sample"] = _seconds(time.monotonic() - started)
        context.reply(turn.index, turn.sampled_ids, turn.message)
        trajectory.turns.append(turn)
        await self.recorder.add_turn(trajectory, turn)
        return turn, generation

    async def _generate(self, episode: _Episode, params: SamplingParams, request_id: str) -> Generation:
        """Raises EngineError for what isn't done in time, and for whatever the sampler raises but RolloutFault."""
        timeout_s = self.limits.turn_timeout_s
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                context = episode.context
                return await episode.sampler.sample(context.ids, context.messages, params, request_id)
        except RolloutFault:
            raise
        except Exception as error:
            if limit.expired():
                text, fault = (
                    f"{request_id}: no reply within limits.turn_timeout_s={timeout_s:g}",
                    engine_error_behind(error),
                )
                raise EngineError(f"{text}; caused by {with_causes(fault)}" if fault else text) from fault
            raise EngineError(describe(f"the engine's client, asked for {request_id},", error)) from error

    def _params(self, trajectory: Trajectory, index: int, max_tokens: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            seed=derive_seed(trajectory.sampling_seed, index),
            stop_token_ids=tuple(self.renderer.stop_ids),
        )

    def _make_turn(self, episode: _Episode, generation: Generation, params: SamplingParams, prompt: Prompt) -> Turn:
        index = len(episode.trajectory.turns)
        parsed = self._read_reply(episode, generation, f"call_{index}_")
        for call in parsed.calls:
            if call.arguments is not None:
                call.status = CallStatus.NOT_RUN  # until it has run
        return Turn(
            index=index,
            parent=prompt.parent,
            keep=prompt.keep,
            prompt_ids=prompt.new_ids,
            sampled_ids=generation.ids,
            logprobs=generation.logprobs,
            calls=generation.calls(params),
            prompt_messages=list(prompt.new_messages),
            message=parsed.message,
            tool_calls=parsed.calls,
            sampler=generation.sampler,
        )

    def _read_reply(self, episode: _Episode, generation: Generation, call_prefix: str) -> ParsedReply:
        """Message and calls, parsed from the ids or as the server has read them."""
        tools = {tool.name: tool for tool in episode.env.tools}
        is_cut = generation.finish_reason == "length"
        if generation.message is not None:
            return check_reply(generation.message, tools=tools, truncated=is_cut, call_prefix=call_prefix)
        assert isinstance(self.renderer, Renderer), "there are ids only where there is a tokenizer"
        parser = self.renderer.parser.after(self.renderer.ends_in_think(episode.context.ids))
        return parser.parse(
            generation.ids,
            self.renderer.decode,
            tools=tools,
            stop_ids=self.renderer.closing_ids,
            truncated=is_cut,
            call_prefix=call_prefix,
        )

    # ---- tools and the environment's answer ----

    async def _answer(self, episode: _Episode, turn: Turn) -> StepResult:
        started = time.monotonic()
        ctx = ToolContext(sandbox=episode.box, seed=episode.trajectory.env_seed, deadline=episode.deadline)
        tools = {tool.name: tool for tool in episode.env.tools}
        results = await self.tool_runner.run_all(turn.tool_calls, tools, ctx, self.renderer.call_form)
        turn.timings["tools"] = _seconds(time.monotonic() - started)
        bad = bool(turn.tool_calls) and all(call.arguments is None for call in turn.tool_calls)
        episode.num_bad_replies = episode.num_bad_replies + 1 if bad else 0
        step = await self.hooks.step(episode.env, turn.message, results)
        turn.reward = float(step.reward)
        turn.timings["env"] = _seconds(time.monotonic() - started - turn.timings["tools"])
        await self.recorder.update_turn(episode.trajectory, turn)
        return step

    def _capped(self, messages: list[Message]) -> list[Message]:
        def cap(message: Message) -> Message:
            text = self.renderer.cap(message.text, self.limits.max_observation_tokens)
            return message if text == message.text else message.model_copy(update={"content": text})

        return [cap(message) for message in messages]

    # ---- the end ----

    async def _collect(self, env: Environment, trajectory: Trajectory, box: LentBox | None) -> None:
        try:
            if box is not None:
                await box.close_sessions()
            trajectory.artifacts = await self.hooks.collect(env, self.limits.grade_timeout_s)
        except RolloutFault as fault:
            _end(trajectory, fault.stop_reason, str(fault)[:MAX_ERROR_CHARACTERS])

    async def _close(self, env: Environment | None, trajectory: Trajectory, box: LentBox | None) -> None:
        if env is not None:
            await self.hooks.close(env, self.limits.tool_timeout_s)
        if box is not None:
            await box.stop()  # before grading: no process of the agent is left then
        trajectory.finished_at = time.time()
        await self.recorder.finish(trajectory)

    async def grade(self, trajectory: Trajectory, lease_generation: int | None = None) -> Sample:
        """Grade a finished trajectory and store the grade; see Recorder.add_grade. Raises StoreError."""
        assert trajectory.stop_reason is not None
        if not trajectory.stop_reason.ending.graded:
            return Sample(trajectory=trajectory, grade=None)
        grade = await measure(self.threads, self.env_class, trajectory, self.limits.grade_timeout_s, self.boxes)
        grade_id = await self.recorder.add_grade(trajectory, grade, lease_generation)
        return Sample(trajectory=trajectory, grade=grade, grade_id=grade_id)

    def _new_trajectory(self, spec: RolloutSpec) -> Trajectory:
        return Trajectory(
            id=secrets.token_hex(8),
            run=spec.run,
            task=spec.task,
            group=spec.group,
            sample=spec.sample,
            attempt=spec.attempt,
            reissue=spec.reissue,
            env_seed=spec.env_seed,
            sampling_seed=spec.sampling_seed,
            env_version=self.env_class.version,
            renderer_mode=self.renderer.mode,
            template_hash=self.renderer.template_hash,
            forked_from=spec.forked_from,
            started_at=time.time(),
        )


def _end(trajectory: Trajectory, reason: StopReason, error: str | None) -> None:
    trajectory.stop_reason = reason
    trajectory.error = error


def _seconds(measured: float) -> float:
    """To the microsecond: more digits mean nothing, and take room in every turn."""
    return round(measured, 6)
