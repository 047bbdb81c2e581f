"""`search`: lines that match a regular expression. ripgrep does it where the box has it, else Python; both alike."""

from __future__ import annotations

from pathlib import Path

from agentrl.tool import ToolContext, ToolResult
from agentrl.tools.boxed import MAX_OUTPUT_BYTES, BoxTool, box_of, with_notes

MAX_MATCHES = 200
MAX_LINE_BYTES = 400
MAX_ERROR_BYTES = 1000
SOURCE = Path(__file__).with_name("matching.py").read_text(encoding="utf-8")
SCRIPT = f"""
if command -v rg >/dev/null 2>&1; then
  rg --no-config --no-heading --with-filename --line-number --color never --no-ignore --hidden --sort path \
    --glob '!.git' ${{3:+--glob "$3"}} --regexp "$1" -- "$2"
else
  python3 -IS -c "$4" "$1" "$2" "$3"
fi | cut -b -{MAX_LINE_BYTES} | head -n {MAX_MATCHES + 1}
"""


class Search(BoxTool):
    """Reads; so calls of one reply run at once."""

    def __init__(self, *, timeout_s: float = float("inf"), max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        super().__init__(self.search, timeout_s=timeout_s, max_output_bytes=max_output_bytes, read_only=True)

    async def search(self, pattern: str, ctx: ToolContext, path: str = ".", glob: str | None = None) -> ToolResult:
        """Find lines that match a regular expression, in a file or in a folder and all below it.

        `glob` chooses files by their names, e.g. *.py. Binary files are left out.
        """
        timeout_s = self.time_left_s(ctx)
        command = ["sh", "-c", SCRIPT, "search", pattern, path, glob or "", SOURCE]
        ran = await box_of(ctx).exec(command, timeout_s=timeout_s, max_output_bytes=MAX_MATCHES * MAX_LINE_BYTES)
        lines = [line.removeprefix(b"./").rstrip(b"\r") for line in ran.stdout.split(b"\n") if line]
        if not lines and ran.stderr:
            return with_notes(ran.stderr[:MAX_ERROR_BYTES], [], is_error=True)
        shown, notes = self._capped(lines)
        if ran.timed_out:
            notes.append(f"stopped after {timeout_s:.3g} s; search in a smaller folder")
        notes += [] if lines or ran.timed_out else ["no line matches"]
        return with_notes(b"\n".join(shown), notes, is_error=ran.timed_out, timed_out=ran.timed_out)

    def _capped(self, lines: list[bytes]) -> tuple[list[bytes], list[str]]:
        """The first lines, and what is to be said of the others."""
        room, num_shown = self.max_output_bytes, 0
        for line in lines[:MAX_MATCHES]:
            room -= len(line) + 1
            if room < 0 and num_shown:
                break
            num_shown += 1
        note = f"only the first {num_shown} matches; narrow the pattern or the path"
        return lines[:num_shown], [note] if num_shown < len(lines) else []


search = Search()
