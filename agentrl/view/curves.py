"""The curves of a run, from its steps in the store and from the metrics file in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.overview import events
from agentrl.store import Endings, RunRecord, StepRecord, Store
from agentrl.types import StopReason
from agentrl.view.charts import Chart

Events = Sequence[dict[str, Any]]
NUM_SPANS = 40
"""Of the time in which a run's rollouts began."""
MORE = ("grad_norm", "entropy", "kl", "clip_share", "ratio_max", "learning_rate", "tokens_per_s", "zero_variance_share")
"""Of the metrics, those that have a curve of their own further down."""


def curves(store: Store, run: RunRecord, steps: Sequence[StepRecord], endings: Sequence[Endings]) -> list[Chart]:
    """Those that have anything to show, of all steps of the run and its endings by NUM_SPANS."""
    steps = _measured(steps)
    told = events(Path(run.folder)) if run.folder else ()
    charts = [
        *_learnt(steps),
        *_played(store, run, steps),
        *_told(told),
        endings_chart("endings of rollouts", endings),
    ]
    return [chart for chart in charts if chart.series]


def more_curves(run: RunRecord, steps: Sequence[StepRecord]) -> list[Chart]:
    """The rest of the metrics that matter."""
    steps = _measured(steps)
    told = [event for event in _of_kind(events(Path(run.folder)), "step")]
    charts = [Chart.of(name, {name: _metric(steps, name) or _values(told, name)}) for name in MORE]
    return [chart for chart in charts if chart.series]


def _measured(steps: Sequence[StepRecord]) -> list[StepRecord]:
    return [step for step in steps if not step.abandoned and step.metrics]


def _learnt(steps: Sequence[StepRecord]) -> Iterator[Chart]:
    rewards = {name: _metric(steps, f"reward_{name}") for name in ("mean", "min", "max")}
    yield Chart.of("reward", rewards)
    yield Chart.of("loss", {"loss": _metric(steps, "loss")})
    gaps = {name: _metric(steps, f"mismatch_{key}") for name, key in (("mean", "logprob_mean"), ("kl", "kl"))}
    yield Chart.of("mismatch of engine and trainer, nats", gaps)


def _played(store: Store, run: RunRecord, steps: Sequence[StepRecord]) -> Iterator[Chart]:
    facts = store.step_facts(run.id)
    known = [(step.ordinal, facts[step.id]) for step in steps if step.id in facts]
    yield Chart.of("turns of a rollout", {"mean": [(x, one.turns_mean) for x, one in known]})
    yield Chart.of("ids sampled in a rollout", {"mean": [(x, one.sampled_mean) for x, one in known]})
    yield Chart.of("staleness, versions", {"most": [(x, one.staleness) for x, one in known]})


def _told(told: Events) -> Iterator[Chart]:
    measured = {
        f"{sampling}": [
            (e["ordinal"], e.get("success")) for e in _of_kind(told, "eval") if e.get("sampling") == sampling
        ]
        for sampling in ("greedy", "sampled")
    }
    yield Chart.of("held-out success", measured)
    steps = list(_of_kind(told, "step"))
    phases = list(dict.fromkeys(name for event in steps for name in event.get("seconds", {})))
    spent = {name: [(e["ordinal"], e.get("seconds", {}).get(name)) for e in steps] for name in phases}
    yield Chart.of("seconds by phase", spent)


def endings_chart(
    title: str, found: Sequence[Endings], is_meant: Callable[[StopReason | None], bool] = lambda _: True
) -> Chart:
    """How many rollouts ended in each of the ways that are meant, over the time in which they began."""
    counts = {(one.stop_reason, _span(one, found[0])): one.num for one in found if is_meant(one.stop_reason)}
    if not counts:
        return Chart(title, [])
    name, unit_s = ("hour", 3600) if NUM_SPANS * found[0].seconds > 3 * 3600 else ("minute", 60)
    series = {
        str(reason or "running"): [
            (place * found[0].seconds / unit_s, counts.get((reason, place), 0)) for place in range(NUM_SPANS)
        ]
        for reason in dict.fromkeys(reason for reason, _ in counts)
    }
    return Chart.of(title, series, name)


def _span(one: Endings, first: Endings) -> int:
    return round((one.start - first.start) / one.seconds)


def _of_kind(told: Events, kind: str) -> Iterator[dict[str, Any]]:
    """A resumed run measures some steps again: the last event of each counts."""
    last = {
        (e["ordinal"], e.get("sampling")): e for e in told if e.get("kind") == kind and _is_number(e.get("ordinal"))
    }
    yield from sorted(last.values(), key=lambda event: event["ordinal"])


def _metric(steps: Sequence[StepRecord], name: str) -> list[tuple[float, float | None]]:
    found = [(step.ordinal, (step.metrics or {}).get(name)) for step in steps]
    return [(x, y) for x, y in found if y is not None]


def _values(told: Events, name: str) -> list[tuple[float, float | None]]:
    return [(event["ordinal"], event.get(name)) for event in told]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
