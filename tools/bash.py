"""`bash`: commands in one shell per episode, which keeps its folder and its variables."""

from __future__ import annotations

from agentrl.tool import ToolContext, ToolResult
from agentrl.tools.boxed import MAX_OUTPUT_BYTES, BoxTool, told

NEW_SHELL = "the shell is new: it starts in the working folder, without the variables and jobs of before"


class Bash(BoxTool):
    """The box's shell. Where the box has no bash, it is sh."""

    def __init__(self, *, timeout_s: float = float("inf"), max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        super().__init__(self.bash, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    async def bash(self, command: str, ctx: ToolContext) -> ToolResult:
        """Run a command in a shell that stays open: folder, variables and background jobs are kept between calls.

        It can't answer questions on the terminal. A command that takes too long is stopped.
        """
        timeout_s = self.time_left_s(ctx)
        ran = await self.run_in_shell(command, ctx, timeout_s)
        return told(ran, timeout_s=timeout_s, after_stop=NEW_SHELL)


bash = Bash()
