"""`agentrl show TRAJECTORY [--by mask|logprob|version]`: every turn with its tokens, logprobs, versions, advantages."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from agentrl.cli.colour import BY, NOT_SAMPLED, Printer, Style, joined, legend, style_by
from agentrl.cli.common import add_db_argument, existing_database
from agentrl.cli.transcript import ending_line, reward_text
from agentrl.figures import precise, signed
from agentrl.replay.rows import Learned, learned, shown_step
from agentrl.replay.tokens import Decode, decoder
from agentrl.store.records import StepUse
from agentrl.types import ParsedCall, Sample, Sampler, Trajectory, Turn
from agentrl.visible import visible

if TYPE_CHECKING:
    from agentrl.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trajectory", help="its id, or the beginning of it")
    add_db_argument(parser)
    add_show_arguments(parser)


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """What `show` reads."""
    parser.add_argument("--by", choices=BY, default="mask", help="what colours the sampled tokens (mask)")
    parser.add_argument("--model", help="model folder whose tokenizer shows the text of each id (the run's)")


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store:
        show(store, store.resolve("trajectory", options.trajectory), options)
    return 0


def show(store: Store, id: str, options: argparse.Namespace, *, every_id: bool = False) -> None:
    """Print a trajectory. `every_id`: a line also for each id that nobody sampled."""
    sample, uses = store.load_sample(id), store.steps_of(id)
    trajectory = sample.trajectory
    decode = decoder(options.model or store.find_run(trajectory.run).config.get("model_folder"))
    printer = Printer()
    of_step = learned(trajectory, [use.row for use in shown_step(uses)])
    lines: list[str | Text] = [*_head(sample), *([legend(options.by)] if printer.has_colours else [])]
    for turn in trajectory.turns:
        show_tokens = TokenLines(decode, style_by(options.by), of_step.get(turn.index, []), every_id)
        lines += _turn_lines(trajectory, turn, show_tokens)
    lines += [f"{ending_line(trajectory)}  {reward_text(sample)}", *map(use_line, uses)]
    for line in lines:
        printer.line(line)


def use_line(use: StepUse) -> str:
    """A step that trained on the trajectory, with what it recorded of this Row."""
    row = use.row
    return (
        f"  trained on in step {use.step} of run {use.run} (ordinal {use.ordinal}): advantage {signed(row.advantage)}, "
        f"ratio mean {precise(row.ratio_mean)} max {precise(row.ratio_max)}, clipped {precise(row.clip_share)}"
    )


def _head(sample: Sample) -> list[str]:
    trajectory = sample.trajectory
    origin = trajectory.forked_from
    fork = f"  forked from trajectory {origin[0]} at turn {origin[1]}" if origin else ""
    return [
        f"trajectory {trajectory.id}  run {trajectory.run}  group {trajectory.group}{fork}",
        f"task {trajectory.task.id} of {trajectory.task.env} {trajectory.env_version}  sample {trajectory.sample}  "
        f"attempt {trajectory.attempt}  seed {trajectory.sampling_seed}",
        f"renderer {trajectory.renderer_mode}  template {trajectory.template_hash[:12]}",
    ]


def _turn_lines(trajectory: Trajectory, turn: Turn, tokens: TokenLines) -> list[str | Text]:
    is_text = turn.sampler is Sampler.TEXT or turn.agent != "main"
    return _text_lines(turn) if is_text else _sampled_lines(trajectory, turn, tokens)


def _text_lines(turn: Turn) -> list[str | Text]:
    """A turn of another agent (`ctx.chat`), or of a policy that gives text alone: never trained on."""
    engine = turn.calls[0].engine if turn.calls else "?"
    lines: list[str | Text] = [f"turn {turn.index}  agent {visible(turn.agent)}  not trained  by {visible(engine)}"]
    lines += [f"  {message.role}: {visible(message.text)}" for message in turn.prompt_messages]
    said = [f"  → {visible(turn.message.text)}"] if turn.message.text or not turn.tool_calls else []
    return [*lines, *said, *map(_call_line, turn.tool_calls)]


def _sampled_lines(trajectory: Trajectory, turn: Turn, tokens: TokenLines) -> list[str | Text]:
    lines: list[str | Text] = [
        f"turn {turn.index}  sampler {turn.sampler}  context {len(trajectory.context(turn.index))} ids "
        f"(keeps {turn.keep}, new {len(turn.prompt_ids)})  sampled {len(turn.sampled_ids)}  "
        f"versions {sorted(set(turn.versions))}"
    ]
    lines += [f"  {message.role}: {message.text}" for message in turn.prompt_messages]
    return [*lines, *tokens.prompt(turn), *tokens.sampled(turn), *map(_call_line, turn.tool_calls)]


@dataclass(frozen=True, slots=True)
class TokenLines:
    """The ids of one turn: all in a row, then one to a line."""

    decode: Decode | None
    style: Style
    learned: Sequence[Learned | None]
    """What a step made of each sampled id; empty: no step has used the turn."""
    every_id: bool

    def prompt(self, turn: Turn) -> list[Text]:
        """What nobody sampled."""
        dull = [(text, NOT_SAMPLED) for text in _tokens(turn.prompt_ids, self.decode)]
        rows = [
            (f"    {place:4d}  id {token:7d}  mask 0{self._text(token)}", NOT_SAMPLED)
            for place, token in enumerate(turn.prompt_ids)
        ]
        lines = [joined([("  ids that nobody sampled (mask 0): ", ""), *dull])]
        return [*lines, *(joined([row]) for row in rows if self.every_id)]

    def sampled(self, turn: Turn) -> list[Text]:
        """What was sampled, with logprob, version and advantage."""
        columns = list(zip(turn.sampled_ids, turn.logprobs, turn.versions, strict=True))
        styles = [self.style(logprob, version) for _, logprob, version in columns]
        bright = list(zip(_tokens(turn.sampled_ids, self.decode), styles, strict=True)) or [("nothing", "")]
        mask = "  mask 1" if self.every_id else ""
        rows = [
            f"    {place:4d}  id {token:7d}{mask}  logprob {precise(logprob):>8}  version {version}"
            f"{self._advantage(place)}{self._text(token)}"
            for place, (token, logprob, version) in enumerate(columns)
        ]
        lines = [joined([("  sampled (mask 1): ", ""), *bright])]
        return [*lines, *(joined([row]) for row in zip(rows, styles, strict=True))]

    def _text(self, token: int) -> str:
        return "" if self.decode is None else f"  {self.decode([token])!r}"

    def _advantage(self, place: int) -> str:
        its = self.learned[place] if self.learned else None
        if its is None:
            return ""
        return f"  advantage {signed(its.advantage)}" + (f" weight {its.weight:g} ({its.reason})" if its.reason else "")


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
