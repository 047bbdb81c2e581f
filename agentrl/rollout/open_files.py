"""Each connection is an open file, and a process may have only so many."""

from __future__ import annotations

import resource

from agentrl.errors import ConfigError

_OTHERS = 128
"""Database, logs, libraries, the event loop: what a process has open besides connections."""


def require_open_files(num_connections: int) -> None:
    """Make room for that many connections. Raises ConfigError where the system's hard limit is too low.

    Without it a wave of rollouts fails on `accept` or `connect` with errors that look like a dead engine.
    """
    needed = num_connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"rollout.concurrency needs {needed} open files and the system allows {hard}: "
            f"raise the limit (ulimit -n {needed}), or lower rollout.concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
