"""The server's process: dies with its parent, then is vLLM's own entry point.

python -m agentrl.engine.vllm.main PARENT-PID --model … (vLLM's flags)
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

ENTRY = "vllm.entrypoints.launchers.api_server.entry"
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """SIGTERM comes when the parent is gone, however it went; at that vLLM ends its own children."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before that
        sys.exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    runpy.run_module(ENTRY, run_name="__main__", alter_sys=True)
