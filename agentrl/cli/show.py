"""`agentrl show TRAJECTORY`: every turn with its tokens, mask, logprobs and versions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.cli.common import add_db_argument, existing_database
from agentrl.cli.transcript import ending_line, reward_text, visible
from agentrl.store.records import StepUse
from agentrl.types import Sample, Trajectory, Turn

Decode = Callable[[Sequence[int]], str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trajectory", help="its id, or the beginning of it")
    add_db_argument(parser)
    parser.add_argument("--model", help="model folder whose tokenizer shows the text of each id (the run's)")


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store:
        id = store.resolve("trajectory", options.trajectory)
        sample = store.load_sample(id)
        uses = store.steps_of(id)
        run_record = store.find_run(sample.trajectory.run)
    decode = _decoder(options.model or run_record.config.get("model_folder"))
    print("\n".join(_head(sample)))
    for turn in sample.trajectory.turns:
        print("\n".join(_turn_lines(sample.trajectory, turn, decode)))
    print(f"{ending_line(sample.trajectory)}  {reward_text(sample)}")
    print("".join(_use_line(use) for use in uses), end="")
    return 0


def _use_line(use: StepUse) -> str:
    row = use.row
    return (
        f"  trained on in step {use.step} of run {use.run} (ordinal {use.ordinal}): advantage {row.advantage:+.3f}, "
        f"ratio mean {_number(row.ratio_mean)} max {_number(row.ratio_max)}, clipped {_number(row.clip_share)}\n"
    )


def _head(sample: Sample) -> list[str]:
    trajectory = sample.trajectory
    return [
        f"trajectory {trajectory.id}  run {trajectory.run}  group {trajectory.group}",
        f"task {trajectory.task.id} of {trajectory.task.env} {trajectory.env_version}  sample {trajectory.sample}  "
        f"attempt {trajectory.attempt}  seed {trajectory.sampling_seed}",
        f"renderer {trajectory.renderer_mode}  template {trajectory.template_hash[:12]}",
    ]


def _turn_lines(trajectory: Trajectory, turn: Turn, decode: Decode | None) -> list[str]:
    return _sampled_lines(trajectory, turn, decode) if turn.trained else _untrained_lines(turn)


def _untrained_lines(turn: Turn) -> list[str]:
    """A turn of another agent (`ctx.chat`): text without ids, which is never trained on."""
    engine = turn.calls[0].engine if turn.calls else "?"
    lines = [f"turn {turn.index}  agent {visible(turn.agent)}  not trained  by {visible(engine)}"]
    lines += [f"  {message.role}: {visible(message.text)}" for message in turn.prompt_messages]
    return [*lines, f"  → {visible(turn.message.text)}"]


def _sampled_lines(trajectory: Trajectory, turn: Turn, decode: Decode | None) -> list[str]:
    versions = sorted(set(turn.versions))
    lines = [
        f"turn {turn.index}  sampler {turn.sampler}  context {len(trajectory.context(turn.index))} ids "
        f"(keeps {turn.keep}, new {len(turn.prompt_ids)})  sampled {len(turn.sampled_ids)}  versions {versions}"
    ]
    lines += [f"  {message.role}: {visible(message.text)}" for message in turn.prompt_messages]
    lines.append("  ids that nobody sampled (mask 0): " + _tokens(turn.prompt_ids, decode))
    lines.append("  sampled (mask 1): " + ("" if turn.sampled_ids else "nothing"))
    columns = zip(turn.sampled_ids, turn.logprobs, turn.versions, strict=True)
    for place, (token, logprob, version) in enumerate(columns):
        text = "" if decode is None else f"  {visible(decode([token]))!r}"
        lines.append(f"    {place:4d}  id {token:7d}  logprob {_number(logprob):>8}  version {version}{text}")
    for call in turn.tool_calls:
        start, end = call.span
        lines.append(
            f"  call {visible(call.call.name)}({visible(call.call.arguments)}) ids [{start}, {end}) {call.status} "
            f"→ {visible((call.result or '')[:200])}"
        )
    return lines


def _tokens(ids: list[int], decode: Decode | None) -> str:
    if decode is None:
        return " ".join(map(str, ids))
    return "|".join(visible(decode([token])).replace("\n", "\\n") for token in ids)


def _decoder(model: str | None) -> Decode | None:
    if model is None or not Path(model).is_dir():
        return None
    from agentrl.rollout.renderer import Renderer

    return Renderer.from_pretrained(model).decode


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.4f}"
