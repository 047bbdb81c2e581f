"""What a process with thousands of rollouts needs from the system and from Python."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import ConfigError

_OTHERS = 128
"""Database, logs, libraries, the event loop: what a process has open besides connections."""
_YOUNG_OBJECTS = 50_000
"""New containers before the collector looks at them; Python's default is 700."""


def require_open_files(num_connections: int) -> None:
    """Make room for that many connections, each of which is an open file.

    Without it a wave of rollouts fails on `accept` or `connect` with errors that look like a dead engine. Raises
    ConfigError where the system's hard limit is too low.
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


@contextmanager
def collector_spared() -> Iterator[None]:
    """The garbage collector leaves alone what is there by now (models and libraries, a million objects), and looks at
    new objects less often.

    Rollouts make many objects that live for a while, so it would walk over all of them again and again: with 4,000
    rollouts in flight that took more CPU time than everything else together. Little of it is garbage in cycles.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
