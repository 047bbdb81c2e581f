"""Live progress: one line per event, and under it a bar for the phase that runs where there is a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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

    def _sft_line(self, values: dict[str, Any]) -> str:
        done = values["ordinal"] + 1
        return f"  sft {done:4d}  loss {number(values['loss'])}" if done % 25 == 0 else ""

    def _eval_line(self, values: dict[str, Any]) -> str:
        if values["sampling"] == "greedy":
            self.held_out = values["success"]
        left_out = f", {values['num_unmeasured']} unmeasured left out" if values["num_unmeasured"] else ""
        return (
            f"  held-out after {values['ordinal']} steps, {values['sampling']}: {number(values['success'])} "
            f"of {values['num_tasks']} tasks{left_out}  ({values['seconds']:.0f} s)"
        )

    def _step_line(self, values: dict[str, Any]) -> str:
        self._first_step_at = self._first_step_at or time.monotonic() - sum(values["seconds"].values())
        done = values["ordinal"] + 1
        left = (time.monotonic() - self._first_step_at) / done * max(0, self.total_steps - done)
        phases = " ".join(f"{name} {seconds:.1f}" for name, seconds in values["seconds"].items())
        left_out = f" ({values['num_unmeasured']} unmeasured)" if values["num_unmeasured"] else ""
        return (
            f"  step {done:3d}/{self.total_steps}  reward {number(values['reward_mean'])}{left_out}  "
            f"held-out {number(self.held_out)}  {values['tokens_per_s']:5.0f} tokens/s  "
            f"left {duration(left)}  [{phases} s]{why_not_normal(values)}"
        )


def number(value: float | None) -> str:
    """Three digits; a dash where nothing was measured."""
    return "-" if value is None or value != value else f"{value:.3f}"


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


def duration(seconds: float) -> str:
    """`95` → `1:35`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def closing_lines(summary: Summary) -> list[str]:
    """How it went, where everything is, and what to type next."""
    lines = []
    if summary.held_out_before is not None:
        after = "" if summary.held_out_after is None else f" → {number(summary.held_out_after)}"
        sampled = number(summary.sampled_before)
        if summary.sampled_after is not None:
            sampled += f" → {number(summary.sampled_after)}"
        lines.append(f"held-out success (greedy): {number(summary.held_out_before)}{after}   sampled: {sampled}")
    lines.append(f"{summary.command} took {duration(summary.seconds)} (min:s), seed {summary.seed}")
    width = max(map(len, summary.paths))
    lines += [f"  {name:{width}}  {path}" for name, path in summary.paths.items()]
    return lines
