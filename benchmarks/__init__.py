"""What agentrl must reach, measured. Each benchmark ends with one JSON line."""

from __future__ import annotations

import json
import os
import platform


def report(name: str, value: float | dict[str, float], target: str, ok: bool) -> bool:
    """Print the one line that a benchmark ends with; returns `ok`."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, python {platform.python_version()}"
    print(json.dumps({"name": name, "value": value, "target": target, "ok": ok, "machine": machine}))
    return ok
