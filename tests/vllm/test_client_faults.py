"""A fault run against a real server in short: resets, time-outs, 500, 429, lost replies, and a killed server."""

from __future__ import annotations

from pathlib import Path

from agentrl.engine.vllm.engine import VllmEngine
from benchmarks.vllm_faults import FAULTS, fault_run


async def test_f10_no_sample_is_lost_or_doubled_by_faults_and_a_killed_server(
    engine: VllmEngine, folder: Path, tmp_path: Path
) -> None:
    done = await fault_run(engine, folder, tmp_path / "faults.db", 100, seed=1)
    assert (done.lost, done.doubled, done.problems) == (0, 0, [])
    assert done.num_samples == 25 and done.num_turns >= 100
    # It was a fault run: each kind was met, and the server was down for a while.
    assert set(done.injected) == set(FAULTS) and all(done.injected.values())
    assert done.failed_tries["connection"] > done.injected["reset"] + done.injected["lost_reply"]  # type: ignore[index]
