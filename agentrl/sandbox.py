"""The sandbox contract: a closed box in which commands run and files live.

An environment asks for a box with `SandboxSpec`; the core finds the backend by entry-point name in the group
`agentrl.sandboxes`. A command that fails is a result; a box that is gone raises `errors.SandboxError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxSpec:
    """What an environment needs. Everything that isn't asked for is closed: no network, no mounts."""

    backend: str
    """Entry-point name in the group agentrl.sandboxes."""
    image: str | None = None
    cpus: float = 1.0
    memory_bytes: int = 2 * 1024**3
    network: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecResult:
    """What a command printed and how it ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """True: the command and everything that it started were killed at the limit (R4)."""


class Session(ABC):
    """One long-lived shell in a box; its state (folder, variables) stays between calls."""

    @abstractmethod
    async def run(self, command: str, *, timeout_s: float) -> ExecResult: ...

    @abstractmethod
    async def close(self) -> None: ...


class Sandbox(ABC):
    """A started box. Raises `SandboxError` when the box itself is gone."""

    @abstractmethod
    async def exec(self, command: list[str], *, timeout_s: float, stdin: bytes = b"") -> ExecResult: ...

    @abstractmethod
    async def session(self) -> Session: ...

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """A file's bytes, or a folder as a tar archive."""

    @abstractmethod
    async def write(self, path: str, content: bytes) -> None:
        """Write a file, or unpack a tar archive where `path` ends in '/'."""

    @abstractmethod
    async def stop(self) -> None:
        """End the box and everything in it; safe to call twice."""
