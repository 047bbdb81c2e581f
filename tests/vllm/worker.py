"""The worker's extension with a fault that tests can switch on. vLLM imports it in the server."""

from __future__ import annotations

from agentrl.engine.vllm import receive
from agentrl.engine.vllm.inside import WorkerExtension

_REFRESH = receive.refresh_head


class FaultyExtension(WorkerExtension):
    """The head stays as it is, as in vLLM without our help, between `keep_head` and `renew_head`."""

    def keep_head(self) -> None:
        receive.refresh_head = lambda model: None

    def renew_head(self) -> None:
        receive.refresh_head = _REFRESH
