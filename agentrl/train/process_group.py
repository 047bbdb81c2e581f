"""The process group that FSDP needs, also with one rank: made for the first policy, destroyed after the last."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.errors import ModelError

_num_users = 0
"""Policies that use the group made here; 0 while there is none, or if the process brought its own."""


def acquire(
    device_type: str, rank: int = 0, size: int = 1, meeting_file: Path | None = None
) -> tuple[DeviceMesh, bool]:
    """A mesh of `size` ranks on "cpu" (gloo) or "cuda" (nccl), and whether `release` is due.

    Several ranks find each other through `meeting_file`, in a folder that only this user can read. Raises ModelError
    if the process is in a group of another size.
    """
    global _num_users
    owned = _num_users > 0 or not dist.is_initialized()
    if not dist.is_initialized():
        # Alone, a store in this process's memory. No port in either case that a second run on the machine could meet.
        store = HashStore() if meeting_file is None else FileStore(str(meeting_file), size)
        if size > 1:
            _keep_on_loopback()
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    if dist.get_world_size() != size:
        raise ModelError(
            f"a policy of {size} ranks can't be made while this process is in a group of {dist.get_world_size()}: "
            "close the other policy first"
        )
    mesh = init_device_mesh(device_type, (size,))
    _num_users += owned
    return mesh, owned


def release() -> None:
    """One policy less; the last one destroys the group that was made here."""
    global _num_users
    _num_users -= 1
    if _num_users == 0 and dist.is_initialized():
        dist.destroy_process_group()


def abort() -> None:
    """Make the collectives that wait in this process fail. NCCL only."""
    if dist.is_initialized():
        dist.distributed_c10d._abort_process_group()


def _keep_on_loopback() -> None:
    """Ranks are on one machine: their sockets, which know no key, must not be reachable from another."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.update({"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback})
