"""The worker's extension with a fault that tests can switch on. vLLM imports it in the server."""

from __future__ import annotations

from agentrl.engine.vllm import inside, receive

_REFRESH = receive.refresh_head


class WorkerExtension(inside.WorkerExtension):
    """Between `keep_head` and `renew_head` the head stays as it is, as in vLLM without our help.

    Named as ours is: by the name a run knows that a server has it.
    """

    def keep_head(self) -> None:
        receive.refresh_head = lambda model: None

    def renew_head(self) -> None:
        receive.refresh_head = _REFRESH
