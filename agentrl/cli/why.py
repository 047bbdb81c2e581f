"""`agentrl why TRAJECTORY`: why it got its reward, and who trained on it; `--step N`: what a step learnt from."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentrl.cli.common import add_db_argument, existing_database
from agentrl.cli.transcript import reward_text
from agentrl.errors import ConfigError, StoreError
from agentrl.figures import number, precise, share, signed
from agentrl.progress import plain
from agentrl.types import Grade, Group, Sample, Sampler
from agentrl.unused import why_unused
from agentrl.visible import one_line, visible

if TYPE_CHECKING:
    from agentrl.store.records import RunRecord, StepRecord, StepRow, StepUse
    from agentrl.store.store import Store

MAX_OUTPUT_LINES = 12
"""Of what a grader wrote, the last lines are shown: one screen in all."""
MAX_SPANS = 4
"""Runs of ids with weight 0 that are shown of a Row."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trajectory", nargs="?", help="its id, or the beginning of it")
    parser.add_argument("--step", type=int, help="instead: what this step of --run learnt from")
    parser.add_argument("--run", dest="of_run", metavar="RUN", help="the run of --step (the newest)")
    parser.add_argument("--json", action="store_true", help="with --step: print JSON, with the whole config")
    add_db_argument(parser)


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    if (options.trajectory is None) == (options.step is None):
        raise ConfigError("name a trajectory, or a step: agentrl why TRAJECTORY, or agentrl why --step N --run RUN")
    if options.json and options.step is None:
        raise ConfigError("--json goes with --step N: a trajectory's story is told in words; leave it out")
    with Store.open(existing_database(options.db)) as store:
        if options.trajectory:
            print("\n".join(_of_trajectory(store, options.trajectory)))
            return 0
        run, step = _named_step(store, options)
        print(_step_as_json(store, run, step) if options.json else "\n".join(_of_step(store, run, step)))
    return 0


# ------------------------------------------------------------------------------------------------ a trajectory


def _of_trajectory(store: Store, prefix: str) -> Iterator[str]:
    id = store.resolve("trajectory", prefix)
    sample, uses, grades = store.load_sample(id), store.steps_of(id), store.grades_of(id)
    group = None if sample.trajectory.group is None else store.load_group(sample.trajectory.group)
    yield from _head(sample, group)
    yield from _ending(sample)
    yield from _grade_lines(sample.grade)
    if group is not None and len(group.samples) > 1:
        yield _siblings(group)
    if not uses:
        yield f"trained on by nobody: {why_unused(sample, group)}"
    for use in uses:
        yield from _use_lines(use, grades, sample.grade_id)


def _head(sample: Sample, group: Group | None) -> Iterator[str]:
    trajectory = sample.trajectory
    yield f"trajectory {trajectory.id} of run {trajectory.run}"
    place = "in no group" if group is None else f"sample {trajectory.sample} of {group.size} in group {group.id}"
    again = f", attempt {trajectory.attempt}" if trajectory.attempt else ""
    again += f", re-issue {trajectory.reissue}" if trajectory.reissue else ""
    purpose = "" if group is None else f", for {group.purpose}"
    yield f"  task      {_shown(trajectory.task.id)} of {_shown(trajectory.task.env)}, {place}{again}{purpose}"


def _ending(sample: Sample) -> Iterator[str]:
    trajectory = sample.trajectory
    trained = [turn for turn in trajectory.turns if turn.trained]
    versions = sorted({version for turn in trained for version in turn.versions} - {-1})
    others = sorted({turn.sampler.value for turn in trained if turn.sampler is not Sampler.ENGINE})
    by = [f"version {version}" for version in versions] + [f"sampler={name}" for name in others]
    how = f"{len(trajectory.turns)} turns, {trajectory.num_sampled} ids sampled by {', '.join(by) or 'nobody'}"
    yield f"  ending    {trajectory.stop_reason or 'none yet: it is running'} after {how}"
    if trajectory.error:
        yield f"  error     {_shown(trajectory.error)}"


def _grade_lines(grade: Grade | None) -> Iterator[str]:
    if grade is None:
        yield "  reward    none: it isn't graded"
        return
    by = f"  by {_shown(grade.grader) or 'an unnamed grader'} {_shown(grade.grader_version)}".rstrip()
    reward = number(grade.reward) if grade.reward is not None else f"unmeasured: {_shown(grade.unmeasured or '')}"
    yield f"  reward    {reward}{by}"
    if grade.parts:
        yield f"  parts     {', '.join(f'{_shown(name)} {number(part)}' for name, part in grade.parts.items())}"
    if grade.turn_rewards:
        yield f"  by turn   {' '.join(map(number, grade.turn_rewards))}"
    output = (grade.output or "").strip().splitlines()
    if len(output) > MAX_OUTPUT_LINES:
        yield f"  output    … {len(output) - MAX_OUTPUT_LINES} lines before these"
    for place, line in enumerate(output[-MAX_OUTPUT_LINES:]):
        label = "output" if place == 0 and len(output) <= MAX_OUTPUT_LINES else ""
        yield f"  {label:9} {visible(line)}"


def _siblings(group: Group) -> str:
    rewards = [reward_text(sample).removeprefix("reward ") for sample in group.samples]
    reason = f": {_shown(group.dropped_reason)}" if group.dropped_reason else ""
    return f"  group     {group.state}{reason}; rewards {', '.join(rewards)}"


def _use_lines(use: StepUse, grades: dict[int, Grade], latest: int | None) -> Iterator[str]:
    made = "no new version" if use.version_after is None else f"version {use.version_after}"
    abandoned = ", ABANDONED: a later resume went back before it" if use.abandoned else ""
    yield f"trained on by step {use.step} of run {use.run} (ordinal {use.ordinal}){abandoned}"
    age = "none: no earlier version of these weights sampled it" if use.staleness is None else str(use.staleness)
    yield f"  weights   version {use.version_before} → {made}; staleness {age}"
    row = use.row
    if row.grade_id is not None and row.grade_id != latest:
        yield f"  grade     an earlier one: {number(grades[row.grade_id].reward)}"
    batch = "in no batch" if row.batch < 0 else f"batch {row.batch}"
    yield f"  Row       up to turn {row.end_turn}, {batch}: advantage {signed(row.advantage)}"
    yield f"  ratio     mean {precise(row.ratio_mean)}, max {precise(row.ratio_max)}, clipped {share(row.clip_share)}"
    yield from _weight_lines(row)


def _weight_lines(row: StepRow) -> Iterator[str]:
    """Which ids don't count, and why."""
    reasons: dict[str, list[str]] = {}
    for start, end, weight, reason in row.weights:
        what = f"{'weight 0' if weight == 0 else f'weight {weight:g}'}: {_shown(reason or 'no reason')}"
        reasons.setdefault(what, []).append(f"[{start}, {end})")
    for what, spans in reasons.items():
        more = f" and {len(spans) - MAX_SPANS} more" if len(spans) > MAX_SPANS else ""
        yield f"  {what}, ids {' '.join(spans[:MAX_SPANS])}{more}"


# ------------------------------------------------------------------------------------------------------ a step


def _named_step(store: Store, options: argparse.Namespace) -> tuple[RunRecord, StepRecord]:
    """Raises StoreError where there is no such run or step."""
    runs = store.runs()
    if not runs:
        raise StoreError(f"{store.location} has no runs")
    run = runs[0] if options.of_run is None else store.find_run(options.of_run)
    steps = {step.id: step for step in store.steps(run.id)}
    if options.step not in steps:
        known = f"0 to {max(steps)}" if steps else "none"
        raise StoreError(f"run {run.id} has no step {options.step}; it has {known}")
    return run, steps[options.step]


def _of_step(store: Store, run: RunRecord, step: StepRecord) -> Iterator[str]:
    """The step's weights, config and metrics, and each Row that it learnt from."""
    yield f"step {step.id} of run {run.id} ({_shown(run.name)}), ordinal {step.ordinal}, {_state(step)}"
    hashes = _weights_hashes(store, step)
    for name, version in (("from", step.version_before), ("to", step.version_after)):
        yield f"  {name:9} " + (
            "no new version" if version is None else f"version {version}, weights {hashes[version]}"
        )
    yield from _config_lines(run)
    for name, value in (step.metrics or {}).items():
        if isinstance(value, int | float):
            yield f"    {name:28}{precise(value)}"
    yield from _row_table(store, run.id, step)


def _config_lines(run: RunRecord) -> Iterator[str]:
    """What of the run's config a step depends on, by section; the whole of it is in `--json`."""
    config = run.config
    learner = ("sft", "train") if config.get("command") == "sft" else ("source", "algorithm", "train")
    for section in ("env", "model", "sampling", *learner):
        values = config.get(section, {}).items()
        texts = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in values)
        text = " ".join(f"{name}={_shown(value)}" for name, value in texts if value != "null")
        lines = textwrap.wrap(text, 106, break_long_words=False, break_on_hyphens=False)
        yield from (f"  {'' if number else section:9} {line}" for number, line in enumerate(lines))
    yield f"  {'seed':9} {run.seed}"


def _step_as_json(store: Store, run: RunRecord, step: StepRecord) -> str:
    hashes = _weights_hashes(store, step)
    before, after = step.version_before, step.version_after
    whole = asdict(step) | {
        "weights_before": hashes[before],
        "weights_after": None if after is None else hashes[after],
        "config": run.config,
        "rows": [asdict(row) for row in store.rows_of(run.id, step.id)],
    }
    return json.dumps(plain(whole), indent=2)


def _weights_hashes(store: Store, step: StepRecord) -> dict[int, str]:
    return {version.id: version.weights_hash for version in store.versions(step.run)}


def _row_table(store: Store, run: str, step: StepRecord) -> Iterator[str]:
    rows = store.rows_of(run, step.id)
    yield f"  {len(rows)} Rows" + (":" if rows else "")
    for row in rows:
        grades = store.grades_of(row.trajectory)
        reward = None if row.grade_id is None else grades[row.grade_id].reward
        silent = {reason for _, _, weight, reason in row.weights if weight == 0}
        why = f"  weight 0: {', '.join(sorted(_shown(reason or '') for reason in silent))}" if silent else ""
        numbers = f"reward {precise(reward)}  advantage {signed(row.advantage)}  ratio max {precise(row.ratio_max)}"
        yield f"    {row.trajectory}  turn {row.end_turn}  {numbers}  clipped {share(row.clip_share)}{why}"


def _state(step: StepRecord) -> str:
    return f"{step.state}, ABANDONED" if step.abandoned else str(step.state)


def _shown(text: str) -> str:
    return one_line(text)
