"""Runs the tool calls of one reply. Nothing that a tool does can end the process or its siblings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from agentrl.config import LimitsConfig
from agentrl.errors import RolloutFault
from agentrl.rollout.faults import MAX_ERROR_CHARACTERS
from agentrl.rollout.limits import cap_result
from agentrl.rollout.parsers.checking import bad_call_observation
from agentrl.rollout.threads import Threads
from agentrl.tool import FunctionTool, IsolatedTool, Tool, ToolContext, ToolResult, as_result
from agentrl.types import CallStatus, ParsedCall

MAX_CONCURRENT_CALLS = 8
"""Of one reply; a model may write hundreds of calls into one."""
MAX_ECHO_CHARACTERS = 200
"""Of its own bad call that the model is shown."""
BOX_GRACE_S = 2.0
"""How long a tool that works in a box has after its time limit, to end there what it started and to tell of it."""


class ToolRunner:
    """Runs calls with a time limit (R4). Sync tools run in threads, so that nobody waits for them."""

    def __init__(self, limits: LimitsConfig, threads: Threads) -> None:
        self.limits = limits
        self.threads = threads
        self._process_slots = asyncio.Semaphore(limits.max_tool_processes)

    async def run_all(
        self, calls: Sequence[ParsedCall], tools: Mapping[str, Tool], ctx: ToolContext, call_form: str
    ) -> list[ToolResult]:
        """Run the calls of one reply; the results stand in the order of the calls. Raises RolloutFault.

        Calls of read-only tools that stand side by side run at once. Any other call waits for those before it, and
        those after it wait for it. What stands after a call that ended the episode is not run.
        """
        answers: list[ToolResult] = []
        for batch in _batches(calls, tools):
            if any(answer.terminated for answer in answers):
                break
            answers += await _at_once([partial(self._answer, parsed, tools, ctx, call_form) for parsed in batch])
        num_answers = 1 + next((i for i, answer in enumerate(answers) if answer.terminated), len(answers) - 1)
        return answers[:num_answers] + [_not_run(parsed) for parsed in calls[num_answers:]]

    async def _answer(
        self, parsed: ParsedCall, tools: Mapping[str, Tool], ctx: ToolContext, call_form: str
    ) -> ToolResult:
        return (
            await self.run(parsed, tools, ctx) if parsed.arguments is not None else _refused(parsed, tools, call_form)
        )

    async def run(self, parsed: ParsedCall, tools: Mapping[str, Tool], ctx: ToolContext) -> ToolResult:
        """Run one well-formed call; its status, result and seconds are set on `parsed`. Raises RolloutFault."""
        assert parsed.arguments is not None
        started = time.monotonic()
        timeout_s = min(self.limits.tool_timeout_s, max(0.0, ctx.deadline - started))
        tool, limit = tools[parsed.call.name], asyncio.timeout(None)
        grace_s = BOX_GRACE_S if ctx.sandbox is not None else 0.0
        # Waiting for a process is not the tool's time.
        slot = self._process_slots if isinstance(tool, IsolatedTool) else nullcontext()
        try:
            async with slot, limit:
                limit.reschedule(asyncio.get_running_loop().time() + timeout_s + grace_s)
                own = replace(ctx, deadline=time.monotonic() + timeout_s)
                result = await self._call(tool, parsed.arguments, own)
            parsed.status = _status(result)
        except RolloutFault:
            raise
        except Exception as error:  # a tool may raise anything, TimeoutError too; the model gets to see it
            result = _failure(parsed, error, timeout_s if limit.expired() else None)
        parsed.result = result.content
        parsed.seconds = time.monotonic() - started
        return result

    async def _call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        def finish(value: Any) -> ToolResult:
            result = as_result(value)
            # A flood is cut before anything else holds it.
            content = cap_result(result.content, self.limits.max_result_characters)
            return result if content is result.content else replace(result, content=content)

        if isinstance(tool, FunctionTool) and not tool.is_async:
            finished: ToolResult = await self.threads.call(lambda: finish(tool.run(arguments, ctx)))
            return finished
        return finish(await self.threads.call(tool.call, arguments, ctx))


def _batches(calls: Sequence[ParsedCall], tools: Mapping[str, Tool]) -> Iterator[list[ParsedCall]]:
    """The calls in order: those that may run at once are together, any other is alone."""

    def changes_nothing(parsed: ParsedCall) -> bool:
        return parsed.arguments is None or tools[parsed.call.name].read_only

    for at_once, batch in groupby(calls, changes_nothing):
        if at_once:
            yield list(batch)
        else:
            yield from ([parsed] for parsed in batch)


async def _at_once(calls: Sequence[Callable[[], Awaitable[ToolResult]]]) -> list[ToolResult]:
    """All results, in the order of the calls. Where one raises, the others are ended first (R4)."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def run(call: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        async with slots:
            return await call()

    if len(calls) == 1:
        return [await calls[0]()]
    tasks = [asyncio.create_task(run(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _status(result: ToolResult) -> CallStatus:
    if result.timed_out:
        return CallStatus.TIMEOUT
    return CallStatus.ERROR if result.is_error else CallStatus.OK


def _not_run(parsed: ParsedCall) -> ToolResult:
    parsed.status, parsed.result = CallStatus.NOT_RUN, None  # read-only calls may have run: nobody sees what they saw
    return ToolResult(content="Not run: the episode has ended.", is_error=True)


def _refused(parsed: ParsedCall, tools: Mapping[str, Tool], form: str) -> ToolResult:
    content = bad_call_observation(parsed, tools, MAX_ECHO_CHARACTERS, form)
    parsed.result = content
    return ToolResult(content=content, is_error=True)


def _failure(parsed: ParsedCall, error: Exception, timeout_s: float | None) -> ToolResult:
    """The observation of a call that raised, or that took longer than `timeout_s`."""
    if timeout_s is not None:
        parsed.status = CallStatus.TIMEOUT
        return ToolResult(content=f"Error: {parsed.call.name} took longer than {timeout_s:g} s", is_error=True)
    parsed.status = CallStatus.ERROR
    parsed.error = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
    return ToolResult(content=f"Error: {str(error)[:MAX_ERROR_CHARACTERS] or type(error).__name__}", is_error=True)
