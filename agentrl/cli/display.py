"""Live progress: one line per event, and under it a bar for the phase that runs where there is a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentrl.figures import duration, number
from agentrl.progress import Summary


class Display:
    """A `progress.Watcher` on the console."""

    def __init__(self, total_steps: int = 0) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.total_steps = total_steps
        self.held_out: float | None = None
        self._first_step_at: float | None = None
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def phase(self, name: str, total: int) -> None:
        """See Watcher."""
        self._bar.reset(self._task, description=name, total=total)

    def advance(self) -> None:
        """See Watcher."""
        self._bar.advance(self._task)

    def event(self, kind: str, values: dict[str, Any]) -> None:
        """See Watcher."""
        line = getattr(self, f"_{kind}_line")(values)
        if line:
            self.console.print(line, markup=False)

    def _run_line(self, values: dict[str, Any]) -> str:
        return f"{values['command']}: run {values['run']} in {values['folder']}"

    def _end_line(self, values: dict[str, Any]) -> str:
        if values["status"] == "completed" or values["command"] not in ("train", "eval"):
            return ""
        again = f"agentrl {values['command']} --resume {values['run']} --db {values['database']}"
        return f"{values['status']}; go on with: {again}"

    def _model_line(self, values: dict[str, Any]) -> str:
        lines = []
        if values["tools_in_system"]:
            lines.append("the chat template doesn't show tools as they are called: the system message describes them")
        if values.get("template", {}).get("prints_date"):  # a hosted run knows no template
            lines.append("the chat template prints today's date: prompts of another day differ")
        return "\n".join(f"  {line}" for line in lines)

    def _source_line(self, values: dict[str, Any]) -> str:
        left_out = ", ".join(f"{num} {reason}" for reason, num in values["skipped"].items())
        runs = ", ".join(values["runs"])
        return f"  replay of {runs}: groups for {values['num_steps']} steps; left out: {left_out or 'none'}"

    def _gate_line(self, values: dict[str, Any]) -> str:
        return ""

    def _engine_lost_line(self, values: dict[str, Any]) -> str:
        return f"  engine {values['engine']} is lost: {values['error'].partition(chr(10))[0]}"

    def _engine_restarted_line(self, values: dict[str, Any]) -> str:
        return f"  engine {values['engine']} was started anew"

    def _sandbox_line(self, values: dict[str, Any]) -> str:
        lines = [f"the sandbox {values['backend']} doesn't enforce here: {limit}" for limit in values["not_enforced"]]
        if values["num_swept"]:
            lines.append(f"{values['num_swept']} boxes of dead runs were removed")
        return "\n".join(f"  {line}" for line in lines)

    def _image_missing_line(self, values: dict[str, Any]) -> str:
        return f"  the tasks in image {values['image']} are left out: {values['error'].partition(chr(10))[0]}"

    def _excluded_line(self, values: dict[str, Any]) -> str:
        counts = ", ".join(f"{num} {split}" for split, num in values.items() if split != "list")
        return f"  left out by {values['list']}: {counts} tasks"

    def _sft_line(self, values: dict[str, Any]) -> str:
        done = values["ordinal"] + 1
        return f"  sft {done:4d}  loss {number(values['loss'])}" if done % 25 == 0 else ""

    def _eval_line(self, values: dict[str, Any]) -> str:
        if values["sampling"] == "greedy":
            self.held_out = values.get("success")
        return f"  held-out after {values['ordinal']} steps, {eval_text(values)}  ({values['seconds']:.0f} s)"

    def _step_line(self, values: dict[str, Any]) -> str:
        self._first_step_at = self._first_step_at or time.monotonic() - sum(values["seconds"].values())
        done = values["ordinal"] + 1
        left = (time.monotonic() - self._first_step_at) / done * max(0, self.total_steps - done)
        phases = " ".join(f"{name} {seconds:.1f}" for name, seconds in values["seconds"].items())
        left_out = f" ({values['num_unmeasured']} unmeasured)" if values["num_unmeasured"] else ""
        if values["scripted_rollouts"]:
            left_out = f" (policy {number(values['policy_reward_mean'])}, the rest is the oracle's)" + left_out
        speed = "" if math.isnan(values["tokens_per_s"]) else f"{values['tokens_per_s']:5.0f} tokens/s  "
        return (
            f"  step {done:3d}/{self.total_steps}  reward {number(values['reward_mean'])}{left_out}  "
            f"held-out {number(self.held_out)}  {speed}"
            f"left {duration(left)}  [{phases} s]{why_not_normal(values)}"
        )


def references_text(references: dict[str, float]) -> str:
    """`random 0.014, optimal 1`"""
    return ", ".join(f"{name} {f'{value:.3f}'.rstrip('0').rstrip('.')}" for name, value in references.items())


def why_not_normal(values: dict[str, Any]) -> str:
    """What to say of a step that changed no weights, or not with all of its updates; empty for a normal one."""
    if values["num_skipped_updates"]:
        return f"  SKIPPED {values['num_skipped_updates']} updates: {', '.join(values['skipped_updates'].values())}"
    if values["num_updates"]:
        return ""
    if not values["num_groups"]:
        return "  NO SIGNAL: no group has two measured samples"
    shares = (f"{values[name]:.0%} {what}" for name, what in (("all_zero_share", "all 0"), ("all_one_share", "all 1")))
    return (
        f"  NO SIGNAL: rewards are equal within {values['zero_variance_share']:.0%} of the groups ({', '.join(shares)})"
    )


def eval_text(values: dict[str, Any]) -> str:
    """An evaluation's figures on one line: what was scored, how sure it is, and what could not be measured."""
    samples = values["samples_per_task"]
    name = f"{values['sampling']}" + (f", avg@{samples}" if samples > 1 else "")
    text = f"{name}: {number(values.get('success'))}{interval(values.get('success_interval'))}"
    text += f" of {values['num_tasks']} tasks" + (f" × {samples} samples" if samples > 1 else "")
    if values["k"] > 1:
        text += f", pass@{values['k']} {number(values.get('pass_at_k'))}{interval(values.get('pass_at_k_interval'))}"
        if values["num_pass_tasks"] < values["num_tasks"]:
            text += f" of {values['num_pass_tasks']} tasks"
    if values["num_unmeasured"]:
        num_scored = values["num_samples"] - values["num_unmeasured"]
        classes = ", ".join(f"{name} {share['num']:.0f}" for name, share in values["failures"].items())
        text += f"; over the {num_scored} scored samples, of all {values['num_samples']} it is "
        text += f"{number(values['success_of_all'])}: {values['num_unmeasured']} unmeasured ({classes})"
    if values.get("references"):
        text += f", reward {number(values.get('reward'))} ({references_text(values['references'])})"
    return text


def interval(bounds: Sequence[float] | None) -> str:
    """A 95 % interval; nothing where there is none."""
    return "" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"


def closing_lines(summary: Summary) -> list[str]:
    """How it went, where everything is, and what to type next."""
    lines = []
    if summary.held_out_before is not None:
        after = "" if summary.held_out_after is None else f" → {number(summary.held_out_after)}"
        sampled = number(summary.sampled_before)
        if summary.sampled_after is not None:
            sampled += f" → {number(summary.sampled_after)}"
        lines.append(f"held-out success (greedy): {number(summary.held_out_before)}{after}   sampled: {sampled}")
    if summary.references:
        last = summary.evals.get("greedy_after") or summary.evals["greedy_before"]
        lines.append(f"held-out reward (greedy): {number(last.get('reward'))}   {references_text(summary.references)}")
    if summary.command == "eval":
        lines += [f"  {eval_text(values)}" for values in summary.evals.values()]
    if summary.missing_images:
        images = ", ".join(summary.missing_images)
        lines.append(f"left out, not measured: the tasks in {len(summary.missing_images)} images ({images})")
    lines.append(f"{summary.command} took {duration(summary.seconds)} (min:s), seed {summary.seed}")
    width = max(map(len, summary.paths))
    lines += [f"  {name:{width}}  {path}" for name, path in summary.paths.items()]
    return lines
