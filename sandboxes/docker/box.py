"""One container, and the channel to the server in it."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.channel.box import ChannelSandbox
from agentrl.sandboxes.channel.client import Client
from agentrl.sandboxes.docker.engine import Engine
from agentrl.sandboxes.docker.leftovers import remove


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
