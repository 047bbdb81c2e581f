"""Boxes in containers of a Docker engine, or of Podman behind the same API."""
