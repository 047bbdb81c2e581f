"""Isolated tools, at module level as they must be."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from agentrl.tool import ToolContext, ToolResult, tool


@tool(isolated=True)
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    print("this goes nowhere")
    return str(a + b)


@tool(isolated=True)
async def add_later(a: int, b: int) -> ToolResult:
    """Add two numbers after a while; the episode ends."""
    await asyncio.sleep(0.01)
    return ToolResult(content=str(a + b), terminated=True)


@tool(isolated=True)
def hang(pid_file: str) -> str:
    """Never return, and leave a child that doesn't either."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(pid_file).write_text(f"{os.getpid()} {child.pid}")
    while True:
        pass


@tool(isolated=True)
def sleep(seconds: float, pid_file: str) -> str:
    """Block."""
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(seconds)
    return "slept"


@tool(isolated=True)
def crash() -> str:
    """Read address 0."""
    return str(ctypes.string_at(0))


@tool(isolated=True)
def leave(code: int) -> str:
    """End the process."""
    print("bye bye", flush=True)
    os._exit(code)


@tool(isolated=True)
def refuse(reason: str) -> str:
    """Raise an error."""
    raise ValueError(reason)


@tool(isolated=True)
def flood(num_bytes: int) -> str:
    """Return a lot."""
    return "x" * num_bytes


@tool(isolated=True)
def shout(num_bytes: int) -> str:
    """Print a lot, to both streams."""
    for stream in (sys.stdout, sys.stderr):
        stream.write("x" * num_bytes)
    return "done"


@tool(isolated=True)
def forge(text: str, times: int = 1) -> str:
    """Write something else where the result belongs: every descriptor that is open."""
    for fd in range(3, 20):
        try:
            os.write(fd, (text * times).encode() + b"\n")
        except OSError:
            continue
    os._exit(0)


@tool(isolated=True)
def look(name: str, ctx: ToolContext) -> str:
    """What the process sees."""
    return f"{os.environ.get(name)} {ctx.seed} {ctx.sandbox}"


@tool(isolated=True)
def echo(text: str) -> str:
    """Say it back."""
    return text
