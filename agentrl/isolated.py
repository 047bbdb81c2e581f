"""Tools in a process of their own, which can be killed: what `@tool(isolated=True)` runs. Both ends are here.

The parent starts `python -m agentrl.isolated`, writes the call as one JSON line and reads the result as one JSON line.
Nothing is unpickled from the child: it runs tool code, and what that was fed came from a model. The child leads a
process group, so that what it started is killed with it, and it ends by itself when its parent is gone.

It gets the interpreter, the import path and the variables of `PASSED_VARIABLES`; the rest of the environment, where
keys tend to be, stays out. This keeps a hang, a crash or a flood away from the run. It is no sandbox: a tool that
runs code of the model needs one.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.tool import FunctionTool, ToolContext, ToolResult

MAX_RESULT_BYTES = 8 * 1024**2
MAX_WORDS_CHARACTERS = 500
"""Of what a process that died wrote last."""
PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")


async def run_isolated(tool: FunctionTool, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
    """Run a tool's function in a child process. Raises RuntimeError with what it raised, or with how it died.

    Cancel it (a time limit does) and the process is killed and gone before this returns.
    """
    name = function_name(tool.function)
    request = {"function": name, "arguments": arguments, "seed": ctx.seed, "deadline": ctx.deadline}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "agentrl.isolated",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=_environment(),
        limit=MAX_RESULT_BYTES,
        start_new_session=True,
    )
    words = _LastWords()
    listening = asyncio.create_task(words.listen(process))
    try:
        return await _exchange(process, request, words, listening)
    finally:
        _kill_group(process)
        await process.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        # Without this, pipes stay open as long as something that left the group holds their other ends.
        process._transport.close()  # type: ignore[attr-defined]


def function_name(function: Any) -> str:
    """`package.module:function`, by which a child finds it. Raises TypeError for what can't be found by a name."""
    module, name = function.__module__, function.__qualname__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None:
            raise TypeError(f"isolated tool {name}: a child process can't import a script; move it into a module")
        module = spec.name
    if "." in name or "<" in name:
        raise TypeError(
            f"isolated tool {name}: a child process finds it by its name, so define it with def at module level"
        )
    return f"{module}:{name}"


async def _exchange(
    process: Process, request: dict[str, Any], words: _LastWords, listening: asyncio.Task[None]
) -> ToolResult:
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # a child that died says so below
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
    try:
        line = await process.stdout.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise RuntimeError(f"the tool returned more than {MAX_RESULT_BYTES} bytes; return less") from None
    except asyncio.IncompleteReadError:
        await process.wait()
        await asyncio.wait([listening], timeout=1.0)  # something that it started may keep the pipe open
        raise RuntimeError(f"the tool's process {_death(process.returncode)}{words.text()}") from None
    return _read(line)


def _read(line: bytes) -> ToolResult:
    """A ToolResult from a line that may hold anything."""
    from agentrl.tool import ToolResult

    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if isinstance(reply, dict) and isinstance(reply.get("error"), str):
        raise RuntimeError(reply["error"])
    fields = {"content": str, "is_error": bool, "terminated": bool}
    if not isinstance(reply, dict) or any(type(reply.get(name)) is not kind for name, kind in fields.items()):
        raise RuntimeError("the tool's process wrote something that is no result")
    return ToolResult(**{name: reply[name] for name in fields})


class _LastWords:
    """The end of what a process writes to stderr; the rest is read and dropped, so that it never waits for us."""

    def __init__(self) -> None:
        self._kept = b""

    async def listen(self, process: Process) -> None:
        assert process.stderr is not None
        while part := await process.stderr.read(65536):
            self._kept = (self._kept + part)[-4 * MAX_WORDS_CHARACTERS :]

    def text(self) -> str:
        said = self._kept.decode("utf-8", "replace").strip()[-MAX_WORDS_CHARACTERS:]
        return f": {said}" if said else ""


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path), "PYTHONIOENCODING": "utf-8"}


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _death(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode} before it gave a result"


# ------------------------------------------------------------------------------------------------------- the child


def main() -> None:
    """Read one call from stdin, run it, write its result where stdout was."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the tool prints must not get into the result
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        line = json.dumps(_run(request))
    except Exception as error:
        line = json.dumps({"error": f"{type(error).__name__}: {error}"})
    out.write(line.encode() + b"\n")
    out.flush()
    os._exit(0)  # threads that the tool left behind don't keep us


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    from agentrl.tool import FunctionTool, ToolContext, as_result

    module, _, name = request["function"].partition(":")
    found = getattr(importlib.import_module(module), name)
    tool = FunctionTool(found.function if isinstance(found, FunctionTool) else found)
    ctx = ToolContext(sandbox=None, seed=request["seed"], deadline=request["deadline"])
    value = tool.run(request["arguments"], ctx)
    result = as_result(asyncio.run(value) if inspect.iscoroutine(value) else value)
    return {"content": result.content, "is_error": result.is_error, "terminated": result.terminated}


if __name__ == "__main__":
    main()
