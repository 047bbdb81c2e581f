"""A whole training run on real repositories in boxes, stopped and resumed in the middle, as small as it goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.batch.rows import build_rows
from agentrl.cli.compose import load_config
from agentrl.progress import Silent
from agentrl.run import resume, train
from agentrl.store import RunStatus, Store
from agentrl.types import Sampler
from tests.boxes import need_bubblewrap

SMALL = [
    "model=tiny", "sft.demonstrations=2", "sft.steps=1", "sft.optimizer=adamw", "train.steps=2",
    "train.checkpoint_every=1", "algorithm.group_size=2", "algorithm.groups_per_step=2", "algorithm.oracle_samples=1",
    "limits.max_turns=4", "limits.max_turn_tokens=400", "eval.tasks=1", "eval.sampled=false",
]  # fmt: skip


class StopsAfterAStep(Silent):
    """As ctrl-C does, once the first step is on record."""

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            raise asyncio.CancelledError


async def test_a_run_on_repositories_is_resumed_and_learns_where_only_the_oracle_succeeds(tmp_path: Path) -> None:
    await need_bubblewrap()
    where = [f"runs_dir={tmp_path}", f"model.cache_dir={tmp_path / 'cache'}", "name=it"]
    config = load_config("swe_bench", [*SMALL, *where])
    with pytest.raises(asyncio.CancelledError):
        await train(config, StopsAfterAStep())
    summary = await resume(config, Silent(), "it")
    assert summary.steps == 2

    lines = (tmp_path / "it" / "metrics.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if step["kind"] == "step"]
    with Store.open(tmp_path / "agentrl.db") as store:
        run = store.find_run("it")
        assert run.status is RunStatus.COMPLETED
        survived = [step for step in store.steps(run.id) if not step.abandoned]
        assert [step.ordinal for step in survived] == [0, 1]
        for step in survived:
            for group in map(store.load_group, store.groups_of(run.id, step.ordinal)):
                sampled, scripted = group.samples
                assert (sampled.reward, scripted.reward) == (0.0, 1.0)
                assert {turn.sampler for turn in sampled.trajectory.turns} == {Sampler.ENGINE}
                assert any(row.live for row in build_rows(sampled)) and not any(r.live for r in build_rows(scripted))
                assert scripted.grade is not None and scripted.grade.parts["resolved"] == 1.0
                assert b"diff --git" in scripted.trajectory.artifacts.files["patch.diff"]
    assert all(step["grad_norm"] > 0 and step["num_updates"] == 1 for step in steps)
