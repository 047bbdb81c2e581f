"""The calls of one reply: which run at once, in which order, and what becomes of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from agentrl.config import LimitsConfig
from agentrl.errors import RolloutFault
from agentrl.rollout.threads import Threads
from agentrl.rollout.tools import MAX_CONCURRENT_CALLS, ToolRunner
from agentrl.sandbox import SandboxSpec
from agentrl.testing.faulty_sandbox import FaultyOptions, FaultySandboxes
from agentrl.tool import Tool, ToolContext, ToolResult, tool
from agentrl.types import CallStatus, ParsedCall, ToolCall


class Desk:
    """Tools that note what they do; `read` waits until as many of its calls run as are asked for."""

    def __init__(self, num_together: int = 1) -> None:
        self.events: list[str] = []
        self.num_reading = self.most_reading = 0
        self.num_together = num_together
        self.are_there = asyncio.Event()
        self.tools: list[Tool] = [
            tool(read_only=True)(self.read), tool(self.write), tool(self.stop), tool(read_only=True)(self.last),
            tool(read_only=True)(self.fail),
        ]  # fmt: skip

    async def read(self, name: str) -> str:
        """Read."""
        self.events.append(f"read {name}")
        self.num_reading += 1
        self.most_reading = max(self.most_reading, self.num_reading)
        if self.num_reading >= self.num_together:
            self.are_there.set()
        try:
            await self.are_there.wait()
            await asyncio.sleep(0.01 if name == "a" else 0)  # a ends last
        except asyncio.CancelledError:
            self.events.append(f"ended {name}")
            raise
        finally:
            self.num_reading -= 1
        return f"saw {name}"

    async def write(self, name: str) -> str:
        """Write."""
        assert self.num_reading == 0
        self.events.append(f"write {name}")
        await asyncio.sleep(0)
        return f"wrote {name}"

    async def stop(self, name: str) -> ToolResult:
        """End the episode."""
        return ToolResult(content="over", terminated=True)

    async def last(self, name: str) -> ToolResult:
        """Read, and end the episode."""
        return ToolResult(content="over", terminated=True)

    async def fail(self, name: str) -> str:
        """Fail, when the others are at work."""
        await self.are_there.wait()
        raise RolloutFault("the box is gone")


def calls(*words: str) -> list[ParsedCall]:
    """ "read a" is a call; "? a" is one that can't run."""
    made = []
    for number, (name, argument) in enumerate(word.split() for word in words):
        arguments = None if name == "?" else {"name": argument}
        call = ToolCall(id=str(number), name=name, arguments="{}")
        status = CallStatus.INVALID_JSON if arguments is None else CallStatus.NOT_RUN
        made.append(ParsedCall(call=call, status=status, span=(0, 0), arguments=arguments))
    return made


async def run(tools: Sequence[Tool], parsed: list[ParsedCall], timeout_s: float = 5.0) -> list[str]:
    runner = ToolRunner(LimitsConfig(tool_timeout_s=timeout_s), Threads(0))
    ctx = ToolContext(sandbox=None, seed=0, deadline=time.monotonic() + 60)
    return [result.content for result in await runner.run_all(parsed, {each.name: each for each in tools}, ctx, "")]


async def test_calls_that_only_read_run_at_once_and_answer_in_their_order() -> None:
    desk = Desk(num_together=3)
    parsed = calls("read a", "read b", "read c")
    assert await run(desk.tools, parsed) == ["saw a", "saw b", "saw c"]
    assert desk.most_reading == 3 and [each.status for each in parsed] == [CallStatus.OK] * 3
    assert [each.result for each in parsed] == ["saw a", "saw b", "saw c"]


async def test_a_call_that_changes_something_waits_and_is_waited_for() -> None:
    desk = Desk()
    answers = await run(desk.tools, calls("read a", "write b", "write c", "read d", "read e", "write f"))
    assert answers == ["saw a", "wrote b", "wrote c", "saw d", "saw e", "wrote f"]
    assert desk.events == ["read a", "write b", "write c", "read d", "read e", "write f"]


async def test_a_call_that_cannot_run_is_answered_in_its_place() -> None:
    desk = Desk(num_together=2)
    answers = await run(desk.tools, calls("read a", "? b", "read c"))
    assert (answers[0], answers[2]) == ("saw a", "saw c") and "saw" not in answers[1]
    assert desk.most_reading == 2  # it doesn't stand between the two


@pytest.mark.parametrize("end", ["stop", "last"])
async def test_what_stands_after_the_end_is_not_run_or_counts_as_not_run(end: str) -> None:
    desk = Desk()
    parsed = calls("read a", f"{end} b", "read c", "write d")
    answers = await run(desk.tools, parsed)
    assert answers == ["saw a", "over", *["Not run: the episode has ended."] * 2]
    assert [each.status for each in parsed] == [CallStatus.OK] * 2 + [CallStatus.NOT_RUN] * 2
    assert parsed[2].result is None and "write d" not in desk.events


async def test_R4_a_fault_ends_the_calls_beside_it() -> None:
    desk = Desk(num_together=2)
    with pytest.raises(RolloutFault, match="the box is gone"):
        await run(desk.tools, calls("read a", "fail b", "read a"))
    assert desk.events.count("ended a") == 2 and desk.num_reading == 0


async def test_not_more_at_once_than_allowed() -> None:
    desk = Desk(num_together=MAX_CONCURRENT_CALLS)
    answers = await run(desk.tools, calls(*(f"read {number}" for number in range(50))))
    assert answers == [f"saw {number}" for number in range(50)] and desk.most_reading == MAX_CONCURRENT_CALLS


async def test_a_time_limit_is_each_calls_own() -> None:
    desk = Desk(num_together=2)
    parsed = calls("read a", "write b", "read c")
    answers = await run(desk.tools, parsed, timeout_s=0.2)
    assert answers == ["Error: read took longer than 0.2 s", "wrote b", "Error: read took longer than 0.2 s"]
    assert [each.status for each in parsed] == [CallStatus.TIMEOUT, CallStatus.OK, CallStatus.TIMEOUT]


@tool
async def patient(ctx: ToolContext) -> ToolResult:
    """Works until its deadline, then tells what there is."""
    await asyncio.sleep(ctx.deadline - time.monotonic())
    return ToolResult(content="half of it", is_error=True, timed_out=True)


async def test_a_tool_in_a_box_may_end_its_work_itself_and_tell_of_it() -> None:
    """F07: one limit, handed on; what is cut at it is a time-out with what was printed until then."""
    backend = FaultySandboxes(FaultyOptions(), run="test")
    box = await backend.start(SandboxSpec())
    runner = ToolRunner(LimitsConfig(tool_timeout_s=0.2), Threads(0))
    ctx = ToolContext(sandbox=box, seed=0, deadline=time.monotonic() + 60)
    (parsed,) = calls("patient a")
    parsed.arguments = {}
    started = time.monotonic()
    assert (await runner.run(parsed, {"patient": patient}, ctx)).content == "half of it"
    assert parsed.status is CallStatus.TIMEOUT and time.monotonic() - started >= 0.2
    await backend.close()
