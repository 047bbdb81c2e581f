"""The kill soak in short; `make soak` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_run_survives_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--kills", "4", "--seed", "1", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and result["ok"], done.stdout + done.stderr
    assert result["value"]["kills"] >= 4 and result["value"]["trajectories"] > 100
