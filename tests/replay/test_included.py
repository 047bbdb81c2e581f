"""The included environments are deterministic: what scripts and a real engine played in them is replayed equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.store import Store
from agentrl.types import Sampler

SMALL = [
    "sft.demonstrations=6", "sft.steps=1", "sft.batch_size=2", "sft.optimizer=adamw", "eval.tasks=2",
    "limits.max_turn_tokens=24", "limits.max_turns=6",
]  # fmt: skip
ENVIRONMENTS = {
    "calculator": ["env.train_tasks=64", "env.held_out_tasks=16"],
    "dataset": ["env.path=sums.jsonl", "env.reward=number", "env.tools=[calculator]"],
    "gymnasium": ["env.train_tasks=64", "env.held_out_tasks=16", "env.kwargs.is_slippery=true"],
}


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_included_environments_are_replayed_equal(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sums = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sums))
    config = ["--env", env, *ENVIRONMENTS[env], *SMALL, "model.cache_dir=cache"]
    assert main(["sft", *config]) == 0 and main(["rollout", "-n", "2", *config]) == 0
    with Store.open("runs/agentrl.db") as store:
        played = [store.load_trajectory(one.id) for one in store.find_trajectories()]
    (tmp_path / "sums.jsonl").unlink()  # each task is in the database
    samplers = {turn.sampler for trajectory in played for turn in trajectory.turns}
    assert samplers == {Sampler.SCRIPTED, Sampler.ENGINE} and len(played) == 8
    for trajectory in played:
        capsys.readouterr()
        assert main(["replay", trajectory.id, "--env"]) == 0
        assert f"equal: {len(trajectory.turns)} replies" in capsys.readouterr().out
        assert main(["replay", trajectory.id, "--regrade"]) == 0
        assert "equal to the one before" in capsys.readouterr().out
