"""`agentrl train source=replay`: training on what other runs stored, without an engine."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentrl import plugins
from agentrl.cli import main
from agentrl.config import RunConfig
from agentrl.environment import EnvironmentContext
from agentrl.errors import ConfigError
from agentrl.progress import Silent, Summary
from agentrl.run import resume, train
from agentrl.source import StoredGroups, choose
from agentrl.store import Store
from agentrl.store.records import StepRecord
from agentrl.testing.audit import audit
from agentrl.train import checkpoint
from agentrl.train.trainer import Trainer
from agentrl.types import Artifacts, Grade, Message, Purpose, Sampler, StopReason, Task, Trajectory
from tests.excluding import excluding
from tests.small import EvenIds, small_config, small_overrides
from tests.store.builders import leased, record, start_run, task, trajectory, turn
from tests.test_resume import Died, dies_at

TRAINED_SO = [
    "train.threads=1", "train.learning_rate=1e-3", "train.updates_per_step=2", "train.micro_batch_tokens=200",
    "train.keep_best=false", "sft.optimizer=adamw",
]  # fmt: skip
"""What both the live run and its replays have."""
LEARNT = ("loss", "grad_norm", "num_tokens", "ratio_max", "mismatch_logprob_max", "reward_mean", "learning_rate")


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)


@dataclass
class Lived:
    """A live run of three steps, in a folder with a cache of its own."""

    folder: Path
    cache: Path

    @property
    def database(self) -> str:
        return str(self.folder / "agentrl.db")

    def config(self, *overrides: str) -> RunConfig:
        given = [*TRAINED_SO, "train.steps=3", *overrides]
        return small_config(self.folder, self.cache, *given)

    def replay(self, *overrides: str) -> RunConfig:
        return self.config("source=replay", "source.runs=lived", *overrides)


@pytest.fixture(scope="session")
def _lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    its = Lived(tmp_path_factory.mktemp("lived"), tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "environment", lambda name: EvenIds)
        live = its.config("engine=scripted", "engine.threads=1", "eval.tasks=1", "eval.sampled=false", "name=lived")
        asyncio.run(train(live, Silent()))
    return its


@pytest.fixture
def lived(_lived: Lived, tmp_path: Path) -> Lived:
    """Another copy of the database, to write to."""
    shutil.copy(_lived.folder / "agentrl.db", tmp_path / "agentrl.db")
    return Lived(tmp_path, _lived.cache)


def line(lived: Lived, run: str) -> list[tuple[StepRecord, str]]:
    """The steps of the surviving line, each with the hash of the weights that it made."""
    with Store.open(lived.database) as store:
        id = store.find_run(run).id
        hashes = {version.id: version.weights_hash for version in store.versions(id)}
        steps = [step for step in store.steps(id) if not step.abandoned]
        return [(step, hashes[-1 if step.version_after is None else step.version_after]) for step in steps]


def events_of(summary: Summary, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, Path(summary.paths["metrics"]).read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


class Untouchable(EvenIds):
    """An environment that nobody may play or grade."""

    @classmethod
    def tasks(cls, config: Any, split: str) -> Sequence[Task]:
        pytest.fail("a replay asks for no tasks")

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        pytest.fail("a replay plays nothing")

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        pytest.fail("a replay grades nothing")


# ------------------------------------------------------------------------------------------- equal to the live run


async def test_J11_a_replay_of_an_on_policy_run_is_that_run_bit_for_bit(
    lived: Lived, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S3 Equal weights, config and groups give the losses, gradient norms and weights of the live run.

    Nobody plays: neither an environment nor an engine is asked for anything, and no trajectory is added.
    """
    monkeypatch.setattr(plugins, "environment", lambda name: Untouchable)
    monkeypatch.setattr("agentrl.servers.make_engines", lambda run, model: pytest.fail("an engine was asked for"))
    summary = await train(lived.replay("name=again"), Silent())
    was, now = line(lived, "lived"), line(lived, "again")
    assert len(was) == len(now) == summary.steps == 3
    for (live, weights), (replayed, same) in zip(was, now, strict=True):
        assert live.metrics is not None and replayed.metrics is not None and live.metrics["num_updates"] == 2
        assert {name: replayed.metrics[name] for name in LEARNT} == {name: live.metrics[name] for name in LEARNT}
        assert same == weights
    with Store.open(lived.database) as store:
        assert list(audit(store.location)) == []
        assert not store.find_trajectories(run=summary.run) and store.find_run(summary.run).config["source"]["runs"]
    assert summary.evals == {} and checkpoint.is_checkpoint(summary.paths["checkpoint"])
    assert main(["replay", "again", "--step", "2", "--db", lived.database]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out


async def test_two_algorithms_on_the_same_groups(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal Rows and rewards, other advantages; the trajectory knows all that trained on it."""
    other = ["algorithm.normalize_std=false", "algorithm.aggregation=trajectory"]
    await train(lived.replay("name=grpo", "train.steps=1"), Silent())
    await train(lived.replay("name=other", "train.steps=1", *other), Silent())
    (first, weights), (second, other_weights) = line(lived, "grpo")[0], line(lived, "other")[0]
    assert first.metrics is not None and second.metrics is not None and weights != other_weights
    frozen = ("reward_mean", "num_tokens", "num_trajectories", "mismatch_logprob_max")
    assert {name: first.metrics[name] for name in frozen} == {name: second.metrics[name] for name in frozen}
    assert first.metrics["loss"] != second.metrics["loss"]
    with Store.open(lived.database) as store:
        left, right = (store.rows_of(step.run, step.id) for step in (first, second))
        assert {row.trajectory for row in left} == {row.trajectory for row in right}
        by_trajectory = {row.trajectory: row.advantage for row in left}
        assert any(by_trajectory[row.trajectory] != row.advantage != 0 for row in right)
        assert list(audit(store.location)) == []
    assert main(["why", left[0].trajectory, "--db", lived.database]) == 0
    told = capsys.readouterr().out
    assert told.count("trained on by step 0 of run") == 3
    assert told.count("staleness none: no earlier version of these weights sampled it") == 2


async def test_from_a_checkpoint_on_staleness_counts_along_the_line_of_both_runs(lived: Lived) -> None:
    """Sampled by the live run's versions 1 and 2; the replay's version 0 is the live run's version 3."""
    with Store.open(lived.database) as store:
        checkpoints = Path(store.find_run("lived").folder) / "checkpoints"
    model = f"model.path={checkpoints / 'step-3'}"
    summary = await train(lived.replay("name=on", "source.first_step=1", "train.steps=2", model), Silent())
    with Store.open(lived.database) as store:
        rows = [store.rows_of(summary.run, step)[0] for step in (0, 1)]
        uses = [use for row in rows for use in store.steps_of(row.trajectory) if use.run == summary.run]
        assert [(use.version_before, use.staleness) for use in uses] == [(0, 2), (1, 2)]
        assert store.versions(summary.run)[0].parent == (store.find_run("lived").id, 3)


# ------------------------------------------------------------------------------------------------ stopped, resumed


async def test_J09_a_replay_that_was_killed_goes_on_in_the_same_groups(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the run that it replays has other groups by then."""
    config = lived.replay("train.checkpoint_every=1", "name=killed")
    whole = [weights for _, weights in line(lived, "lived")]
    with monkeypatch.context() as patch:
        dies_at(patch, Trainer, "step", 3, after=True)
        with pytest.raises(Died):
            await train(config, Silent())
    with Store.open(lived.database) as store:
        await store.abandon(store.find_run("lived").id, version=1, step=0)
        run = store.find_run("killed").id
        assert [step.state for step in store.steps(run)] == ["recorded", "recorded", "begun"]
    await resume(config, Silent(), run)
    assert [weights for _, weights in line(lived, "killed")] == whole
    with Store.open(lived.database) as store:
        assert [step.abandoned for step in store.steps(run)] == [False, False, True, False]
        assert list(audit(store.location, run)) == []


@pytest.mark.long
async def test_on_several_ranks_and_with_measures_on_the_way(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    """G1 Two ranks learn what one learnt. An engine is started for the measures alone, and proves each version."""
    many = ["train.ranks=2", "train.device=cpu", "train.steps=1"]
    measured = ["eval.every=1", "eval.tasks=2", "eval.sampled=false", "engine=scripted", "engine.threads=1"]
    summary = await train(lived.replay("name=two", *many, *measured), Silent())
    assert [record["ordinal"] for record in events_of(summary, "eval")] == [0, 1]
    assert all(record["publish_seconds"] > 0 for record in events_of(summary, "step"))
    for (live, _), (replayed, _) in zip(line(lived, "lived")[:1], line(lived, "two"), strict=True):
        assert live.metrics is not None and replayed.metrics is not None
        for name in LEARNT:
            assert replayed.metrics[name] == pytest.approx(live.metrics[name], rel=1e-4, abs=1e-6), name
    assert main(["replay", "two", "--step", "0", "--db", lived.database]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------- which groups, why


async def stock(store: Store) -> tuple[str, dict[str, str]]:
    """A run with groups of every kind, by kind: (run, {kind: group})."""
    run, groups = await start_run(store), {}
    mine = task(env="calculator")
    kinds = ["trained", "second", "waiting", "eval", "collect", "other env", "planned", "dropped", "unmeasured"]
    for ordinal, kind in enumerate([*kinds, "by hand", "abandoned"]):
        purpose = Purpose(kind) if kind in ("eval", "collect") else Purpose.TRAIN
        its = task(env="toy") if kind == "other env" else mine
        group = groups[kind] = await store.queue.plan(run, its, purpose=purpose, ordinal=ordinal, size=2, version=0)
        if kind == "planned":
            continue
        lease = await leased(store, group)
        turns = [turn(sampler=Sampler.HUMAN, calls=[])] if kind == "by hand" else []
        for sample in range(2):
            rollout = trajectory(run, group, sample=sample, task=its, turns=list(turns))
            ending = StopReason.ENV_ERROR if kind == "unmeasured" and sample else StopReason.COMPLETED
            rollout.stop_reason = ending
            await record(store, rollout, lease.generation, reward=1.0 if ending is StopReason.COMPLETED else None)
        await store.queue.complete(lease)
    await store.queue.drop(groups["dropped"], "too few")
    await store.queue.archive(groups["abandoned"])
    for ordinal, kind in enumerate(["trained", "second"]):
        step = await store.begin_step(run, ordinal=ordinal, version=0)
        await store.queue.claim(run, step, [groups[kind]])
        await store.record_step(run, step, rows=[], metrics={}, version_after=None)
        await store.queue.archive(groups[kind])
    return run, groups


UNFIT = {
    "purpose=eval": 1, "purpose=collect": 1, "env=toy": 1, "not complete": 1, "dropped": 1, "unmeasured": 1,
    "without logprobs": 1, "abandoned": 1,
}  # fmt: skip


async def test_what_cant_be_trained_on_is_left_out_and_counted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "agentrl.db") as store:
        run, groups = await stock(store)

        def chosen(*overrides: str) -> StoredGroups:
            given = ["source=replay", f"source.runs={run[:8]}", "train.steps=1", *overrides]
            return choose(store, small_config(tmp_path, tmp_path, *given))

        recorded = chosen()
        assert recorded.batches == [[groups["trained"]], [groups["second"]]]
        assert recorded.skipped == UNFIT | {"no step trained on it": 1} and recorded.first == {run: groups["trained"]}
        assert chosen("source.first_step=1").batches == [[groups["second"]]]
        late = chosen("source.last_step=0")
        assert late.batches == [[groups["trained"]]] and late.skipped["of another step"] == 1
        planned = chosen("source.batches=planned")
        assert planned.batches == [[groups["trained"], groups["second"]]]
        assert planned.skipped == UNFIT | {"less than a batch": 1}
        alone = chosen("source.batches=planned", "algorithm.groups_per_step=1")
        assert alone.batches == [[groups[kind]] for kind in ("trained", "second", "waiting")]
        with pytest.raises(ConfigError, match=r"in tasks\.exclude"):
            chosen(excluding(tmp_path, task(env="calculator")))


async def test_several_runs_come_one_after_the_other_and_no_group_comes_twice(tmp_path: Path) -> None:
    with Store.open(tmp_path / "agentrl.db") as store:
        (one, first), (two, second) = await stock(store), await stock(store)
        given = ["source=replay", f"source.runs=[{two},{one},{two}]", "train.steps=4"]
        chosen = choose(store, small_config(tmp_path, tmp_path, *given))
        assert chosen.batches == [[its[kind]] for its in (second, first) for kind in ("trained", "second")]
        assert chosen.first == {two: second["trained"], one: first["trained"]}
        assert chosen.skipped["chosen already"] == 2


# ------------------------------------------------------------------------------------------------------- bad input


def refused(lived: Lived, capsys: pytest.CaptureFixture[str], *overrides: str, rc: int = 2) -> str:
    given = small_overrides(lived.folder, lived.cache, "train.steps=3", *overrides)
    assert main(["train", "--env", "calculator", *given]) == rc
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    return said


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["source=replay"], "name them by source.runs=[RUN]"),
        (["source.runs=lived"], "say source=replay"),
        (["source=replay", "source.runs=livid"], "source.runs: no run id starts with 'livid'; near: "),
        (["source=replay", "source.runs=lived", "engine=scripted"], "leave the keys of engine out"),
        (["source=replay", "source.runs=lived", "source.batches=planned", "source.last_step=1"], "one or the other"),
        (
            ["source=replay", "source.runs=lived", "train.steps=4"],
            "groups for 3 steps, and train.steps=4; set train.steps=3 or less. Groups left out: 2 purpose=eval",
        ),
        (
            ["source=replay", "source.runs=lived", "source.first_step=7"],
            "groups for 0 steps, and train.steps=3; choose other runs or steps. Groups left out: "
            "6 of another step, 2 purpose=eval",
        ),
    ],
)
def test_what_does_not_fit_is_named_before_anything_starts(
    lived: Lived, overrides: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(lived, capsys, *overrides)
    with Store.open(lived.database) as store:
        assert {run.config["command"] for run in store.runs()} == {"train", "sft"} and len(store.runs()) == 2
    assert [path.name for path in lived.folder.iterdir()] == ["agentrl.db"]


def test_a_database_that_is_not_there(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    other = lived.folder / "nowhere" / "agentrl.db"
    assert f"no database {other}" in refused(lived, capsys, "source=replay", "source.runs=lived", f"store.url={other}")
    assert not other.parent.exists()


def test_a_model_with_another_template_is_refused(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    model = other_model(lived)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = tokenizer.chat_template.replace("\n", "\n\n", 1)
    tokenizer.save_pretrained(model)
    said = refused(lived, capsys, "source=replay", "source.runs=lived", f"model.path={model}", rc=1)
    assert "was sampled with the chat template" in said and "Start from the model of that run" in said


def test_a_model_with_another_vocabulary_is_refused(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    """The template and the ids of its control tokens are the same."""
    model = other_model(lived)
    state = json.loads((model / "tokenizer.json").read_text())
    control = {token["content"] for token in state["added_tokens"]}
    words = [word for word in state["model"]["vocab"] if word not in control]
    ids = [state["model"]["vocab"][word] for word in words]
    state["model"]["vocab"] |= dict(zip(words, reversed(ids), strict=True))
    (model / "tokenizer.json").write_text(json.dumps(state))
    said = refused(lived, capsys, "source=replay", "source.runs=lived", f"model.path={model}", rc=1)
    assert "another vocabulary" in said


def other_model(lived: Lived) -> Path:
    """A copy of the model that the run started from."""
    with Store.open(lived.database) as store:
        start = store.find_run("lived").config["model_folder"]
    return Path(shutil.copytree(start, lived.folder / "model"))


def test_a_conversation_that_is_too_long_for_the_model(lived: Lived, capsys: pytest.CaptureFixture[str]) -> None:
    model = other_model(lived)
    state = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(state | {"max_position_embeddings": 40}))
    said = refused(lived, capsys, "source=replay", "source.runs=lived", f"model.path={model}")
    assert " tokens, and the model takes 40; choose a model with a longer context" in said
