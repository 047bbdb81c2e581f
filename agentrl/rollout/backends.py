"""The sandbox backends that a run uses, each opened once: looked over, cleared of what dead runs left, watched over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from agentrl import plugins
from agentrl.config_sandbox import SandboxConfig
from agentrl.errors import AgentRLError, ConfigError, SandboxError, SandboxFault
from agentrl.rollout.faults import with_causes
from agentrl.rollout.watchman import Watchman
from agentrl.sandbox import Preflight, SandboxBackend, SandboxSpec

LOGGER = logging.getLogger(__name__)
SWEEP_S = 60.0
"""What dead runs left must not keep a living one from its start."""
CLOSE_S = 30.0
Tell = Callable[..., None]
"""(kind, **values): as Run.event."""


class Backends:
    """Opened by name when the first box of their kind is needed."""

    def __init__(self, config: SandboxConfig, run: str, tell: Tell) -> None:
        self.config = config
        self.run = run
        self.tell = tell
        self.watchman = Watchman(run)
        self._opening: dict[str, asyncio.Task[SandboxBackend]] = {}

    async def get(self, name: str) -> SandboxBackend:
        """The backend. Raises SandboxError, of kind UNAVAILABLE, where it can't start boxes on this machine."""
        if name not in self._opening:
            self._opening[name] = asyncio.ensure_future(self._open(name))
        return await asyncio.shield(self._opening[name])

    def opened(self, name: str) -> SandboxBackend:
        """The same, after somebody got it."""
        return self._opening[name].result()

    async def require(self, specs: Iterable[SandboxSpec]) -> None:
        """Open what these boxes need, before anything heavy starts. Raises ConfigError with the preflight's words."""
        for name in sorted({self.config.backend_of(spec) for spec in specs}):
            try:
                await self.get(name)
            except SandboxError as error:
                raise ConfigError(str(error)) from None

    async def close(self) -> None:
        """Close all, whatever one of them does; then nobody needs to watch any more."""
        for task in self._opening.values():
            task.cancel()
            with suppress(asyncio.CancelledError, AgentRLError):
                backend = await task
                await _last(backend.close(), f"sandbox backend {type(backend).__name__}.close", CLOSE_S)
        await asyncio.to_thread(self.watchman.dismiss)

    async def _open(self, name: str) -> SandboxBackend:
        try:
            options = self.config.options_of(name)
            backend = plugins.sandbox(name)(options, run=self.run)
            found = await backend.preflight()
        except Exception as error:  # a plugin's, or why it doesn't load
            raise SandboxError(
                f"the sandbox {name} can't be used: {with_causes(error)}", SandboxFault.UNAVAILABLE
            ) from error
        if found.missing:
            raise SandboxError(_refusal(name, self.config, found), SandboxFault.UNAVAILABLE)
        self.watchman.guard(name, options)
        num_swept = await _last(backend.sweep(), f"the sweep of {name}", SWEEP_S) or 0
        self.tell("sandbox", backend=name, not_enforced=list(found.not_enforced), num_swept=num_swept)
        return backend


def _refusal(name: str, config: SandboxConfig, found: Preflight) -> str:
    chosen = "" if config.backend == name else f" (sandbox.backend={config.backend})"
    reasons = "; ".join(found.missing)
    return f"the sandbox {name}{chosen} can't start boxes on this machine: {reasons}. See docs/sandboxes.md"


async def _last(work: Any, what: str, limit_s: float) -> Any:
    """The result of what must not stop the run; None where it fails."""
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except Exception as error:
        LOGGER.warning("%s: %s", what, with_causes(error))
        return None
