"""What a run tells the world while it goes: a metrics file, a curve, and whoever watches."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentrl.evaluation import outcome
from agentrl.types import Group, Sample, Sampler


class Watcher(Protocol):
    """A display. All calls return at once."""

    def phase(self, name: str, total: int) -> None:
        """Work of `total` parts begins."""

    def advance(self) -> None:
        """One part is done."""

    def event(self, kind: str, values: dict[str, Any]) -> None:
        """Something was measured: kind is run, model, sft, eval, step or note."""


class Silent:
    """Nobody watches."""

    def phase(self, name: str, total: int) -> None: ...

    def advance(self) -> None: ...

    def event(self, kind: str, values: dict[str, Any]) -> None: ...


class MetricsFile:
    """metrics.jsonl: one JSON object per event, flushed as it happens. A metric without a value is absent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, values: dict[str, Any]) -> None:
        record = {"kind": kind, "time": round(time.time(), 3), **plain(values)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def plain(value: Any) -> Any:
    """A value as JSON can hold it. Under a key, NaN is left out: a metric without a value is absent (L03).

    Infinities, which say that something went wrong, and NaN in a list become None.
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if not _is_nan(item)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def num_duplicates(groups: Sequence[Group]) -> int:
    """Samples that sampled the very ids of an earlier sample of their group: many mean that seeds don't reach the
    engine, or that the policy has collapsed."""
    count = 0
    for group in groups:
        said = [tuple(tuple(turn.sampled_ids) for turn in s.trajectory.turns) for s in group.samples]
        said = [ids for ids in said if ids]
        count += len(said) - len(set(said))
    return count


def rollout_metrics(groups: Sequence[Group], seconds: float | None) -> dict[str, Any]:
    """What a step's rollouts were like. Counts trajectories, never Rows. `seconds` None: they were played earlier."""
    samples = [sample for group in groups for sample in group.samples]
    turns = [turn for sample in samples for turn in sample.trajectory.turns_of()]
    calls = Counter(str(call.status) for turn in turns for call in turn.tool_calls)
    num_sampled = sum(sample.trajectory.num_sampled for sample in samples)
    scripted = [sample for sample in samples if _is_scripted(sample)]
    rewards = [sample.reward for sample in samples if sample.reward is not None and sample not in scripted]
    return {
        "rollouts": len(samples),
        "scripted_rollouts": len(scripted),
        "policy_reward_mean": sum(rewards) / len(rewards) if rewards else math.nan,
        "turns_mean": sum(len(s.trajectory.turns_of()) for s in samples) / len(samples) if samples else math.nan,
        "num_sampled_tokens": num_sampled,
        "turn_tokens_max": max((len(turn.sampled_ids) for turn in turns if turn.trained), default=0),
        "duplicate_completions": num_duplicates(groups),
        "prefix_breaks": sum(sample.trajectory.num_prefix_breaks for sample in samples),
        "tokens_per_s": math.nan if seconds is None else num_sampled / seconds,
        **outcome(samples),
        "tool_calls": dict(calls),
        "unmeasured_reasons": dict(Counter(s.grade.unmeasured for s in samples if s.grade and s.grade.unmeasured)),
    }


def _is_scripted(sample: Sample) -> bool:
    """Did the environment's oracle play it (algorithm.oracle_samples)?"""
    return any(turn.sampler is Sampler.SCRIPTED for turn in sample.trajectory.turns_of())


@contextmanager
def phase(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Put the wall time of a block into `seconds[name]`."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = time.monotonic() - started


@dataclass(kw_only=True, slots=True)
class Summary:
    """summary.json: how a run went, and where everything is."""

    run: str
    command: str
    env: str
    seed: int
    seconds: float
    steps: int
    held_out_before: float | None
    held_out_after: float | None
    sampled_before: float | None
    sampled_after: float | None
    num_held_out_tasks: int
    evals: dict[str, dict[str, Any]]
    """greedy_before, sampled_after, …: the whole of each held-out measure (see EvalResult)."""
    references: dict[str, float]
    """What the environment says beside them, see Environment.references."""
    paths: dict[str, str]
    phase_seconds: dict[str, float] = field(default_factory=dict)
    missing_images: dict[str, str] = field(default_factory=dict)
    """Image that wasn't there → why; the tasks that need it were left out (R2)."""

    def write(self, folder: Path) -> None:
        text = json.dumps(plain(asdict(self)), indent=2)
        (folder / "summary.json").write_text(text + "\n", encoding="utf-8")


def draw_curve(metrics_file: Path, picture: Path) -> None:
    """Reward per step and held-out success, from the metrics file, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    # A resumed run measures some steps again: the last record of each counts.
    steps = list({r["ordinal"]: r for r in records if r["kind"] == "step" and "reward_mean" in r}.values())
    evals = list({(r["ordinal"], r["sampling"]): r for r in records if r["kind"] == "eval"}.values())
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(
        [r["ordinal"] + 0.5 for r in steps], [r["reward_mean"] for r in steps], label="reward of a step's rollouts"
    )
    for sampling, marker in (("greedy", "o-"), ("sampled", "s--")):
        points = [r for r in evals if r["sampling"] == sampling and "success" in r]
        if points:
            places, success = [r["ordinal"] for r in points], [r["success"] for r in points]
            axes.plot(places, success, marker, label=f"held-out, {sampling}")
    axes.set(xlabel="GRPO step", ylabel="reward, share solved")
    if all(0 <= r["reward_mean"] <= 1 for r in steps):
        axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(picture, dpi=120)
