"""`edit`: make a file, replace a passage of one, insert lines. What doesn't fit is told so that a model can mend it."""

from __future__ import annotations

import difflib
import re

from agentrl.sandbox import Sandbox
from agentrl.tool import ToolContext, ToolResult
from agentrl.tools.boxed import BoxTool, box_of, with_notes
from agentrl.tools.view import numbered, read_file

NUM_AROUND = 3
"""Lines shown before and after a change."""
MAX_SHOWN_LINES = 40
MAX_SHOWN_PLACES = 10
MAX_COMPARED_LINES, MAX_COMPARED_CHARACTERS = 20_000, 200
NEAR = 0.6
"""How like a line must be to be shown, from 0 to 1."""


class Edit(BoxTool):
    """Text files; what isn't UTF-8 in them stays as it is."""

    def __init__(self) -> None:
        super().__init__(self.edit)

    async def edit(
        self, path: str, new: str, ctx: ToolContext, old: str | None = None, after_line: int | None = None
    ) -> ToolResult:
        """Change a file. With `old`: replace that text, which must occur exactly once, by `new`.

        With `after_line`: insert `new` after that line (0: at the top). With neither: make a new file with `new`.
        """
        box = box_of(ctx)
        if old is not None and after_line is not None:
            raise ValueError("give `old` or `after_line`, not both")
        if old is None and after_line is None:
            return await _create(box, path, as_bytes(new))
        content = await read_file(box, path)
        if after_line is not None:
            changed, start = _inserted(path, content, after_line, as_bytes(new))
        else:
            changed, start = _replaced(path, content, as_bytes(old or ""), as_bytes(new))
        await _write(box, path, changed)
        num_lines = as_bytes(new).count(b"\n") + 1
        return with_notes(_around(changed, start, num_lines), [f"{path} is changed"])


async def _create(box: Sandbox, path: str, content: bytes) -> ToolResult:
    try:
        existing = await box.read(path)
    except FileNotFoundError:
        existing = b""
    except ValueError:
        existing = b"too large to be read"
    if existing:
        raise FileExistsError(f"{path} is there already; give `old` or `after_line` to change it")
    await _write(box, path, content)
    return with_notes(b"", [f"{path} is made, with {len(content.splitlines())} lines"])


async def _write(box: Sandbox, path: str, content: bytes) -> None:
    try:
        await box.write(path, content)
    except PermissionError:
        raise PermissionError(f"{path} may not be written") from None


def _replaced(path: str, content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """The file with `new` for `old`, and the line where that begins, from 0. Raises ValueError."""
    if not old:
        raise ValueError("`old` is empty; to insert, give `after_line`")
    if old == new:
        raise ValueError("`old` and `new` are the same")
    if old not in content and b"\r\n" in content:
        old, new = (text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for text in (old, new))
    starts = _starts(content, old)
    if not starts:
        raise ValueError(f"`old` is not in {path}. {_nearest(content, old)}")
    if len(starts) > 1:
        lines = [str(content.count(b"\n", 0, start) + 1) for start in starts[:MAX_SHOWN_PLACES]]
        more = ", …" if len(starts) > MAX_SHOWN_PLACES else ""
        raise ValueError(
            f"`old` occurs {len(starts)} times in {path}, at lines {', '.join(lines)}{more}; "
            f"take in more lines around the one you mean"
        )
    return content[: starts[0]] + new + content[starts[0] + len(old) :], content.count(b"\n", 0, starts[0])


def _starts(content: bytes, old: bytes) -> list[int]:
    """Where `old` occurs; occurrences may overlap."""
    starts = []
    start = content.find(old)
    while start >= 0:
        starts.append(start)
        start = content.find(old, start + 1)
    return starts


def _inserted(path: str, content: bytes, after_line: int, new: bytes) -> tuple[bytes, int]:
    lines = re.findall(rb"[^\n]*\n|[^\n]+", content)
    if not 0 <= after_line <= len(lines):
        raise ValueError(f"{path} has {len(lines)} lines; after_line is 0 to {len(lines)}, not {after_line}")
    end = b"\r\n" if b"\r\n" in content else b"\n"
    text = new.replace(b"\r\n", b"\n").replace(b"\n", end)
    if not text.endswith(end):
        text += end
    before = b"".join(lines[:after_line])
    if before and not before.endswith(b"\n"):
        before += end
    return before + text + b"".join(lines[after_line:]), after_line


def _nearest(content: bytes, old: bytes) -> str:
    """The lines that are most like those that were asked for."""
    wanted = old.strip(b"\r\n").split(b"\n")
    lines = content.split(b"\n")
    texts = [as_text(line).strip()[:MAX_COMPARED_CHARACTERS] for line in lines[:MAX_COMPARED_LINES]]
    first = as_text(wanted[0]).strip()[:MAX_COMPARED_CHARACTERS]
    like = difflib.get_close_matches(first, texts, n=1, cutoff=NEAR)
    if not like:
        return "No line of it is like the first of `old`; view the file."
    shown = _around(content, texts.index(like[0]), len(wanted), num_around=0)
    return f"Every character counts, spaces too. The nearest is:\n{as_text(shown)}".rstrip("\n")


def _around(content: bytes, start: int, num_lines: int, num_around: int = NUM_AROUND) -> bytes:
    """The lines of a change and a few around it, numbered."""
    lines = content.removesuffix(b"\n").split(b"\n")
    first, last = max(0, start - num_around), min(len(lines), start + num_lines + num_around)
    chosen = range(first, min(last, first + MAX_SHOWN_LINES))
    return b"".join(numbered(number + 1, lines[number]) for number in chosen)


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


edit = Edit()
