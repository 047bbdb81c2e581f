"""Weights by NCCL, where trainer and engines are on different GPUs. The trainer is rank 0, all workers follow."""

from __future__ import annotations

import socket
from typing import Any

from agentrl.sync.helper import FlowClient, HelperTransport


class NcclTransport(HelperTransport):
    """See HelperTransport. Tensors are packed into buffers of vLLM's choice; needs a GPU at both ends."""

    name = "nccl"

    def open(self, client: FlowClient, source: Any) -> Any:
        """See HelperTransport. The meeting place is on loopback."""
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        size = 1 + sum(engine.num_workers for engine in self._engines)
        info = NCCLTrainerInitInfo(master_address="127.0.0.1", master_port=_free_port(), world_size=size, rank=0)
        return NCCLTrainerWeightTransferEngine.trainer_init(info, client=client, source=source)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
