"""Nothing of a run's boxes survives it, however it ends (G06)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.config_sandbox import SandboxConfig

ROOT = Path(__file__).parent.parent.parent
LOCAL = SandboxConfig(backend="local", options={"unsafe": True})
GONE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + GONE_S
    while not condition():
        assert time.monotonic() < end, "it didn't come"
        time.sleep(0.05)


class Holder:
    """A process with two boxes in use, in a folder where nobody else's start sweeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.rollout.box_holder", LOCAL.model_dump_json(), "2"],
            cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.watchman: int = told["watchman"]
        # What is in the boxes may leave every session and group; all of it was started by now.
        self.inside = psutil.Process(told["pid"]).children(recursive=True)

    def kill(self) -> None:
        """As the system does; safe to call twice."""
        self.process.kill()
        self.process.communicate()

    def left(self) -> list[str]:
        """Processes and folders of its boxes that are still there."""
        living = [str(process) for process in self.inside if _lives(process)]
        folders = self.folder.glob(f"agentrl-box-*-{self.process.pid}-*")
        return living + [str(folder) for folder in folders]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    one = Holder(tmp_path)
    yield one
    one.kill()


def test_g06_sigkill_of_a_run_leaves_nothing_of_its_boxes(holder: Holder) -> None:
    """G06: nobody in the killed process can clean up; the watchman does, and goes."""
    assert len(holder.left()) > 4
    holder.kill()
    until(lambda: not holder.left())
    until(lambda: not psutil.pid_exists(holder.watchman))


def test_a_run_that_ends_in_order_needs_no_watchman(holder: Holder) -> None:
    assert holder.process.stdin is not None
    holder.process.stdin.write("end\n")
    holder.process.stdin.flush()
    assert holder.process.wait(GONE_S) == 0
    assert not holder.left() and not psutil.pid_exists(holder.watchman)


def test_the_watchman_outlives_what_is_sent_to_the_run_s_group(holder: Holder) -> None:
    """Ctrl-C reaches all of a terminal's group, `kill -9 -PGID` too."""
    psutil.Process(holder.watchman).send_signal(signal.SIGTERM)
    holder.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    assert _lives(psutil.Process(holder.watchman))
    os.killpg(holder.process.pid, signal.SIGKILL)
    until(lambda: not holder.left() and not psutil.pid_exists(holder.watchman))


def test_g06_the_next_start_removes_what_a_dead_run_left(holder: Holder) -> None:
    """G06: also where the watchman was killed with the run. Living runs are left alone."""
    other = Holder(holder.folder)
    try:
        psutil.Process(holder.watchman).kill()
        holder.kill()
        until(lambda: not any(map(_lives, holder.inside)))
        assert holder.left()
        Holder(holder.folder).kill()
        until(lambda: not holder.left())
        assert len(other.left()) > 4
    finally:
        other.kill()
