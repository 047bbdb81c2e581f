"""A whole fault run in short, a stop while the engine is down, and what is refused at start."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.errors import ConfigError
from agentrl.rollout.process import collector_spared, require_open_files
from agentrl.store import RunStatus, Store
from agentrl.testing.endpoint import Fault, Reply, ScriptedEndpoint
from agentrl.types import StopReason
from benchmarks.faults import fault_run
from tests.small import small_overrides

AGENTRL = [sys.executable, "-c", "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"]


async def test_a_fault_run_is_accounted_for(tmp_path: Path) -> None:
    with Store.open(tmp_path / "faults.db") as store:
        done = await fault_run(store, 200, seed=3)
    assert done.problems() == [] and done.num_samples == 200
    # It was a fault run: engine, environment and tools failed, and most samples came through all the same.
    assert done.engine_faults.total() >= 100 and len(done.engine_faults) >= 6
    assert done.stored["engine_error"] and done.stored["env_error"]
    assert done.finals["completed"] >= 150
    statuses = {str(call.status) for s in done.heard for turn in s.trajectory.turns for call in turn.tool_calls}
    assert {"ok", "error", "unknown_tool", "invalid_arguments"} <= statuses
    assert any(sample.trajectory.attempt > 0 for sample in done.heard)


class Endpoint:
    """A scripted endpoint in a thread of its own, which goes down, and answers nobody, once a rollout has asked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.server = ScriptedEndpoint(lambda seen: Reply(ids=[1]), fault=self.plan)
        self.asked = threading.Event()
        self.num_asked = 0

    def plan(self) -> Fault | None:
        self.num_asked += 1
        if self.num_asked == 1:  # the check at start
            return None
        if self.num_asked == 2:
            self.loop.create_task(self.server.go_down())
            self.asked.set()
        return "reset"

    def start(self) -> None:
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.server.come_up(), self.loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.go_down(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started tiny model, so that the command under test doesn't make one."""
    cache = tmp_path_factory.mktemp("cache")
    options = small_overrides(tmp_path_factory.mktemp("runs"), cache)
    assert main(["sft", "--env", "calculator", *options]) == 0
    return cache


def test_f04_a_stop_while_the_server_is_down_ends_the_process_with_every_rollout_stored(
    tmp_path: Path, cache: Path, endpoint: Endpoint
) -> None:
    options = small_overrides(
        tmp_path, cache, f"engine.urls='{endpoint.server.url}'", "engine.max_tries=1000", "engine.retry_wait_s=5",
        "eval.tasks=16", "name=stopped",
    )  # fmt: skip
    process = subprocess.Popen([*AGENTRL, "eval", "--env", "calculator", *options], stderr=subprocess.PIPE, text=True)
    assert endpoint.asked.wait(60)
    wait_for_begun(tmp_path / "agentrl.db")
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 143 and "Traceback" not in errors
    with Store.open(tmp_path / "agentrl.db") as store:
        record = store.runs()[0]
        assert record.status is RunStatus.INTERRUPTED
        reasons = [summary.stop_reason for summary in store.find_trajectories(run=record.id)]
    assert reasons == [StopReason.CANCELLED] * 16


def wait_for_begun(database: Path) -> None:
    """Until all rollouts are in flight."""
    with Store.open(database) as store:
        while len(store.find_trajectories(run=store.runs()[0].id)) < 16:
            time.sleep(0.05)


def test_an_engine_that_dies_stops_the_run_by_name(
    tmp_path: Path, cache: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    options = small_overrides(
        tmp_path, cache, f"engine.urls='{endpoint.server.url}'", "engine.max_tries=2", "engine.retry_wait_s=0.01",
        "eval.tasks=16",
    )  # fmt: skip
    assert main(["eval", "--env", "calculator", *options]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "rollouts ended in a fault (engine_error" in line and "rollout.max_fault_share=0.5" in line
    assert "the connection failed" in line and endpoint.server.url in line
    with Store.open(tmp_path / "agentrl.db") as store:
        record = store.runs()[0]
        assert record.status is RunStatus.FAILED
        assert all(summary.stop_reason for summary in store.find_trajectories(run=record.id))


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_f06_the_limit_of_open_files_is_raised_or_named(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    require_open_files(1000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1000
    with pytest.raises(ConfigError, match=r"rollout\.concurrency needs .* open files .*ulimit -n"):
        require_open_files(hard + 1)


def test_f06_too_many_rollouts_for_the_system_are_refused_at_start(
    tmp_path: Path, cache: Path, limits: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    options = small_overrides(tmp_path, cache, f"rollout.concurrency={limits[1]}")
    assert main(["eval", "--env", "calculator", *options]) == 2
    assert "ulimit -n" in capsys.readouterr().err


def test_the_collector_is_spared_and_comes_back() -> None:
    thresholds = gc.get_threshold()
    with pytest.raises(ValueError, match="inside"), collector_spared():
        assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > thresholds[0]
        raise ValueError("inside")
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == thresholds
