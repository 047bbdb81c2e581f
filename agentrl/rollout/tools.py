"""Runs the tool calls of one reply. Nothing that a tool does can end the process or its siblings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from agentrl.config import LimitsConfig
from agentrl.errors import RolloutFault
from agentrl.rollout.faults import MAX_ERROR_CHARACTERS
from agentrl.rollout.limits import cap_result
from agentrl.rollout.threads import Threads
from agentrl.tool import FunctionTool, IsolatedTool, Tool, ToolContext, ToolResult, as_result
from agentrl.types import CallStatus, ParsedCall


class ToolRunner:
    """Runs calls with a time limit (R4). Sync tools run in threads, so that nobody waits for them."""

    def __init__(self, limits: LimitsConfig, threads: Threads) -> None:
        self.limits = limits
        self.threads = threads
        self._process_slots = asyncio.Semaphore(limits.max_tool_processes)

    async def run(self, parsed: ParsedCall, tools: Mapping[str, Tool], ctx: ToolContext) -> ToolResult:
        """Run one well-formed call; its status, result and seconds are set on `parsed`. Raises RolloutFault."""
        assert parsed.arguments is not None
        started = time.monotonic()
        timeout_s = min(self.limits.tool_timeout_s, max(0.0, ctx.deadline - started))
        tool, limit = tools[parsed.call.name], asyncio.timeout(None)
        # Waiting for a process is not the tool's time.
        slot = self._process_slots if isinstance(tool, IsolatedTool) else nullcontext()
        try:
            async with slot, limit:
                limit.reschedule(asyncio.get_running_loop().time() + timeout_s)
                result = await self._call(tool, parsed.arguments, ctx)
            parsed.status = CallStatus.ERROR if result.is_error else CallStatus.OK
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


def _failure(parsed: ParsedCall, error: Exception, timeout_s: float | None) -> ToolResult:
    """The observation of a call that raised, or that took longer than `timeout_s`."""
    if timeout_s is not None:
        parsed.status = CallStatus.TIMEOUT
        return ToolResult(content=f"Error: {parsed.call.name} took longer than {timeout_s:g} s", is_error=True)
    parsed.status = CallStatus.ERROR
    parsed.error = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
    return ToolResult(content=f"Error: {str(error)[:MAX_ERROR_CHARACTERS] or type(error).__name__}", is_error=True)
