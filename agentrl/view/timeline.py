"""Where the time of a trajectory went: a bar over its turns, in pieces by phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from agentrl.types import Trajectory, Turn

WIDTH = 1000
"""Units across the whole bar."""
PHASES = ("render", "sample", "tools", "env")
"""In the order in which they come; others are drawn as the last."""


class Piece(NamedTuple):
    """A stretch of the bar."""

    turn: int
    phase: str
    number: int
    """Of its phase: how it is drawn."""
    start: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    seconds: float
    pieces: list[Piece]
    phases: list[tuple[str, int, float]]
    """(name, how it is drawn, seconds in all)."""


def timeline(trajectory: Trajectory) -> Timeline | None:
    """None: no time is known."""
    turns = [turn for turn in trajectory.turns if turn.started_at]
    ends = [turn.started_at + sum(turn.timings.values()) for turn in turns]
    if not turns:
        return None
    first = min([trajectory.started_at or turns[0].started_at, *(turn.started_at for turn in turns)])
    total = max([trajectory.finished_at or 0.0, *ends]) - first
    if total <= 0:
        return None
    pieces = [piece for turn in turns for piece in _pieces(turn, first, total)]
    names = sorted({piece.phase for piece in pieces}, key=lambda name: (_number(name), name))
    spent = [sum(piece.seconds for piece in pieces if piece.phase == name) for name in names]
    return Timeline(total, pieces, list(zip(names, map(_number, names), spent, strict=True)))


def _pieces(turn: Turn, first: float, total: float) -> Iterator[Piece]:
    at = turn.started_at - first
    for phase in sorted(turn.timings, key=lambda name: _number(name)):
        seconds = turn.timings[phase]
        yield Piece(turn.index, phase, _number(phase), WIDTH * at / total, WIDTH * seconds / total, seconds)
        at += seconds


def _number(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)
