"""What a container is allowed: everything that the spec doesn't ask for is closed."""

from __future__ import annotations

from collections.abc import Sequence
from posixpath import normpath
from typing import TYPE_CHECKING, Any

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.docker.options import DockerOptions

if TYPE_CHECKING:
    from docker import APIClient

SERVER_CAPABILITIES = ("SETUID", "SETGID", "SETPCAP", "KILL")
"""What the server in the box needs to run commands as another user, without any of these, and to end them."""
RESERVE_BYTES = 64 * 1024**2
"""Of the memory, which files can't take: whoever fills the disk doesn't end the box."""
BYTES_PER_INODE = 16 * 1024
INODE_BYTES = 1024
"""What an empty file costs in memory, about."""
SHARED_MEMORY_SHARE, TMP_SHARE = 1 / 16, 1 / 4
"""Of the disk; the rest is for workdir, or for /tmp where workdir lies in the image. The image's volumes share with
/tmp, to equal parts."""
SYSCTLS = {"kernel.shm_rmid_forced": "1", "kernel.msgmni": "16", "kernel.sem": "250 4000 32 16"}
"""What System V leaves behind its processes would take the box's memory for ever."""


def host_config(
    client: APIClient, spec: SandboxSpec, options: DockerOptions, base_bytes: int, volumes: Sequence[str] = ()
) -> dict[str, Any]:
    """For `create_container`. Raises SandboxError where the spec asks for what the run doesn't allow.

    `base_bytes`: what is written into workdir at the start; it counts neither as disk nor as memory of the spec.
    `volumes`: folders for which the engine would make volumes on its disk, without a bound, because the image says so.
    """
    if spec.network and not options.allow_network:
        raise SandboxError(
            "the task asks for a network; sandbox.options.allow_network=true gives it one", SandboxFault.UNAVAILABLE
        )
    capabilities = [*SERVER_CAPABILITIES, *(["CHOWN"] if spec.writable_root else [])]
    settings: dict[str, Any] = client.create_host_config(
        network_mode="default" if spec.network else "none",
        cap_drop=["ALL"],
        cap_add=capabilities,
        security_opt=["no-new-privileges"],
        pids_limit=spec.max_processes,
        mem_limit=spec.memory_bytes + base_bytes,
        memswap_limit=spec.memory_bytes + base_bytes,
        nano_cpus=int(spec.cpus * 1e9),
        read_only=not spec.writable_root,
        tmpfs=_tmpfs(spec, base_bytes, volumes),
        sysctls=SYSCTLS,
        ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
        log_config={"Type": "none"},
        runtime=options.runtime,
        auto_remove=True,
    )
    return settings


def disk_bytes(spec: SandboxSpec) -> int:
    """What the box may write: as the spec says, but these files lie in the memory that it may use."""
    room = spec.memory_bytes - min(RESERVE_BYTES, spec.memory_bytes // 2)
    return min(spec.disk_bytes, int(room / (1 + INODE_BYTES / BYTES_PER_INODE)))


def _tmpfs(spec: SandboxSpec, base_bytes: int, volumes: Sequence[str]) -> dict[str, str]:
    size = disk_bytes(spec)
    # The engine's own mount here has room for as many empty files as fill the memory.
    shared = {"/dev/shm": _mount(size * SHARED_MEMORY_SHARE, "mode=1777,noexec")}
    if spec.writable_root:
        # Its volumes hold what the image has there, and have no more of a bound than its other files.
        return {**shared, "/tmp": _mount(size * (1 - SHARED_MEMORY_SHARE), "mode=1777")}
    rest = size * (1 - SHARED_MEMORY_SHARE - TMP_SHARE) + base_bytes
    for_all = {"/tmp", *map(normpath, volumes)} - {normpath(spec.workdir), "/dev/shm"}
    return {
        **shared,
        **dict.fromkeys(sorted(for_all), _mount(size * TMP_SHARE / len(for_all), "mode=1777")),
        spec.workdir: _mount(rest, f"mode=0755,uid={spec.user},gid={spec.user}"),
    }


def _mount(size_bytes: float, more: str) -> str:
    num_inodes = max(64, int(size_bytes / BYTES_PER_INODE))
    return f"rw,exec,nosuid,nodev,size={int(size_bytes)},nr_inodes={num_inodes},{more}"
