"""Where the server is root's: what it keeps from its commands, so that none of them can reach it.

A command may do to any process of its own user what a server wouldn't survive: limits on its processor time, its
place in the scheduler. So commands have another user, and no capability; the server's own files are opened as theirs.
"""

from __future__ import annotations

import ctypes
import os
import struct

PR_SET_SECCOMP, PR_CAPBSET_DROP = 22, 24
FILTER_MODE = 2
NUM_CAPABILITIES = 64
INSTRUCTION_BYTES = 8
_LIBRARY = ctypes.CDLL(None, use_errno=True)


def open_files_as(user: int) -> None:
    """From now on; in all else the process stays whose it is."""
    _LIBRARY.setfsgid(user)
    _LIBRARY.setfsuid(user)


def file_owner() -> tuple[int, int]:
    """User and group of the files that this process makes."""
    return _LIBRARY.setfsuid(-1), _LIBRARY.setfsgid(-1)  # no such id: nothing is changed


def turn_into(user: int) -> None:
    """Leave root for good. Should the box's memory run out, this process goes before the server."""
    open_files_as(0)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    for capability in range(NUM_CAPABILITIES):
        _LIBRARY.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgid(user)
    os.setuid(user)


def filter_calls(program: bytes) -> None:
    """Refuse system calls by a compiled filter, from now on and in all children. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    told = struct.pack("@HP", len(program) // INSTRUCTION_BYTES, ctypes.addressof(code))
    if _LIBRARY.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.create_string_buffer(told, len(told)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
