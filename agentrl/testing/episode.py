"""One episode played by a policy that writes messages: no model, no ids, no store.

For the contract suite: each hook of the environment has a time limit and its result is checked as it comes, so that
a mistake is told where it happens. A real run plays the same hooks in the same order.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentrl.environment import Chat, Environment, EnvironmentConfig, EnvironmentContext, Oracle, StepResult, no_chat
from agentrl.lent_box import LentBox
from agentrl.sandbox import SandboxSpec
from agentrl.testing.boxes import CheckBoxes, NoBox
from agentrl.tool import FunctionTool, Tool, ToolContext, ToolResult, as_result
from agentrl.types import (
    Artifacts,
    CallStatus,
    Grade,
    Message,
    ParsedCall,
    Sampler,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

T = TypeVar("T")
GRACE_S = 2.0
"""How long something that was cancelled may take to end."""
MAX_HOLD_S = 3600.0
"""Of a box; each hook has its own limit."""


class ContractError(Exception):
    """What an environment did that the contract doesn't allow, and what to do."""


@dataclass(kw_only=True)
class Stage:
    """What episodes are played with, and which hook runs now."""

    env_class: type[Environment]
    options: EnvironmentConfig
    chat: Chat
    boxes: CheckBoxes
    timeout_s: float
    grade_timeout_s: float
    """Of `collect` and `grade`."""
    max_turns: int
    now: str = "tasks"
    """Told where an event loop is blocked."""

    async def timed(self, hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a hook; a plain function runs in a thread, as in a run.

        Raises ContractError where it raises or takes too long; what takes too long is cancelled.
        """
        self.now = hook
        timeout_s = self.grade_timeout_s if hook in ("collect", "grade") else self.timeout_s
        task = asyncio.ensure_future(called(hook, function, *arguments))
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            await ended(task, hook)
            raise ContractError(f"{hook} took longer than {timeout_s:g} s; what may hang needs a limit of its own")
        try:
            return task.result()
        except Exception as error:
            raise ContractError(f"{hook} raised {type(error).__name__}: {error}") from error


async def ended(task: asyncio.Future[Any], hook: str) -> None:
    """Cancel. Raises ContractError where the task goes on nevertheless."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=GRACE_S)
    if not done:
        raise ContractError(
            f"{hook} goes on after it was cancelled; let asyncio.CancelledError pass: don't catch BaseException"
        )


@dataclass(kw_only=True)
class Episode:
    """An episode in the making: its environment and what was said."""

    stage: Stage
    env: Environment
    trajectory: Trajectory
    seed: int
    is_hostile: bool = False
    """A call that can't run, or hangs, gets an error; otherwise it is a mistake of the oracle or the tool."""
    messages: list[Message] = field(default_factory=list)
    box: LentBox | None = None

    @classmethod
    def of(cls, stage: Stage, task: Task, seed: int = 0) -> Episode:
        """Before reset. Raises ContractError where the environment can't be made."""
        stage.now = "__init__"
        try:
            env = stage.env_class(stage.options)
        except Exception as error:
            raise ContractError(f"__init__ raised {type(error).__name__}: {error}; it gets the config alone") from error
        trajectory = Trajectory(id=uuid.uuid4().hex, run="check", task=task, group=None, env_seed=seed)
        return cls(stage=stage, env=env, trajectory=trajectory, seed=seed)

    @property
    def deadline(self) -> float:
        return time.monotonic() + self.stage.timeout_s

    async def reset(self) -> list[Message]:
        self.box = await take_box(self.stage, "sandbox", lambda: self.env.sandbox(self.trajectory.task))
        ctx = EnvironmentContext(sandbox=self.box, seed=self.seed, deadline=self.deadline, chat=self._chat)
        messages = await self.stage.timed("reset", self.env.reset, self.trajectory.task, ctx)
        _check_messages("reset", messages)
        if not messages:
            raise ContractError("reset returned no messages; a model needs at least one to reply to")
        checked: list[Message] = messages
        return checked

    async def take_turn(self, policy: Oracle, new: list[Message]) -> StepResult:
        """One reply and what the environment answers."""
        self.messages += new
        turn = self._reply(policy, new)
        results = [await self._run(call) for call in turn.tool_calls]
        self.stage.now = "step"
        step = await self.stage.timed("step", self.env.step, turn.message, results)
        if not isinstance(step, StepResult):
            raise ContractError(f"step returned {type(step).__name__}; return a StepResult")
        _check_messages("step", step.messages)
        if step.history is not None:
            _check_messages("step's history", step.history)
            self.messages = list(step.history)
        _check_number("step's reward", step.reward)
        turn.reward = step.reward
        return step

    async def collect(self) -> Artifacts:
        if self.box is not None:
            await self.box.close_sessions()
        artifacts = await self.stage.timed("collect", self.env.collect)
        if not isinstance(artifacts, Artifacts):
            raise ContractError(f"collect returned {type(artifacts).__name__}; return Artifacts")
        self.trajectory.artifacts = stored_artifacts(artifacts)
        self.trajectory.finished_at = time.time()
        return artifacts

    async def close(self) -> None:
        try:
            await self.stage.timed("close", self.env.close)
        finally:
            if self.box is not None:
                await self.box.stop()

    def _reply(self, policy: Oracle, new: list[Message]) -> Turn:
        index = len(self.trajectory.turns)
        message = policy(list(self.messages))
        if not isinstance(message, Message) or message.role != "assistant":
            raise ContractError(f"the policy returned {message!r}; return a Message with role='assistant'")
        turn = _turn(index, "main", new, message, Sampler.SCRIPTED)
        turn.tool_calls = [_parsed(call, self.env.tools) for call in message.tool_calls]
        self.trajectory.turns.append(turn)
        self.messages.append(message)
        return turn

    async def _run(self, parsed: ParsedCall) -> ToolResult:
        if parsed.arguments is None and self.is_hostile:
            return ToolResult(content=f"Error: {parsed.error}", is_error=True)
        if parsed.arguments is None:
            raise ContractError(f"the oracle's call of {parsed.call.name} can't run: {parsed.error}")
        (tool,) = [tool for tool in self.env.tools if tool.name == parsed.call.name]
        ctx = ToolContext(sandbox=self.box, seed=self.seed, deadline=self.deadline)
        self.stage.now = f"tool {tool.name}"
        try:
            result = await asyncio.wait_for(_call(tool, parsed.arguments, ctx), self.stage.timeout_s)
        except TimeoutError:
            late = f"{tool.name} took longer than {self.stage.timeout_s:g} s"
            if not self.is_hostile:
                raise ContractError(f"tool {late}") from None
            result = ToolResult(content=f"Error: {late}", is_error=True)
        except Exception as error:  # as in a run: the model gets to see it
            result = ToolResult(content=f"Error: {error or type(error).__name__}", is_error=True)
        parsed.status = CallStatus.ERROR if result.is_error else CallStatus.OK
        parsed.result = result.content
        return result

    async def _chat(self, agent: str, messages: list[Message]) -> Message:
        reply = await self.stage.chat(agent, messages)
        turn = _turn(len(self.trajectory.turns), agent, messages, reply, Sampler.TEXT)
        turn.trained = False
        self.trajectory.turns.append(turn)
        return reply


async def play(
    stage: Stage, task: Task, policy: Callable[[Environment], Oracle], seed: int = 0, *, is_hostile: bool = False
) -> Trajectory:
    """A whole episode, closed whatever happens. Its artifacts are as the store would give them back."""
    episode = Episode.of(stage, task, seed)
    episode.is_hostile = is_hostile
    try:
        act = policy(episode.env)
        new, reason = await episode.reset(), StopReason.MAX_TURNS
        while len(episode.trajectory.turns_of()) < stage.max_turns:
            step = await episode.take_turn(act, new)
            new = step.messages
            if step.terminated or step.truncated:
                reason = StopReason.COMPLETED if step.terminated else StopReason.ENV_TRUNCATED
                break
        episode.trajectory.stop_reason = reason
        await episode.collect()
    finally:
        await episode.close()
    return episode.trajectory


async def grade(stage: Stage, trajectory: Trajectory) -> Grade:
    """The grade of a finished episode. Raises ContractError where it isn't one, or couldn't be measured."""
    grader, task = stage.env_class.grade, trajectory.task
    box = await take_box(stage, "grading_sandbox", lambda: stage.env_class.grading_sandbox(task))
    try:
        deadline = time.monotonic() + stage.grade_timeout_s
        ctx = EnvironmentContext(sandbox=box, seed=trajectory.env_seed, deadline=deadline, chat=no_chat)
        result = await stage.timed("grade", grader, task, trajectory, trajectory.artifacts, ctx)
    finally:
        if box is not None:
            await box.stop()
    if not isinstance(result, Grade):
        raise ContractError(f"grade returned {type(result).__name__}; return a Grade")
    settled = result.settled()
    if settled.reward is None:
        raise ContractError(f"grade could not measure: {settled.unmeasured}")
    return settled


async def take_box(stage: Stage, hook: str, ask: Callable[[], SandboxSpec | None]) -> LentBox | None:
    """The box that a hook asks for, if it does. Raises ContractError where it can't be had."""
    stage.now = hook
    spec = ask()
    if spec is not None and not isinstance(spec, SandboxSpec):
        raise ContractError(f"{hook} returned {type(spec).__name__}; return a SandboxSpec or None")
    try:
        return await stage.boxes.start(spec, hold_s=MAX_HOLD_S)
    except NoBox as error:
        raise ContractError(f"{hook}: {error}") from error


def stored_artifacts(artifacts: Artifacts) -> Artifacts:
    """As they come back from the store: values through JSON, files as copies."""
    try:
        data = json.loads(json.dumps(artifacts.data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ContractError(f"collect's data can't be stored as JSON: {error}") from None
    return Artifacts(data=data, files=dict(artifacts.files))


def _call(tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Awaitable[ToolResult]:
    if isinstance(tool, FunctionTool) and not tool.is_async:
        return in_thread(f"tool {tool.name}", lambda: as_result(tool.run(arguments, ctx)))
    return tool.call(arguments, ctx)


async def called(hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a hook returns: a coroutine function runs in the event loop, any other in a thread, as in a run."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    value = await in_thread(hook, lambda: function(*arguments))
    return await value if inspect.isawaitable(value) else value


async def in_thread(name: str, function: Callable[[], T]) -> T:
    """Run in a daemon thread: one that hangs keeps neither the loop nor the interpreter from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = function()
        except Exception as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


def _parsed(call: ToolCall, tools: Sequence[Tool]) -> ParsedCall:
    """A call as the loop would have read it."""
    parsed = ParsedCall(call=call, status=CallStatus.NOT_RUN, span=(0, 0))
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        parsed.status, parsed.error = CallStatus.UNKNOWN_TOOL, "no such tool in `tools`"
        return parsed
    try:
        arguments = json.loads(call.arguments)
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are no JSON object")
        parsed.arguments = tool.validate(arguments)
    except ValueError as error:
        parsed.status, parsed.error = CallStatus.INVALID_ARGUMENTS, str(error)
    return parsed


def _turn(index: int, agent: str, new: list[Message], message: Message, sampler: Sampler) -> Turn:
    return Turn(
        index=index,
        parent=None,
        keep=0,
        prompt_ids=[],
        sampled_ids=[],
        logprobs=[],
        calls=[],
        prompt_messages=list(new),
        message=message,
        agent=agent,
        sampler=sampler,
    )


def _check_messages(hook: str, messages: Any) -> None:
    if not isinstance(messages, list) or not all(isinstance(message, Message) for message in messages):
        raise ContractError(f"{hook} returned {type(messages).__name__} where a list of Message is due")
    if hook == "step" and any(message.role == "assistant" for message in messages):
        raise ContractError("step returned an assistant's message; replies come from the policy alone")


def _check_number(what: str, value: Any) -> None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ContractError(f"{what} is {value!r}; it must be a finite number")
