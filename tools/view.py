"""`view`: a file with line numbers, or what is in a folder."""

from __future__ import annotations

from agentrl.sandbox import Sandbox
from agentrl.tool import ToolContext, ToolResult
from agentrl.tools.boxed import MAX_OUTPUT_BYTES, BoxTool, box_of, with_notes

MAX_FILE_BYTES = 8 * 1024**2
MAX_LINE_BYTES = 2000
MAX_ENTRIES = 500
LIST = """cd -- "$1" && find . -mindepth 1 -maxdepth 2 -name .git -prune -o -mindepth 1 -maxdepth 2 \
\\( -type d -exec printf '%s/\\n' {} + -o -print \\) | LC_ALL=C sort"""


class View(BoxTool):
    """Reads; so calls of one reply run at once."""

    def __init__(self, *, timeout_s: float = float("inf"), max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        super().__init__(self.view, timeout_s=timeout_s, max_output_bytes=max_output_bytes, read_only=True)

    async def view(self, path: str, ctx: ToolContext, first: int = 1, last: int | None = None) -> ToolResult:
        """Show the lines of a file with their numbers, from line `first` to line `last`; or what a folder holds.

        A path that doesn't begin with / starts at the working folder.
        """
        box = box_of(ctx)
        try:
            content = await read_file(box, path)
        except IsADirectoryError:
            return await self._folder(box, path, ctx)
        if b"\0" in content:
            return with_notes(b"", [f"{path} is binary: {len(content)} bytes"])
        return self._lines(path, content.split(b"\n"), first, last)

    async def _folder(self, box: Sandbox, path: str, ctx: ToolContext) -> ToolResult:
        ran = await box.exec(
            ["sh", "-c", LIST, "view", path], timeout_s=self.time_left_s(ctx), max_output_bytes=MAX_FILE_BYTES
        )
        entries = [entry.removeprefix(b"./") for entry in ran.stdout.split(b"\n") if entry]
        if ran.exit_code != 0 or ran.timed_out:
            return with_notes(ran.stderr, ["the folder could not be listed"], is_error=True, timed_out=ran.timed_out)
        notes = [f"{len(entries) - MAX_ENTRIES} more; view a folder of it"] if len(entries) > MAX_ENTRIES else []
        return with_notes(b"\n".join(entries[:MAX_ENTRIES]), notes or ([] if entries else [f"{path} is empty"]))

    def _lines(self, path: str, lines: list[bytes], first: int, last: int | None) -> ToolResult:
        if lines[-1] == b"":
            lines.pop()
        if not lines:
            return with_notes(b"", [f"{path} is empty"])
        end = len(lines) if last is None else min(last, len(lines))
        if not 1 <= first <= end:
            raise ValueError(f"{path} has lines 1 to {len(lines)}, and not {first} to {last or 'its end'}")
        shown: list[bytes] = []
        num_bytes = 0
        for number in range(first, end + 1):
            line = numbered(number, lines[number - 1])
            num_bytes += len(line)
            if num_bytes > self.max_output_bytes and shown:
                note = f"lines {number} to {end} are left out, of {len(lines)}; go on with first={number}"
                return with_notes(b"".join(shown), [note])
            shown.append(line)
        return with_notes(b"".join(shown), [] if end == len(lines) else [f"{path} has {len(lines)} lines"])


async def read_file(box: Sandbox, path: str) -> bytes:
    """A file's bytes. Raises OSError, and ValueError for one that is too large, in words for a model."""
    try:
        return await box.read(path, max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except PermissionError:
        raise PermissionError(f"{path} may not be read") from None
    except ValueError:
        raise ValueError(f"{path} is larger than {MAX_FILE_BYTES} bytes; look at parts of it in the shell") from None


def numbered(number: int, line: bytes) -> bytes:
    """A line as it is shown: its number, a tab, its text up to a length."""
    cut = b" [%d more bytes]" % (len(line) - MAX_LINE_BYTES) if len(line) > MAX_LINE_BYTES else b""
    return b"%6d\t%s%s\n" % (number, line[:MAX_LINE_BYTES].removesuffix(b"\r"), cut)


view = View()
