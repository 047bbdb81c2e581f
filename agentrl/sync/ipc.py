"""Weights by the trainer's own memory, where trainer and engine share one GPU: nothing is copied on the way."""

from __future__ import annotations

from typing import Any

from agentrl.sync.helper import FlowClient, HelperTransport
from agentrl.transfer import write_handle


class IpcClient(FlowClient):
    """Handles of CUDA memory go to the engine in JSON. vLLM's own client would have the server unpickle them."""

    def options_of_meeting(self, init_info: dict[str, Any], first_rank: int) -> dict[str, Any]:
        return {}

    def options_of_update(self, update_info: dict[str, Any]) -> dict[str, Any]:
        handles = update_info["ipc_handles"]
        return {"handles": [{gpu: write_handle(args) for gpu, args in of_one.items()} for of_one in handles]}


class IpcTransport(HelperTransport):
    """See HelperTransport. One rank and one GPU at both ends."""

    name = "ipc"
    client_class = IpcClient

    def open(self, client: FlowClient, source: Any) -> Any:
        """See HelperTransport."""
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

        return IPCTrainerWeightTransferEngine.trainer_init(IPCTrainerInitInfo(rank=0), client=client, source=source)
