"""Boxes in containers of a Docker engine, or of Podman behind the same API."""

# See agentrl.sandboxes: under a bare name every class would exist twice.
if __name__ != "agentrl.sandboxes.docker":
    raise ImportError("import agentrl.sandboxes.docker, not sandboxes.docker")
