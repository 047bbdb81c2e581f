"""User ids of boxes: each has one that no other process on this machine has, as long as the box is there."""

from __future__ import annotations

import errno
import itertools
import socket

FIRST_USER = 0x7000_0000
"""Far above people, services, and the ranges that containers are given."""


class BoxUser:
    """An id, taken for the whole machine by a socket's name, which goes when its process does."""

    def __init__(self) -> None:
        """Raises OSError where there can't be more sockets."""
        for number in itertools.count(FIRST_USER):
            taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                taken.bind(f"\0agentrl-user-{number}")
            except OSError as error:
                taken.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            self.number, self._taken = number, taken
            return

    def release(self) -> None:
        """The next box may have it. Safe to call twice."""
        self._taken.close()
