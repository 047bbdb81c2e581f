"""One container, and the channel to the server in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.channel.box import ChannelSandbox
from agentrl.sandboxes.channel.client import Client
from agentrl.sandboxes.docker.engine import Engine
from agentrl.sandboxes.docker.leftovers import remove

COUNTERS = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
"""Of cgroup v1 and v2: where the box sees how many processes its memory limit has killed."""
_KILLED = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class DockerSandbox(ChannelSandbox):
    """A container that is removed by the engine as soon as its server ends."""

    def __init__(
        self, client: Client, spec: SandboxSpec, *, environment: Mapping[str, str], engine: Engine, container: str
    ) -> None:
        super().__init__(client, spec, environment=environment)
        self.container = container
        self._engine = engine

    async def end(self) -> None:
        await self._client.close()
        await self._engine.call(lambda client: remove(client, self.container))

    async def num_out_of_memory(self) -> int:
        """Of all processes in the box; the engine itself tells of the first one only."""
        for path in COUNTERS:
            with suppress(OSError):
                found = _KILLED.search(await self.read(path, max_bytes=4096))
                return int(found[1]) if found else 0
        return 0
