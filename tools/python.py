"""`python`: code in one interpreter per episode, which keeps what was defined.

The interpreter is a background job of a shell of its own in the box, so what ends the shell at a time limit ends it.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from agentrl.sandbox import ExecResult
from agentrl.tool import ToolContext, ToolResult
from agentrl.tools.boxed import MAX_OUTPUT_BYTES, BoxTool, told, with_notes
from agentrl.tools.interpreter import ENDED, NO_INTERPRETER, RAISED

SOURCE = Path(__file__).with_name("interpreter.py").read_text(encoding="utf-8")
NEW_INTERPRETER = "the next call starts a new interpreter: imports and variables of before are gone"
NO_START = "no interpreter could be started; it needs python3 and room in /tmp"
START = """
interpreter=$(mktemp -d) && cat > "$interpreter/interpreter.py" <<'{end}'
{source}
{end}
python3 -u "$interpreter/interpreter.py" serve "$interpreter" </dev/null >/dev/null 2>&1 &
looks=0
until [ -S "$interpreter/socket" ] || [ $looks -gt 1000 ] || ! kill -0 $! 2>/dev/null; do
  looks=$((looks + 1)); sleep 0.01
done
"""
CALL = """
if [ -S "$interpreter/socket" ]; then python3 -IS "$interpreter/interpreter.py" call "$interpreter" <<'{end}'
{code}
{end}
else (exit {no_interpreter}); fi
"""


class Python(BoxTool):
    """The box's python3."""

    def __init__(self, *, timeout_s: float = float("inf"), max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        super().__init__(self.python, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    async def python(self, code: str, ctx: ToolContext) -> ToolResult:
        """Run Python code. Imports, variables and functions are kept between calls.

        What it prints is shown, and the value of the last line where that is an expression. Code that takes too long
        is stopped.
        """
        if "\0" in code:
            raise ValueError("the code holds a NUL character; write it as \\0 in a string")
        timeout_s = self.time_left_s(ctx)
        ran = await self._call(code, ctx)
        if ran.exit_code == NO_INTERPRETER and not ran.timed_out:
            await self.run_in_shell(_filled(START, source=SOURCE), ctx, self.time_left_s(ctx))
            ran = await self._call(code, ctx)
        if ran.exit_code == NO_INTERPRETER and not ran.timed_out:
            return with_notes(ran.stdout, [NO_START], is_error=True)
        if ran.exit_code == ENDED:
            return with_notes(ran.stdout, [f"the interpreter ended; {NEW_INTERPRETER}"], is_error=True)
        return told(ran, timeout_s=timeout_s, after_stop=NEW_INTERPRETER, plain_codes=(0, RAISED))

    async def _call(self, code: str, ctx: ToolContext) -> ExecResult:
        line = _filled(CALL, code=code, no_interpreter=str(NO_INTERPRETER))
        return await self.run_in_shell(line, ctx, self.time_left_s(ctx))


def _filled(script: str, **parts: str) -> str:
    """A script with its parts. The word that ends a here-document is drawn, so no code can hold it."""
    return script.format(end=f"END_{secrets.token_hex(8)}", **parts)


python = Python()
