"""Calls a tool as the AgentLoop does."""

from __future__ import annotations

import time
from typing import Any

from agentrl.config import LimitsConfig
from agentrl.rollout.threads import Threads
from agentrl.rollout.tools import ToolRunner
from agentrl.sandbox import Sandbox
from agentrl.tool import Tool, ToolContext
from agentrl.types import CallStatus, ParsedCall, ToolCall


async def use(tool: Tool, box: Sandbox | None, timeout_s: float = 30.0, **arguments: Any) -> ParsedCall:
    """What became of one call."""
    call = ToolCall(id="call_0", name=tool.name, arguments="{}")
    parsed = ParsedCall(call=call, status=CallStatus.NOT_RUN, span=(0, 0), arguments=tool.validate(arguments))
    runner = ToolRunner(LimitsConfig(tool_timeout_s=timeout_s), Threads(0))
    ctx = ToolContext(sandbox=box, seed=0, deadline=time.monotonic() + 600)
    await runner.run_all([parsed], {tool.name: tool}, ctx, "")
    return parsed


async def say(tool: Tool, box: Sandbox, **arguments: Any) -> str:
    """The result of a call that went well."""
    parsed = await use(tool, box, **arguments)
    assert parsed.status is CallStatus.OK, parsed.result
    return parsed.result or ""
