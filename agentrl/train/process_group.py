"""The process group that FSDP needs, also with one rank: made for the first policy, destroyed after the last."""

from __future__ import annotations

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.errors import ModelError

_num_users = 0
"""Policies that use the group made here; 0 while there is none, or if the process brought its own."""


def acquire(device_type: str) -> tuple[DeviceMesh, bool]:
    """A one-rank mesh on "cpu" (gloo) or "cuda" (nccl), and whether `release` is due. ModelError for more ranks."""
    global _num_users
    owned = _num_users > 0 or not dist.is_initialized()
    if not dist.is_initialized():
        # A store in this process's memory: no port, nothing that a second run on the machine could meet.
        backend = "nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if dist.get_world_size() != 1:
        raise ModelError(f"the policy trains on one rank for now, but the process group has {dist.get_world_size()}")
    mesh = init_device_mesh(device_type, (1,))
    _num_users += owned
    return mesh, owned


def release() -> None:
    """One policy less; the last one destroys the group that was made here."""
    global _num_users
    _num_users -= 1
    if _num_users == 0 and dist.is_initialized():
        dist.destroy_process_group()
