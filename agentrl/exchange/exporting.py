"""Stored trajectories → examples in a file. Only some of them are in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl import plugins
from agentrl.config import EnvSelection
from agentrl.errors import DamagedRecord, ExchangeError, PluginError, RowError
from agentrl.exchange.examples import (
    Column,
    Form,
    Source,
    message_examples,
    preference_examples,
    token_examples,
    whole_example,
)
from agentrl.exchange.files import writing
from agentrl.rollout.tokenizer import recorded_vocabulary
from agentrl.store.find import Selection
from agentrl.store.records import RunRecord, TrajectorySummary
from agentrl.store.store import Store
from agentrl.types import Sample, Trajectory

Json = dict[str, Any]
CHUNK = 32
"""Trajectories that are read at once."""
PAGE = 1000
"""Summaries that are read at once."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Order:
    """What to export."""

    form: Form
    which: Selection = field(default_factory=Selection)
    """Of what is finished."""
    columns: tuple[Column, ...] = ()
    """What a Row's example holds beside ids and mask."""
    best_of_group: bool = False
    """Of each group the sample with the highest reward, the first of equals; those in no group are left out."""
    tools: list[Json] | None = None
    """In place of those of the environments."""
    skip_damaged: bool = False
    """Leave out what can't be read; otherwise the export stops at it."""


@dataclass(kw_only=True, slots=True)
class Exported:
    """What became of it."""

    num_examples: int = 0
    num_trajectories: int = 0
    """That were selected."""
    splits: Counter[str] = field(default_factory=Counter)
    """Examples by split."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Trajectories (of preferences: groups) that were left out, by reason."""
    damaged: list[str] = field(default_factory=list)
    """What couldn't be read."""
    num_cleaned: int = 0
    """Examples with text that is no Unicode: lone surrogates became U+FFFD."""


def export(store: Store, order: Order, target: Path, *, overwrite: bool = False) -> Exported:
    """Write what is ordered to `target`: all of it, or nothing.

    Raises ExchangeError where there is nothing to write or an environment's tools aren't known, DamagedRecord, RowError
    and what `files.writing` raises.
    """
    work = _Export(store, order)
    with writing(target, order.form, order.columns, overwrite=overwrite) as sink:
        for example in work.examples():
            sink.write(example)
        if work.report.num_examples == 0:
            raise ExchangeError(_nothing(store, order, work.report))
    work.report.num_cleaned = 0 if order.form is Form.TRAJECTORIES else sink.num_cleaned
    return work.report


def _nothing(store: Store, order: Order, report: Exported) -> str:
    given = [f"{name}={value}" for name, value in order.which.items() if value is not None]
    which = ", ".join(given) or "anything"
    if report.num_trajectories == 0:
        return f"nothing to export: {store.location} has no finished trajectory with {which}"
    reasons = [f"{num}: {reason}" for reason, num in report.skipped.most_common()]
    reasons += [f"{len(report.damaged)}: damaged"] if report.damaged else []
    return (
        f"nothing to export as {order.form}: of {report.num_trajectories} trajectories with {which} all were "
        f"left out ({'; '.join(reasons)})"
    )


class _Export:
    """One export while it goes on."""

    def __init__(self, store: Store, order: Order) -> None:
        self.store = store
        self.order = order
        self.report = Exported()
        self._sources: dict[str, Source] = {}

    def examples(self) -> Iterator[Json]:
        if self.order.form is Form.PREFERENCES:
            for best, worst in self._pairs():
                yield from self._counted(self._of_pair(best, worst))
            return
        for ids in _chunks(one.id for one in self._chosen()):
            for sample in self._read(ids):
                yield from self._counted(self._of(sample))

    # ---- which

    def _chosen(self) -> Iterator[TrajectorySummary]:
        if self.order.best_of_group:
            return (group.best for group in self._groups() if group.best)
        return self._selected()

    def _pairs(self) -> Iterator[tuple[TrajectorySummary, TrajectorySummary]]:
        for group in self._groups():
            if group.best is None or group.worst is None or group.num_measured < 2:
                self.report.skipped["fewer than two measured samples in the group"] += 1
            elif group.best.reward == group.worst.reward:
                self.report.skipped["all rewards of the group are equal"] += 1
            else:
                yield group.best, group.worst

    def _groups(self) -> Iterable[_Group]:
        groups: dict[str, _Group] = {}
        for one in self._selected(final=True):
            if one.group is None:
                self.report.skipped["in no group"] += 1
            else:
                groups.setdefault(one.group, _Group()).add(one)
        return groups.values()

    def _selected(self, *, final: bool | None = None) -> Iterator[TrajectorySummary]:
        """The oldest first, so that a fork comes after its origin."""
        which: Selection = {**self.order.which, "final": final}
        after: tuple[float, str] | None = None
        while page := self.store.find_trajectories(limit=PAGE, after=after, oldest_first=True, **which):
            finished = [one for one in page if one.stop_reason is not None]
            self.report.num_trajectories += len(finished)
            yield from finished
            after = (page[-1].started_at, page[-1].id)

    # ---- what

    def _read(self, ids: Sequence[str]) -> Iterator[Sample]:
        try:
            yield from self.store.load_samples(ids)
        except DamagedRecord as error:
            if not self.order.skip_damaged:
                raise
            if len(ids) == 1:
                self.report.damaged.append(str(error))
            else:
                for id in ids:
                    yield from self._read([id])

    def _counted(self, made: Iterator[Json]) -> Iterator[Json]:
        """The examples of one trajectory or pair: all of them, or none where a record is damaged."""
        try:
            examples = list(made)
        except (DamagedRecord, RowError) as error:
            if not self.order.skip_damaged:
                raise
            self.report.damaged.append(str(error))
            return
        self.report.num_examples += len(examples)
        self.report.splits.update(map(_split, examples))
        yield from examples

    def _of(self, sample: Sample) -> Iterator[Json]:
        source, skipped = self._source(sample.trajectory), self.report.skipped
        if self.order.form is Form.MESSAGES:
            yield from message_examples(sample, source, skipped)
        elif self.order.form is Form.TOKENS:
            yield from token_examples(sample, source, self.order.columns, skipped)
        else:
            yield whole_example(sample, list(self.store.grades_of(sample.trajectory.id).values()), source)

    def _of_pair(self, best: TrajectorySummary, worst: TrajectorySummary) -> Iterator[Json]:
        chosen, rejected = self.store.load_samples([best.id, worst.id])
        yield from preference_examples(chosen, rejected, self._source(chosen.trajectory), self.report.skipped)

    def _source(self, trajectory: Trajectory) -> Source:
        if trajectory.run not in self._sources:
            self._sources[trajectory.run] = source_of(self.store.find_run(trajectory.run), self.order.tools)
        return self._sources[trajectory.run]


@dataclass(slots=True)
class _Group:
    """The extremes of a group's measured samples; of equals the first."""

    best: TrajectorySummary | None = None
    worst: TrajectorySummary | None = None
    num_measured: int = 0

    def add(self, one: TrajectorySummary) -> None:
        """Count it where it was measured."""
        if one.reward is None or one.stop_reason is None or not one.stop_reason.ending.in_baseline:
            return
        self.num_measured += 1
        self.best = max(self.best or one, one, key=_reward)
        self.worst = min(self.worst or one, one, key=_reward)


def _reward(one: TrajectorySummary) -> float:
    assert one.reward is not None
    return one.reward


def _split(example: Json) -> str:
    origin = example["provenance"]
    return str(origin.get("chosen", origin)["split"])


def _chunks(ids: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(ids, CHUNK)):
        yield chunk


def source_of(run: RunRecord, tools: list[Json] | None) -> Source:
    """What is known of a run; `tools`: in place of those of its environment."""
    vocabulary = recorded_vocabulary(run.config)
    if tools is not None:
        return Source(tools=lambda trajectory: tools, vocabulary=vocabulary)
    if run.config.get("command") == "import":
        return Source(tools=_imported_tools, vocabulary=vocabulary)
    found: list[list[Json]] = []

    def look_up(trajectory: Trajectory) -> list[Json]:
        if not found:
            found.append(_environment_tools(run))
        return found[0]

    return Source(tools=look_up, vocabulary=vocabulary)


def _imported_tools(trajectory: Trajectory) -> list[Json]:
    tools = trajectory.task.data.get("tools")
    if isinstance(tools, list):
        return tools  # type: ignore[return-value]
    raise ExchangeError(
        f"trajectory {trajectory.id} was imported whole, and its environment's tools weren't stored with it; name them "
        f"by --tools FILE, or --tools none"
    )


def _environment_tools(run: RunRecord) -> list[Json]:
    """Those that the environment names before a reset."""
    try:
        env = EnvSelection.model_validate(run.config["env"])
        return [tool.spec() for tool in plugins.environment(env.name)(env.options).tools]
    except (PluginError, ValidationError) as error:
        raise ExchangeError(
            f"the tools of run {run.id} can't be looked up: {' '.join(str(error).split())}. It was made with "
            f"{run.made_with}. Install that, or name the tools by --tools FILE, or --tools none"
        ) from None
