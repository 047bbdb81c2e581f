"""The worker's extension with a fault that tests can switch on. vLLM imports it in the server."""

from __future__ import annotations

from agentrl.engine.vllm import inside, receive

_REFRESH = receive.refresh_head


class WorkerExtension(inside.WorkerExtension):
    """Named as ours, by which a run knows that a server has it. The head stays as it is, as in vLLM without our help, between `keep_head` and `renew_head`."""

    def keep_head(self) -> None:
        receive.refresh_head = lambda model: None

    def renew_head(self) -> None:
        receive.refresh_head = _REFRESH
