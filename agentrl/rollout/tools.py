"""Runs the tool calls of one reply. Nothing that a tool does can end the process or its siblings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from agentrl.config import LimitsConfig
from agentrl.errors import RolloutFault, ToolFault
from agentrl.tool import FunctionTool, IsolatedTool, Tool, ToolContext, ToolResult, as_result
from agentrl.types import CallStatus, ParsedCall


class ToolRunner:
    """Runs calls with a time limit, and counts the threads that a time limit couldn't end (R4)."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.limits = limits
        self.num_abandoned = 0
        self._process_slots = asyncio.Semaphore(limits.max_tool_processes)

    async def run(self, parsed: ParsedCall, tools: dict[str, Tool], ctx: ToolContext) -> ToolResult:
        """Run one well-formed call; its status, result and seconds are set on `parsed`."""
        assert parsed.arguments is not None
        started = time.monotonic()
        timeout_s = min(self.limits.tool_timeout_s, max(0.0, ctx.deadline - started))
        try:
            result = await self._call(tools[parsed.call.name], parsed.arguments, ctx, timeout_s)
            parsed.status = CallStatus.ERROR if result.is_error else CallStatus.OK
        except TimeoutError:
            parsed.status = CallStatus.TIMEOUT
            result = ToolResult(content=f"Error: {parsed.call.name} took longer than {timeout_s:g} s", is_error=True)
        except RolloutFault:
            raise
        except Exception as error:  # a tool may raise anything; the model gets to see it
            parsed.status = CallStatus.ERROR
            parsed.error = f"{type(error).__name__}: {error}"
            result = ToolResult(content=f"Error: {error or type(error).__name__}", is_error=True)
        parsed.result = result.content
        parsed.seconds = time.monotonic() - started
        return result

    async def _call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext, timeout_s: float) -> ToolResult:
        if isinstance(tool, IsolatedTool):
            async with self._process_slots:  # waiting for a slot is not the tool's time
                return await asyncio.wait_for(tool.call(arguments, ctx), timeout_s)
        if not isinstance(tool, FunctionTool) or tool.is_async:
            return await asyncio.wait_for(tool.call(arguments, ctx), timeout_s)
        return as_result(await self._in_thread(lambda: tool.run(arguments, ctx), timeout_s))

    async def _in_thread(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Run in a daemon thread of its own: one that hangs blocks neither the others nor the exit."""
        if self.num_abandoned > self.limits.max_abandoned_threads:
            raise ToolFault(
                f"{self.num_abandoned} tool threads hang beyond limits.tool_timeout_s and can't be killed; "
                f"make the tool end by itself, or raise limits.max_abandoned_threads"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        thread = threading.Thread(target=_deliver, args=(function, loop, future), name="tool", daemon=True)
        thread.start()
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.num_abandoned += thread.is_alive()
            raise


def _deliver(function: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    try:
        value, error = function(), None
    except Exception as raised:
        value, error = None, raised
    except BaseException as raised:  # SystemExit and the like must not leave the caller waiting
        value, error = None, RuntimeError(f"the tool raised {type(raised).__name__}: {raised}")

    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
