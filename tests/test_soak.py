"""The kill soaks in short; `make soak` is the long form."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.docker_engine import IMAGE, need_docker
from tests.postgres import need_postgres

ROOT = Path(__file__).parent.parent


@pytest.mark.long  # in short: tests/test_run_postgresql.py, tests/test_resume.py
def test_a_run_survives_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--kills", "4", "--seed", "1", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and result["ok"], done.stdout + done.stderr
    assert result["value"]["kills"] >= 4 and result["value"]["trajectories"] > 100


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_queue_survives_sigkill_of_its_workers(database: str) -> None:
    if database == "postgresql":
        need_postgres()
    command = [sys.executable, "-m", "benchmarks.queue_soak", "--kills", "12", "--database", database]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and result["ok"], done.stdout + done.stderr
    assert result["value"]["kills"] == 12 and result["value"]["groups"] > 5


@pytest.mark.parametrize("backend", ["bubblewrap", "docker"])
def test_g06_nothing_of_a_killed_run_s_boxes_survives(backend: str) -> None:
    """G06: no process, mount, cgroup, container or file."""
    command = [sys.executable, "-m", "benchmarks.sandbox_soak", "--episodes", "6", "--kills", "1", "--seed", "3"]
    command += ["--backend", backend]
    if backend == "docker":
        need_docker()
        command += ["--image", IMAGE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and result["ok"], done.stdout + done.stderr
    assert result["value"]["kills"] == 1 and result["value"]["left"] == 0


def test_the_workers_of_the_queue_end_with_it() -> None:
    with subprocess.Popen([sys.executable, "-m", "benchmarks.queue_soak", "--kills", "9999"], cwd=ROOT) as soak:
        try:
            workers: list[psutil.Process] = []
            deadline = time.monotonic() + 60
            while len(workers) < 6 and time.monotonic() < deadline:
                time.sleep(0.2)
                workers = psutil.Process(soak.pid).children()
        finally:
            soak.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert len(workers) >= 6 and not alive
