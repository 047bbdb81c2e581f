"""What a box of the backend `docker` costs beyond what the engine itself takes.

    python -m benchmarks.sandbox_docker [--image I]

Each box is started in turns with a container of the same limits through the bare SDK, and each command is run in turns
with an `exec` of the SDK, so that a busy machine slows both. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import docker

from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.docker.backend import DockerBackend
from agentrl.sandboxes.docker.limits import host_config
from benchmarks import report

Result = TypeVar("Result")
LINE = "echo hello"
LIMIT_S = 30.0
GOALS = {"start_ratio": 1.2, "session_command_ms": 5.0}


async def measure(backend: DockerBackend, spec: SandboxSpec, num_starts: int, num_commands: int) -> dict[str, float]:
    """All figures, by name."""
    with docker.APIClient(version="auto") as client:
        starts = [await _start_in_turns(client, backend, spec) for _ in range(num_starts)]
        commands = await _commands_in_turns(client, backend, spec, num_commands)
    bare_start, start = (statistics.median(times) for times in zip(*starts, strict=True))
    bare_exec, command, in_session = (statistics.median(times) for times in zip(*commands, strict=True))
    return {
        "bare_start_ms": bare_start,
        "start_ms": start,
        "start_ratio": start / bare_start,
        "bare_exec_ms": bare_exec,
        "command_ms": command,
        "command_ratio": command / bare_exec,
        "session_command_ms": in_session,
    }


async def _start_in_turns(client: docker.APIClient, backend: DockerBackend, spec: SandboxSpec) -> tuple[float, float]:
    """Milliseconds to a container that runs, and to a box that answers."""
    bare, name = await _timed(lambda: asyncio.to_thread(_start_bare, client, spec))
    await asyncio.to_thread(client.remove_container, name, force=True)
    ours, box = await _timed(lambda: backend.start(spec))
    await box.stop()
    return bare, ours


async def _commands_in_turns(
    client: docker.APIClient, backend: DockerBackend, spec: SandboxSpec, num_commands: int
) -> list[tuple[float, float, float]]:
    """Milliseconds of an exec of the SDK, of one of ours, and of a session's command, all in one container."""
    box = await backend.start(spec)
    session = await box.session()
    found = []
    for _ in range(num_commands):
        bare, _ = await _timed(lambda: asyncio.to_thread(_exec_bare, client, box.container))
        ours, _ = await _timed(lambda: box.exec(LINE, timeout_s=LIMIT_S))
        in_session, _ = await _timed(lambda: session.run(LINE, timeout_s=LIMIT_S))
        found.append((bare, ours, in_session))
    await box.stop()
    return found


def _start_bare(client: docker.APIClient, spec: SandboxSpec) -> str:
    limits = host_config(client, spec, DockerBackend.Options(), 0)
    made = client.create_container(spec.image, ["sleep", "60"], user=str(spec.user), host_config=limits)
    client.start(made["Id"])
    return str(made["Id"])


def _exec_bare(client: docker.APIClient, container: str) -> None:
    made = client.exec_create(container, ["bash", "-c", LINE], user="1000")
    client.exec_start(made["Id"])


async def _timed(call: Callable[[], Awaitable[Result]]) -> tuple[float, Result]:
    started = time.perf_counter()
    result = await call()
    return (time.perf_counter() - started) * 1000, result


async def _all(image: str, num_starts: int, num_commands: int) -> dict[str, float]:
    backend = DockerBackend(DockerBackend.Options(), run="benchmark")
    try:
        return await measure(backend, SandboxSpec(image=image), num_starts, num_commands)
    finally:
        await backend.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sandbox_docker")
    parser.add_argument("--image", default="agentrl-test:1")
    parser.add_argument("--starts", type=int, default=15, help="of each kind (15)")
    parser.add_argument("--commands", type=int, default=60, help="of each kind (60)")
    options = parser.parse_args()
    found = asyncio.run(_all(options.image, options.starts, options.commands))
    goals = ", ".join(f"{name} <= {goal:.3g}" for name, goal in GOALS.items())
    value = {name: round(figure, 3) for name, figure in found.items()}
    ok = all(found[name] <= goal for name, goal in GOALS.items())
    return 0 if report("sandbox_docker_engine", value, goals, ok) else 1


if __name__ == "__main__":
    sys.exit(main())
