"""`agentrl show TRAJECTORY [--by mask|logprob|version]`: every turn with its tokens, mask, logprobs and versions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from agentrl.cli.colour import BY, NOT_SAMPLED, Printer, Style, joined, legend, style_by
from agentrl.cli.common import add_db_argument, existing_database
from agentrl.cli.transcript import ending_line, reward_text
from agentrl.store.records import StepUse
from agentrl.types import ParsedCall, Sample, Sampler, Trajectory, Turn
from agentrl.visible import visible

Decode = Callable[[Sequence[int]], str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trajectory", help="its id, or the beginning of it")
    add_db_argument(parser)
    parser.add_argument("--by", choices=BY, default="mask", help="what colours the sampled tokens (mask)")
    parser.add_argument("--model", help="model folder whose tokenizer shows the text of each id (the run's)")


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store:
        id = store.resolve("trajectory", options.trajectory)
        sample = store.load_sample(id)
        uses = store.steps_of(id)
        run_record = store.find_run(sample.trajectory.run)
    decode = _decoder(options.model or run_record.config.get("model_folder"))
    printer = Printer()
    lines: list[str | Text] = [*_head(sample), *([legend(options.by)] if printer.has_colours else [])]
    for turn in sample.trajectory.turns:
        lines += _turn_lines(sample.trajectory, turn, decode, style_by(options.by))
    lines += [f"{ending_line(sample.trajectory)}  {reward_text(sample)}", *map(_use_line, uses)]
    for line in lines:
        printer.line(line)
    return 0


def _use_line(use: StepUse) -> str:
    row = use.row
    return (
        f"  trained on in step {use.step} of run {use.run} (ordinal {use.ordinal}): advantage {row.advantage:+.3f}, "
        f"ratio mean {_number(row.ratio_mean)} max {_number(row.ratio_max)}, clipped {_number(row.clip_share)}"
    )


def _head(sample: Sample) -> list[str]:
    trajectory = sample.trajectory
    return [
        f"trajectory {trajectory.id}  run {trajectory.run}  group {trajectory.group}",
        f"task {trajectory.task.id} of {trajectory.task.env} {trajectory.env_version}  sample {trajectory.sample}  "
        f"attempt {trajectory.attempt}  seed {trajectory.sampling_seed}",
        f"renderer {trajectory.renderer_mode}  template {trajectory.template_hash[:12]}",
    ]


def _turn_lines(trajectory: Trajectory, turn: Turn, decode: Decode | None, style: Style) -> list[str | Text]:
    is_text = turn.sampler is Sampler.TEXT or not turn.trained
    return _text_lines(turn) if is_text else _sampled_lines(trajectory, turn, decode, style)


def _text_lines(turn: Turn) -> list[str | Text]:
    """A turn of another agent (`ctx.chat`), or of a policy that gives text alone: never trained on."""
    engine = turn.calls[0].engine if turn.calls else "?"
    lines: list[str | Text] = [f"turn {turn.index}  agent {visible(turn.agent)}  not trained  by {visible(engine)}"]
    lines += [f"  {message.role}: {visible(message.text)}" for message in turn.prompt_messages]
    said = [f"  → {visible(turn.message.text)}"] if turn.message.text or not turn.tool_calls else []
    return [*lines, *said, *map(_call_line, turn.tool_calls)]


def _sampled_lines(trajectory: Trajectory, turn: Turn, decode: Decode | None, style: Style) -> list[str | Text]:
    versions = sorted(set(turn.versions))
    lines: list[str | Text] = [
        f"turn {turn.index}  sampler {turn.sampler}  context {len(trajectory.context(turn.index))} ids "
        f"(keeps {turn.keep}, new {len(turn.prompt_ids)})  sampled {len(turn.sampled_ids)}  versions {versions}"
    ]
    lines += [f"  {message.role}: {message.text}" for message in turn.prompt_messages]
    dull = [(text, NOT_SAMPLED) for text in _tokens(turn.prompt_ids, decode)]
    lines.append(joined([("  ids that nobody sampled (mask 0): ", ""), *dull]))
    columns = list(zip(turn.sampled_ids, turn.logprobs, turn.versions, strict=True))
    styles = [style(logprob, version) for _, logprob, version in columns]
    bright = list(zip(_tokens(turn.sampled_ids, decode), styles, strict=True)) or [("nothing", "")]
    lines.append(joined([("  sampled (mask 1): ", ""), *bright]))
    for place, (token, logprob, version) in enumerate(columns):
        text = "" if decode is None else f"  {decode([token])!r}"
        row = f"    {place:4d}  id {token:7d}  logprob {_number(logprob):>8}  version {version}{text}"
        lines.append(joined([(row, styles[place])]))
    return [*lines, *map(_call_line, turn.tool_calls)]


def _call_line(call: ParsedCall) -> str:
    start, end = call.span
    place = f"ids [{start}, {end}) " if end else ""
    return f"  call {call.call.name}({call.call.arguments}) {place}{call.status} → {(call.result or '')[:200]}"


def _tokens(ids: list[int], decode: Decode | None) -> list[str]:
    """Each id's text with what parts it from the next."""
    if decode is None:
        return [f"{token} " for token in ids]
    return [
        decode([token]).replace("\n", "\\n") + ("|" if place < len(ids) else "") for place, token in enumerate(ids, 1)
    ]


def _decoder(model: str | None) -> Decode | None:
    if model is None or not Path(model).is_dir():
        return None
    from agentrl.rollout.renderer import Renderer

    return Renderer.from_pretrained(model).decode


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.4f}"
