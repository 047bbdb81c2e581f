"""A recorder that keeps everything in memory, in the order in which it was told."""

from __future__ import annotations

import copy

from agentrl.types import Grade, Trajectory, Turn


class MemoryRecorder:
    """A `rollout.recorder.Recorder` for tests of the loop alone."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.turns: list[tuple[str, Turn]] = []
        self.finished: list[Trajectory] = []
        self.grades: list[tuple[str, Grade]] = []

    async def begin(self, trajectory: Trajectory, lease_generation: int) -> None:
        self.begun.append(trajectory.id)

    async def add_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        self.turns.append((trajectory.id, copy.deepcopy(turn)))

    async def update_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        assert (trajectory.id, turn.index) in {(id, kept.index) for id, kept in self.turns}

    async def finish(self, trajectory: Trajectory) -> None:
        assert trajectory.stop_reason is not None
        self.finished.append(copy.deepcopy(trajectory))

    async def add_grade(self, trajectory: Trajectory, grade: Grade, lease_generation: int | None = None) -> int:
        self.grades.append((trajectory.id, grade))
        return len(self.grades)
