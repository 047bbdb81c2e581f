"""Boxes for the contract suite: the same backends as in a run, without its pool."""

from __future__ import annotations

import asyncio

from agentrl import plugins
from agentrl.config_sandbox import SandboxConfig
from agentrl.lent_box import LentBox
from agentrl.sandbox import SandboxBackend, SandboxSpec


class NoBox(Exception):
    """A box can't be had here: why, and what to do."""


class CheckBoxes:
    """Each backend is opened when the first box of its kind is needed."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._backends: dict[str, SandboxBackend] = {}
        self._opening = asyncio.Lock()

    async def start(self, spec: SandboxSpec | None, *, hold_s: float) -> LentBox | None:
        """A box; None where none is asked for. Raises NoBox."""
        if spec is None:
            return None
        name = self.config.backend_of(spec)
        backend = await self._backend(name)
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                box = await backend.start(spec)
        except Exception as error:
            raise NoBox(f"the sandbox {name} gave no box: {error or type(error).__name__}") from error
        return LentBox(box, hold_s=hold_s, on_end=lambda: None)

    async def close(self) -> None:
        """Close the backends."""
        for backend in self._backends.values():
            await backend.close()

    async def _backend(self, name: str) -> SandboxBackend:
        async with self._opening:
            if name not in self._backends:
                backend = plugins.sandbox(name)(self.config.options_of(name), run="check")
                found = await backend.preflight()
                if found.missing:
                    raise NoBox(f"the sandbox {name} can't start boxes on this machine: {'; '.join(found.missing)}")
                self._backends[name] = backend
        return self._backends[name]
