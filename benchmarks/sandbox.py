"""What a box costs: a command in a live one, commands per second over eight, and a box from start to end.

    python -m benchmarks.sandbox [BACKEND] [--image I]

A command is compared with a plain subprocess that is started in turns with it, so that a busy machine slows both. Ends
with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable

from agentrl import plugins
from agentrl.config_sandbox import SandboxConfig
from agentrl.sandbox import Sandbox, SandboxBackend, SandboxSpec
from benchmarks import report

LINE = "echo hello"
LIMIT_S = 30.0
NUM_BOXES, NUM_LIVES = 8, 11
TARGETS = {
    "bubblewrap": {"command_ratio": 10.0, "commands_per_s": 100.0, "start_command_stop_ms": 250.0},
    "docker": {"command_ms": 5.0},
}


async def measure(backend: SandboxBackend, spec: SandboxSpec, num_commands: int) -> dict[str, float]:
    """All figures, by name."""
    box = await backend.start(spec)
    await box.exec(LINE, timeout_s=LIMIT_S)  # the first loads what the others find loaded
    plain, live = [], []
    for _ in range(num_commands):
        plain.append(await _milliseconds(_plain))
        live.append(await _milliseconds(lambda: box.exec(LINE, timeout_s=LIMIT_S)))
    session = await box.session()
    in_session = [await _milliseconds(lambda: session.run(LINE, timeout_s=LIMIT_S)) for _ in range(num_commands)]
    await box.stop()
    lives = [await _milliseconds(lambda: _life(backend, spec)) for _ in range(NUM_LIVES)]
    return {
        "plain_ms": statistics.median(plain),
        "command_ms": statistics.median(live),
        "command_ratio": statistics.median(live) / statistics.median(plain),
        "session_command_ms": statistics.median(in_session[1:]),
        "commands_per_s": await _commands_per_s(backend, spec, num_commands),
        "start_command_stop_ms": statistics.median(lives),
    }


async def _plain() -> None:
    process = await asyncio.create_subprocess_exec("bash", "-c", LINE, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    await process.communicate()


async def _life(backend: SandboxBackend, spec: SandboxSpec) -> None:
    box = await backend.start(spec)
    await box.exec(LINE, timeout_s=LIMIT_S)
    await box.stop()


async def _commands_per_s(backend: SandboxBackend, spec: SandboxSpec, num_commands: int) -> float:
    boxes = await asyncio.gather(*(backend.start(spec) for _ in range(NUM_BOXES)))

    async def work(box: Sandbox) -> None:
        for _ in range(num_commands):
            await box.exec(LINE, timeout_s=LIMIT_S)

    started = time.perf_counter()
    await asyncio.gather(*map(work, boxes))
    seconds = time.perf_counter() - started
    await asyncio.gather(*(box.stop() for box in boxes))
    return NUM_BOXES * num_commands / seconds


async def _milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return (time.perf_counter() - started) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sandbox")
    parser.add_argument("backend", nargs="?", default="bubblewrap")
    parser.add_argument("--image")
    parser.add_argument("--commands", type=int, default=100, help="for each figure (100)")
    options = parser.parse_args()
    config = SandboxConfig(backend=options.backend)
    backend = plugins.sandbox(options.backend)(config.options_of(options.backend), run="benchmark")
    found = asyncio.run(measure(backend, SandboxSpec(image=options.image), options.commands))
    targets = TARGETS.get(options.backend, {})
    ok = all(found[name] >= goal if name == "commands_per_s" else found[name] <= goal for name, goal in targets.items())
    goals = ", ".join(f"{name} {'>=' if name == 'commands_per_s' else '<='} {goal:g}" for name, goal in targets.items())
    value = {name: round(figure, 2) for name, figure in found.items()}
    return 0 if report(f"sandbox_{options.backend}", value, goals, ok) else 1


if __name__ == "__main__":
    sys.exit(main())
