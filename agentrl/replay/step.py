"""`--step`: a stored training step computed again, from the nearest kept weights before it (S3).

    kept weights (a checkpoint, or the model that the run started from)
        ─▶ the steps that made the versions in between ─▶ the step ─▶ compare with what was stored

Each version that comes out on the way is compared with the stored hash of its weights. On a CPU with one rank all is
equal bit for bit; on GPUs and with several ranks sums are rounded in another order. Neither environment nor engine
takes part: the Rows are built from stored ids and advantages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import AlgorithmConfig, SftConfig, TrainConfig
from agentrl.errors import ModelError, ReplayError
from agentrl.replay.recorded import fitting
from agentrl.replay.rows import rebuild
from agentrl.store.records import NO_BATCH, RunRecord, StepRecord, StepRow, StepState
from agentrl.store.store import Store
from agentrl.train import checkpoint
from agentrl.train.policy import Policy
from agentrl.train.report import RowReport, StepReport
from agentrl.train.trainer import Trainer
from agentrl.wiring import open_policy

COMPARED = ("loss", "grad_norm", "num_tokens")


@dataclass(kw_only=True, slots=True, frozen=True)
class Plan:
    """How a step is computed again."""

    run: RunRecord
    target: StepRecord
    start: Path
    """Weights that are kept."""
    version: int
    """Theirs."""
    between: list[StepRecord]
    """The steps that lead from there to the target."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Comparison:
    """One thing that was stored and computed again."""

    name: str
    recorded: Any
    now: Any

    @property
    def is_equal(self) -> bool:
        """To the last bit."""
        return bool(self.recorded == self.now)


class Line:
    """The versions and steps of a run, and which weights are kept."""

    def __init__(self, store: Store, run: RunRecord) -> None:
        self.run = run
        self.steps = {step.id: step for step in store.steps(run.id)}
        self.versions = {version.id: version for version in store.versions(run.id)}
        folders = checkpoint.kept(Path(run.folder) / "checkpoints")
        self.kept = {0: Path(run.config["model_folder"])} if self._has_start() else {}
        self.kept |= {state["version"]: path for path, state in folders.items() if state["run"] == run.id}

    def plan(self, step: int) -> Plan:
        """Raises ReplayError for a step that isn't stored, and where no weights before it are kept."""
        target = self.steps.get(step)
        if target is None or target.state is not StepState.RECORDED:
            there = self._listed(one.id for one in self.steps.values() if one.state is StepState.RECORDED)
            raise ReplayError(f"run {self.run.id} has no recorded step {step}; there are {there}")
        way = self._way_to(target)
        if way is None:
            raise ReplayError(self._nothing_kept(step))
        version, between = way
        return Plan(run=self.run, target=target, start=self.kept[version], version=version, between=between)

    def _way_to(self, target: StepRecord) -> tuple[int, list[StepRecord]] | None:
        """The nearest kept version before a step, and the steps from there; None: nothing is kept."""
        between: list[StepRecord] = []
        version = target.version_before
        while version not in self.kept:
            made_by = self.versions[version].step
            if made_by is None:
                return None
            between.insert(0, self.steps[made_by])
            version = between[0].version_before
        return version, between

    def _has_start(self) -> bool:
        return 0 in self.versions and (Path(self.run.config["model_folder"]) / "config.json").is_file()

    def _nothing_kept(self, step: int) -> str:
        recorded = (one for one in self.steps.values() if one.state is StepState.RECORDED)
        can = self._listed(one.id for one in recorded if self._way_to(one) is not None)
        return (
            f"step {step} of run {self.run.id} can't be recomputed: no weights before it are kept in "
            f"{self.run.folder}/checkpoints, and the model that it started from is gone. Steps that can be: {can}. "
            f"The run was made with {self.run.made_with}"
        )

    @staticmethod
    def _listed(ids: Iterable[int]) -> str:
        return ", ".join(map(str, sorted(ids))) or "none"


def recompute(store: Store, plan: Plan) -> list[Comparison]:
    """Compute the plan's steps: what was stored of the target, and of each version on the way, beside what comes out.

    Raises ModelError where the kept weights were changed since.
    """
    hashes = {version.id: version.weights_hash for version in store.versions(plan.run.id)}
    found: list[Comparison] = []
    with fitting(plan.run):
        config = TrainConfig.model_validate(plan.run.config["train"])
    with open_policy(config, plan.start) as policy:
        if policy.weights_hash() != hashes[plan.version]:
            raise ModelError(f"{plan.start} doesn't hold version {plan.version} of {plan.run.id}: it was changed since")
        trainer = _trainer(plan.run, policy)
        if checkpoint.is_checkpoint(plan.start):
            checkpoint.load(plan.start, trainer)
        for step in (*plan.between, plan.target):
            stored = _in_order(store, plan.run, step, store.rows_of(plan.run.id, step.id))
            report = _compute(store, plan.run, trainer, step, stored)
            if step is plan.target:
                found += _compare(step, stored, report)
            if (version := step.version_after) is not None:
                name = f"weights of version {version}"
                found.append(Comparison(name=name, recorded=hashes[version], now=policy.weights_hash()))
    return found


def _trainer(run: RunRecord, policy: Policy) -> Trainer:
    with fitting(run):
        config = TrainConfig.model_validate(run.config["train"])
        if run.config["command"] == "sft":
            config = SftConfig.model_validate(run.config["sft"]).train_config(config)
        return Trainer(policy, config, AlgorithmConfig.model_validate(run.config["algorithm"]))


def _in_order(store: Store, run: RunRecord, step: StepRecord, stored: list[StepRow]) -> list[StepRow]:
    """As the step was given them, which decides how Rows of equal length are packed: by group, sample and turn.

    Imitation draws its Rows singly; there they are in the order of their places.
    """
    if run.config["command"] == "sft":
        return stored
    trajectories = {id: store.load_trajectory(id) for id in {row.trajectory for row in stored}}
    places = {group: place for place, group in enumerate(store.groups_of(run.id, step.id))}

    def place(row: StepRow) -> tuple[int, int, int]:
        trajectory = trajectories[row.trajectory]
        return places[trajectory.group or ""], trajectory.sample, row.end_turn

    return sorted(stored, key=place)


def _compute(store: Store, run: RunRecord, trainer: Trainer, step: StepRecord, stored: Sequence[StepRow]) -> StepReport:
    its: dict[str, list[StepRow]] = defaultdict(list)
    for row in stored:
        its[row.trajectory].append(row)
    rebuilt = {id: rebuild(store.load_trajectory(id), of_one) for id, of_one in its.items()}
    rows = {(row.trajectory, row.end_turn): row for of_one in rebuilt.values() for row in of_one}
    # Copies: a batch of the warm start may hold a Row twice, each time at its own place.
    chosen = [copy(rows[row.trajectory, row.end_turn]) for row in stored]
    return (trainer.sft_step if run.config["command"] == "sft" else trainer.step)(chosen, step.ordinal)


def _compare(step: StepRecord, stored: Sequence[StepRow], report: StepReport) -> Iterator[Comparison]:
    pairs = zip(stored, report.rows, strict=True)
    yield Comparison(name="Rows equal", recorded=len(stored), now=sum(_is_equal(was, now) for was, now in pairs))
    metrics = step.metrics or {}
    for name in COMPARED:
        yield Comparison(name=name, recorded=metrics.get(name), now=_measured(report.metrics.get(name)))


def _is_equal(was: StepRow, now: RowReport) -> bool:
    """Place and statistics; a Row without weight was in no Batch."""
    place = None if was.batch == NO_BATCH else was.position
    recorded = (None if was.batch == NO_BATCH else was.batch, place, *map(_measured, _statistics(was)))
    return recorded == (now.batch, now.position, *map(_measured, _statistics(now)))


def _statistics(row: StepRow | RowReport) -> tuple[float | None, ...]:
    return row.ratio_mean, row.ratio_max, row.clip_share


def _measured(value: float | None) -> float | None:
    """NaN says that nothing was measured; the store has nothing there."""
    return None if value is None or math.isnan(value) else value
