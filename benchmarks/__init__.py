"""What agentrl must reach, measured. Each benchmark ends with one JSON line."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys


def agentrl(*words: str) -> None:
    """Run the command line in a process of its own. Raises CalledProcessError if it fails."""
    code = "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, *words], check=True)


def report(name: str, value: float | dict[str, float], target: str, ok: bool) -> bool:
    """Print the one line that a benchmark ends with; returns `ok`."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, python {platform.python_version()}"
    print(json.dumps({"name": name, "value": value, "target": target, "ok": ok, "machine": machine}))
    return ok
