"""What the tools that work in a box share: which box, the limits of a call, and how a command's end is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.sandbox import ExecResult, Sandbox
from agentrl.tool import FunctionTool, ToolContext, ToolResult

MAX_OUTPUT_BYTES = 12_000
"""About 4,000 tokens. The observation may be cut further, by limits.max_observation_tokens."""
MIN_TIME_S = 0.001


class BoxTool(FunctionTool):
    """A tool whose work is done in the episode's box. A subclass is made of one typed method."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        timeout_s: float = float("inf"),
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        read_only: bool = False,
    ) -> None:
        """`timeout_s` of one call; limits.tool_timeout_s bounds it too. `max_output_bytes`: head and tail are kept."""
        super().__init__(function, read_only=read_only)
        self.timeout_s = timeout_s
        self.max_output_bytes = max_output_bytes

    def time_left_s(self, ctx: ToolContext) -> float:
        """How long the command of this call may take."""
        return max(MIN_TIME_S, min(self.timeout_s, ctx.deadline - time.monotonic()))

    async def run_in_shell(self, command: str, ctx: ToolContext, timeout_s: float) -> ExecResult:
        """Run in this tool's own shell of the box, which stays open from call to call."""
        box = box_of(ctx)
        shell = box.shells.get(self.name) or await box.session()
        box.shells[self.name] = shell
        try:
            return await shell.run(command, timeout_s=timeout_s, max_output_bytes=self.max_output_bytes)
        except asyncio.CancelledError:  # what runs there must not go on beside the next call
            del box.shells[self.name]
            await shell.close()
            raise


def box_of(ctx: ToolContext) -> Sandbox:
    """The episode's box. Raises RuntimeError where the environment asked for none."""
    if ctx.sandbox is None:
        raise RuntimeError("there is no box to work in: the environment's `sandbox` must return a SandboxSpec")
    return ctx.sandbox


def told(ran: ExecResult, *, timeout_s: float, after_stop: str, plain_codes: Sequence[int] = (0,)) -> ToolResult:
    """What a command printed, and below it, in brackets, what else there is to know.

    The notes stand last, because the tail of an observation is kept. `after_stop`: how things are where the shell
    was ended; `plain_codes`: exit codes of which nothing is said.
    """
    notes = []
    if ran.timed_out:
        notes.append(f"stopped after {timeout_s:.3g} s, with all it had started; {after_stop}")
    elif ran.exit_code not in plain_codes:
        notes.append(f"exit code {ran.exit_code}" + (f"; {after_stop}" if ran.shell_ended else ""))
    if ran.out_of_memory:
        notes.append("out of memory: the box's memory limit ended a process")
    if ran.num_left_out_bytes:
        notes.append(f"{ran.num_left_out_bytes} bytes of the output are left out; write less, or into a file")
    is_error = ran.timed_out or ran.exit_code != 0
    return with_notes(ran.stdout + ran.stderr, notes, is_error=is_error, timed_out=ran.timed_out)


def with_notes(output: bytes, notes: list[str], *, is_error: bool = False, timed_out: bool = False) -> ToolResult:
    """Output as text, whose invalid UTF-8 can be restored, with notes below it."""
    text = output.decode("utf-8", "surrogateescape")
    below = "".join(f"[{note}]\n" for note in notes) or ("" if text else "[no output]\n")
    gap = "\n" if text and below and not text.endswith("\n") else ""
    return ToolResult(content=f"{text}{gap}{below}".removesuffix("\n"), is_error=is_error, timed_out=timed_out)
