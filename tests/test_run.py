"""A whole run on the real engine, as small as it goes: what it leaves behind, and what makes it fail."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl import plugins
from agentrl.batch.rows import WeightRun, build_rows
from agentrl.cli.display import Display
from agentrl.engine import embedded
from agentrl.engine.embedded import EmbeddedEngine
from agentrl.engine.weights import LoadReport
from agentrl.environment import EnvironmentContext
from agentrl.errors import ConfigError, PublishError
from agentrl.progress import Silent, Summary
from agentrl.run import resume, sft, train
from agentrl.store import RunStatus, Store
from agentrl.testing.audit import audit
from agentrl.train.policy import Policy
from agentrl.types import Artifacts, Grade, GroupState, Sampler, StopReason, Task, Trajectory
from tests.small import EvenIds, small_config


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, EvenIds)


def use(monkeypatch: pytest.MonkeyPatch, env: type) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: env)


@dataclass
class Finished:
    summary: Summary
    store: Store

    @property
    def metrics(self) -> list[dict[str, Any]]:
        lines = Path(self.summary.paths["metrics"]).read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [record for record in self.metrics if record["kind"] == "step"]


async def run_small(folder: Path, cache: Path, *overrides: str, watcher: Any = None) -> Finished:
    summary = await train(small_config(folder, cache, *overrides), watcher or Silent())
    return Finished(summary, Store.open(folder / "agentrl.db"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


async def test_a_run_leaves_everything_behind(even: None, tmp_path: Path, cache: Path) -> None:
    done = await run_small(tmp_path, cache)
    summary = json.loads((Path(done.summary.paths["folder"]) / "summary.json").read_text())
    assert {"held_out_before", "held_out_after", "seconds", "seed", "paths"} <= set(summary)
    assert summary["num_held_out_tasks"] == 5 and summary["seed"] == 0
    assert all(Path(path).exists() for path in summary["paths"].values())
    assert Path(summary["paths"]["curve"]).read_bytes().startswith(b"\x89PNG")

    (run,) = [record for record in done.store.runs() if record.config["command"] == "train"]
    assert run.status is RunStatus.COMPLETED and run.config["algorithm"]["group_size"] == 4
    assert "torch" in run.packages and run.git_commit
    train_ones = [t for t in done.store.find_trajectories(run=run.id) if t.purpose == "train"]
    assert len(train_ones) == 2 * 2 * 4 and {t.stop_reason for t in train_ones} <= set(StopReason)
    evals = [t for t in done.store.find_trajectories(run=run.id) if t.purpose == "eval"]
    assert len(evals) == 2 * 2 * 5  # before and after, greedy and sampled

    for record in done.steps:
        assert record["rollouts"] == 8 and record["num_updates"] == 1
        # On-policy with equal weights: sampler and trainer agree, and the ratio is 1 (G2, C07).
        assert record["mismatch_logprob_max"] <= 1e-4
        assert abs(record["ratio_mean"] - 1) <= 1e-4 and record["first_update_ratio_error"] <= 1e-6
        assert record["canary_delta"] <= 1e-4


async def test_a_batch_of_the_warm_start_may_reach_over_the_end_of_an_epoch(tmp_path: Path) -> None:
    sizes = ["sft.demonstrations=6", "sft.batch_size=4", "sft.steps=6"]
    summary = await sft(small_config(tmp_path, tmp_path / "cache", *sizes), Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        kept = [store.rows_of(summary.run, step.id) for step in store.steps(summary.run)]
    assert [len(rows) for rows in kept] == [4] * 6
    assert any(len({row.trajectory for row in rows}) < 4 for rows in kept), "no batch held a Row twice"


async def test_lineage_both_ways_and_a_stored_step_can_be_built_again(even: None, tmp_path: Path, cache: Path) -> None:
    done = await run_small(tmp_path, cache)
    store, run = done.store, done.summary.run
    versions, steps = store.versions(run), store.steps(run)
    assert [v.id for v in versions] == [0, 1, 2] and [v.ordinal for v in versions] == [0, 1, 2]
    assert [v.parent for v in versions[1:]] == [(run, 0), (run, 1)]
    assert len({v.weights_hash for v in versions}) == 3
    assert [(s.version_before, s.version_after) for s in steps] == [(0, 1), (1, 2)]
    for step in steps:
        stored = store.rows_of(run, step.id)
        assert {row.trajectory for row in stored} == set(store.trajectories_of(run, step.id)) and len(stored) >= 8
        for kept in stored:
            sample = store.load_sample(kept.trajectory)
            assert kept.grade_id == sample.grade_id
            (use,) = store.steps_of(kept.trajectory)
            assert (use.step, use.row) == (step.id, kept) and kept.ratio_max is not None
            (row,) = [r for r in build_rows(sample) if r.end_turn == kept.end_turn]
            row.restore(kept.advantage, [WeightRun(*w) for w in kept.weights])
            assert row.live and set(row.versions[row.mask == 1]) == {step.version_before}
    groups = [store.load_group(g) for g in store.queue.groups(run)]
    trained = [g for g in groups if g.purpose == "train"]
    assert {g.state for g in trained} == {GroupState.ARCHIVED}
    for group in trained:
        rows = [store.steps_of(s.trajectory.id)[0].row for s in group.samples]
        assert math.isclose(sum(r.advantage for r in rows), 0, abs_tol=1e-6)


async def test_the_warm_start_is_in_the_store_too(even: None, tmp_path: Path, cache: Path) -> None:
    done = await run_small(tmp_path, tmp_path / "fresh-cache")
    (sft,) = [record for record in done.store.runs() if record.config["command"] == "sft"]
    parent = done.store.versions(done.summary.run)[0].parent
    assert parent == (sft.id, 2)
    assert [step.ordinal for step in done.store.steps(sft.id)] == [0, 1]
    demonstration = done.store.load_trajectory(done.store.trajectories_of(sft.id, 0)[0])
    assert {turn.sampler for turn in demonstration.turns} == {Sampler.SCRIPTED}


class Tensors:
    """Publishes other tensors than the policy holds."""

    def __init__(self, change: Any) -> None:
        self.change = change
        self.real = Policy.tensors

    def __call__(self, policy: Policy, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        tensors = dict(self.real(policy, dtype))
        return iter(self.change(tensors).items())


def swapped(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    one, two = "model.layers.0.self_attn.k_proj.weight", "model.layers.1.self_attn.k_proj.weight"
    return tensors | {one: tensors[two], two: tensors[one]}


def without_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    del tensors["model.norm.weight"]
    return tensors


async def test_V2_swapped_tensors_make_the_run_fail(
    even: None, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_small(tmp_path, cache, "train.steps=0")  # the same config without a step is fine
    sends = Tensors(swapped)
    # The trainer's own hash reads the real tensors; only what is sent is wrong.
    monkeypatch.setattr("agentrl.run.sent_tensors", lambda policy: sends(policy))
    with pytest.raises(PublishError, match="canary"):
        await run_small(tmp_path, cache)
    assert Store.open(tmp_path / "agentrl.db").runs()[0].status is RunStatus.FAILED


async def test_V2_a_missing_tensor_is_named(
    even: None, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = Tensors(without_one)
    monkeypatch.setattr("agentrl.run.sent_tensors", lambda policy: sends(policy))
    with pytest.raises(PublishError, match=r"missing from what was sent: model\.norm\.weight"):
        await run_small(tmp_path, cache)


async def test_V2_a_skipped_publish_makes_the_run_fail(
    even: None, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def skip(engine: EmbeddedEngine, version: int, tensors: Any) -> LoadReport:
        engine.loop.version = version  # it says that it has them
        return LoadReport(loaded=engine.tensor_names(), missing=[], unexpected=[], mismatched=[])

    monkeypatch.setattr(EmbeddedEngine, "load", skip)
    with pytest.raises(PublishError, match="the engine holds other bytes"):
        await run_small(tmp_path, cache)


@pytest.fixture
def untied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that holds a copy of the tied head."""
    load_model = embedded._load_model

    def load(path: Path, device: str) -> Any:
        model: Any = load_model(path, device)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
        return model

    monkeypatch.setattr(embedded, "_load_model", load)


async def test_V2_an_untied_head_that_nothing_was_sent_for_makes_the_run_fail(
    even: None, untied: None, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.run.sent_tensors", lambda policy: policy.tensors())
    with pytest.raises(PublishError, match="lm_head"):
        await run_small(tmp_path, cache)


async def test_an_untied_head_gets_the_weights_of_the_tied_one(
    even: None, untied: None, tmp_path: Path, cache: Path
) -> None:
    await run_small(tmp_path, cache)  # each publish is proved, the head's bytes too
    with Store.open(tmp_path / "agentrl.db") as store:
        run = store.runs()[0]
        assert run.status is RunStatus.COMPLETED and len(store.versions(run.id)) > 1


class Stop(Exception):
    """What a run that is cut short dies of."""


class StopAfter(Silent):
    """Raises at the end of a step."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["ordinal"] == self.ordinal:
            raise Stop


async def test_a_run_that_died_goes_on_from_its_last_checkpoint(even: None, tmp_path: Path, cache: Path) -> None:
    config = small_config(tmp_path, cache, "train.steps=4", "train.checkpoint_every=2", "eval.sampled=false")
    with pytest.raises(Stop):
        await train(config, StopAfter(2))  # after the third step; the checkpoint holds two
    store = Store.open(tmp_path / "agentrl.db")
    run = store.runs()[0]
    assert run.status is RunStatus.FAILED
    summary = await resume(config, Silent(), run.id)
    assert summary.run == run.id and summary.steps == 4 and summary.held_out_before is not None
    steps = store.steps(run.id)
    assert [(s.id, s.ordinal, s.abandoned) for s in steps] == [
        (0, 0, False), (1, 1, False), (2, 2, True), (3, 2, False), (4, 3, False),
    ]  # fmt: skip
    assert [(v.id, v.ordinal, v.abandoned) for v in store.versions(run.id)] == [
        (0, 0, False), (1, 1, False), (2, 2, False), (3, 3, True), (4, 3, False), (5, 4, False),
    ]  # fmt: skip
    assert store.versions(run.id)[4].parent == (run.id, 2)
    trained = [t for s in steps if not s.abandoned for t in store.trajectories_of(run.id, s.id)]
    assert len(trained) == len(set(trained)) == 4 * 8
    assert store.find_run(run.id).status is RunStatus.COMPLETED


async def test_d11_a_constant_reward_makes_visible_steps_without_signal_and_the_run_reaches_its_end(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Same(EvenIds):
        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=1.0)

    use(monkeypatch, Same)
    with Display(2) as display:
        done = await run_small(tmp_path, cache, watcher=display)
    assert [record["num_zero_variance_groups"] for record in done.steps] == [2, 2]
    assert [record["num_updates"] for record in done.steps] == [0, 0]
    shares = [[record[f"{name}_share"] for name in ("zero_variance", "all_zero", "all_one")] for record in done.steps]
    assert shares == [[1.0, 0.0, 1.0]] * 2
    out = capsys.readouterr().out
    assert out.count("NO SIGNAL: rewards are equal within 100% of the groups (0% all 0, 100% all 1)") == 2
    assert [v.id for v in done.store.versions(done.summary.run)] == [0]
    stored = [step.metrics or {} for step in done.store.steps(done.summary.run)]
    assert [metrics["all_one_share"] for metrics in stored] == [1.0, 1.0]
    row = done.store.rows_of(done.summary.run, 0)[0]
    assert row.advantage == 0 and {weight[3] for weight in row.weights} == {"zero_variance"}
    assert done.store.find_run(done.summary.run).status is RunStatus.COMPLETED
    assert Path(done.summary.paths["checkpoint"]).is_dir()
    # The learning rate goes by the step's ordinal, with or without an update.
    assert done.steps[0]["learning_rate"] < done.steps[1]["learning_rate"]
    assert audit(tmp_path / "agentrl.db") == []


async def test_d04_unmeasured_rewards_are_left_out_and_counted_and_the_run_goes_on(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mixed(EvenIds):
        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=(None, math.nan, 1.0, 0.0)[trajectory.sample])

    use(monkeypatch, Mixed)
    done = await run_small(tmp_path, cache, "algorithm.groups_per_step=4")
    for record in done.steps:
        assert record["num_unmeasured"] == 8 and record["reward_mean"] == 0.5
        assert sum(record["unmeasured_reasons"].values()) == 8


async def test_D02_a_group_with_one_survivor_is_dropped_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OneMeasured(EvenIds):
        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=1.0 if trajectory.sample == 0 else None)

    use(monkeypatch, OneMeasured)
    done = await run_small(tmp_path, cache, "train.steps=1")
    assert done.steps[0]["num_dropped_groups"] == 2 and done.steps[0]["num_updates"] == 0
    assert done.steps[0]["num_unmeasured"] == sum(done.steps[0]["unmeasured_reasons"].values()) == 6
    groups = done.store.queue.groups(done.summary.run, states=[GroupState.DROPPED])
    assert len(groups) == 2


async def test_training_needs_an_engine_of_our_own(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.url"):
        await run_small(tmp_path, cache, "engine.url='http://127.0.0.1:1'")


async def test_where_the_model_never_succeeds_the_oracles_samples_tell_it_what_to_leave(tmp_path: Path) -> None:
    wide = ["limits.max_turns=4", "limits.max_turn_tokens=64", "train.steps=1", "eval.tasks=1", "eval.sampled=false"]
    wide += ["algorithm.group_size=2"]
    alone = await run_small(tmp_path / "alone", tmp_path, *wide)
    mixed = await run_small(tmp_path / "mixed", tmp_path, *wide, "algorithm.oracle_samples=1")
    assert [step["num_zero_variance_groups"] for step in alone.steps] == [2]
    (step,) = mixed.steps
    assert step["num_zero_variance_groups"] == 0 and step["grad_norm"] > 0
    assert (step["reward_mean"], step["policy_reward_mean"], step["scripted_rollouts"]) == (0.5, 0.0, 2)

    for id in mixed.store.groups_of(mixed.summary.run, step["ordinal"]):
        *sampled, scripted = mixed.store.load_group(id).samples
        assert scripted.reward == 1.0 and {turn.sampler for turn in scripted.trajectory.turns} == {Sampler.SCRIPTED}
        assert all(turn.sampler is Sampler.ENGINE for sample in sampled for turn in sample.trajectory.turns)
        assert not any(row.live for row in build_rows(scripted))


async def test_an_environment_without_an_oracle_cant_play_a_part_of_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvenIds, "oracle", lambda self, task: None)
    use(monkeypatch, EvenIds)
    with pytest.raises(ConfigError, match=r"has no oracle for task .* leave algorithm\.oracle_samples out"):
        await run_small(tmp_path / "runs", tmp_path, "algorithm.oracle_samples=1")
