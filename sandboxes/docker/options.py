"""What the backend `docker` can be told: `sandbox.options.<field>=…`."""

from __future__ import annotations

from pydantic import Field

from agentrl.sandbox import SandboxOptions


class DockerOptions(SandboxOptions):
    """Registries' logins are not among them: they are read where `docker login` leaves them (DOCKER_CONFIG)."""

    socket: str | None = None
    """The engine's socket, Docker's or Podman's; None: DOCKER_HOST, or /var/run/docker.sock."""
    image: str | None = None
    """For tasks that name none."""
    runtime: str | None = None
    """Such as runsc (gVisor); None: the engine's default."""
    allow_network: bool = False
    """A task that asks for a network gets the engine's default one; else it is refused."""
    pull: bool = True
    """Get images that aren't here from their registry."""
    mirror: str | None = None
    """The host of a registry that is asked in Docker Hub's place."""
    max_pull_tries: int = Field(8, ge=1)
    """Where a registry says that it was asked too often, or its network fails; with growing pauses."""
    max_image_bytes: int | None = Field(None, gt=0)
    """The sum of the images that pulls brought; above it those used least recently are removed. None: all stay."""
    ready_timeout_s: float = Field(60.0, gt=0)
    """From an image that is here to a box that answers; also the limit of each single call to the engine."""
