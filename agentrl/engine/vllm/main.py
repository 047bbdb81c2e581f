"""The server's process: vLLM's own entry point, beside a watchman who ends it when its parent is gone.

    python -m agentrl.engine.vllm.main PIPE --model … (vLLM's flags)

PIPE is the reading end of a pipe whose other end the parent alone holds: it closes when the parent dies, however that
happens. The process leads a group of its own, which vLLM's children belong to.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

ENTRY = "vllm.entrypoints.launchers.api_server.entry"
GRACE_S = 5.0
"""vLLM may use it to end in order; while it starts it doesn't listen."""


def watch(pipe: int) -> None:
    """Fork the watchman; returns in the server's process. Before anything is imported that starts threads."""
    if os.fork():
        os.close(pipe)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(pipe, 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv.pop(1)))
    runpy.run_module(ENTRY, run_name="__main__", alter_sys=True)
