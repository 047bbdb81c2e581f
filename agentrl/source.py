"""Where a replay's groups come from (`source=replay`): other runs of the same database.

What it trains on is chosen from numbers alone, before anything heavy starts, and kept in the run's folder: a run that
is resumed goes on in the same list, whatever was stored since.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from agentrl.config import RunConfig, SourceConfig
from agentrl.errors import ConfigError, ModelError, StoreError
from agentrl.rollout.renderer import Renderer
from agentrl.run_folder import Run, check_tasks, open_store
from agentrl.store.records import GroupFacts
from agentrl.store.store import Store
from agentrl.tasks import excluded_keys
from agentrl.types import Group, GroupState, Purpose, Trajectory

FILE = "source.json"
"""In the run's folder."""


@dataclass(kw_only=True, slots=True, frozen=True)
class StoredGroups:
    """What a replay trains on."""

    batches: list[list[str]]
    """Ids of each step's groups."""
    first: dict[str, str]
    """Run → its first group among them."""
    skipped: dict[str, int]
    """Groups of these runs that are left out, by reason."""

    def load(self, store: Store, step: int, window: int) -> list[Group]:
        """The groups of a step. Raises ConfigError for a conversation that is longer than the model's `window`."""
        groups = [store.load_group(id) for id in self.batches[step]]
        for group in groups:
            longest = max((turn.num_ids for sample in group.samples for turn in sample.trajectory.turns), default=0)
            if longest > window:
                raise ConfigError(
                    f"source.runs: a conversation of group {group.id} has {longest} tokens, and the model takes "
                    f"{window}; choose a model with a longer context by model.path"
                )
        return groups

    def first_prompt(self, store: Store) -> list[int]:
        """What the first reply was conditioned on: ids."""
        trajectory = _first_trajectory(store, self.batches[0][0])
        return trajectory.context(trajectory.turns_of()[0].index)


def check_source(config: RunConfig) -> None:
    """Before anything heavy starts. Raises ConfigError where there is nothing to play, or not enough stored."""
    is_live = config.source.name == "live"
    check_tasks(config, *(["train"] if is_live else []), *(["held_out"] if config.is_played else []))
    if is_live:
        return
    if "://" not in config.database and not Path(config.database).is_file():
        raise ConfigError(f"source.runs: no database {config.database}; name the one of these runs by store.url")
    with open_store(config) as store:
        choose(store, config)


def stored_groups(run: Run, renderer: Renderer) -> StoredGroups:
    """What the run trains on, as it was chosen when it began.

    Raises ConfigError as `choose` does, ModelError where the model would read the ids as another text.
    """
    file = run.folder / FILE
    if file.exists():
        stored = StoredGroups(**json.loads(file.read_text(encoding="utf-8")))
    else:
        stored = choose(run.store, run.config)
        _write(file, stored)
    for source, group in stored.first.items():
        _check_readable(source, _first_trajectory(run.store, group), renderer, run.config)
    run.event("source", runs=list(stored.first), num_steps=len(stored.batches), skipped=stored.skipped)
    return stored


def choose(store: Store, config: RunConfig) -> StoredGroups:
    """The groups of each step. Raises ConfigError for an unknown run, and where they are too few for train.steps."""
    taken: dict[str, tuple[str, GroupFacts]] = {}
    skipped: Counter[str] = Counter()
    for run in _runs(store, config.source):
        for group in store.group_facts(run):
            reason = "chosen already" if group.id in taken else _why_skipped(group, config)
            if reason is None:
                taken[group.id] = (run, group)
            else:
                skipped[reason] += 1
    batches = list(_batches(list(taken.values()), config))
    skipped["less than a batch"] += len(taken) - sum(map(len, batches))
    if len(batches) < config.train.steps or not batches:
        raise ConfigError(_too_few(len(batches), +skipped, config))
    first: dict[str, str] = {}
    for id, (run, _) in taken.items():
        first.setdefault(run, id)
    return StoredGroups(batches=batches, first=first, skipped=dict(+skipped))


def _runs(store: Store, source: SourceConfig) -> Iterator[str]:
    for name in source.runs:
        try:
            yield store.find_run(name).id
        except StoreError as error:
            raise ConfigError(f"source.runs: {error}") from None


def _why_skipped(group: GroupFacts, config: RunConfig) -> str | None:
    """Why nothing can be learnt from a group, or it wasn't asked for; None: it is taken."""
    if group.purpose is not Purpose.TRAIN:
        return f"purpose={group.purpose}"
    if group.env != config.env.name:
        return f"env={group.env}"
    if group.task_key in excluded_keys(config):
        return "in tasks.exclude"
    if group.state is GroupState.DROPPED:
        return "dropped"
    if group.state not in (GroupState.COMPLETE, GroupState.ARCHIVED):
        return "not complete"
    if group.state is GroupState.ARCHIVED and group.step is None:
        return "abandoned"
    if group.num_measured < 2:
        return "unmeasured"
    if group.num_from_engine == 0:
        return "without logprobs"
    return None if config.source.batches == "planned" else _why_not_chosen(group.step, config.source)


def _why_not_chosen(step: int | None, source: SourceConfig) -> str | None:
    if step is None:
        return "no step trained on it"
    is_late = source.last_step is not None and step > source.last_step
    return "of another step" if step < source.first_step or is_late else None


def _batches(taken: list[tuple[str, GroupFacts]], config: RunConfig) -> Iterator[list[str]]:
    """The ids of each step's groups, by the recorded steps or by the configured size; only whole batches."""
    if config.source.batches == "recorded":
        for _, groups in groupby(taken, key=lambda one: (one[0], one[1].step)):
            yield [group.id for _, group in groups]
        return
    size = config.algorithm.groups_per_step
    for start in range(0, len(taken) - size + 1, size):
        yield [group.id for _, group in taken[start : start + size]]


def _too_few(num_batches: int, skipped: Counter[str], config: RunConfig) -> str:
    left_out = ", ".join(f"{num} {reason}" for reason, num in skipped.items()) or "none"
    what_to_do = f"set train.steps={num_batches} or less" if num_batches else "choose other runs or steps"
    return (
        f"source.runs={config.source.runs}: there are groups for {num_batches} steps, and train.steps="
        f"{config.train.steps}; {what_to_do}. Groups left out: {left_out}"
    )


def _check_readable(run: str, trajectory: Trajectory, renderer: Renderer, config: RunConfig) -> None:
    """The model's tokenizer and template are those that the ids were made with. Raises ModelError."""
    where = f"source.runs: run {run} was sampled with"
    remedy = f"model.path={config.model.path} can't be trained on its ids. Start from the model of that run"
    theirs = trajectory.template_hash
    if theirs != renderer.template_hash:
        raise ModelError(
            f"{where} the chat template {theirs[:12]}, the model's is {renderer.template_hash[:12]}: {remedy}"
        )
    turn = trajectory.turns_of()[0]
    read = renderer.decode(trajectory.context(turn.index))
    texts = [message.text for message in turn.prompt_messages if message.role == "user"]
    if not all(renderer.decode(renderer.encode_text(text)).strip() in read for text in texts):
        raise ModelError(f"{where} another vocabulary, in which its ids are {texts[0][:80]!r}: {remedy}")


def _first_trajectory(store: Store, group: str) -> Trajectory:
    """One in which the policy was asked for something: a fault may have come before that."""
    samples = store.load_group(group).samples
    return next(sample.trajectory for sample in samples if sample.trajectory.turns_of())


def _write(file: Path, stored: StoredGroups) -> None:
    """Whole or not at all: a run is killed at any moment."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(stored)), encoding="utf-8")
    os.replace(draft, file)
